"""Server-sent events from raw bytes, however the network cuts them into pieces."""

import re
from dataclasses import dataclass, field

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class SseParser:
    """Feed bytes, get the data of each finished event (several data lines joined by a newline).

    Comments (keep-alives) and fields other than data are skipped; LF, CRLF and CR end lines, also when the
    pair is split over two reads; text is cut only at line ends, so that no UTF-8 character is ever split.
    """

    _rest: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)
    _started: bool = False

    def feed(self, received: bytes) -> list[str]:
        """Return the events that `received` finishes."""
        waiting = self._rest.endswith(b"\r")
        self._rest += received
        if self._started and not waiting and not _LINE_END.search(received):
            return []  # search a line of many reads once, not with every read
        rest = bytes(self._rest)
        if not self._started and len(rest) >= len(_BOM):
            rest, self._started = rest.removeprefix(_BOM), True
        # A CR at the very end may be half of a CRLF: wait for the next byte.
        held = b"\r" if rest.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(rest.removesuffix(held))
        self._rest = bytearray(rest + held)
        events = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data).decode("utf-8", errors="replace"))
                self._data.clear()
        return events

    def end(self) -> list[str]:
        """Return the event that a server left open by closing without its last blank line."""
        events = self.feed(b"\n\n")
        self._rest.clear()
        return events
