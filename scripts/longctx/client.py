"""One streaming completion request with token ids, and what arrived when.

The clock starts just before the first byte of the request is sent and TTFT ends when the first bytes that carry
a new token are read from the socket, so sending and parsing the prompt, queueing and prefill are all inside.
There is no read timeout: a prefill may take hours. Instead the caller's `alive` and `stalled` are asked about
once a second, whatever the connection is waiting for.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpcore
import orjson

from longctx.body import Body, Prompt, as_prompt
from longctx.connection import CONNECT_TIMEOUT_S, Failure, Watch, WatchedBackend, run_delay_s
from longctx.rates import Chunk
from longctx.redact import redact
from longctx.sse import SseParser
from longctx.tokenfile import Ids

ERROR_BODY_BYTES = 1 << 16
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol)
_DEAD_ENGINE = re.compile(r"EngineCore|EngineDead|engine (?:is )?dead", re.IGNORECASE)
_TOO_LONG = re.compile(r"context length|max_model_len|maximum (?:model|allowed|input) length", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request gave. A failed one has a reason of `longctx.reasons` and None for every time.

    `chunks` and the token counts are the raw record and stay in a failed answer too. `wall_jump_s` is how much
    further the wall clock moved than the monotonic one, which all times are taken from. `starved_s` is how long this
    thread, up to the first token, was ready to run while the machine ran others: TTFT may be late by as much.
    """

    status: str
    started_at: datetime
    reason: str | None = None
    detail: str | None = None
    chunks: tuple[Chunk, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    request_bytes: int | None = None
    wall_jump_s: float | None = None
    starved_s: float | None = None


def stream(
    url: str,
    model: str,
    prompt: Path | Ids | Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    ignore_eos: bool = True,
    api_key: str | None = None,
    alive: Callable[[], bool] | None = None,
    stalled: Callable[[], bool] | None = None,
    on_token: Callable[[float], None] | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Answer:
    """Send `prompt` to `url`/v1/completions and return the answer; never raises for what a server does.

    `alive` False ends the request as server_died, `stalled` True as timeout; both must return at once.
    `on_token` is called with the seconds since the start for each event that may carry a token.
    """
    fields = {
        "model": model, "max_tokens": max_new_tokens, "temperature": temperature, "ignore_eos": ignore_eos,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **(extra_body or {}),
    }  # fmt: skip
    watch = Watch(alive, stalled)
    request = _Request(url.rstrip("/").removesuffix("/v1"), api_key, watch, on_token)
    body = Body(fields, as_prompt(prompt))
    answer = request.send(body, max_new_tokens, ignore_eos)
    if answer.reason == "error_event" and re.search("continuous_usage_stats|stream_options", answer.detail or ""):
        body = Body({**fields, "stream_options": {"include_usage": True}}, as_prompt(prompt))
        answer = request.send(body, max_new_tokens, ignore_eos)
    return answer


@dataclass(slots=True)
class _Event:
    """One stream event that had a choice: when, whether it had text or only ended, the completion tokens so far."""

    elapsed_s: float
    text: bool
    only_ends: bool
    count: int | None


@dataclass(slots=True)
class _Received:
    """The stream so far."""

    events: list[_Event] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False

    def add(self, data: str, elapsed_s: float) -> bool:
        """Take one event's data; return whether it may carry a token. Raise Failure for an error event."""
        if data.strip() == "[DONE]":
            self.done = True
            return False
        try:
            message = orjson.loads(data)
        except orjson.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            raise Failure("error_event", f"the server sent an event that is not a JSON object: {data}")
        if message.get("error") or message.get("object") == "error":
            raise Failure("error_event", _server_message(message))
        self._usage(message.get("usage"))
        choices = message.get("choices") or []
        for choice in choices:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            count = (message.get("usage") or {}).get("completion_tokens")
            text = bool(choice.get("text"))
            self.events.append(_Event(elapsed_s, text, not text and bool(choice.get("finish_reason")), count))
        return bool(choices)

    def _usage(self, usage: dict[str, Any] | None) -> None:
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens", self.cached_tokens)

    def complete(self) -> bool:
        """Return whether the server said that it was done."""
        return self.done or (self.finish_reason is not None and self.completion_tokens is not None)

    def chunks(self) -> tuple[Chunk, ...]:
        """Return the events that carried tokens; events of one read become one chunk.

        Counts come from the usage sent with every event; without it from the fact that as many events came as
        tokens were made; else they are unknown.
        """
        counted, total = [], 0
        if all(event.count for event in self.events if event.text):
            for event in self.events:
                if (event.count or 0) > total:
                    counted.append((event.elapsed_s, (event.count or 0) - total))
                    total = event.count or 0
        if counted and (total == self.completion_tokens or any(event.text for event in self.events)):
            return _merge(counted)
        with_text = [event for event in self.events if event.text]
        for events in (self.events, [event for event in self.events if not event.only_ends], with_text):
            if len(events) == self.completion_tokens:
                return _merge([(event.elapsed_s, 1) for event in events])
        return tuple(Chunk(event.elapsed_s, None, None) for event in with_text or self.events)


def _merge(tokens_at: list[tuple[float, int]]) -> tuple[Chunk, ...]:
    merged: list[Chunk] = []
    total = 0
    for elapsed_s, tokens in tokens_at:
        total += tokens
        if merged and merged[-1].elapsed_s == elapsed_s:
            tokens += merged.pop().tokens or 0
        merged.append(Chunk(elapsed_s, tokens, total))
    return tuple(merged)


@dataclass(slots=True)
class _Request:
    url: str
    api_key: str | None
    watch: Watch
    on_token: Callable[[float], None] | None
    delay_s: float | None = None  # as of the first token

    def send(self, body: Body, max_new_tokens: int, ignore_eos: bool) -> Answer:
        received = _Received()
        self.watch.begin()
        reason, detail = None, None
        start_s, self.delay_s = run_delay_s(), None
        try:
            self._exchange(body, received)
            _judge(received, body.count, max_new_tokens, ignore_eos)
        except Failure as failure:
            reason, detail = failure.reason, redact(str(failure), self.api_key)
            if reason == "error_event" and _DEAD_ENGINE.search(detail) and self.watch.died():
                reason = "server_died"
        end = time.perf_counter()
        started_at = self.watch.started_at
        wall_s = (datetime.now(UTC) - started_at).total_seconds()
        answer = Answer(
            status="failed" if reason else "ok",
            started_at=started_at,
            reason=reason,
            detail=detail,
            chunks=received.chunks(),
            prompt_tokens=received.prompt_tokens,
            completion_tokens=received.completion_tokens,
            cached_tokens=received.cached_tokens,
            finish_reason=received.finish_reason,
            request_bytes=body.size,
            wall_jump_s=wall_s - self.watch.elapsed(end) if self.watch.start else None,
            starved_s=None if start_s is None or self.delay_s is None else self.delay_s - start_s,
        )
        if reason:
            return answer
        return replace(answer, ttft_s=answer.chunks[0].elapsed_s, e2e_s=self.watch.elapsed(self.watch.last_read))

    def _exchange(self, body: Body, received: _Received) -> None:
        """Send the request and read its stream into `received`; raise Failure for whatever goes wrong."""
        try:
            with httpcore.ConnectionPool(network_backend=WatchedBackend(self.watch)) as pool:
                self._read(pool, body, received)
        except _BROKEN as error:
            if received.complete():
                return
            if self.watch.died():
                raise Failure("server_died", "the server process ended during the request") from error
            raise self._broken(error, body, received) from error
        if not received.complete():
            raise Failure("truncated_stream", f"the stream ended after {len(received.events)} events")

    def _broken(self, error: Exception, body: Body, received: _Received) -> Failure:
        if received.events:
            return Failure("truncated_stream", f"the connection broke after {len(received.events)} events: {error}")
        if self.watch.start is None:
            return Failure("connection", f"no connection to {self.url}: {error}")
        if self.watch.sent_bytes < body.size:
            return Failure(
                "connection",
                f"the connection broke after {self.watch.sent_bytes} of {body.size} bytes were sent ({error}); "
                "the server, or a proxy before it, may refuse bodies of this size",
            )
        return Failure("connection", f"the connection broke before the first event: {error}")

    def _read(self, pool: httpcore.ConnectionPool, body: Body, received: _Received) -> None:
        address = httpcore.URL(self.url)
        host = address.host.decode() if address.port is None else f"{address.host.decode()}:{address.port}"
        headers = [
            ("Host", host), ("Content-Type", "application/json"), ("Content-Length", str(body.size)),
            ("Accept", "text/event-stream"), ("Accept-Encoding", "identity"), ("Connection", "close"),
        ]  # fmt: skip
        if self.api_key:
            headers.append(("Authorization", f"Bearer {self.api_key}"))
        with pool.stream(
            "POST",
            f"{self.url}/v1/completions",
            headers=headers,
            content=iter(body),
            extensions={"timeout": {"connect": CONNECT_TIMEOUT_S}},
        ) as response:
            if response.status != 200:
                raise _http_failure(response, body)
            parser = SseParser()
            for data in response.iter_stream():
                self._take(parser.feed(data), received)
                if received.done:
                    return
            self._take(parser.end(), received)

    def _take(self, events: list[str], received: _Received) -> None:
        elapsed_s = self.watch.elapsed(self.watch.last_read)
        for event in events:
            carries = received.add(event, elapsed_s)
            if carries and len(received.events) == 1:
                self.delay_s = run_delay_s()
            if carries and self.on_token is not None:
                self.on_token(elapsed_s)


def _judge(received: _Received, count: int, max_new_tokens: int, ignore_eos: bool) -> None:
    """Raise Failure where the stream ended well but is not the measurement that was asked for."""
    made = received.completion_tokens
    if received.prompt_tokens is None or made is None:
        raise Failure("no_usage", "the stream ended without prompt and completion token counts")
    if received.prompt_tokens != count:
        raise Failure("length_mismatch", f"the server counted {received.prompt_tokens} prompt tokens, sent: {count}")
    if made < 1 or (ignore_eos and made < max_new_tokens):
        raise Failure("short_output", f"{made} of {max_new_tokens} tokens; finish_reason {received.finish_reason}")
    if not received.chunks():
        raise Failure("truncated_stream", f"the server counted {made} new tokens but sent none")


def _http_failure(response: httpcore.Response, body: Body) -> Failure:
    raw = b""
    for data in response.iter_stream():
        raw += data
        if len(raw) >= ERROR_BODY_BYTES:
            break
    try:
        message = _server_message(orjson.loads(raw))
    except orjson.JSONDecodeError:
        message = raw.decode("utf-8", errors="replace")
    if response.status == 413:
        return Failure(
            "request_too_large",
            f"the server refuses a request body of {body.size} bytes ({body.count} token ids): raise its limit, "
            f"or that of the proxy before it (HTTP 413: {message})",
        )
    reason = "over_max_length" if response.status == 400 and _TOO_LONG.search(message) else "error_event"
    return Failure(reason, f"HTTP {response.status}: {message}")


def _server_message(content: Any) -> str:
    """Return the message in an OpenAI, vLLM or FastAPI error, else all of it."""
    if isinstance(content, dict):
        for key in ("error", "message", "detail"):
            if content.get(key):
                return _server_message(content[key])
    return content if isinstance(content, str) else orjson.dumps(content).decode()
