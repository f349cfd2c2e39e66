"""Errors that a user can correct: one sentence each, saying what, where, and the remedy."""

import io
import sys
from collections.abc import Callable
from typing import NoReturn

from longctx.redaction import printable


class LongctxError(Exception):
    """Base of every error whose text is meant for the user; scripts print it and exit 1."""


class ConfigError(LongctxError):
    """A configuration value is wrong; the message starts with the path of its key."""


class GeometryError(LongctxError):
    """A model's config.json lacks, or contradicts, a field that the geometry needs."""


class PromptError(LongctxError):
    """A corpus, tokenizer or prompt cannot give exactly the tokens asked for."""


class ServerError(LongctxError):
    """A server did not start, is not ours, or died.

    reason: one of `measure.reasons`. log_tail: the last lines of the server's log. kv_tokens: the longest context that
    the KV cache would hold, where the reason is 'kv_too_small' and the server logged it.
    """

    def __init__(self, message: str, reason: str = "server_died", log_tail: str = "", kv_tokens: int | None = None):
        super().__init__(message)
        self.reason, self.log_tail, self.kv_tokens = reason, log_tail, kv_tokens


class DataError(LongctxError):
    """A data file is corrupt, of another format version, or of another recipe."""


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run a command-line program and exit with its code, or with one sentence where the error is the user's."""
    escape_what_cannot_be_shown()
    try:
        sys.exit(main())
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {printable(str(error), keep=chr(10))}")
    except KeyboardInterrupt:
        print("stopped; the same command does this step again", file=sys.stderr)
        sys.exit(130)


def escape_what_cannot_be_shown() -> None:
    """Let standard output and error show what the locale's encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
