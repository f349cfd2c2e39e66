import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import numpy as np
import orjson
import pytest
import tinytokenizers
from longctx.errors import PromptError
from longctx.prompts import sources, token_stream
from longctx.prompts.sources import CorpusSpec
from longctx.storage import token_file

MANIFEST = Path(__file__).parents[3] / "resources" / "corpus" / "published.yaml"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tinytokenizers.corpus_folder(), tmp_path / "corpus", symlinks=True)


def stream_text(folder):
    found = sources.scan(CorpusSpec(str(folder)))
    return "".join(text for name in found.repositories for text in sources.repository_texts(found, name, 1))


def test_telling_files_come_first_and_noise_is_left_out():
    files = [
        line[6:-1] for line in stream_text(tinytokenizers.corpus_folder()).splitlines() if line.startswith("[FILE")
    ]
    assert files == [
        "alpha/README.md",
        "alpha/docs/guide.rst",
        "alpha/alpha/__init__.py",
        "alpha/alpha/deep/down/inner.py",
        "alpha/examples/show.py",
        "alpha/alpha/tests/test_area.py",
        "beta/README.rst",
        "beta/src/text.py",
    ]


def test_text_is_marked_and_has_plain_line_ends():
    text = stream_text(tinytokenizers.corpus_folder())
    assert text.startswith("[REPO alpha]\n[FILE alpha/README.md]\n# Alpha\n\nComputes areas.\n[FILE alpha/docs")
    assert "\r" not in text
    assert text.count("[REPO ") == 2


def test_signal_order():
    names = [
        "README.md",
        "CHANGES.md",
        "docs/a.rst",
        "src/pkg/api.py",
        "pkg/sub/x/y.py",
        "tools/x.py",
        "pkg/tests/t.py",
    ]
    assert [sources.signal_rank(PurePosixPath(name)) for name in names] == [0, 1, 2, 3, 4, 5, 6]


def test_a_tree_with_files_of_its_own_is_one_repository(folder):
    assert sources.scan(CorpusSpec(str(folder / "alpha"))).repositories == ["alpha"]


def test_a_file_whose_name_is_not_utf8_is_left_out_and_said(folder, tmp_path, caplog):
    (folder / "beta" / os.fsdecode(b"bad\xff.py")).write_text("x = 1\n")
    (folder / "beta" / "gr\u00fcn.py").write_text("y = 2\n")
    spec = CorpusSpec(str(folder))
    token_stream.build_stream(spec, tinytokenizers.load("fast"), 500, tmp_path / "s.parquet")
    assert "corpus: 1 files left out, since their names are not UTF-8: beta/bad\\xff.py" in caplog.text
    text = stream_text(folder)
    assert "[FILE beta/gr\u00fcn.py]\ny = 2" in text
    assert "x = 1" not in text


IN_ANY_LOCALE = """
import sys
from pathlib import Path
from longctx.campaign import campaign
from longctx.prompts import shapes, sources
folder = Path(sys.argv[1])
corpus = sources.scan(sources.CorpusSpec.load(str(folder / "corpus"), folder / "manifest.yaml"))
texts = [text for name in corpus.repositories for text in sources.repository_texts(corpus, name, 1)]
texts += shapes.shape_texts(str(folder / "shape"), 1024, corpus.repositories)
texts += [campaign.load(folder / "campaign.yaml").config.serve.env["GREETING"]]
print(corpus.sha256, ascii(texts))
"""


@pytest.mark.process
def test_every_text_file_is_utf8_in_every_locale(folder, tmp_path):
    (folder / "beta" / "gr\u00fcn.py").write_text("y = '\u00e9'\n", encoding="utf-8")
    entry = "{name: beta, url: 'https://example.org/\u00e9', ref: v1}"
    (tmp_path / "manifest.yaml").write_text(f"# \u00e9\nrepositories: [{entry}]\n", encoding="utf-8")
    (tmp_path / "shape").mkdir()
    for name in ("system.txt", "task.txt"):
        (tmp_path / "shape" / name).write_text("R\u00e9sum\u00e9 of {tokens} tokens", encoding="utf-8")
    config = "lengths: [1Ki]\nmodel: {source: synthetic, weights: dummy}\nserve: {env: {GREETING: all\u00f4}}\n"
    (tmp_path / "campaign.yaml").write_text(config, encoding="utf-8")
    answers = []
    for options, locale in ((["-X", "utf8=1"], {}), (["-X", "utf8=0"], {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"})):
        command = [sys.executable, *options, "-c", IN_ANY_LOCALE, str(tmp_path)]
        done = subprocess.run(command, env=os.environ | locale, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    assert "[FILE beta/gr\\xfcn.py]" in answers[0]


def test_named_repositories_keep_their_order(folder):
    assert sources.scan(CorpusSpec(str(folder), ("beta", "alpha"))).repositories == ["beta", "alpha"]
    with pytest.raises(PromptError, match="lacks gamma"):
        sources.scan(CorpusSpec(str(folder), ("alpha", "gamma")))


def test_hash_follows_content_only(folder):
    before = sources.scan(CorpusSpec(str(folder))).sha256
    os.utime(folder / "alpha/README.md", (1, 1))
    (folder / "alpha/logo.png").write_bytes(b"\x89PNG")
    assert sources.scan(CorpusSpec(str(folder))).sha256 == before
    (folder / "alpha/README.md").write_text("# Other\n")
    assert sources.scan(CorpusSpec(str(folder))).sha256 != before


def test_no_folder_and_no_files(tmp_path):
    with pytest.raises(PromptError, match="does not exist"):
        sources.scan(CorpusSpec(str(tmp_path / "none")))
    (tmp_path / "a.py").write_text("\n")
    with pytest.raises(PromptError, match="no source files"):
        sources.scan(CorpusSpec(str(tmp_path)))


@pytest.mark.parametrize("kind", ["fast", "tiktoken", "slow"])
def test_stream_has_exactly_the_tokens_and_cycles(kind, tmp_path):
    tokenizer = tinytokenizers.load(kind)
    spec = CorpusSpec(str(tinytokenizers.corpus_folder()))
    seen = []
    metadata = token_stream.build_stream(spec, tokenizer, 5000, tmp_path / "s.parquet", seen.append)
    ids = np.concatenate(list(token_file.iter_ids(tmp_path / "s.parquet")))
    assert len(ids) == 5000 == seen[-1] == token_file.count_ids(tmp_path / "s.parquet")
    text = tokenizer.decode(ids)
    assert text.startswith(stream_text(tinytokenizers.corpus_folder()))
    assert "[REPO alpha CYCLE 2]\n[FILE alpha/README.md CYCLE 2]\n" in text
    sections = orjson.loads(metadata["sections"])
    assert sections[:2] == [[1, "alpha", 0], [1, "beta", sections[1][2]]]
    cycles = max(cycle for cycle, _, _ in sections)
    assert cycles > 2
    assert token_file.n_cycles(metadata, 5000) == cycles
    assert token_file.n_cycles(metadata, 10) == 1
    assert dict(token_file.read_metadata(tmp_path / "s.parquet")).items() >= metadata.items()


def test_a_longer_stream_starts_like_a_shorter_one(tmp_path):
    tokenizer, spec = tinytokenizers.load("fast"), CorpusSpec(str(tinytokenizers.corpus_folder()))
    token_stream.build_stream(spec, tokenizer, 700, tmp_path / "short.parquet")
    token_stream.build_stream(spec, tokenizer, 3000, tmp_path / "long.parquet")
    short = token_file.read_span(tmp_path / "short.parquet", 0, 700)
    assert np.array_equal(token_file.read_span(tmp_path / "long.parquet", 0, 700), short)


def test_an_interrupted_build_leaves_nothing(tmp_path):
    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        token_stream.build_stream(CorpusSpec(), tinytokenizers.load("fast"), 1 << 20, tmp_path / "s.parquet", stop)
    assert list(tmp_path.iterdir()) == []


def test_the_published_manifest_is_pinned():
    entries = sources.read_manifest(MANIFEST)
    assert len(entries) == 20
    assert entries[0]["name"] == "bokeh"
    assert all(any(char.isdigit() for char in entry["ref"]) for entry in entries)


@pytest.mark.parametrize("text", [
    "nothing: 1",
    "repositories: [{name: a}]",
    "repositories: [{name: ../a, url: 'https://x', ref: v1}]",
    "repositories: [{name: a, url: 'file:///x', ref: v1}]",
    "repositories: [{name: .., url: 'https://x', ref: v1}]",
    "repositories: [{name: caf\udce9, url: 'https://x', ref: v1}]",
])  # fmt: skip
def test_a_wrong_manifest_is_refused(tmp_path, text):
    path = tmp_path / "m.yaml"
    path.write_bytes(os.fsencode(text))
    with pytest.raises(PromptError, match=r"m\.yaml"):
        sources.read_manifest(path)


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A local git repository that answers as https://example.invalid/alpha, with a tag v1."""
    origin = shutil.copytree(tinytokenizers.corpus_folder() / "alpha", tmp_path / "origin" / "alpha")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-C", str(origin)]
    for command in (["init", "-q"], ["add", "README.md"], ["commit", "-q", "-m", "x"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{origin.parent}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.invalid/")
    manifest = tmp_path / "m.yaml"
    manifest.write_text("repositories: [{name: alpha, url: 'https://example.invalid/alpha', ref: v1}]")
    return manifest


@pytest.mark.process
def test_fetch_clones_the_pinned_tag_once(remote, tmp_path):
    lines = []
    sources.fetch(remote, tmp_path / "clones", lines.append)
    sources.fetch(remote, tmp_path / "clones", lines.append)
    assert lines == ["alpha: cloning v1", "alpha: already there"]
    assert sources.scan(CorpusSpec(str(tmp_path / "clones"))).repositories == ["alpha"]


@pytest.mark.process
def test_a_failed_fetch_names_the_repository_and_leaves_no_half(remote, tmp_path):
    remote.write_text(remote.read_text().replace("v1", "v2"))
    with pytest.raises(PromptError, match="alpha at v2 cannot be cloned"):
        sources.fetch(remote, tmp_path / "clones", print)
    assert [path for path in (tmp_path / "clones").iterdir() if not path.name.startswith(".")] == []
