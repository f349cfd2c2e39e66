"""Load a model's tokenizer with transformers, from whichever of its files can be read; say what a model lacks."""

import argparse
import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.errors import PromptError
from longctx.model.hub import hub_token

# Files that hold a whole tokenizer.
_WHOLE = ("tokenizer.json", "tekken.json", "tokenizer.model")
# Those of them that need a Python package which the pipeline does not install.
_PACKAGES = {"tekken.json": "mistral_common", "tokenizer.model": "sentencepiece"}
_LONGEST_CAUSE = 300


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A folder, or a hub id with a revision; `trust_remote_code` runs the tokenizer's own Python code."""

    source: str
    revision: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> "TokenizerSpec":
        return cls(args.tokenizer, args.revision, args.trust_remote_code)


def add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --tokenizer, --revision and --trust-remote-code, the fields of a TokenizerSpec."""
    parser.add_argument("--tokenizer", required=True, help="folder or hub id of the model")
    parser.add_argument("--revision", help="commit hash, needed with a hub id")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the tokenizer's own Python code")


def load_pretrained(spec: TokenizerSpec) -> Any:
    """Return transformers' tokenizer; PromptError with the remedy where none can be loaded.

    The model's own class comes first. Where it fails, or is no class of transformers' tokenizers (mistral-common's),
    tokenizer.json is read without it: the file holds the whole tokenizer, whatever the model's config.json says.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # no advice about torch or model_max_length
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    options: dict[str, Any] = {"revision": spec.revision or "main", "token": hub_token()}
    try:
        loaded = AutoTokenizer.from_pretrained(
            spec.source, use_fast=True, trust_remote_code=spec.trust_remote_code, **options
        )
        if hasattr(loaded, "is_fast"):
            return loaded
        failure: Exception = TypeError(f"{type(loaded).__name__} is no tokenizer of transformers")
    except Exception as error:  # transformers, its hub client and a model's own code raise errors of any kind
        failure = error
    files = _Files(spec, options)
    if any(map(files.path, _WHOLE)) and not files.own_code("AutoTokenizer" if spec.trust_remote_code else None):
        with contextlib.suppress(Exception):  # of any kind, as above
            return PreTrainedTokenizerFast.from_pretrained(spec.source, **options)
    raise PromptError(f"tokenizer {spec.source}{_explain(failure, spec, files)}") from failure


class _Files:
    """The files of a folder, or of a hub repository as far as they can be fetched."""

    def __init__(self, spec: TokenizerSpec, options: dict[str, Any]) -> None:
        self._spec, self._options = spec, options
        self._paths: dict[str, Path | None] = {}
        self._reachable = True

    def path(self, name: str) -> Path | None:
        """Return a file's path; None where it is not there or the hub does not give it."""
        from transformers.utils.hub import cached_file

        if name not in self._paths and self._reachable:
            try:
                found = cached_file(
                    self._spec.source, name, _raise_exceptions_for_missing_entries=False, **self._options
                )
                self._paths[name] = Path(found) if found else None
            except Exception:  # the hub's client raises errors of many kinds; it would be asked in vain again
                self._reachable = False
        return self._paths.get(name)

    def own_code(self, kind: str | None = None) -> bool:
        """Return whether the model brings Python code of this kind (`AutoTokenizer`; None = any) in an auto_map."""
        for name in ("tokenizer_config.json", "config.json"):
            path = self.path(name)
            content = _json(path) if path else None
            auto_map = content.get("auto_map") if isinstance(content, dict) else None
            # an old form of tokenizer_config.json has the tokenizer's classes alone, as a list
            if auto_map and (kind is None or isinstance(auto_map, list) or kind in auto_map):
                return True
        return False

    def broken(self) -> Iterator[str]:
        """Yield the names of the JSON files that are none, or no mapping."""
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            if (path := self.path(name)) and not isinstance(_json(path), dict):
                yield name


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _explain(failure: Exception, spec: TokenizerSpec, files: _Files) -> str:
    """Return the end of the sentence that begins with the tokenizer's name."""
    text = " ".join(str(failure).split())
    if any(type(error).__name__ == "GatedRepoError" for error in _chain(failure)) or "gated repo" in text:
        page = f"https://huggingface.co/{spec.source}"
        return (
            f": the repository is gated: ask for access on {page}, then export HF_TOKEN or put a token into ~/hf_token"
        )
    if not spec.trust_remote_code and ("trust_remote_code" in text or files.own_code()):
        return ": it needs its own code: set trust_remote_code: true, with a revision you have read"
    if broken := next(files.broken(), None):
        return f" cannot be loaded: {broken} is not a JSON object; fetch it again"
    for name, package in _PACKAGES.items():
        if files.path(name) and not files.path("tokenizer.json") and importlib.util.find_spec(package) is None:
            return (
                f" cannot be loaded: its {name} needs the Python package {package.replace('_', '-')} beside the"
                f" pipeline's; install it (pip install {package.replace('_', '-')})"
            )
    return f" cannot be loaded: {text[:_LONGEST_CAUSE]}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
