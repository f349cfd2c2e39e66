"""One streaming completion request with token ids, and the arrival times of its tokens.

The clock starts just before the first byte of the request is sent and TTFT ends when the first bytes that carry a new
token are read from the socket, so TTFT includes sending and parsing the prompt, queueing and prefill. There is no read
timeout, since a prefill may take hours: about once a second the caller's `stalled` is asked instead, and, beside the
thread that reads the stream, its `alive`.
"""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import responses
from typing import Any

import httpcore

from longctx.addresses import ascii_url, base_url, host_header
from longctx.measure.client.connection import (
    ENGINE_DEATH_GRACE_S,
    Failure,
    LifeProbe,
    Watch,
    WatchedBackend,
    run_delay_s,
)
from longctx.measure.client.request_body import RequestBody
from longctx.measure.client.response_stream import StreamRecord, body_message
from longctx.measure.client.sse import ServerSentEvent, SseParser
from longctx.measure.client.token_times import chunks as token_chunks
from longctx.measure.client.ttft_itl import Chunk, client_ttft_s
from longctx.redaction import redact
from longctx.storage.token_file import Ids

ERROR_BODY_BYTES = 1 << 16
LONGEST_EVENT_BYTES = 1 << 26
# How long to wait for the end of an answer that has said all: of an error, or of a stream without [DONE].
END_GRACE_S = 20.0
# Text beyond this many times what was asked for is that of a server that does not know when to end.
MOST_TEXT_EVENTS = 4
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol)
_DEAD_ENGINE = re.compile(r"EngineCore|EngineDead|engine (?:is )?dead", re.IGNORECASE)
# The beginning of every stream of events; a page, or an answer in one piece, begins otherwise.
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?::|data|event|id|retry|error)")
_TOO_LONG = re.compile(r"context length|max_model_len|maximum (?:model|allowed|input) length", re.IGNORECASE)
# Every answer has the length that was asked for.
SAMPLING: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's answer. A failed one has a reason of `longctx.measure.row.reasons` and None for every time.

    status 'ok' says that the stream ended well; `longctx.measure.row.verdict` decides whether it is the one asked for.
    chunks and the token counts are the raw record and stay in a failed answer too. text_events: how many events showed
    a token. ttft_s is None, too, where the events do not show when the first token came. wall_jump_s: how much further
    the wall clock moved than the monotonic one, which all times are taken from. starved_s: how long this thread, up to
    the first token, was ready to run while the machine ran others: TTFT may be late by as much.
    """

    status: str
    started_at: datetime
    reason: str | None = None
    detail: str | None = None
    chunks: tuple[Chunk, ...] = ()
    text_events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    wall_jump_s: float | None = None
    starved_s: float | None = None


def stream(
    url: str,
    model: str,
    ids: Ids,
    *,
    max_new_tokens: int,
    api_key: str | None = None,
    alive: Callable[[], bool] | None = None,
    stalled: Callable[[], bool] | None = None,
    on_token: Callable[[float], None] | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Answer:
    """Send token ids to `url`/v1/completions and return the answer; no behaviour of a server raises an error.

    alive() False ends the request as server_died; it is asked in a thread of its own. stalled() True ends it as timeout
    and must return at once. on_token is called with the seconds since the start for each event that shows a token.
    """
    fields = {"model": model, "max_tokens": max_new_tokens, **SAMPLING, "stream": True, **(extra_body or {})}

    def send(**stream_options: bool) -> Answer:
        body = RequestBody.encode({**fields, "stream_options": {"include_usage": True} | stream_options}, ids)
        with LifeProbe(alive) as probe:
            return _Request(base_url(url), api_key, Watch(probe, stalled), on_token, max_new_tokens).send(body)

    answer = send(continuous_usage_stats=True)
    if answer.reason == "error_event" and re.search("continuous_usage_stats|stream_options", answer.detail or ""):
        return send()  # an older server
    return answer


@dataclass(slots=True)
class _Request:
    url: str
    api_key: str | None
    watch: Watch
    on_token: Callable[[float], None] | None
    max_new_tokens: int
    delay_s: float | None = None  # of this thread, at the first token

    def send(self, body: RequestBody) -> Answer:
        received, start_delay_s = StreamRecord(), run_delay_s()
        reason, detail = None, None
        try:
            self._exchange(body, received)
        except Failure as failure:
            reason, detail = failure.reason, redact(str(failure), self.api_key)
            if reason == "error_event" and _DEAD_ENGINE.search(detail) and self.watch.probe.died(ENGINE_DEATH_GRACE_S):
                reason = "server_died"
        elapsed_s, text_events = self.watch.elapsed(time.perf_counter()), received.text_events
        chunks = token_chunks(received.events, received.usage.get("completion_tokens"))
        wall_s = (datetime.now(UTC) - self.watch.started_at).total_seconds()
        timed = bool(chunks) and reason is None
        return Answer(
            status="failed" if reason else "ok",
            started_at=self.watch.started_at,
            reason=reason,
            detail=detail,
            chunks=chunks,
            text_events=text_events,
            **received.usage,
            finish_reason=received.finish_reason,
            ttft_s=client_ttft_s(chunks, text_events) if timed else None,
            e2e_s=self.watch.elapsed(self.watch.last_read) if timed else None,
            wall_jump_s=wall_s - elapsed_s if self.watch.start else None,
            starved_s=None if start_delay_s is None or self.delay_s is None else self.delay_s - start_delay_s,
        )

    def _exchange(self, body: RequestBody, received: StreamRecord) -> None:
        """Send the request and read its stream into `received`; raises Failure for everything that goes wrong."""
        try:
            with httpcore.ConnectionPool(network_backend=WatchedBackend(self.watch)) as pool:
                self._read(pool, body, received)
        except _BROKEN as error:
            if received.complete():
                return
            if self.watch.probe.died():
                raise Failure("server_died", "the server process ended during the request") from error
            raise self._broken(error, body, received) from error
        if not received.complete():
            raise Failure("truncated_stream", f"the stream ended after {len(received.events)} events")

    def _broken(self, error: Exception, body: RequestBody, received: StreamRecord) -> Failure:
        if received.events:
            return Failure("truncated_stream", f"the connection broke after {len(received.events)} events: {error}")
        if self.watch.start is None:
            return Failure("connection", f"no connection to {self.url}: {error}")
        if self.watch.sent_bytes < body.size:
            cut = f"the connection broke after {self.watch.sent_bytes} of {body.size} bytes were sent ({error})"
            return Failure("connection", f"{cut}; the server, or a proxy before it, may refuse bodies of this size")
        return Failure("connection", f"the connection broke before the first event: {error}")

    def _read(self, pool: httpcore.ConnectionPool, body: RequestBody, received: StreamRecord) -> None:
        try:
            address = ascii_url(self.url)
        except ValueError as error:
            raise Failure("connection", f"{self.url} is no address of a server: {error}") from error
        headers = {"Host": host_header(address), "Content-Type": "application/json", "Connection": "close"}
        headers |= {"Content-Length": str(body.size)}
        headers |= {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        headers |= {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        with pool.stream(
            "POST", f"{address}/v1/completions", headers=list(headers.items()), content=iter(body)
        ) as response:
            if response.status != 200:
                self._wait_no_longer()
                raise _http_failure(response, body)
            parser, head = SseParser(), b""
            for data in response.iter_stream():
                head += data if not received.events and len(head) < ERROR_BODY_BYTES else b""
                self._take(parser.feed(data), received)
                if received.done:
                    return
                if received.complete() and received.usage["completion_tokens"] >= self.max_new_tokens:
                    self._wait_no_longer()
                if parser.waiting_bytes > LONGEST_EVENT_BYTES:
                    raise Failure("error_event", f"the server sent an event of more than {LONGEST_EVENT_BYTES} bytes")
            self._take(parser.end(), received)
            if head.strip() and not received.events and not _STREAM.match(head):
                message = body_message(head, content_encoding(response))
                raise Failure("error_event", f"HTTP 200, but no stream of events: {message}")

    def _wait_no_longer(self) -> None:
        self.watch.give_up_at = time.perf_counter() + END_GRACE_S

    def _take(self, events: list[ServerSentEvent], received: StreamRecord) -> None:
        elapsed_s = self.watch.elapsed(self.watch.last_read)
        for event in events:
            try:
                shows_token = received.add(event, elapsed_s)
            except RecursionError as error:
                raise Failure("error_event", "the server sent an event that is nested too deep to be read") from error
            if not shows_token:
                continue
            if self.delay_s is None:
                self.delay_s = run_delay_s()
            if self.on_token is not None:
                self.on_token(elapsed_s)
        if (sent := received.text_events) > MOST_TEXT_EVENTS * self.max_new_tokens:
            raise Failure(
                "count_mismatch", f"{sent} events with text came, {self.max_new_tokens} tokens were asked for"
            )


def _http_failure(response: httpcore.Response, body: RequestBody) -> Failure:
    raw = b""
    with contextlib.suppress(*_BROKEN):  # the part that arrived says more than the broken connection
        for data in response.iter_stream():
            raw += data
            if len(raw) >= ERROR_BODY_BYTES:
                break
    message = body_message(raw, content_encoding(response)) or responses.get(response.status, "no more was said")
    if response.status == 413:
        refused = f"the server refuses a request body of {body.size} bytes ({len(body.ids)} token ids)"
        remedy = f"raise its limit, or that of the proxy before it (HTTP 413: {message})"
        return Failure("request_too_large", f"{refused}: {remedy}")
    reason = "over_max_length" if response.status == 400 and _TOO_LONG.search(message) else "error_event"
    return Failure(reason, f"HTTP {response.status}: {message}")


def content_encoding(response: httpcore.Response) -> str:
    """Return the Content-Encoding of a response, '' for none."""
    found = [value for name, value in response.headers if name.lower() == b"content-encoding"]
    return b", ".join(found).decode("ascii", errors="replace")
