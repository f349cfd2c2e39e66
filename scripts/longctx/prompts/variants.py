"""Read prompts: variants that differ from the first token on, and the queries behind them."""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from longctx.errors import PromptError
from longctx.storage import token_file
from longctx.storage.token_file import Ids

SALT_IDS = 8  # at least 64 words each: 2^48 salts
QUESTIONS = (
    "Which function in the files above does the most work, and how could it be split into smaller ones?",
    "List the public classes defined above with one sentence on each, in the order in which they appear.",
    "Where are errors raised in this code, which of them can a caller mend, and how are they worded?",
    "Explain to a new colleague how these modules depend on each other and which one to read first.",
    "Which configuration values does this code read, what are their defaults, and where are they checked?",
    "Find three places where a missing value is treated like zero and say what would go wrong there.",
    "What would have to change above if every file had to be read in pieces instead of as a whole?",
    "Name the tests that you would write first for this code, with inputs and the results you expect.",
)


def n_variants(path: Path | str) -> int:
    """Return how many variants, different from the first id on, a prompt file gives."""
    return len(orjson.loads(token_file.read_metadata(path)["first_ids"]))


def iter_ids(path: Path | str, variant: int = 0) -> Iterator[Ids]:
    """Yield a prompt's ids, 1Mi at a time; every variant has the same length and another first id."""
    firsts: list[int] = orjson.loads(token_file.read_metadata(path)["first_ids"])
    if not 0 <= variant < len(firsts):
        raise PromptError(f"{path}: has variants 0 to {len(firsts) - 1}, not {variant}")
    for index, ids in enumerate(token_file.iter_ids(path)):
        if index == 0 and ids[0] != firsts[variant]:
            ids = ids.copy()
            ids[0] = firsts[variant]
        yield ids


def read_ids(path: Path | str, variant: int = 0) -> Ids:
    """Return a prompt's ids (uint32, exactly its length) as one array of their own."""
    out = np.empty(token_file.count_ids(path), np.uint32)
    at = 0
    for ids in iter_ids(path, variant):
        out[at : at + len(ids)] = ids
        at += len(ids)
    return out


def salted(path: Path | str, ids: Ids, salt: str | None) -> Ids:
    """Return a prompt's ids with those behind the first one replaced by SALT_IDS words that `salt` chooses.

    Caches know a prompt by its first block of tokens, so another salt shares nothing with it. The length stays.
    """
    if not salt:
        return ids
    words: list[int] = orjson.loads(token_file.read_metadata(path)["first_ids"])
    number = int.from_bytes(hashlib.sha256(salt.encode()).digest(), "big")
    out = ids.copy()
    for at in range(1, min(1 + SALT_IDS, len(ids))):
        number, digit = divmod(number, len(words))
        out[at] = words[digit]
    return out


def read_sha(path: Path | str) -> str:
    """Return the stored SHA-256 of a prompt's ids (variant 0) as little-endian uint32."""
    return token_file.read_metadata(path)["sha256"]


def read_suffix_ids(path: Path | str, index: int, n_tokens: int) -> Ids:
    """Return `n_tokens` ids of a question of its own for each index, other from the first id on below n_variants."""
    metadata = token_file.read_metadata(path)
    firsts, questions = orjson.loads(metadata["first_ids"]), orjson.loads(metadata["question_ids"])
    number, digit = divmod(index, len(firsts))  # `index` in base n_variants, lowest digit first, leads the texts
    lead = [firsts[digit]]
    while number:
        number, digit = divmod(number, len(firsts))
        lead.append(firsts[digit])
    first = index % len(questions)
    texts = itertools.cycle(questions[first:] + questions[:first])
    ids = itertools.chain(lead, itertools.chain.from_iterable(texts))
    return np.fromiter(itertools.islice(ids, n_tokens), np.uint32, n_tokens)
