"""The default corpus is the same on every machine and Python, or refused in one sentence."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import tinytokenizers
from longctx.campaign.campaign import from_dict
from longctx.errors import PromptError
from longctx.prompts import pinned_packages, sources, token_stream
from longctx.prompts.sources import CorpusSpec

ROOT = Path(__file__).parents[3]
SCAN = "from longctx.prompts import sources; print(sources.scan(sources.CorpusSpec()).sha256)"
PYTHONS = [path for minor in (11, 12, 13) if (path := shutil.which(f"python3.{minor}"))]


def test_it_is_the_default_everywhere() -> None:
    campaign = from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki"]})
    assert campaign.corpus_arguments == ["--corpus", "packages"]
    assert CorpusSpec() == CorpusSpec("packages")


def test_its_versions_are_the_pins() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "envs" / "pipeline.txt").read_text(), re.MULTILINE))
    packages = pinned_packages.read()
    assert {package.name: package.version for package in packages} == {p.name: pins[p.name] for p in packages}
    assert len(packages) >= 3


def test_what_is_installed_is_what_is_pinned() -> None:
    corpus = sources.scan(CorpusSpec())
    assert corpus.repositories == [package.name for package in pinned_packages.read()]
    assert {PurePosixPath(file.name).suffix for file in corpus.files} == {".py"}
    assert not [file.name for file in corpus.files if "__config__" in file.name or "distutils/" in file.name]
    # The standard library of Python 3.11 has 31.5 MB.
    assert sum(file.path.stat().st_size for file in corpus.files) > 50e6


@pytest.mark.process
@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_reads_the_same_corpus(python: str) -> None:
    packages = Path(str(importlib.metadata.distribution("numpy").locate_file("")))
    folders = f"{ROOT / 'scripts'}{os.pathsep}{packages}"
    answer = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2] >= (3, 11))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.stdout != "True\n":
        pytest.skip(f"{python} does not run")
    done = subprocess.run(
        [python, "-c", SCAN], env=os.environ | {"PYTHONPATH": folders}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == sources.scan(CorpusSpec()).sha256


def installed(folder: Path, version: str | None = None, **files: str) -> None:
    """Lay out every package of the corpus as pip would, with files of its own."""
    for package in pinned_packages.read():
        (folder / package.name).mkdir(parents=True)
        for name, text in files.items():
            (folder / package.name / f"{name}.py").write_text(text)
        info = folder / f"{package.name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version or package.version}\n"
        )


def test_another_version_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "9.9.9", module="x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = pinned_packages.read()[0]
    with pytest.raises(PromptError) as refused:
        sources.scan(CorpusSpec())
    assert f"{first.name} 9.9.9 is installed and the corpus is {first.name} {first.version}'s" in str(refused.value)
    assert "pip install -r envs/pipeline.txt" in str(refused.value)
    assert "corpus.source" in str(refused.value)


def test_files_that_were_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, module="x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PromptError, match="that are installed here are not those of their wheels"):
        sources.scan(CorpusSpec())


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PromptError, match="the package pandas is not installed: install the pins"):
        sources.scan(CorpusSpec())


def test_files_of_the_build_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(pinned_packages, "check", seen.append)
    for number, build in enumerate(("clang", "gcc")):
        folder = tmp_path / build
        installed(folder, module="x = 1\n", __config__=f"compiler = '{build}'\n")
        if number:
            (folder / "numpy" / "distutils").mkdir()
            (folder / "numpy" / "distutils" / "core.py").write_text("y = 1\n")
            (folder / "numpy" / "generated.h").write_text("#define BUILD\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            sources.scan(CorpusSpec())
    assert seen[0] == seen[1]


def test_the_stream_begins_with_the_first_package(tmp_path: Path) -> None:
    tokenizer = tinytokenizers.load("fast")
    metadata: dict[str, Any] = token_stream.build_stream(CorpusSpec(), tokenizer, 2000, tmp_path / "s.parquet")
    assert (metadata["corpus"], len(metadata["corpus_hash"])) == ("packages", 64)
    again = token_stream.build_stream(CorpusSpec(), tokenizer, 2000, tmp_path / "again.parquet")
    assert metadata["sha256"] == again["sha256"]
