"""Any model's tokenizer, driven as fast as its engine allows, giving ordinary text ids only.

`transformers` loads the tokenizer; `tokenizers` or `tiktoken` does the work where the tokenizer is theirs.
Text that spells a special token ('<|endoftext|>') is encoded as the ordinary characters that it is.
"""

import hashlib
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longctx.errors import PromptError
from longctx.prompts.pretrained import TokenizerSpec, load_pretrained
from longctx.storage.token_file import Ids

BATCH_CHARS = 500_000
_PROBE = ("def area(r: float) -> float:\n    return 3.14159 * r**2  # é 東京 😀\n\n\n", "[FILE a/b.py]\nimport os\n")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Properties of one id's text, as bits of `Tokenizer.flags`.
WHOLE, LINE_END, NEWLINE, SOLID_END, LINE_START, KNOWN = 1, 2, 4, 8, 16, 32
log = logging.getLogger("longctx")


class Tokenizer(ABC):
    """Text to ids and back, without special tokens, truncation or padding.

    `special_ids` are the special ids and those that only an added token has; `vocab_size` is the greatest id plus
    one; `fingerprint` names the vocabulary's content.
    """

    engine: str

    def __init__(self, name: str, ordinary_ids: Iterable[int], special_ids: Iterable[int], digest: Any) -> None:
        self.name, self.special_ids = name, frozenset(special_ids)
        self.vocab_size, self.fingerprint = max([*ordinary_ids, *self.special_ids]) + 1, digest.hexdigest()[:16]
        self._is_special = np.zeros(self.vocab_size, dtype=np.bool_)
        self._is_special[list(self.special_ids)] = True

    @abstractmethod
    def _encode_raw(self, texts: Sequence[str]) -> list[Any]:
        """Encode texts with all cores, outside the interpreter lock."""

    def _array(self, raw: Any) -> Ids:
        return np.asarray(raw, dtype=np.uint32)

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """Return the ids' text; bytes that are no whole character become U+FFFD."""

    @abstractmethod
    def token_texts(self) -> list[str | None]:
        """Return each id's own text, None where no token has the id."""

    def encode(self, text: str) -> Ids:
        """Return the ids of one text."""
        return self._ids(self._encode_raw([text]))

    def encode_batches(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Yield ids in order, an array per batch of about BATCH_CHARS; the next batch is encoded at the same time."""
        with ThreadPoolExecutor(1) as pool:
            pending = None
            for batch in batches(texts, BATCH_CHARS):
                running = pool.submit(self._encode_raw, batch)
                if pending is not None:
                    yield self._ids(pending)
                pending = running.result()
            if pending is not None:
                yield self._ids(pending)

    def _ids(self, raw: list[Any]) -> Ids:
        ids = np.concatenate([self._array(item) for item in raw])
        special = self._is_special[ids]
        return ids[~special] if special.any() else ids

    def survives(self, ids: Ids) -> bool:
        """Return whether decoding and encoding again gives the same ids."""
        return np.array_equal(self.encode(self.decode(ids)), ids)

    @cached_property
    def invertible(self) -> bool:
        """Return whether this tokenizer keeps text exactly and texts may be split at line ends (probed)."""
        parts = [self.encode(text) for text in _PROBE]
        joined = np.concatenate(parts)
        return self.decode(joined) == "".join(_PROBE) and self.survives(joined)

    @cached_property
    def flags(self) -> npt.NDArray[np.uint8]:
        """Bits per id: WHOLE characters, LINE_END, NEWLINE, SOLID_END, LINE_START, KNOWN."""
        return np.array([_flags(text) for text in self.token_texts()], dtype=np.uint8)

    def safe_cuts(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the positions i where ids[:i] and ids[i:] are texts of their own: a line ends, the next one starts."""
        flags = self.flags[ids]
        before, after = flags[:-1], flags[1:]
        solid = np.zeros(len(before), np.bool_)
        solid[1:] = (flags[:-2] & SOLID_END) > 0
        ends = ((before & LINE_END) > 0) | (((before & NEWLINE) > 0) & solid)
        return np.flatnonzero(ends & ((after & LINE_START) > 0)) + 1

    def ends_whole(self, ids: Ids) -> bool:
        """Return whether the ids end after a whole character."""
        whole = np.flatnonzero(self.flags[ids] & WHOLE)
        start = int(whole[-1]) + 1 if len(whole) else 0
        return start == len(ids) or "\ufffd" not in self.decode(ids[start:])

    @cached_property
    def filler_id(self) -> int:
        """Return an id that encodes as itself when repeated after any text, for padding by a few tokens."""
        for text in (" the", " a", " x", " 0", "x", "0", "."):
            ids = self.encode(text)
            if len(ids) == 1 and self.survives(np.repeat(ids, 3)):
                return int(ids[0])
        return int(self.encode("x")[-1])


def _flags(text: str | None) -> int:
    if not text:
        return 0 if text is None else KNOWN
    if "\ufffd" in text:
        return KNOWN
    bits = KNOWN | WHOLE
    bits |= LINE_END if re.search(r"\S\n\Z", text) else 0
    bits |= NEWLINE if text == "\n" else 0
    bits |= 0 if text[-1].isspace() else SOLID_END
    return bits | (LINE_START if re.match(r"[\w\[@#]", text) else 0)


def batches(texts: Iterable[str], chars: int) -> Iterator[list[str]]:
    """Group texts into lists of at least `chars` characters each, the last one shorter."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= chars:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class FastTokenizer(Tokenizer):
    """A Rust `tokenizers` backend; `encode_batch_fast` skips offsets, which is a third of the time."""

    engine = "tokenizers"

    def __init__(self, name: str, loaded: Any) -> None:
        backend, added = loaded.backend_tokenizer, loaded.added_tokens_decoder
        content = backend.to_str()
        if not all(token.special for token in added.values()):
            from tokenizers import Tokenizer as Backend

            fields = json.loads(content) | {"added_tokens": [], "post_processor": None}
            backend = Backend.from_str(json.dumps(fields))
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        ordinary = backend.get_vocab(with_added_tokens=False)
        special = {i for i, token in added.items() if token.special or token.content not in ordinary}
        special.update(loaded.all_special_ids)
        super().__init__(name, ordinary.values(), special, hashlib.sha256(content.encode()))

    def _encode_raw(self, texts: Sequence[str]) -> list[Any]:
        return list(self._backend.encode_batch_fast(texts, add_special_tokens=False))

    def _array(self, raw: Any) -> Ids:
        return np.array(raw.ids, dtype=np.uint32)

    def decode(self, ids: Ids) -> str:
        return str(self._backend.decode(ids.tolist(), skip_special_tokens=False))

    def token_texts(self) -> list[str | None]:
        texts = self._backend.decode_batch([[i] for i in range(self.vocab_size)], skip_special_tokens=False)
        return [text if self._backend.id_to_token(i) is not None else None for i, text in enumerate(texts)]


class TiktokenTokenizer(Tokenizer):
    """A `tiktoken.Encoding` inside a model's own Python tokenizer (Kimi's kind), driven by threads."""

    engine = "tiktoken"

    def __init__(self, name: str, loaded: Any, encoding: Any) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._encoding, self._pool = encoding, ThreadPoolExecutor(cores)
        special = {*loaded.added_tokens_decoder, *loaded.all_special_ids, *encoding._special_tokens.values()}
        digest = hashlib.sha256(encoding._pat_str.encode())
        for token, rank in encoding._mergeable_ranks.items():
            digest.update(b"%d %b\n" % (rank, token))
        super().__init__(name, [encoding.max_token_value], special, digest)

    def _encode_raw(self, texts: Sequence[str]) -> list[Any]:
        return list(self._pool.map(partial(self._encoding.encode_to_numpy, disallowed_special=()), texts))

    def decode(self, ids: Ids) -> str:
        return str(self._encoding.decode(ids.tolist()))

    def token_texts(self) -> list[str | None]:
        texts: list[str | None] = [None] * self.vocab_size
        for token, rank in self._encoding._mergeable_ranks.items():
            texts[rank] = token.decode(errors="replace")
        for text, rank in self._encoding._special_tokens.items():
            texts[rank] = text
        return texts


class SlowTokenizer(Tokenizer):
    """Any other Python tokenizer: correct, but it uses one core, which a warning says."""

    engine = "python"

    def __init__(self, name: str, loaded: Any) -> None:
        log.warning("tokenizer %s is pure Python: expect one core and well under 0.3 M tokens/s", name)
        self._loaded = loaded
        loaded.model_max_length = int(1e30)
        vocabulary = loaded.get_vocab()
        digest = hashlib.sha256(json.dumps(vocabulary, sort_keys=True).encode())
        super().__init__(name, vocabulary.values(), {*loaded.added_tokens_decoder, *loaded.all_special_ids}, digest)

    def _encode_raw(self, texts: Sequence[str]) -> list[Any]:
        tokens = (self._loaded.tokenize(text, split_special_tokens=True) for text in texts)
        return [self._loaded.convert_tokens_to_ids(list(item)) for item in tokens]

    def decode(self, ids: Ids) -> str:
        return str(self._loaded.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_texts(self) -> list[str | None]:
        ids = set(self._loaded.get_vocab().values())
        return [self.decode(np.array([i], np.uint32)) if i in ids else None for i in range(self.vocab_size)]


def load_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """Return a tokenizer; PromptError where it cannot be loaded or is not pinned."""
    folder = Path(spec.source).is_dir()
    if not folder and spec.source.startswith(("/", ".", "~")):
        raise PromptError(f"tokenizer: the folder {spec.source} does not exist")
    if not folder and spec.revision is None:
        raise PromptError(f"tokenizer {spec.source}: give a revision, so that the same prompt can be built again")
    if not folder and spec.trust_remote_code and not _COMMIT.fullmatch(spec.revision or ""):
        pinned = "trust_remote_code runs code from the hub, so revision must be a full commit hash (40 hex digits)"
        raise PromptError(f"tokenizer {spec.source}: {pinned}, not {spec.revision!r}")
    loaded = load_pretrained(spec)
    name = Path(spec.source).resolve().name if folder else f"{spec.source}@{spec.revision}"
    if loaded.is_fast:
        return FastTokenizer(name, loaded)
    encoding = _tiktoken_encoding(loaded)
    return TiktokenTokenizer(name, loaded, encoding) if encoding is not None else SlowTokenizer(name, loaded)


def _tiktoken_encoding(loaded: Any) -> Any | None:
    """Return the tiktoken.Encoding that `loaded` wraps, if it alone decides the ids."""
    try:
        import tiktoken
    except ImportError:
        return None
    for encoding in vars(loaded).values():
        if isinstance(encoding, tiktoken.Encoding):
            pairs = ((loaded.encode(t, add_special_tokens=False), encoding.encode_ordinary(t)) for t in _PROBE)
            return encoding if all(own == ids for own, ids in pairs) else None
    return None
