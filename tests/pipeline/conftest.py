import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline import Pipeline, copy, make


@pytest.fixture(scope="session")
def measured_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of two lengths, measured and summarised once for all xdist workers; every test takes a copy."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "measured"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            pipeline = make(tmp_path_factory.mktemp("measured"))
            pipeline.summarise()
            pipeline.nothing_left()
            pipeline.folder.rename(folder)
    return folder


@pytest.fixture(scope="session")
def prepared_folder(measured_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with nothing measured yet."""
    folder = tmp_path_factory.mktemp("prepared") / "copy"
    shutil.copytree(measured_folder, folder, symlinks=True)
    for name in ("journal", "measurements", "servers", "traces", "progress"):
        shutil.rmtree(folder / "results" / name)
    for path in (*(folder / "results").glob("*.csv"), folder / "requests.jsonl", folder / "results" / "status.json"):
        path.unlink()
    for name in ("summary", "fits"):
        (folder / "results" / f"{name}.parquet").unlink()
    return folder


@pytest.fixture
def measured(measured_folder: Path, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = copy(measured_folder, tmp_path / "work")
    yield pipeline
    pipeline.nothing_left()


@pytest.fixture
def prepared(prepared_folder: Path, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = copy(prepared_folder, tmp_path / "work")
    yield pipeline
    pipeline.nothing_left()
