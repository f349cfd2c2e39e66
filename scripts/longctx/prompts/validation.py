"""Check a prompt file against its tokenizer: count, id range, no special or broken ids, decode-encode round trip."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longctx.errors import GeometryError, PromptError
from longctx.model.reader import read_geometry
from longctx.prompts.token_stream import Progress
from longctx.prompts.tokenizers import KNOWN, Tokenizer
from longctx.storage import token_file

_PIECE_TOKENS = 4096


def validate(
    path: Path | str, tokenizer: Tokenizer, length: int, model_vocab_size: int | None = None, progress: Progress = None
) -> dict[str, Any]:
    """Return one row of schemas.VALIDATION; `detail` names the problem in one sentence, or is null.

    `model_vocab_size` is the size of the model's embedding, where it is smaller than the tokenizer's vocabulary.
    round_trip is null for a tokenizer that never keeps text exactly (a lossy normalizer), false at the first
    difference. Memory: a few row groups.
    """
    metadata = token_file.read_metadata(path)
    if lacking := [key for key in ("sha256", "cycles") if key not in metadata]:
        raise PromptError(f"{path}: no prompt of longctx, its metadata lack {' and '.join(lacking)}; make it again")
    limit = min(tokenizer.vocab_size, model_vocab_size or tokenizer.vocab_size)
    counted = special = unknown = broken = 0
    in_range, digest, difference = True, hashlib.sha256(), None
    specials = np.array(sorted(tokenizer.special_ids), np.uint32)
    for ids in token_file.iter_ids(path):
        counted += len(ids)
        digest.update(ids.astype("<u4", copy=False).data)
        in_range &= bool((ids < limit).all())
        special += int(np.isin(ids, specials).sum())
        inside = ids[ids < tokenizer.vocab_size]
        unknown += int(((tokenizer.flags[inside] & KNOWN) == 0).sum())
    if in_range and not unknown:
        broken, difference = _round_trip(path, tokenizer, progress)
    row = {
        "length": length,
        "target": length,
        "counted": counted,
        "ids_in_range": in_range,
        "special_ids": special,
        "undecodable_ids": unknown + broken,
        "cycles": int(metadata["cycles"]),
        "prompt_sha256": digest.hexdigest(),
        "round_trip": (difference is None and in_range and not unknown) if tokenizer.invertible else None,
    }
    differs = f"decoded and encoded again with {tokenizer.name}, the prompt differs from id {difference} on"
    detail = _detail(row, row["prompt_sha256"] != metadata["sha256"], differs)
    return row | {"ok": detail is None, "detail": detail}


def model_vocab_size(source: str, revision: str | None = None) -> int | None:
    """Return the number of ids in a model's embedding (folder or hub id), None where its config.json is not known."""
    try:
        return read_geometry(source, revision).vocab_size
    except GeometryError:
        return None


def _detail(row: dict[str, Any], is_changed: bool, differs: str) -> str | None:
    problems = (
        (is_changed, "its ids are not those that its checksum was taken of: the file was changed, so make it again"),
        (row["counted"] != row["target"], f"the prompt has {row['counted']} ids, not {row['target']}"),
        (not row["ids_in_range"], "an id is outside the vocabulary: prompt and model do not belong together"),
        (row["special_ids"], f"{row['special_ids']} special ids are in the prompt"),
        (row["undecodable_ids"], f"{row['undecodable_ids']} ids decode to no whole character"),
        (row["round_trip"] is False, differs),
    )
    return next((problem for is_bad, problem in problems if is_bad), None)


def _texts(path: Path | str, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the prompt's text in pieces that tokenize on their own."""
    rest = np.empty(0, np.uint32)
    for ids in token_file.iter_ids(path):
        rest = np.concatenate([rest, ids])
        start = 0
        for cut in tokenizer.safe_cuts(rest):
            if cut - start >= _PIECE_TOKENS:
                yield tokenizer.decode(rest[start:cut])
                start = int(cut)
        rest = rest[start:]
    yield tokenizer.decode(rest)


def _round_trip(path: Path | str, tokenizer: Tokenizer, progress: Progress) -> tuple[int, int | None]:
    """Return the number of broken characters and the position of the first different id (None: no difference)."""
    if not tokenizer.invertible:
        return sum(text.count("\ufffd") for text in _texts(path, tokenizer)), None
    broken = 0

    def texts() -> Iterator[str]:
        nonlocal broken
        for text in _texts(path, tokenizer):
            broken += text.count("\ufffd")
            yield text

    source = token_file.iter_ids(path)
    expected = np.empty(0, np.uint32)
    done, difference = 0, None
    for encoded in tokenizer.encode_batches(texts()):
        while len(expected) < len(encoded) and (more := next(source, None)) is not None:
            expected = np.concatenate([expected, more])
        same = min(len(encoded), len(expected))
        unequal = np.flatnonzero(encoded[:same] != expected[:same])
        if difference is None and (len(unequal) or same < len(encoded)):
            difference = done + (int(unequal[0]) if len(unequal) else same)
        done += same
        expected = expected[same:]
        if progress:
            progress(done)
    left = len(expected) + sum(len(ids) for ids in source)
    return broken, done if difference is None and left else difference
