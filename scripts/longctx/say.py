"""What a long job says: on stderr for whoever watches, and in its log file with the time."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from longctx.redact import redact


@contextmanager
def logged_to(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes one line to stderr and, with UTC time, to `path`; secrets are masked in both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:

        def say(line: str) -> None:
            line = redact(line)
            print(line, file=sys.stderr, flush=True)
            with suppress(OSError):  # a full disk: whoever writes what matters says so
                file.write((time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + line + "\n").encode())

        yield say
