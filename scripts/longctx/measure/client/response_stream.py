"""The content of a completion stream: events, usage and errors, in each form that servers and proxies give them.

Nothing here trusts the sender: a field of another type than the API's counts as missing, and a null never overwrites a
value already seen. Answers of the chat API (`delta`, `message`) are read too: some gateways give them to every path.
"""

import contextlib
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from longctx.measure.client.connection import Failure
from longctx.measure.client.sse import ERROR, ServerSentEvent
from longctx.measure.client.token_times import Event
from longctx.redaction import REPLACEMENT

MOST = 1 << 53
# Where a choice, or a chat message in it, has what the model wrote.
TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
_PART_FIELDS = (*TEXT_FIELDS, "function", "name", "arguments")
_MESSAGES = ("error", "errors", "message", "msg", "detail", "error_message", "error_msg", "reason")
_SIGNS_OF_LIFE = ("ping", "heartbeat", "keepalive", "keep-alive", "keep_alive")
_UNPACKED_BYTES = 1 << 20


@dataclass(slots=True)
class StreamRecord:
    """The stream so far. usage: the last count of prompt_tokens, completion_tokens and cached_tokens, where given.

    text_events: how many events showed a token.
    """

    events: list[Event] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False
    text_events: int = 0

    def add(self, event: ServerSentEvent, elapsed_s: float) -> bool:
        """Add one event; return whether it shows a new token. Raises Failure for an error event."""
        if event.data.strip() == "[DONE]":
            self.done = True
            return False
        if event.name != ERROR and (event.name.lower() in _SIGNS_OF_LIFE or not event.data.strip()):
            return False
        message = _parse(event.data)
        if event.name == ERROR:
            raise Failure("error_event", event.data if message is None else server_message(message))
        if not isinstance(message, dict):
            raise Failure("error_event", f"the server sent an event that is not a JSON object: {event.data}")
        if _is_error(message):
            raise Failure("error_event", server_message(message))
        usage = _dict(message.get("usage"))
        counts = {name: _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")}
        counts["cached_tokens"] = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
        before = self.usage.get("completion_tokens", 0)
        self.usage |= {name: count for name, count in counts.items() if count is not None}
        added = [self._add_choice(choice, counts["completion_tokens"], elapsed_s) for choice in _choices(message)]
        return any(new.shows_token or (new.count or 0) > before for new in added if not new.only_role)

    def _add_choice(self, choice: dict[str, Any], count: int | None, elapsed_s: float) -> Event:
        if choice.get("error") or choice.get("finish_reason") == ERROR:
            raise Failure("error_event", server_message(choice))
        parts = [choice, *(_dict(choice.get(name)) for name in ("delta", "message"))]
        ids = choice.get("token_ids")
        id_count = len(ids) if isinstance(ids, list) else None
        shows = bool(id_count) or any(_has_text(part.get(name)) for part in parts for name in TEXT_FIELDS)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        only_role = not shows and not choice.get("finish_reason") and any(part.get("role") for part in parts)
        event = Event(elapsed_s, shows, only_role, id_count, count)
        self.events.append(event)
        self.text_events += shows
        return event

    def complete(self) -> bool:
        """Return whether the server said that it was done."""
        return self.done or (self.finish_reason is not None and "completion_tokens" in self.usage)


def server_message(content: Any) -> str:
    """Return the message in an OpenAI, vLLM or FastAPI error, else all of it."""
    if isinstance(content, dict):
        for key in _MESSAGES:
            if content.get(key):
                return server_message(content[key])
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def body_message(raw: bytes, encoding: str = "") -> str:
    """Return the message in the body of an answer that is not a stream: of its JSON, else its text.

    encoding: its Content-Encoding. The client asks for none, so a compressed body is unpacked and said to be one.
    """
    encoding = "gzip" if raw.startswith(b"\x1f\x8b") else encoding.strip().lower()
    note = ""
    if raw and encoding not in ("", "identity"):
        unpacked = _unpack(raw) if encoding in ("gzip", "x-gzip", "deflate") else b""
        note = f" (sent as {encoding}, though uncompressed text was asked for)"
        raw = unpacked or f"{len(raw)} bytes that cannot be read".encode()
    text = raw.decode("utf-8", errors="replace")
    content = _parse(text)
    if content is None and _is_binary(text):
        return f"{len(raw)} bytes that are no text{note}"
    return (text if content is None else server_message(content)) + note


def _is_binary(text: str) -> bool:
    """Return whether a body can be no text: a third of it, decoded, are replacements and control characters."""
    odd = sum(one == REPLACEMENT or not (one.isprintable() or one.isspace()) for one in text)
    return 3 * odd > len(text)


def _unpack(raw: bytes) -> bytes:
    """Return what gzip or zlib data hold, as far as they are there and up to 1 MiB; b'' where they are neither."""
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(window).decompress(raw, _UNPACKED_BYTES)
    return b""


def _is_error(message: dict[str, Any]) -> bool:
    """Return whether an event is an error: by name, or by a message where a completion would stand."""
    if message.get("error") or message.get("object") == ERROR:
        return True
    if message.get("choices") or _count(_dict(message.get("usage")).get("completion_tokens")):
        return False
    return message.get("type") == ERROR or any(message.get(key) for key in (*_MESSAGES, "error_code"))


def _choices(message: dict[str, Any]) -> list[dict[str, Any]]:
    choices = message.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _has_text(value: Any) -> bool:
    """Return whether a text, or a part of a list of parts (`{"type": "text", "text": …}`), has a character."""
    if isinstance(value, list):
        return any(map(_has_text, value))
    if isinstance(value, dict):
        return any(_has_text(value.get(name)) for name in _PART_FIELDS)
    return isinstance(value, str) and bool(value)


def _parse(text: str) -> Any:
    """Return the JSON in `text`, None where it is none; accepts NaN and lone surrogates, which some servers send."""
    for loads in (orjson.loads, json.loads):
        with contextlib.suppress(ValueError, RecursionError):
            return loads(text)
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    """Return a count of tokens; None for a value that is not a whole number from 0 on."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 <= value < MOST and value % 1 == 0 else None
