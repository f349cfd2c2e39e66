"""The token stream: the corpus tokenized once, which all lengths share."""

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from longctx.prompts.sources import PACKAGES, STDLIB, Corpus, CorpusSpec, repository_texts, scan
from longctx.prompts.tokenizers import Tokenizer
from longctx.storage.token_file import Ids, TokenFileWriter

_log = logging.getLogger(__name__)
Progress = Callable[[int], None] | None  # is called with the number of tokens done


def _encoded(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[tuple[int, str, Ids]]:
    for cycle in itertools.count(1):
        for repository in corpus.repositories:
            for ids in tokenizer.encode_batches(repository_texts(corpus, repository, cycle)):
                yield cycle, repository, ids


def build_stream(
    source: CorpusSpec, tokenizer: Tokenizer, n_tokens: int, out_path: Path | str, progress: Progress = None
) -> dict[str, str]:
    """Write the corpus's first `n_tokens` ids, cycling it where it is shorter; return the file's metadata.

    Metadata: tokenizer, tokenizer_fingerprint, vocab_size, corpus, corpus_hash, tokens, sha256 and sections, a JSON
    list of [cycle, repository, first token]. Memory is one batch and one row group at any n_tokens.
    """
    corpus = scan(source)
    if corpus.left_out:
        names = ", ".join(corpus.left_out[:5]) + (", …" if len(corpus.left_out) > 5 else "")
        _log.warning("corpus: %d files left out, since their names are not UTF-8: %s", len(corpus.left_out), names)
    sections: list[tuple[int, str, int]] = []
    with TokenFileWriter(out_path) as out:
        for cycle, repository, ids in _encoded(corpus, tokenizer):
            if not sections or sections[-1][:2] != (cycle, repository):
                sections.append((cycle, repository, out.tokens))
            out.write(ids[: n_tokens - out.tokens])
            if progress:
                progress(out.tokens)
            if out.tokens == n_tokens:
                break
        name = (
            source.path
            if source.path in (PACKAGES, STDLIB)
            else os.fsencode(Path(source.path).resolve().name).decode(errors="replace")
        )
        out.metadata |= {"tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint}
        out.metadata |= {"vocab_size": str(tokenizer.vocab_size), "corpus": name, "corpus_hash": corpus.sha256}
        out.metadata["sections"] = orjson.dumps(sections).decode()
    return out.metadata | {"tokens": str(out.tokens), "sha256": out.sha256}
