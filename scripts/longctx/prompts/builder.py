"""Prompts of exactly L token ids: header + the stream's first part + tail, with cheap variants.

A prompt file holds variant 0. Variant k differs only in its first id, which is enough for a prefix cache to share
nothing (block hashes chain from the first token); the alternatives are in the file's metadata, so that reading
prompts needs neither the tokenizer nor transformers.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import orjson

from longctx.errors import PromptError
from longctx.prompts.shapes import shape_texts
from longctx.prompts.token_stream import Progress
from longctx.prompts.tokenizers import Tokenizer
from longctx.prompts.variants import QUESTIONS
from longctx.storage import token_file
from longctx.storage.token_file import Ids, TokenFileWriter

N_VARIANTS = 128
MIN_VARIANTS = 64
_WINDOW_TOKENS = 1024
_MAX_FILLER = 64
_COPIED = ("tokenizer", "tokenizer_fingerprint", "vocab_size", "corpus", "corpus_hash")


def _header(tokenizer: Tokenizer, system: str) -> tuple[list[int], Ids]:
    """Return up to N_VARIANTS distinct first ids, and the header's other ids, the same for each."""
    rest = f"\n{system}\n" if system else "\n"
    texts = [text for i, text in enumerate(tokenizer.token_texts()) if text and i not in tokenizer.special_ids]
    words = [text for text in texts if re.fullmatch(r"[A-Za-z]{3,12}", text)]
    short = [text for text in texts if re.fullmatch(r"[!-~]{1,2}", text)]
    firsts: list[int] = []
    rest_ids: Ids | None = None
    for word in itertools.chain(words, short):
        ids = tokenizer.encode(word + rest)
        if rest_ids is None and len(tokenizer.encode(word)) == 1:
            rest_ids = ids[1:]
        if rest_ids is not None and np.array_equal(ids[1:], rest_ids) and int(ids[0]) not in firsts:
            firsts.append(int(ids[0]))
        if len(firsts) == N_VARIANTS:
            break
    if rest_ids is None or len(firsts) < MIN_VARIANTS:
        found = f"only {len(firsts)} words of one token can start a prompt"
        raise PromptError(f"tokenizer {tokenizer.name}: {found}, {MIN_VARIANTS} are needed")
    return firsts, rest_ids


def seam(tokenizer: Tokenizer, before: Ids, after: Ids) -> tuple[Ids, int]:
    """Return `before` with as few last ids as possible replaced by a filler id, and their number.

    The result ends after a whole character, and together with `after` it survives decoding and encoding where any
    amount of filler up to _MAX_FILLER makes it so.
    """
    cuts = tokenizer.safe_cuts(before[: max(len(before) - _MAX_FILLER, 0)])
    start = int(cuts[-1]) if len(cuts) else 0
    whole: tuple[Ids, int] | None = None
    for filler in range(min(_MAX_FILLER, len(before)) + 1):
        kept = before[: len(before) - filler]
        if not tokenizer.ends_whole(kept):
            continue
        ids = np.concatenate([kept, np.full(filler, tokenizer.filler_id, np.uint32)])
        whole = whole or (ids, filler)
        if not tokenizer.invertible:
            break
        if tokenizer.survives(np.concatenate([ids[start:], after])):
            return ids, filler
    assert whole is not None, "nothing at all ends whole"
    return whole


def build(
    source: Path | str, shape: str, tokenizer: Tokenizer, length: int, out_path: Path | str, progress: Progress = None
) -> dict[str, str]:
    """Write a prompt of exactly `length` ids and return its metadata.

    A length shorter than header and tail together gets the first ids of header + tail, still starting with the
    variant's id and ending after a whole character. PromptError where the stream is too short.
    """
    stream = token_file.read_metadata(source)
    if stream.get("tokenizer_fingerprint") != tokenizer.fingerprint:
        raise PromptError(f"{source}: made with another tokenizer than {tokenizer.name}; build it again")
    system, task = shape_texts(shape, length, token_file.begun_repositories(stream, length))
    firsts, rest = _header(tokenizer, system)
    header = np.concatenate([np.array(firsts[:1], np.uint32), rest])
    tail = tokenizer.encode(f"\n\n{task}\n") if task else np.empty(0, np.uint32)
    body = length - len(header) - len(tail)
    if body < 0:
        header, tail, body = np.concatenate([header, tokenizer.encode(task)])[:length], tail[:0], 0
    if body > int(stream["tokens"]):
        raise PromptError(f"{source}: has {stream['tokens']} tokens, a prompt of {length} needs {body}")
    arrays, filler = _arrays(tokenizer, header, Path(source), body, tail)
    numbers = {"length": length, "header_tokens": len(header), "tail_tokens": len(tail), "filler_tokens": filler}
    numbers["cycles"] = token_file.n_cycles(stream, body)
    questions = [tokenizer.encode(f" {text}\n").tolist() for text in QUESTIONS]
    with TokenFileWriter(out_path) as out:
        for ids in arrays:
            out.write(ids)
            if progress:
                progress(out.tokens)
        out.metadata |= {key: stream[key] for key in _COPIED} | {key: str(n) for key, n in numbers.items()}
        out.metadata |= {"shape": Path(shape).name, "stream_sha256": stream["sha256"]}
        out.metadata |= {"first_ids": orjson.dumps(firsts).decode(), "question_ids": orjson.dumps(questions).decode()}
    return out.metadata | {"tokens": str(out.tokens), "sha256": out.sha256}


def _arrays(tokenizer: Tokenizer, header: Ids, stream: Path, body: int, tail: Ids) -> tuple[Iterable[Ids], int]:
    """Return header + stream[:body] + tail in pieces with a clean seam before the tail, and the filler's length."""
    window = min(body, _WINDOW_TOKENS)
    before = token_file.read_span(stream, body - window, body)
    if window < _WINDOW_TOKENS:
        before, filler = seam(tokenizer, np.concatenate([header, before]), tail)
        return (before, tail), filler
    before, filler = seam(tokenizer, before, tail)
    return itertools.chain([header], token_file.iter_ids(stream, body - window), [before, tail]), filler
