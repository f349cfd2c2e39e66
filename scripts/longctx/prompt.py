"""Prompts of exactly L token ids: header + the stream's first part + tail, with cheap variants.

A prompt file holds variant 0. Variant k differs only in its first id, which is enough for a prefix cache to share
nothing (block hashes chain from the first token); the alternatives are in the file's metadata, so that reading
prompts needs neither the tokenizer nor transformers.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING

import numpy as np
import orjson

from longctx import tokenfile
from longctx.errors import PromptError
from longctx.lengths import format_length
from longctx.tokenfile import Ids, TokenFileWriter

if TYPE_CHECKING:
    from longctx.tokens import Tokenizer

SHAPES = Path(__file__).parents[2] / "resources" / "prompts"
N_VARIANTS = 128
MIN_VARIANTS = 64
_WINDOW_TOKENS = 1024
_MAX_FILLER = 64
_COPIED = ("tokenizer", "tokenizer_fingerprint", "vocab_size", "corpus", "corpus_hash")
_QUESTIONS = (
    "Which function in the files above does the most work, and how could it be split into smaller ones?",
    "List the public classes defined above with one sentence on each, in the order in which they appear.",
    "Where are errors raised in this code, which of them can a caller mend, and how are they worded?",
    "Explain to a new colleague how these modules depend on each other and which one to read first.",
    "Which configuration values does this code read, what are their defaults, and where are they checked?",
    "Find three places where a missing value is treated like zero and say what would go wrong there.",
    "What would have to change above if every file had to be read in pieces instead of as a whole?",
    "Name the tests that you would write first for this code, with inputs and the results you expect.",
)


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """`shape`: 'report', 'plain', or a folder with system.txt and task.txt; `values` adds placeholders of its own.

    Placeholders always there: {tokens} (65536), {length} ('64Ki'), {repositories} (names, comma-separated) and
    {repository_count}. Write {{ and }} for braces.
    """

    shape: str = "report"
    values: dict[str, str] = field(default_factory=dict)


def render(path: Path, values: dict[str, str]) -> str:
    """Fill one text's placeholders; PromptError names the file and the placeholder that it does not know."""
    try:
        parts = list(Formatter().parse(path.read_text()))
    except (OSError, ValueError) as error:
        raise PromptError(f"{path}: not a readable prompt text ({error}); write {{{{ for a brace") from error
    text = ""
    for literal, name, form, conversion in parts:
        text += literal
        if name is not None:
            if name not in values or form or conversion:
                whole = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                raise PromptError(f"{path}: unknown placeholder {{{whole}}}; there are {', '.join(sorted(values))}")
            text += values[name]
    return text.strip()


def shape_folder(shape: str) -> Path:
    """Return where a shape's texts lie; PromptError where there is no such shape."""
    built_in = SHAPES / shape
    folder = built_in if built_in.is_dir() else Path(shape).expanduser()
    if not folder.is_dir():
        names = ", ".join(sorted(entry.name for entry in SHAPES.iterdir()))
        raise PromptError(f"prompt shape {shape!r} is neither built in ({names}) nor a folder")
    return folder


def _shape_texts(spec: PromptSpec, length: int, repositories: list[str]) -> tuple[str, str]:
    folder = shape_folder(spec.shape)
    values = {"tokens": str(length), "length": format_length(length), "repositories": ", ".join(repositories),
              "repository_count": str(len(repositories))}  # fmt: skip
    system, task = (render(folder / name, values | spec.values) for name in ("system.txt", "task.txt"))
    return system, task


def _header(tokenizer: "Tokenizer", system: str) -> tuple[list[int], Ids]:
    """Return up to N_VARIANTS distinct first ids, and the header's other ids, the same for each."""
    rest = f"\n{system}\n" if system else "\n"
    known = [text or "" for text in tokenizer.token_texts()]
    special = tokenizer.special_ids
    words = [text for i, text in enumerate(known) if i not in special and re.fullmatch(r"[A-Za-z]{3,12}", text)]
    short = [text for i, text in enumerate(known) if i not in special and re.fullmatch(r"[!-~]{1,2}", text)]
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
        raise PromptError(
            f"tokenizer {tokenizer.name}: only {len(firsts)} words of one token can start a prompt,"
            f" {MIN_VARIANTS} are needed"
        )
    return firsts, rest_ids


def seam(tokenizer: "Tokenizer", before: Ids, after: Ids) -> tuple[Ids, int]:
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
    stream_path: Path | str,
    spec: PromptSpec,
    tokenizer: "Tokenizer",
    length: int,
    out_path: Path | str,
    progress: Callable[[int], None] | None = None,
) -> dict[str, str]:
    """Write a prompt of exactly `length` ids and return its metadata.

    A length shorter than header and tail together gets the first ids of header + tail, still starting with the
    variant's id and ending after a whole character. PromptError where the stream is too short.
    """
    stream = tokenfile.read_metadata(stream_path)
    if stream.get("tokenizer_fingerprint") != tokenizer.fingerprint:
        raise PromptError(f"{stream_path}: made with another tokenizer than {tokenizer.name}; build it again")
    system, task = _shape_texts(spec, length, tokenfile.begun_repositories(stream, length))
    firsts, rest = _header(tokenizer, system)
    header = np.concatenate([np.array(firsts[:1], np.uint32), rest])
    tail = tokenizer.encode(f"\n\n{task}\n") if task else np.empty(0, np.uint32)
    body = length - len(header) - len(tail)
    if body < 0:
        header, tail, body = np.concatenate([header, tokenizer.encode(task)])[:length], tail[:0], 0
    if body > int(stream["tokens"]):
        raise PromptError(f"{stream_path}: has {stream['tokens']} tokens, a prompt of {length} needs {body}")
    with TokenFileWriter(out_path) as out:
        filler = _write(out, tokenizer, header, stream_path, body, tail, progress)
        numbers = {"length": length, "header_tokens": len(header), "tail_tokens": len(tail), "filler_tokens": filler,
                   "cycles": tokenfile.n_cycles(stream, body)}  # fmt: skip
        out.metadata |= {key: stream[key] for key in _COPIED} | {key: str(n) for key, n in numbers.items()}
        out.metadata |= {"shape": Path(spec.shape).name, "stream_sha256": stream["sha256"]}
        out.metadata["first_ids"] = orjson.dumps(firsts).decode()
        out.metadata["question_ids"] = orjson.dumps(_question_ids(tokenizer)).decode()
    return out.metadata | {"tokens": str(out.tokens), "sha256": out.sha256}


def _write(
    out: TokenFileWriter,
    tokenizer: "Tokenizer",
    header: Ids,
    stream_path: Path | str,
    body: int,
    tail: Ids,
    progress: Callable[[int], None] | None,
) -> int:
    """Write header + stream[:body] + tail with a clean seam before the tail; return the filler's length."""
    window = min(body, _WINDOW_TOKENS)
    before = tokenfile.read_span(stream_path, body - window, body)
    if window < _WINDOW_TOKENS:
        before = np.concatenate([header, before])
    before, filler = seam(tokenizer, before, tail)
    if window == _WINDOW_TOKENS:
        out.write(header)
        for ids in tokenfile.iter_ids(stream_path, body - window):
            out.write(ids)
            if progress:
                progress(out.tokens)
    out.write(before)
    out.write(tail)
    return filler


def read_metadata(path: Path | str) -> dict[str, str]:
    """Return a prompt file's metadata."""
    return dict(tokenfile.read_metadata(path))


def n_variants(path: Path | str) -> int:
    """Return how many variants, different from the first id on, a prompt file gives."""
    return len(orjson.loads(read_metadata(path)["first_ids"]))


def _first_id(path: Path | str, variant: int) -> int:
    firsts: list[int] = orjson.loads(read_metadata(path)["first_ids"])
    if not 0 <= variant < len(firsts):
        raise PromptError(f"{path}: has variants 0 to {len(firsts) - 1}, not {variant}")
    return firsts[variant]


def iter_ids(path: Path | str, variant: int = 0) -> Iterator[Ids]:
    """Yield a prompt's ids, 1Mi at a time; every variant has the same length and another first id."""
    first = _first_id(path, variant)
    for index, ids in enumerate(tokenfile.iter_ids(path)):
        if index == 0 and ids[0] != first:
            ids = ids.copy()
            ids[0] = first
        yield ids


def read_ids(path: Path | str, variant: int = 0) -> Ids:
    """Return a prompt's ids (uint32, exactly its length) as one array of their own."""
    out = np.empty(tokenfile.count_ids(path), np.uint32)
    at = 0
    for ids in iter_ids(path, variant):
        out[at : at + len(ids)] = ids
        at += len(ids)
    return out


def read_sha(path: Path | str, variant: int = 0) -> str:
    """Return the SHA-256 of a prompt's ids as little-endian uint32; stored for variant 0, computed for the others."""
    if variant == 0:
        return read_metadata(path)["sha256"]
    digest = hashlib.sha256()
    for ids in iter_ids(path, variant):
        digest.update(ids.astype("<u4", copy=False).data)
    return digest.hexdigest()


def _question_ids(tokenizer: "Tokenizer") -> list[list[int]]:
    return [tokenizer.encode(f" {text}\n").tolist() for text in _QUESTIONS]


def _suffix(firsts: list[int], questions: list[list[int]], index: int, n_tokens: int) -> Ids:
    """Ids of the index-th question: its number in base len(firsts), lowest digit first, then question texts."""
    lead: list[int] = []
    number = index
    while not lead or number:
        lead.append(firsts[number % len(firsts)])
        number //= len(firsts)
    texts = itertools.cycle(questions[index % len(questions) :] + questions[: index % len(questions)])
    ids = itertools.chain(lead, itertools.chain.from_iterable(texts))
    return np.fromiter(itertools.islice(ids, n_tokens), np.uint32, n_tokens)


def read_suffix_ids(path: Path | str, index: int, n_tokens: int) -> Ids:
    """Return `n_tokens` ids to put behind the prompt: a question of its own for each index, no tokenizer needed.

    Different from the first id on for indexes below n_variants.
    """
    metadata = read_metadata(path)
    return _suffix(orjson.loads(metadata["first_ids"]), orjson.loads(metadata["question_ids"]), index, n_tokens)
