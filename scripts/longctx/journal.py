"""The journal: what a point has measured so far, on disk before the next request starts.

One JSON record a line, each with its own checksum, appended and fsynced. Snakemake does not know the file, so no re-run
deletes it. A torn last line (power cut, full disk) is dropped; a damaged line in the middle is skipped and counted.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from longctx.errors import LongctxError


class JournalError(LongctxError):
    """The journal can't be written, so nothing measured from here on would be safe."""


@dataclass(frozen=True, slots=True)
class Record:
    """One journal line: `kind` is header, server, begin, progress, row, trace or note; `data` its JSON content."""

    kind: str
    data: dict[str, Any]


def _encode(record: Record) -> bytes:
    body = orjson.dumps([record.kind, record.data], option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> Record | None:
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        kind, data = orjson.loads(body)
    except ValueError:
        return None
    return Record(kind, data)


def read(path: Path) -> tuple[list[Record], int]:
    """Return the sound records and how many lines were damaged; no file is an empty journal."""
    if not path.exists():
        return [], 0
    decoded = [_decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.strip()]
    sound = [record for record in decoded if record is not None]
    return sound, len(decoded) - len(sound)


@dataclass(slots=True)
class Journal:
    """An open journal. `records` holds what it had and what was appended."""

    path: Path
    records: list[Record] = field(default_factory=list)
    damaged: int = 0

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Read what is there and cut off a torn last line, so that appending starts on a fresh one."""
        records, damaged = read(path)
        if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
        return cls(path, records, damaged)

    def append(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on disk; JournalError says why that failed."""
        record = Record(kind, dict(data))
        line = _encode(record)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                try:
                    while line:
                        line = line[file.write(line) or 0 :]
                    os.fsync(file.fileno())
                except OSError:
                    # A half-written line would swallow the next record: take it back.
                    file.truncate(start)
                    raise
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {self.path}: {error.strerror}; free space or fix the folder, then run the"
                " same command again: finished rows are kept"
            ) from error
        self.records.append(record)

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        return (record.data for record in self.records if record.kind == kind)

    @property
    def header(self) -> dict[str, Any] | None:
        return next(self.of_kind("header"), None)

    def archive(self) -> Path:
        """Set the journal aside under a new name in `superseded/` and start empty."""
        number = 1
        while (target := self.path.parent / "superseded" / f"{self.path.stem}.{number}.jsonl").exists():
            number += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path, target)
        self.records, self.damaged = [], 0
        return target
