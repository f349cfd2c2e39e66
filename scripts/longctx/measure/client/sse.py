"""Server-sent events from raw bytes, however the network cuts them into pieces."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
ERROR = "error"


class ServerSentEvent(NamedTuple):
    """The data of an event (several data lines joined by a newline) and its name, '' for one without."""

    data: str
    name: str = ""


@dataclass(slots=True)
class SseParser:
    """Feed bytes, get each event as soon as its last byte is there.

    Comments (keep-alives) and other fields are skipped; LF, CRLF and CR end lines, also when the pair is split over two
    reads; text is cut only at line ends, so that no UTF-8 character is ever split. llama.cpp sends the text of an error
    in a field 'error': it counts as the data of an event with that name.
    """

    _rest: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)
    _name: str = ""
    _started: bool = False
    _after_cr: bool = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the event that has begun."""
        return len(self._rest) + sum(map(len, self._data))

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """Return the events that `received` finishes."""
        if self._after_cr and received:
            received, self._after_cr = received.removeprefix(b"\n"), False  # the second half of a CRLF
        self._rest += received
        if self._started and not _LINE_END.search(received):
            return []  # search a line of many reads once, not with every read
        rest = bytes(self._rest)
        if not self._started and len(rest) >= len(_BOM):
            rest, self._started = rest.removeprefix(_BOM), True
        self._after_cr = rest.endswith(b"\r")
        *lines, rest = _LINE_END.split(rest)
        self._rest = bytearray(rest)
        return [event for line in lines if (event := self._take(line))]

    def _take(self, line: bytes) -> ServerSentEvent | None:
        """Take one line; return the event that a blank one finishes."""
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                self._name = value.decode("utf-8", errors="replace")
            elif name in (b"data", ERROR.encode()):
                self._name = self._name if name == b"data" else ERROR
                self._data.append(value)
            return None
        event = ServerSentEvent(b"\n".join(self._data).decode("utf-8", errors="replace"), self._name)
        finished = self._data or self._name == ERROR
        self._data, self._name = [], ""
        return event if finished else None

    def end(self) -> list[ServerSentEvent]:
        """Return the event that a server left open by closing without its last blank line."""
        self._after_cr = False
        events = self.feed(b"\n\n")
        self._rest.clear()
        return events
