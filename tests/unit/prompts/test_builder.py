import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tinytokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from longctx import resources
from longctx.errors import DataError, PromptError
from longctx.prompts import builder, sources, token_stream, variants
from longctx.prompts.validation import validate
from longctx.prompts.variants import n_variants, read_ids
from longctx.storage import parquet, schemas, token_file

KINDS = ("fast", "tiktoken", "slow")


@pytest.fixture(scope="session")
def streams(tmp_path_factory):
    """A stream of 20,000 ids for each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("streams")
    spec = sources.CorpusSpec(str(tinytokenizers.corpus_folder()))
    for kind in (*KINDS, "lossy", "metaspace"):
        token_stream.build_stream(spec, tinytokenizers.load(kind), 20_000, folder / f"{kind}.parquet")
    return folder


def make(streams, out, length, kind="fast", shape="report"):
    return builder.build(streams / f"{kind}.parquet", str(shape), tinytokenizers.load(kind), length, out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 17, 100, 250, 1023, 1024, 4096, 16_384])
def test_every_length_is_exact_and_valid(streams, tmp_path, kind, length):
    make(streams, tmp_path / "p.parquet", length, kind)
    assert len(variants.read_ids(tmp_path / "p.parquet")) == length
    row = validate(tmp_path / "p.parquet", tinytokenizers.load(kind), length)
    assert row["ok"], row


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 3000))
def test_any_length_and_variant_survives_decoding_and_encoding(streams, tmp_path_factory, length):
    tokenizer = tinytokenizers.load("fast")
    path = tmp_path_factory.mktemp("p") / "p.parquet"
    make(streams, path, length, shape="plain")
    for variant in (0, 1, 63):
        assert tokenizer.survives(variants.read_ids(path, variant))


@pytest.mark.parametrize("kind", ["fast", "tiktoken"])
def test_no_cut_falls_inside_a_character(tmp_path, kind):
    """Text of three- and four-byte characters only, so that most cuts would."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.md").write_text("測😀漢字👩‍🔬測😀漢字\n" * 150)
    tokenizer = tinytokenizers.load(kind)
    token_stream.build_stream(sources.CorpusSpec(str(tmp_path / "c")), tokenizer, 2000, tmp_path / "fast.parquet")
    fillers = set()
    for length in range(300, 340):
        metadata = builder.build(tmp_path / "fast.parquet", "plain", tokenizer, length, tmp_path / "p.parquet")
        ids = variants.read_ids(tmp_path / "p.parquet")
        assert len(ids) == length
        assert "\ufffd" not in tokenizer.decode(ids)
        fillers.add(int(metadata["filler_tokens"]))
    assert 0 in fillers
    assert 0 < max(fillers) < 10


@pytest.mark.parametrize("kind", ["lossy", "metaspace"])
def test_tokenizers_that_do_not_keep_text_still_give_exact_lengths(streams, tmp_path, kind):
    make(streams, tmp_path / "p.parquet", 1000, kind)
    row = validate(tmp_path / "p.parquet", tinytokenizers.load(kind), 1000)
    assert row["ok"]
    assert row["round_trip"] is None


def test_a_seam_replaces_as_little_as_it_must_and_everything_where_it_must():
    tokenizer = tinytokenizers.load("fast")
    text, tail, emoji = (tokenizer.encode(text) for text in ("def f(x):\n    return x\n", "\n\nTask\n", "😀"))
    ids, filler = builder.seam(tokenizer, np.concatenate([text, emoji[:1]]), tail)
    assert (len(ids), filler) == (len(text) + 1, 1)
    assert ids[:-1].tolist() == text.tolist()
    ids, filler = builder.seam(tokenizer, emoji[:1], tail)
    assert (ids.tolist(), filler) == ([tokenizer.filler_id], 1)


def test_prompts_of_one_stream_share_their_body(streams, tmp_path):
    first = make(streams, tmp_path / "a.parquet", 1024, shape="plain")
    make(streams, tmp_path / "b.parquet", 4096, shape="plain")
    shared = 1024 - int(first["tail_tokens"]) - int(first["filler_tokens"])
    assert np.array_equal(
        variants.read_ids(tmp_path / "a.parquet")[:shared], variants.read_ids(tmp_path / "b.parquet")[:shared]
    )


def test_the_same_inputs_give_the_same_prompt(streams, tmp_path):
    assert (
        make(streams, tmp_path / "a.parquet", 1024)["sha256"] == make(streams, tmp_path / "b.parquet", 1024)["sha256"]
    )
    assert make(streams, tmp_path / "a.parquet", 1023)["sha256"] != variants.read_sha(tmp_path / "b.parquet")


def test_header_and_tail_say_what_the_shape_says(streams, tmp_path):
    metadata = make(streams, tmp_path / "p.parquet", 2048)
    ids = variants.read_ids(tmp_path / "p.parquet")
    tokenizer = tinytokenizers.load("fast")
    header, tail = int(metadata["header_tokens"]), int(metadata["tail_tokens"])
    assert "2Ki tokens of source repositories: alpha, beta." in tokenizer.decode(ids[:header])
    assert tokenizer.decode(ids[header : header + 40]).startswith("[REPO alpha]\n[FILE alpha/README.md]\n")
    assert tokenizer.decode(ids[-tail:]).startswith("\n\n[TASK]\nWrite a technical report")


def test_cycles_count_what_the_prompt_itself_repeats(streams, tmp_path):
    assert make(streams, tmp_path / "p.parquet", 300)["cycles"] == "1"
    assert int(make(streams, tmp_path / "p.parquet", 16_384)["cycles"]) > 2
    sections = json.loads(token_file.read_metadata(streams / "fast.parquet")["sections"])
    second = next(first for cycle, _, first in sections if cycle == 2)
    metadata = make(streams, tmp_path / "p.parquet", second, shape="plain")
    around = int(metadata["header_tokens"]) + int(metadata["tail_tokens"])
    assert metadata["cycles"] == "1", "header and tail are not of the corpus"
    assert make(streams, tmp_path / "p.parquet", second + around, shape="plain")["cycles"] == "1"
    assert make(streams, tmp_path / "p.parquet", second + around + 1, shape="plain")["cycles"] == "2"


def test_variants_differ_in_their_first_id_only(streams, tmp_path):
    path = tmp_path / "p.parquet"
    make(streams, path, 2048)
    base, count = read_ids(path), n_variants(path)
    assert count >= 64
    variants = [read_ids(path, variant) for variant in range(count)]
    assert len({int(ids[0]) for ids in variants}) == count
    assert all(np.array_equal(ids[1:], base[1:]) for ids in variants)
    assert not {int(ids[0]) for ids in variants} & tinytokenizers.load("fast").special_ids
    with pytest.raises(PromptError, match=f"variants 0 to {count - 1}"):
        read_ids(path, count)


def test_sha_is_that_of_the_ids(streams, tmp_path):
    path = tmp_path / "p.parquet"
    make(streams, path, 2048)
    expected = hashlib.sha256(variants.read_ids(path).astype("<u4").tobytes()).hexdigest()
    assert variants.read_sha(path) == expected


def test_long_prompts_are_read_a_row_group_at_a_time(tmp_path):
    tokenizer, length = tinytokenizers.load("tiktoken"), (1 << 20) + 1000
    token_stream.build_stream(sources.CorpusSpec(), tokenizer, length, tmp_path / "tiktoken.parquet")
    make(tmp_path, tmp_path / "p.parquet", length, "tiktoken")
    assert [len(ids) for ids in variants.iter_ids(tmp_path / "p.parquet", 3)] == [1 << 20, 1000]
    assert validate(tmp_path / "p.parquet", tokenizer, length)["ok"]


def test_a_short_stream_is_an_error_and_leaves_no_file(streams, tmp_path):
    with pytest.raises(PromptError, match="has 20000 tokens, a prompt of 32768 needs"):
        make(streams, tmp_path / "p.parquet", 32_768)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_may_take_the_whole_stream_and_not_one_id_more(streams, tmp_path):
    metadata = make(streams, tmp_path / "p.parquet", 20_000, shape="plain")
    longest = 20_000 + int(metadata["header_tokens"]) + int(metadata["tail_tokens"])
    assert len(variants.read_ids(tmp_path / "p.parquet")) == 20_000
    assert make(streams, tmp_path / "p.parquet", longest, shape="plain")["tokens"] == str(longest)
    with pytest.raises(PromptError, match=f"a prompt of {longest + 1} needs 20001"):
        make(streams, tmp_path / "p.parquet", longest + 1, shape="plain")


def test_another_tokenizers_stream_is_refused(streams, tmp_path):
    with pytest.raises(PromptError, match="another tokenizer"):
        builder.build(streams / "fast.parquet", "report", tinytokenizers.load("slow"), 64, tmp_path / "p.parquet")


@pytest.fixture
def shape(tmp_path):
    return shutil.copytree(resources.SHAPES / "plain", tmp_path / "shape")


def test_a_shape_from_a_folder(streams, tmp_path, shape):
    (shape / "system.txt").write_text("{{{tokens}}} {length} {repository_count}")
    make(streams, tmp_path / "p.parquet", 2048, shape=shape)
    text = tinytokenizers.load("fast").decode(variants.read_ids(tmp_path / "p.parquet"))
    assert "{2048} 2Ki 2\n" in text


def test_a_shape_without_texts(streams, tmp_path, shape):
    for name in ("system.txt", "task.txt"):
        (shape / name).write_text("")
    metadata = make(streams, tmp_path / "p.parquet", 64, shape=shape)
    assert metadata["tail_tokens"] == "0"
    assert validate(tmp_path / "p.parquet", tinytokenizers.load("fast"), 64)["ok"]


@pytest.mark.parametrize(("text", "message"), [
    ("Read {reposotories}.", r"system\.txt: unknown placeholder \{reposotories\}; there are length, rep"),
    ("Read {}.", r"unknown placeholder \{\}"),
    ("Read {tokens.real}.", r"unknown placeholder \{tokens\.real\}"),
    ("Read {tokens", "not a readable prompt text"),
    ("Read {tokens!r}", r"unknown placeholder \{tokens!r\}"),
    ("Read {tokens:>{width}}", r"unknown placeholder \{tokens:>\{width\}\}"),
    ("Read {tokens:d}", r"unknown placeholder \{tokens:d\}"),
])  # fmt: skip
def test_a_bad_placeholder_is_named(streams, tmp_path, shape, text, message):
    (shape / "system.txt").write_text(text)
    with pytest.raises(PromptError, match=message):
        make(streams, tmp_path / "p.parquet", 64, shape=shape)


def test_an_unknown_shape_names_the_built_in_ones(streams, tmp_path):
    with pytest.raises(PromptError, match=r"'essay' is neither built in \(plain, report\) nor a folder"):
        make(streams, tmp_path / "p.parquet", 64, shape="essay")


def test_suffixes_are_distinct_from_their_first_id_and_exact(streams, tmp_path):
    path = tmp_path / "p.parquet"
    make(streams, path, 64)
    for n_tokens in (1, 64, 1000):
        suffixes = [variants.read_suffix_ids(path, index, n_tokens) for index in range(64)]
        assert all(len(ids) == n_tokens and ids.dtype == np.uint32 for ids in suffixes)
        assert len({int(ids[0]) for ids in suffixes}) == 64
    many = {variants.read_suffix_ids(path, index, 16).tobytes() for index in range(1000)}
    assert len(many) == 1000
    tokenizer = tinytokenizers.load("fast")
    assert "where are they checked?" in tokenizer.decode(variants.read_suffix_ids(path, 4, 128))


@pytest.mark.process
def test_reading_prompts_needs_no_tokenizer(streams, tmp_path):
    path = tmp_path / "p.parquet"
    make(streams, path, 1024)
    code = (
        "import sys; from longctx.prompts import variants;"
        f"print(len(variants.read_ids({str(path)!r}, 7)), len(variants.read_suffix_ids({str(path)!r}, 7, 9)),"
        "sorted({'transformers', 'tokenizers', 'tiktoken', 'huggingface_hub'} & set(sys.modules)))"
    )
    scripts = str(Path(builder.__file__).parents[2])
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": scripts}
    )
    assert out.stdout.strip() == "1024 9 []"


def test_files_that_are_no_prompts(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match="not a readable token file"):
        variants.read_ids(tmp_path / "x.parquet")
    parquet.write_rows(tmp_path / "y.parquet", schemas.TRACES, [])
    with pytest.raises(DataError, match="not token_ids"):
        variants.read_ids(tmp_path / "y.parquet")
