"""The JSON body of a completion request, streamed: the text of 64Mi token ids is never in memory as a whole."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from longctx.errors import PromptError
from longctx.storage.token_file import Ids

PIECE_IDS = 1 << 18
_POWERS_OF_TEN = tuple(10**k for k in range(1, 10))


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A JSON object; iterating yields its bytes. `head` is made before the request, so a short prompt costs no time."""

    ids: Ids
    size: int
    head: bytes = field(repr=False)

    @classmethod
    def encode(cls, fields: Mapping[str, Any], ids: Ids) -> "RequestBody":
        """Return the body made of `fields` and, last, `"prompt": [ids]`; PromptError where there are no ids."""
        if not len(ids):
            raise PromptError("the prompt has no token ids")
        start = orjson.dumps(dict(fields))[:-1] + (b"," if fields else b"") + b'"prompt":['
        digits = sum(_count_digits(piece) for piece in _pieces(ids))
        size = len(start) + digits + (len(ids) - 1) + len(b"]}")
        return cls(ids, size, start + _join_ids(ids[:PIECE_IDS]))

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        for piece in _pieces(self.ids[PIECE_IDS:]):
            yield b"," + _join_ids(piece)
        yield b"]}"


def _pieces(ids: Ids) -> Iterator[Ids]:
    return (ids[start : start + PIECE_IDS] for start in range(0, len(ids), PIECE_IDS))


def _count_digits(ids: Ids) -> int:
    return len(ids) + sum(int(np.count_nonzero(ids >= power)) for power in _POWERS_OF_TEN if power <= int(ids.max()))


def _join_ids(ids: Ids) -> bytes:
    return orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
