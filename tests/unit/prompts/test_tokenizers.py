import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tinytokenizers
from hypothesis import given
from hypothesis import strategies as st
from longctx.errors import PromptError
from longctx.prompts import sources, tokenizers
from longctx.prompts.pretrained import TokenizerSpec
from longctx.prompts.tokenizers import load_tokenizer

ENGINES = ("fast", "tiktoken", "slow")
LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=8).map("\n".join)


@pytest.mark.parametrize("kind", ENGINES)
def test_each_engine_is_recognised(kind):
    expected = {"fast": "tokenizers", "tiktoken": "tiktoken", "slow": "python"}
    assert tinytokenizers.load(kind).engine == expected[kind]


def test_a_pure_python_tokenizer_is_announced(caplog):
    load_tokenizer(TokenizerSpec(str(tinytokenizers.slow_folder()), trust_remote_code=True))
    assert "pure Python" in caplog.text


def test_engines_agree():
    text = tinytokenizers.SOURCE + tinytokenizers.JAPANESE
    assert np.array_equal(tinytokenizers.load("tiktoken").encode(text), tinytokenizers.load("slow").encode(text))


@pytest.mark.parametrize("kind", ENGINES)
@given(texts=st.lists(LINES, min_size=1, max_size=5))
def test_batches_keep_order_and_content(kind, texts):
    tokenizer = tinytokenizers.load(kind)
    expected = np.concatenate([tokenizer.encode(text) for text in texts])
    assert np.array_equal(np.concatenate(list(tokenizer.encode_batches(texts))), expected)


def test_many_batches_equal_one_text_each(monkeypatch):
    monkeypatch.setattr(tokenizers, "BATCH_CHARS", 50)
    texts = [tinytokenizers.SOURCE, tinytokenizers.JAPANESE] * 20
    tokenizer = tinytokenizers.load("fast")
    arrays = list(tokenizer.encode_batches(texts))
    assert len(arrays) > 10
    assert np.array_equal(np.concatenate(arrays), np.concatenate([tokenizer.encode(text) for text in texts]))


def test_a_stopped_encoding_ends_at_once():
    running = tinytokenizers.load("fast").encode_batches(tinytokenizers.SOURCE for _ in iter(int, 1))
    assert len(next(running)) > 0
    running.close()


@pytest.mark.parametrize("kind", ["fast", "tiktoken", "slow", "added"])
def test_special_strings_are_ordinary_text(kind):
    tokenizer = tinytokenizers.load(kind)
    text = "a <|end_of_text|> [EOS] [BOS] <|im_end|> b"
    ids = tokenizer.encode(text)
    assert tokenizer.special_ids
    assert not tokenizer.special_ids & set(ids.tolist())
    assert tokenizer.decode(ids) == text


def test_ordinary_added_tokens_stay_out():
    tokenizer = tinytokenizers.load("added")
    ids = tokenizer.encode("def f():\n    return 1\n")
    assert tokenizer.special_ids == {0, 1, 1500}
    assert ids.max() < 1500
    assert tokenizer.decode(ids) == "def f():\n    return 1\n"


@pytest.mark.parametrize("kind", ENGINES)
def test_model_max_length_and_the_files_truncation_never_cut(kind):
    text = "alpha beta\n" * 4096
    assert tinytokenizers.load(kind).decode(tinytokenizers.load(kind).encode(text)) == text


def test_fingerprint_names_the_vocabulary():
    folder = str(tinytokenizers.fast_folder())
    assert load_tokenizer(TokenizerSpec(folder)).fingerprint == tinytokenizers.load("fast").fingerprint
    prints = {tinytokenizers.load(kind).fingerprint for kind in ("fast", "added", "lossy", "tiktoken")}
    assert len(prints) == 4


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), min_size=1), data=st.data())
def test_ends_whole_knows_half_characters(text, data):
    tokenizer = tinytokenizers.load("fast")
    ids = tokenizer.encode(text)
    cut = data.draw(st.integers(1, len(ids)))
    assert tokenizer.ends_whole(ids[:cut]) == ("\ufffd" not in tokenizer.decode(ids[:cut]))


@pytest.mark.parametrize("kind", ["fast", "tiktoken"])
@given(text=LINES)
def test_safe_cuts_split_into_texts_of_their_own(kind, text):
    tokenizer = tinytokenizers.load(kind)
    ids = tokenizer.encode(text + "\nx = 1\ny = 2\n")
    for cut in tokenizer.safe_cuts(ids):
        assert np.array_equal(tokenizer.encode(tokenizer.decode(ids[:cut])), ids[:cut])
        assert np.array_equal(tokenizer.encode(tokenizer.decode(ids[cut:])), ids[cut:])


@pytest.mark.parametrize("kind", ["fast", "tiktoken"])
@given(text=LINES)
def test_splitting_a_text_changes_no_token(kind, text):
    tokenizer = tinytokenizers.load(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_CHARS", 5)
        pieces = list(sources.split_text(text))
    assert "".join(pieces) == text
    together = np.concatenate([tokenizer.encode(piece) for piece in pieces])
    assert np.array_equal(together, tokenizer.encode(text))


def test_only_lossless_tokenizers_are_invertible():
    found = {kind: tinytokenizers.load(kind).invertible for kind in (*ENGINES, "added", "lossy", "metaspace")}
    assert found == {"fast": True, "tiktoken": True, "slow": True, "added": True, "lossy": False, "metaspace": False}


def test_filler_repeats_without_merging():
    for kind in ENGINES:
        tokenizer = tinytokenizers.load(kind)
        assert tokenizer.survives(np.full(20, tokenizer.filler_id, np.uint32))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TokenizerSpec("/no/such/folder"), "does not exist"),
        (TokenizerSpec("org/model"), "give a revision"),
        (TokenizerSpec("org/model", "main", trust_remote_code=True), "full commit hash"),
    ],
)
def test_unpinned_tokenizers_are_refused(spec, message):
    with pytest.raises(PromptError, match=message):
        load_tokenizer(spec)


def test_remote_code_runs_only_where_asked():
    with pytest.raises(PromptError, match="trust_remote_code: true"):
        load_tokenizer(TokenizerSpec(str(tinytokenizers.tiktoken_folder())))


@pytest.mark.process
@pytest.mark.parametrize(("kind", "extra"), [("fast", ""), ("tiktoken", ", trust_remote_code=True")])
def test_a_pinned_hub_id_works_offline(tmp_path, kind, extra):
    """From the hub's cache as huggingface_hub lays it out, in a process that may not ask the network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / commit
    shutil.copytree(getattr(tinytokenizers, f"{kind}_folder")(), snapshot)
    code = (
        "from longctx.prompts.tokenizers import *;"
        f"t = load_tokenizer(TokenizerSpec('org/tiny', '{commit}'{extra}));"
        "print(t.name, t.engine, t.decode(t.encode('a <|im_end|> b')))"
    )
    env = {"PYTHONPATH": str(Path(tokenizers.__file__).parents[2]), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def run(code):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)

    engine = {"fast": "tokenizers", "tiktoken": "tiktoken"}[kind]
    done = run(code)
    assert done.stdout == f"org/tiny@{commit} {engine} a <|im_end|> b\n", done.stderr
    assert "PromptError: tokenizer org/none cannot be loaded" in run(code.replace("org/tiny", "org/none")).stderr


def test_a_broken_folder_gives_one_sentence(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(PromptError, match="cannot be loaded") as caught:
        load_tokenizer(TokenizerSpec(str(tmp_path)))
    assert "\n" not in str(caught.value)
