"""The messages of a long job: on stderr, and with the time in its log file."""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from longctx.redaction import redact


class BrokenPipeTolerantStream:
    """A text stream that drops what a closed terminal or pipe no longer takes, and raises nothing."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., object], *arguments: str) -> None:
        try:
            act(*arguments)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                return
            # To nowhere from now on, with what shares the file: also for programs started from here, and at exit.
            with suppress(OSError), open(os.devnull, "w", encoding="utf-8") as nowhere:
                gone = self._stream.fileno()
                for handle in [handle for handle in {1, 2, gone} if os.path.sameopenfile(handle, gone)]:
                    os.dup2(nowhere.fileno(), handle)


def tolerate_broken_pipes(logger: str) -> None:
    """Make a logger's streams tolerant (Snakemake waits for ever for a job whose end it cannot print)."""
    for handler in logging.getLogger(logger).handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setStream(BrokenPipeTolerantStream(handler.stream))


@contextmanager
def log_to_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes one line to stderr and, with UTC time, to `path`; secrets are masked in both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = BrokenPipeTolerantStream(sys.stderr)
    with open(path, "ab", buffering=0) as file:

        def say(line: str) -> None:
            line = redact(line)
            terminal.write(line + "\n")
            terminal.flush()
            with suppress(OSError):  # a full disk: the journal reports it
                file.write((time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + line + "\n").encode())

        yield say
