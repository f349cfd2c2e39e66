"""Token ids on disk: written whole or not at all, read in part."""

from pathlib import Path

import numpy as np
import pytest
from longctx.errors import DataError
from longctx.storage import token_file
from longctx.storage.token_file import TokenFileWriter

IDS = np.arange(10, dtype=np.uint32)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(token_file, "ROW_GROUP_TOKENS", 4)
    return tmp_path / "ids.parquet"


def write(path: Path, *parts: token_file.Ids) -> None:
    with TokenFileWriter(path) as out:
        for part in parts:
            out.write(part)
        out.metadata["shape"] = "code"


def test_ids_come_back_whole_and_in_part(path: Path) -> None:
    write(path, IDS[:3], IDS[3:])
    assert token_file.count_ids(path) == 10
    assert np.array_equal(np.concatenate(list(token_file.iter_ids(path))), IDS)
    assert np.array_equal(np.concatenate(list(token_file.iter_ids(path, 5))), IDS[:5])
    assert np.array_equal(token_file.read_span(path, 3, 9), IDS[3:9])
    metadata = token_file.read_metadata(path)
    assert (metadata["tokens"], metadata["shape"]) == ("10", "code")


def test_an_error_in_the_block_leaves_no_file(path: Path) -> None:
    with pytest.raises(TypeError):
        write(path, IDS, None)  # type: ignore[arg-type]
    assert list(path.parent.iterdir()) == []


def test_an_error_in_the_last_write_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: TokenFileWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TokenFileWriter, "_flush", full)
    with pytest.raises(OSError, match="No space"):
        write(path, IDS[:3])
    assert list(path.parent.iterdir()) == []


def test_what_is_no_token_file_is_named(path: Path) -> None:
    path.write_text("no Parquet")
    with pytest.raises(DataError, match=r"ids\.parquet: not a readable token file"):
        token_file.count_ids(path)
