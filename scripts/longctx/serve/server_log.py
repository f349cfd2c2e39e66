"""The log file of one server start: it is read from this start on, and followed line by line."""

import errno
import shlex
from pathlib import Path

from longctx.errors import ServerError
from longctx.redaction import mask, printable


class Log:
    """Reads what this start appended to `path`; offsets are bytes in the file."""

    def __init__(self, path: Path, secrets: list[str]) -> None:
        self.path = path
        self.start = 0
        self._secrets = secrets
        self._read_to = 0

    def begin(self, command: list[str]) -> None:
        """Write the command, secrets masked, as the first line of this start; ServerError where that fails."""
        line = f"# longctx starts: {shlex.join(self.masked_words(command))}\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            message = f"{self.path}: the server's log cannot be written: {error.strerror}"
            raise ServerError(message, "disk_full" if full else "server_start") from error
        self.start = self._read_to = self.offset()

    def masked_words(self, words: list[str]) -> list[str]:
        """Return the words with secret values masked."""
        return [mask(word, self._secrets) for word in words]

    def offset(self) -> int:
        """Return the file's size in bytes, 0 where there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def between(self, first: int, last: int) -> list[str]:
        """Return the lines written between two offsets, without colours and control characters."""
        try:
            with open(self.path, "rb") as file:
                file.seek(first)
                text = file.read(max(0, last - first)).decode(errors="replace")
        except OSError:
            return []
        return [printable(line) for line in text.splitlines()]

    def lines(self) -> list[str]:
        """Return every line of this start."""
        return self.between(self.start, self.offset())

    def new_lines(self) -> list[str]:
        """Return the lines added since the last call."""
        first, self._read_to = self._read_to, self.offset()
        return self.between(first, self._read_to)
