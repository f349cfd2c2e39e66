"""The content of a completion stream: events, usage and errors, in each form that servers and proxies give them.

Nothing here trusts the sender: a field of another type than the API's counts as missing, and a null never overwrites a
value already seen.
"""

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import orjson

from longctx.measure.client.connection import Failure
from longctx.measure.client.ttft_itl import Chunk

MOST = 1 << 53


@dataclass(slots=True)
class Event:
    """A stream event with a choice: its arrival, whether it had text or only an end, the completion tokens so far."""

    elapsed_s: float
    text: bool
    only_ends: bool
    count: int | None


@dataclass(slots=True)
class StreamRecord:
    """The stream so far. usage: the last count of prompt_tokens, completion_tokens and cached_tokens, where given."""

    events: list[Event] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False

    def add(self, data: str, elapsed_s: float) -> bool:
        """Add one event's data; return whether it may carry a token. Raises Failure for an error event."""
        if data.strip() == "[DONE]":
            self.done = True
            return False
        message = _parse(data)
        if not isinstance(message, dict):
            raise Failure("error_event", f"the server sent an event that is not a JSON object: {data}")
        if _is_error(message):
            raise Failure("error_event", server_message(message))
        usage = _dict(message.get("usage"))
        counts = {name: _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")}
        counts["cached_tokens"] = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
        self.usage |= {name: count for name, count in counts.items() if count is not None}
        choices = message.get("choices")
        choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        for choice in choices:
            text, ends = bool(choice.get("text")), bool(choice.get("finish_reason"))
            self.finish_reason = str(choice["finish_reason"]) if ends else self.finish_reason
            self.events.append(Event(elapsed_s, text, ends and not text, counts["completion_tokens"]))
        return bool(choices)

    def complete(self) -> bool:
        """Return whether the server said that it was done."""
        return self.done or (self.finish_reason is not None and "completion_tokens" in self.usage)

    def chunks(self) -> tuple[Chunk, ...]:
        """Return the events that carried tokens; events of one read become one chunk.

        Counts are in the usage of every event, or as many events came as tokens were made; else they are unknown.
        """
        made, with_text = self.usage.get("completion_tokens"), [event for event in self.events if event.text]
        counted, total = [], 0
        for event in self.events if all(event.count for event in with_text) else ():
            if (count := event.count or 0) > total:
                counted.append((event.elapsed_s, count - total))
                total = count
        if counted and (total == made or with_text):
            return _merge(counted)
        for events in (self.events, [event for event in self.events if not event.only_ends], with_text):
            # An empty event before the first text may be a greeting sent before the prefill, not a token.
            greeting = bool(events and with_text) and not events[0].text
            if len(events) == made and not greeting:
                return _merge([(event.elapsed_s, 1) for event in events])
        return tuple(Chunk(event.elapsed_s, None, None) for event in with_text or self.events)


def server_message(content: Any) -> str:
    """Return the message in an OpenAI, vLLM or FastAPI error, else all of it."""
    if isinstance(content, dict):
        for key in ("error", "message", "detail"):
            if content.get(key):
                return server_message(content[key])
    return content if isinstance(content, str) else json.dumps(content)


def body_message(raw: bytes) -> str:
    """Return the message in the body of an answer that is not a stream: of its JSON, else its text."""
    text = raw.decode("utf-8", errors="replace")
    content = _parse(text)
    return text if content is None else server_message(content)


def _is_error(message: dict[str, Any]) -> bool:
    """Return whether an event is an error: by name, or by a message where a completion would stand."""
    if message.get("error") or message.get("object") == "error":
        return True
    return "choices" not in message and "usage" not in message and bool(message.get("message") or message.get("detail"))


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


def _merge(tokens_at: list[tuple[float, int]]) -> tuple[Chunk, ...]:
    merged: list[Chunk] = []
    total = 0
    for elapsed_s, tokens in tokens_at:
        total += tokens
        if merged and merged[-1].elapsed_s == elapsed_s:
            tokens += merged.pop().tokens or 0
        merged.append(Chunk(elapsed_s, tokens, total))
    return tuple(merged)
