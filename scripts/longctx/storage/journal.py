"""The journal: all that a point has measured so far, on disk before the next request starts.

One JSON record a line, each with its own checksum, appended and fsynced. Snakemake does not know the file, so no re-run
deletes it. A torn last line (power cut, full disk) is dropped; a damaged one in the middle is skipped and counted. Disk
space is held back before each request, so that a disk that fills up during a prefill of hours still takes its row.
"""

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from longctx.errors import LongctxError
from longctx.redaction import encodable

FULL = (errno.ENOSPC, errno.EDQUOT)
RESERVE_BYTES = 1 << 20
# What a finished request may write into the space held back.
PRECIOUS = ("trace", "row")


class JournalError(LongctxError):
    """The journal cannot be written, so no further measurement would be safe."""


@dataclass(frozen=True, slots=True)
class Record:
    """One journal line: `kind` is header, server, added, begin, progress, trace, row, done or reopened."""

    kind: str
    data: dict[str, Any]


def _encode(record: Record) -> bytes:
    body = orjson.dumps([record.kind, record.data], option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> Record | None:
    checksum, _, body = line.partition(b" ")
    try:
        if len(checksum) != 8 or int(checksum, 16) != zlib.crc32(body):
            return None
        kind, data = orjson.loads(body)
    except ValueError:
        return None
    return Record(kind, data)


def read(path: Path) -> tuple[list[Record], int]:
    """Return the sound records and how many lines were damaged; what follows the last newline never ended: neither."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    decoded = [_decode(line) for line in lines if line]
    sound = [record for record in decoded if record is not None]
    return sound, len(decoded) - len(sound)


def last(path: Path) -> Record | None:
    """Return the last record without looking at the others; None where there is none or it is torn or damaged."""
    try:
        *_, line, torn = path.read_bytes().split(b"\n")
    except (FileNotFoundError, ValueError):
        return None
    return None if torn else _decode(line)


@dataclass(slots=True)
class Journal:
    """An open journal. `records` holds what it had and what was appended; `reserve` is the file of space held back."""

    path: Path
    records: list[Record] = field(default_factory=list)
    damaged: int = 0
    reserve: Path | None = None

    @classmethod
    def open(cls, path: Path, reserve: Path | None = None) -> "Journal":
        """Read what is there and cut off a torn last line, so that appending starts on a fresh one."""
        records, damaged = read(path)
        if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
        return cls(path, records, damaged, reserve)

    def append(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on disk; JournalError says why that failed."""
        record = Record(kind, encodable(data))  # whatever a server sent, its row is written
        line = _encode(record)
        try:
            try:
                _write(self.path, line)
            except OSError as error:
                if error.errno not in FULL or kind not in PRECIOUS or not self._release():
                    raise
                _write(self.path, line)
        except OSError as error:
            raise self._trouble(error) from error
        self.records.append(record)

    def secure(self) -> None:
        """Hold back disk space for one request's trace and row; JournalError where there is none."""
        if self.reserve is None or (self.reserve.exists() and self.reserve.stat().st_size == RESERVE_BYTES):
            return
        try:
            self.reserve.parent.mkdir(parents=True, exist_ok=True)
            # Random, so that no file system stores it in less.
            self.reserve.write_bytes(os.urandom(RESERVE_BYTES))
        except OSError as error:
            self._release()
            raise self._trouble(error) from error

    def _release(self) -> bool:
        if self.reserve:
            with contextlib.suppress(OSError):
                self.reserve.unlink()
                return True
        return False

    def _trouble(self, error: OSError) -> JournalError:
        remedy = "free space or fix the folder, then run the same command again: finished rows are kept"
        return JournalError(f"cannot write the journal {self.path}: {error.strerror}; {remedy}")

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        return (record.data for record in self.records if record.kind == kind)

    @property
    def header(self) -> dict[str, Any] | None:
        return next(self.of_kind("header"), None)

    def archive(self) -> Path:
        """Set the journal aside under a new name in `superseded/` and start empty."""
        target = set_aside(self.path)
        self.records, self.damaged = [], 0
        return target


def set_aside(path: Path) -> Path:
    """Move a journal to a new name in `superseded/` beside it, and return that."""
    number = 1
    while (target := path.parent / "superseded" / f"{path.stem}.{number}.jsonl").exists():
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    return target


def _write(path: Path, line: bytes) -> None:
    """Append to the file and wait until it, and its name where it is new, are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with open(path, "ab", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) or 0 :]
            os.fsync(file.fileno())
        except OSError:
            # A half-written line would swallow the next record: take it back.
            file.truncate(start)
            raise
    for folder in (path.parent, path.parent.parent) if new else ():
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
