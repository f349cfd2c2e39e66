"""Token ids on disk: one Parquet column `token_ids` (uint32), row groups of 1Mi ids. Needs only numpy and pyarrow."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from longctx.errors import DataError
from longctx.storage.atomic import replacing
from longctx.storage.provenance import file_labels

Ids = npt.NDArray[np.uint32]

ROW_GROUP_TOKENS = 1 << 20
SCHEMA = pa.schema([pa.field("token_ids", pa.uint32(), nullable=False)])


class TokenFileWriter(ExitStack):
    """Writes ids as they come, one row group in memory; the file appears under its name only when all is written.

    `metadata` may be filled until the block ends; `tokens` and `sha256` (of the ids as little-endian uint32) are added.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path)
        self.tokens = 0
        self.metadata: dict[str, str] = {}
        self._buffer = np.empty(ROW_GROUP_TOKENS, dtype="<u4")
        self._filled = 0
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        temporary = self.enter_context(replacing(self.path))
        self._writer = self.enter_context(pq.ParquetWriter(temporary, SCHEMA, compression="zstd", use_dictionary=False))
        self.push(self._complete)
        return self

    def write(self, ids: Ids) -> None:
        """Append ids."""
        self.tokens += len(ids)
        while len(ids):
            part = ids[: ROW_GROUP_TOKENS - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            ids = ids[len(part) :]
            if self._filled == ROW_GROUP_TOKENS:
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        rows = self._buffer[: self._filled]
        self._hash.update(rows.data)
        self._writer.write_table(pa.Table.from_arrays([pa.array(rows)], schema=SCHEMA), row_group_size=len(rows))
        self._filled = 0

    @property
    def sha256(self) -> str:
        """Hex digest of the ids written to disk so far."""
        return self._hash.hexdigest()

    def _complete(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
            own = {"tokens": str(self.tokens), "sha256": self.sha256}
            self._writer.add_key_value_metadata(file_labels() | self.metadata | own)


def _open(path: Path | str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable token file ({error}); delete it and run again") from error
    if file.schema_arrow.names != SCHEMA.names:
        raise DataError(f"{path}: has columns {', '.join(file.schema_arrow.names)}, not token_ids")
    return file


def read_metadata(path: Path | str) -> Mapping[str, str]:
    """Return a token file's metadata as text."""
    with _open(path) as file:
        pairs: dict[bytes, bytes] = file.metadata.metadata or {}
    return {key.decode(): value.decode() for key, value in pairs.items() if key != b"ARROW:schema"}


def _sections(stream: Mapping[str, str], n_tokens: int) -> list[tuple[int, str, int]]:
    """Return the (cycle, repository, first token) that a stream's first `n_tokens` begin."""
    sections: list[tuple[int, str, int]] = orjson.loads(stream["sections"])
    return [section for section in sections if section[2] < max(n_tokens, 1)]


def n_cycles(stream: Mapping[str, str], n_tokens: int) -> int:
    """Return how many times a stream's first `n_tokens` begin the corpus: 1 where nothing repeats."""
    return max(cycle for cycle, _, _ in _sections(stream, n_tokens))


def begun_repositories(stream: Mapping[str, str], n_tokens: int) -> list[str]:
    """Return the repositories that a stream's first `n_tokens` begin, in order."""
    return list(dict.fromkeys(name for _, name, _ in _sections(stream, n_tokens)))


def count_ids(path: Path | str) -> int:
    """Return the number of ids in a token file without reading them."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


def iter_ids(path: Path | str, stop: int | None = None) -> Iterator[Ids]:
    """Yield the first `stop` ids (all by default), a row group at a time."""
    with _open(path) as file:
        left = file.metadata.num_rows if stop is None else stop
        for group in range(file.metadata.num_row_groups):
            if left <= 0:
                return
            column: Any = file.read_row_group(group, use_threads=False).column(0)
            for chunk in column.chunks:
                ids: Ids = chunk.to_numpy()[:left]
                left -= len(ids)
                yield ids


def read_span(path: Path | str, start: int, stop: int) -> Ids:
    """Return ids[start:stop], reading only the row groups that hold them."""
    spans = [np.empty(0, np.uint32)]
    with _open(path) as file:
        at = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at < stop and at + rows > start:
                ids = file.read_row_group(group, use_threads=False).column(0).to_numpy()
                spans.append(ids[max(start - at, 0) : max(stop - at, 0)])
            at += rows
    return np.concatenate(spans)
