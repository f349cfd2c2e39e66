"""Write a file aside and move it into place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path | str, *, fsync: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what the block writes there replaces `path`, unless the block fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if fsync:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path | str, data: bytes) -> None:
    """Put a file with this content in place, on disk and whole."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
