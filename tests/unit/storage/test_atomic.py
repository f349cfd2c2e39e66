"""A file is replaced whole or not at all."""

from pathlib import Path

import pytest
from longctx.storage.atomic import replacing, write_atomic


@pytest.mark.parametrize("fsync", [True, False])
def test_a_file_appears_when_the_block_ends(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "folder" / "file"
    with replacing(path, fsync=fsync) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def interrupted() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
