"""Write a file aside and move it into place."""

import os
from pathlib import Path


def write_atomic(path: Path | str, data: bytes) -> None:
    """Write `data` to a temporary name beside `path`, fsync it and move it into place."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
