"""The JSON body of a completion request, streamed: 64Mi token ids never exist twice in memory.

A prompt is anything that can hand out its token ids in pieces, as often as asked (`Prompt`): a numpy array or a prompt
Parquet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from longctx.errors import PromptError
from longctx.storage.token_file import Ids, iter_ids

PIECE_IDS = 1 << 18
_POWERS_OF_TEN = tuple(10**k for k in range(1, 10))


class Prompt(Protocol):
    """Token ids in pieces; every call of `chunks` starts again from the first id."""

    def chunks(self) -> Iterator[Ids]: ...


@dataclass(frozen=True, slots=True)
class ArrayPrompt:
    """Token ids that are already in memory."""

    ids: Ids

    def chunks(self) -> Iterator[Ids]:
        for start in range(0, len(self.ids), PIECE_IDS):
            yield self.ids[start : start + PIECE_IDS]


@dataclass(frozen=True, slots=True)
class ParquetPrompt:
    """Token ids of a prompt Parquet (column token_ids), read row group by row group."""

    path: Path

    def chunks(self) -> Iterator[Ids]:
        for ids in iter_ids(self.path):
            yield from ArrayPrompt(ids).chunks()


def as_prompt(prompt: "Path | str | Ids | Prompt") -> Prompt:
    """Return `prompt` as a Prompt: the path of a prompt Parquet, a uint32 array, or already a Prompt."""
    if isinstance(prompt, Path | str):
        return ParquetPrompt(Path(prompt))
    if isinstance(prompt, np.ndarray):
        return ArrayPrompt(prompt.astype(np.uint32, copy=False))
    return prompt


class RequestBody:
    """A JSON object made of `fields` and, last, `"prompt": [ids]`; its size is known before it is sent.

    `count` is the number of token ids, `size` the length in bytes; iterating yields the bytes, as often as asked.
    The first piece is made by the constructor, so that a short prompt costs no time once its request has begun.
    """

    def __init__(self, fields: Mapping[str, Any], prompt: Prompt) -> None:
        self._head = orjson.dumps(dict(fields))[:-1] + (b"," if fields else b"") + b'"prompt":['
        self._prompt = prompt
        self.count = self._digits = 0
        for piece in prompt.chunks():
            self.count += len(piece)
            self._digits += _digits(piece)
        if not self.count:
            raise PromptError("the prompt has no token ids")
        self.size = len(self._head) + self._digits + (self.count - 1) + len(b"]}")
        self._first = self._head + _join_ids(next(piece for piece in prompt.chunks() if len(piece)))

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        pieces = (piece for piece in self._prompt.chunks() if len(piece))
        next(pieces)
        for piece in pieces:
            yield b"," + _join_ids(piece)
        yield b"]}"


def _digits(ids: Ids) -> int:
    """Return how many decimal digits the ids have in all."""
    if not len(ids):
        return 0
    return len(ids) + sum(int(np.count_nonzero(ids >= power)) for power in _POWERS_OF_TEN if power <= int(ids.max()))


def _join_ids(ids: Ids) -> bytes:
    return orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
