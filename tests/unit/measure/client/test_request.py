"""The client against a server with a known truth and every fault that people have met; and violence."""

import contextlib
import gzip
import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fakeserver
import numpy as np
import pytest
from fakeclient import IDS, ask, fake_program
from fakeserver import FakeServer
from longctx.measure.client import connection, request
from longctx.measure.client.request import Answer
from longctx.measure.client.ttft_itl import client_decode_tok_s, coalesced, itl_quantiles
from longctx.measure.row.reasons import FAILED
from longctx.measure.row.verdict import find_failure

STREAMS = Path(__file__).parents[3] / "data" / "streams"


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "POLL_S", 0.05)
    monkeypatch.setattr(connection, "DEATH_GRACE_S", 0.3)
    monkeypatch.setattr(request, "ENGINE_DEATH_GRACE_S", 1.5)


def ask_with(plan: dict[str, Any], **options: Any) -> Answer:
    with FakeServer(plan) as server:
        return ask(server.url, **options)


def check_failed(answer: Answer, reason: str, detail: str = "") -> None:
    assert (answer.status, answer.reason) == ("failed", reason)
    assert reason in FAILED
    assert answer.ttft_s is None
    assert answer.e2e_s is None
    assert detail in (answer.detail or "")


def check_refused(answer: Answer, reason: str, detail: str = "", new_tokens: int = 16) -> None:
    """Check that the stream ended well, and is not the answer asked for."""
    assert (answer.status, answer.reason) == ("ok", None)
    failure = find_failure(answer, len(IDS), new_tokens)
    assert failure is not None
    assert failure[0] == reason
    assert detail in str(failure[1])


@contextmanager
def raw_server(response: bytes, *, read_all: bool = True, hold: threading.Event | None = None) -> Iterator[str]:
    """A server that reads a request, sends these bytes and closes (after `hold`)."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                received = connected.recv(65536)
                head, _, rest = received.partition(b"\r\n\r\n")
                size = int(dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])[b"Content-Length"])
                while read_all and len(rest) < size:
                    rest += connected.recv(65536)
                connected.sendall(response)
                if hold is not None:
                    hold.wait(20)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that answers with a recorded stream when the event is set, or else after 20 s."""
    go, content = threading.Event(), (STREAMS / "vllm-0.32.0-cpu-1024-16.sse").read_bytes()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected, contextlib.suppress(OSError):
                connected.recv(1 << 20)
                go.wait(20)
                connected.sendall(http(content))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", go
        go.set()
        thread.join(20)


def http(content: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


# What a good answer says


def test_a_good_answer_and_what_was_sent() -> None:
    with FakeServer({"itl_s": 0.01}) as server:
        answer = ask(server.url)
        request, truth = server.requests[0], server.truth[0]
    assert (answer.status, answer.reason) == ("ok", None)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (1024, 16, 0)
    assert answer.finish_reason == "length"
    assert request == {
        "model": "fake",
        "max_tokens": 16,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert [chunk.total for chunk in answer.chunks][-1] == 16
    assert answer.ttft_s is not None
    assert answer.ttft_s >= truth["prefill_s"]
    assert answer.e2e_s is not None
    assert answer.e2e_s >= truth["prefill_s"] + truth["decode_s"]
    assert abs((datetime.now(UTC) - answer.started_at).total_seconds()) < 60
    assert answer.wall_jump_s is not None
    assert answer.starved_s is None or 0 <= answer.starved_s <= answer.e2e_s + 1


def test_the_rate_of_a_stream() -> None:
    answer = ask_with({"itl_s": 0.02})
    rate = client_decode_tok_s(answer.chunks)
    span_s = answer.chunks[-1].elapsed_s - answer.chunks[0].elapsed_s
    assert rate == pytest.approx((16 - answer.chunks[0].tokens) / span_s)


def test_an_address_with_letters_of_any_script_is_encoded() -> None:
    seen: list[str] = []

    class Below(fakeserver.Handler):
        def do_POST(self) -> None:
            seen.append(self.path)
            super().do_POST()

    with FakeServer() as server:
        server._httpd.RequestHandlerClass = type("Bound", (Below,), {"state": server.state})
        assert ask(f"{server.url}/t\u00e9am/v1/").status == "ok"
    assert seen == ["/t%C3%A9am/v1/completions"]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_any_form_of_the_url(path: str) -> None:
    with FakeServer() as server:
        assert ask(server.url + path).status == "ok"


def test_extra_body_and_sampling_reach_the_server() -> None:
    with FakeServer() as server:
        ask(server.url, extra_body={"seed": 7, "temperature": 0.7})
        assert {"temperature": 0.7, "ignore_eos": True, "seed": 7}.items() <= server.requests[0].items()


def test_the_ids_reach_the_server() -> None:
    with FakeServer() as server:
        ask(server.url, IDS[::-1])
        assert server.truth[0]["sha256"] == hashlib.sha256(IDS[::-1].astype("<u4").tobytes()).hexdigest()


def test_the_api_key_is_sent() -> None:
    seen: list[str | None] = []

    class Keyed(fakeserver.Handler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            super().do_POST()

    with FakeServer() as server:
        server._httpd.RequestHandlerClass = type("Bound", (Keyed,), {"state": server.state})
        ask(server.url, api_key="key-1234")
    assert seen == ["Bearer key-1234"]


# The stream's shapes


@pytest.mark.parametrize(
    "plan",
    [
        {"usage": "late"},
        {"usage": "finish"},
        {"usage": "late", "crlf": True},
        {"split": True, "comments": True},
        {"split": True, "crlf": True, "text": " 日本"},
        {"done": False},
        {"reject_continuous": True},
        {"first_chunk_empty": True},
        {"text": ""},
        {"chat": True, "usage": "late", "first_chunk_empty": True},
        {"chat": True, "usage": "finish"},
        {"chat": True},
        {"usage": "late", "token_ids": True, "text": ""},
        {"usage": "late", "cr": True},
        {"usage": "late", "cr": True, "split": True},
    ],
)
def test_every_shape_of_stream_gives_the_same_counts(plan: dict[str, Any]) -> None:
    answer = ask_with(plan)
    assert (answer.status, answer.prompt_tokens, answer.completion_tokens) == ("ok", 1024, 16)
    assert sum(chunk.tokens or 0 for chunk in answer.chunks) == 16
    assert answer.chunks[-1].total == 16
    assert answer.ttft_s == answer.chunks[0].elapsed_s


def test_several_tokens_in_a_chunk() -> None:
    answer = ask_with({"coalesce": 4, "itl_s": 0.02})
    assert all((chunk.tokens or 0) % 4 == 0 for chunk in answer.chunks)
    assert coalesced(answer.chunks)
    assert set(itl_quantiles(answer.chunks).values()) == {None}
    rate = client_decode_tok_s(answer.chunks)
    later = 16 - (answer.chunks[0].tokens or 0)
    assert rate == pytest.approx(later / (answer.chunks[-1].elapsed_s - answer.chunks[0].elapsed_s))


def test_several_tokens_in_a_chunk_without_counts() -> None:
    """How many tokens a chunk had cannot be known: no rate and no ITL, but a valid TTFT."""
    answer = ask_with({"coalesce": 4, "itl_s": 0.005, "usage": "late"})
    assert (answer.status, answer.completion_tokens, len(answer.chunks)) == ("ok", 16, 4)
    assert client_decode_tok_s(answer.chunks) is None
    assert set(itl_quantiles(answer.chunks).values()) == {None}
    assert answer.ttft_s is not None


def test_events_of_one_read_are_one_chunk() -> None:
    """A proxy that collects events: sixteen of them at once are not sixteen moments."""
    events = [{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1024, "completion_tokens": i}} for i in (1, 2, 3)]
    content = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    with raw_server(http(content)) as url:
        answer = ask(url, max_new_tokens=3)
    assert [chunk.tokens for chunk in answer.chunks] == [3]
    assert answer.status == "ok"
    assert set(itl_quantiles(answer.chunks).values()) == {None}


def test_the_recorded_stream_of_a_real_vllm() -> None:
    with raw_server(http((STREAMS / "vllm-0.32.0-cpu-1024-16.sse").read_bytes())) as url:
        answer = ask(url)
    assert (answer.status, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == ("ok", 1024, 16, 0)


@pytest.mark.parametrize("tokens", [1, 2])
def test_few_tokens(tokens: int) -> None:
    answer = ask_with({"itl_s": 0.2}, max_new_tokens=tokens)
    assert answer.status == "ok"
    assert answer.ttft_s is not None
    rate = client_decode_tok_s(answer.chunks)
    if tokens == 1:
        assert rate is None
    else:
        assert rate == pytest.approx(1 / (answer.chunks[1].elapsed_s - answer.chunks[0].elapsed_s))


# Failures are data


@pytest.mark.parametrize(
    ("plan", "reason", "detail"),
    [
        ({"error_after": 5, "error_message": "CUDA out of memory"}, "error_event", "CUDA out of memory"),
        ({"error_after": 0}, "error_event", "told to fail"),
        ({"close_after": 5}, "truncated_stream", "after 5 events"),
        ({"http_status": 400}, "error_event", "HTTP 400: told to fail"),
        ({"http_status": 500, "http_message": "boom"}, "error_event", "HTTP 500: boom"),
        ({"http_status": 400, "http_message": "The input (9 tokens) is longer than the model's context length"},
         "over_max_length", "context length"),
        ({"max_body": 1000}, "request_too_large", "1024 token ids"),
    ],
)  # fmt: skip
def test_faults(plan: dict[str, Any], reason: str, detail: str) -> None:
    check_failed(ask_with(plan), reason, detail)


@pytest.mark.parametrize(
    ("plan", "reason", "detail"),
    [
        ({"stop_after": 5}, "short_output", "5 of 16 tokens; finish_reason stop"),
        ({"usage": "never"}, "no_usage", ""),
        ({"prompt_tokens_off": 1}, "length_mismatch", "1025"),
        ({"prompt_tokens_off": -1}, "length_mismatch", "1023"),
    ],
)
def test_answers_that_are_not_those_asked_for(plan: dict[str, Any], reason: str, detail: str) -> None:
    check_refused(ask_with(plan), reason, detail)


def test_a_prompt_over_the_maximum_length() -> None:
    with FakeServer(max_model_len=1039) as server:
        check_failed(ask(server.url), "over_max_length", "1039")


def test_recorded_errors_of_a_real_vllm() -> None:
    with raw_server(http((STREAMS / "vllm-0.32.0-cpu-error-in-200.sse").read_bytes())) as url:
        check_failed(ask(url), "error_event", "Token id 999999 is out of vocabulary")
    refused = (STREAMS / "vllm-0.32.0-cpu-too-long-400.json").read_bytes()
    with raw_server(http(refused, "400 Bad Request")) as url:
        check_failed(ask(url), "over_max_length", "147456 tokens")


@pytest.mark.parametrize(
    ("content", "detail"),
    [(b'{"object": "error", "message": "old vLLM", "code": 400}', "old vLLM"), (b'{"detail": "FastAPI"}', "FastAPI"),
     (b"<html>nginx</html>", "nginx"), (b"", "HTTP 502"), (b'{"detail": [{"loc": ["body"]}]}', "loc")],
)  # fmt: skip
def test_every_form_of_error(content: bytes, detail: str) -> None:
    with raw_server(http(content, "502 Bad Gateway")) as url:
        check_failed(ask(url), "error_event", detail)


@pytest.mark.parametrize("content", [b"data: {oops\n\n", b"data: 7\n\n", b"data: oops\n\n"])
def test_events_that_are_no_objects(content: bytes) -> None:
    with raw_server(http(content)) as url:
        check_failed(ask(url), "error_event", "not a JSON object")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"<html>sign in</html>", "sign in"), (b'{"error": {"message": "engine says no"}}', "engine says no"),
     (b'{"choices": [{"text": "all at once", "finish_reason": "length"}]}', "all at once"),
     (b"\x1f\x8b\x08", "HTTP 200")],
)  # fmt: skip
def test_a_page_or_an_answer_in_one_piece_is_no_stream(content: bytes, said: str) -> None:
    with raw_server(http(content)) as url:
        answer = ask(url)
    check_failed(answer, "error_event", said)
    assert "no stream of events" in str(answer.detail)


def test_a_page_in_many_reads_is_quoted_whole() -> None:
    page = b"<html>" + b"sign in " * 3000
    with raw_server(http(page)) as url:
        assert "<html>sign in sign in" in str(ask(url).detail)


ESCAPED = r"\u001b[2J\u001b]0;owned\u0007 a\u0000b \u009b1m \u202e \u2028 half \ud83d"


@pytest.mark.parametrize(
    "response",
    [
        http(b'{"error": {"message": "%s"}}' % ESCAPED.encode(), "500 Internal Server Error"),
        http(b'data: {"error": {"message": "%s"}}\n\n' % ESCAPED.encode()),
        http(b'data: {"choices": [], "message": "%s"}\n\n' % ESCAPED.encode()),
        http(json.loads(f'"{ESCAPED[:-7]}"').encode(), "502 Bad Gateway"),
        http(b"data: " + json.loads(f'"{ESCAPED[:-7]}"').encode() + b"\n\n"),
        http(b"event: error\ndata: " + json.loads(f'"{ESCAPED[:-7]}"').encode() + b"\n\n"),
    ],
)
def test_whatever_a_server_says_can_be_shown_and_written(response: bytes) -> None:
    with raw_server(response) as url:
        answer = ask(url)
    check_failed(answer, "error_event")
    assert answer.detail is not None
    assert answer.detail.isprintable()
    assert "half" in answer.detail
    assert "owned" not in answer.detail, "the title that a terminal would take"
    answer.detail.encode()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 500 Oops\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s",
        b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n%s",
    ],
)
def test_a_compressed_answer_is_named_and_read(response: bytes) -> None:
    body = gzip.compress(b'{"error": {"message": "out of memory"}}')
    with raw_server(response % (len(body), body)) as url:
        check_failed(ask(url), "error_event", "out of memory (sent as gzip")


def test_the_host_of_an_ipv6_address_has_brackets() -> None:
    seen: list[str | None] = []

    class Named(fakeserver.Handler):
        def do_POST(self) -> None:
            seen.append(self.headers["Host"])
            super().do_POST()

    with contextlib.suppress(OSError):
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        seen.append("this machine has IPv6")
    if not seen:
        pytest.skip("no IPv6 here")
    server = FakeServer()
    handler = type("Bound", (Named,), {"state": server.state})
    with closing(Ipv6Server(("::1", 0), handler)) as listener:
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        port = listener.server_address[1]
        assert ask(f"http://[::1]:{port}/v1").status == "ok"
        listener.shutdown()
    server._httpd.server_close()
    assert seen[1:] == [f"[::1]:{port}"]


class Ipv6Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True

    def close(self) -> None:
        self.server_close()


def stream_of(*events: dict[str, Any]) -> bytes:
    return http(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events))


def test_a_server_that_never_stops_sending_text_is_stopped() -> None:
    with raw_server(stream_of(*[{"choices": [{"text": "a"}]}] * 1000)) as url:
        check_failed(ask(url), "count_mismatch", "16 tokens were asked for")


def test_an_event_without_end_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "LONGEST_EVENT_BYTES", 1000)
    with raw_server(http(b"data: " + b"x" * 5000)) as url:
        check_failed(ask(url), "error_event", "more than 1000 bytes")


def test_an_event_nested_too_deep_ends_the_request() -> None:
    deep = b'data: {"choices": [{"text": ' + b"[" * 900 + b'"a"' + b"]" * 900 + b"}]}\n\n"
    with raw_server(http(deep)) as url:
        assert ask(url).status == "failed"


def test_empty_events_are_no_progress() -> None:
    """A proxy that sends one each second while the engine hangs, or that greets before the prefill."""
    asked: list[int] = []
    seen: list[float] = []

    def stalled() -> bool:
        asked.append(1)
        return len(asked) > 2

    answer = ask_with({"hang": True, "empty_events": True}, stalled=stalled, on_token=seen.append)
    check_failed(answer, "timeout")
    assert seen == []


def test_progress_begins_with_the_first_token_and_not_with_a_greeting() -> None:
    seen: list[float] = []
    answer = ask_with({"first_chunk_empty": True, "chat": True, "usage": "late"}, on_token=seen.append)
    assert answer.status == "ok"
    assert len(seen) == 16
    assert seen[0] == answer.ttft_s


def test_empty_texts_without_counts_have_no_first_token() -> None:
    answer = ask_with({"text": "", "usage": "late", "first_chunk_empty": True})
    assert (answer.status, answer.completion_tokens, answer.ttft_s) == ("ok", 16, None)


def test_an_error_page_that_breaks_off_still_says_its_status() -> None:
    with raw_server(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 500\r\n\r\n<html>no upstream</html>") as url:
        check_failed(ask(url), "error_event", "HTTP 502: <html>no upstream")


def test_a_status_without_a_word() -> None:
    with raw_server(http(b"", "307 Temporary Redirect")) as url:
        check_failed(ask(url), "error_event", "HTTP 307: Temporary Redirect")


@pytest.mark.parametrize(("counts", "last", "asked"), [((1, 2, 3, 4), 4, 3), ((1, 2), 3, 3), ((1, 2, 3), 2, 2)])
def test_counts_of_new_tokens_that_contradict_each_other(counts: tuple[int, ...], last: int, asked: int) -> None:
    usages = [{"prompt_tokens": 1024, "completion_tokens": count} for count in (*counts, last)]
    events = [{"choices": [{"text": "a"}], "usage": usage} for usage in usages[:-1]]
    events.append({"choices": [], "usage": usages[-1]})
    content = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    with raw_server(http(content)) as url:
        answer = ask(url, max_new_tokens=asked)
    check_refused(answer, "count_mismatch", new_tokens=asked)


def test_an_empty_stream() -> None:
    with raw_server(http(b"")) as url:
        check_failed(ask(url), "truncated_stream")


def test_counted_but_never_sent() -> None:
    content = b'data: {"choices": [], "usage": {"prompt_tokens": 1024, "completion_tokens": 16}}\n\ndata: [DONE]\n\n'
    with raw_server(http(content)) as url:
        check_refused(ask(url), "truncated_stream", "sent none")


def test_a_message_without_secrets_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "very-secret-value")
    message = "very-secret-value hf_abcdefgh12345678 key-1234 " + "x" * 10_000
    answer = ask_with({"http_status": 400, "http_message": message}, api_key="key-1234")
    assert answer.detail is not None
    assert "secret" not in answer.detail
    assert "hf_abc" not in answer.detail
    assert "key-1234" not in answer.detail
    assert len(answer.detail) < 1000


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    check_failed(ask(f"http://127.0.0.1:{port}"), "connection", f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://127.0.0.1", "http://no-such-host.invalid", "http://[::1", "http://h:99999", "http://h:0x1",
     "http://", "http:///x", "http://\u043f\u0440\u0438\u043c\u0435\u0440.invalid"],
)  # fmt: skip
def test_an_address_that_cannot_be_right(url: str) -> None:
    check_failed(ask(url), "connection", url.rstrip("/"))


def test_a_server_that_answers_before_it_has_read_everything() -> None:
    """An early 413 must be read even while megabytes of request are still waiting to be sent."""
    hold = threading.Event()
    with raw_server(http(b"too big", "413 Payload Too Large"), read_all=False, hold=hold) as url:
        answer = ask(url, np.full(4 << 20, 99_999, dtype=np.uint32))
        hold.set()
    check_failed(answer, "request_too_large", "too big")


NO_END = b"HTTP/1.1 %s\r\nConnection: keep-alive\r\n\r\n%s"


def test_an_answer_that_has_said_all_need_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No [DONE], and a connection that stays open: the stream is complete all the same."""
    monkeypatch.setattr(request, "END_GRACE_S", 0.2)
    hold = threading.Event()
    content = (STREAMS / "vllm-0.32.0-cpu-1024-16.sse").read_bytes().replace(b"data: [DONE]\n\n", b"")
    with raw_server(NO_END % (b"200 OK", content), hold=hold) as url:
        answer = ask(url)
        hold.set()
    assert (answer.status, answer.completion_tokens) == ("ok", 16)


def test_an_error_that_does_not_end_is_the_error_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "END_GRACE_S", 0.2)
    hold = threading.Event()
    with raw_server(NO_END % (b"503 Busy", b"<html>no room"), hold=hold) as url:
        check_failed(ask(url), "error_event", "HTTP 503: <html>no room")
        hold.set()


def test_a_stream_that_says_its_end_with_every_token_is_read_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "END_GRACE_S", -1.0)
    events = [
        {
            "choices": [{"text": "a", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 1024, "completion_tokens": n},
        }
        for n in range(1, 17)
    ]
    go = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(1 << 20)
                connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                for event in events:
                    connected.sendall(b"data: %s\n\n" % json.dumps(event).encode())
                    go.wait(0.1)  # longer than the client looks for reasons to end

        threading.Thread(target=serve, daemon=True).start()
        answer = ask(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert (answer.status, answer.completion_tokens) == ("ok", 16)


def test_a_stream_that_has_not_said_all_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "END_GRACE_S", 0.0)
    asked: list[int] = []

    def stalled() -> bool:
        asked.append(1)
        return len(asked) > 3

    check_failed(ask_with({"hang_after": 5}, stalled=stalled), "timeout")


def test_a_connection_that_breaks_during_the_upload() -> None:
    with raw_server(b"", read_all=False) as url:
        check_failed(ask(url, np.full(4 << 20, 99_999, dtype=np.uint32)), "connection", "bytes were sent")


def test_a_connection_that_breaks_before_the_first_event() -> None:
    with raw_server(b"") as url:
        check_failed(ask(url), "connection", "before the first event")


def test_a_stream_that_is_complete_may_end_anyhow() -> None:
    content = (STREAMS / "vllm-0.32.0-cpu-1024-16.sse").read_bytes().replace(b"data: [DONE]\n\n", b"")
    with raw_server(http(content).replace(b"Content-Length: %d" % len(content), b"Content-Length: 99999")) as url:
        assert ask(url).status == "ok"


# Waiting for ever, and not


def test_a_hanging_server_ends_when_the_watchdog_says_so() -> None:
    asked: list[int] = []

    def stalled() -> bool:
        asked.append(1)
        return len(asked) > 3

    check_failed(ask_with({"hang": True}, stalled=stalled), "timeout")
    assert len(asked) == 4


def test_a_hang_in_the_middle_of_decode() -> None:
    seen: list[float] = []
    answer = ask_with({"hang_after": 5}, stalled=lambda: len(seen) >= 5, on_token=seen.append)
    check_failed(answer, "timeout")
    assert [chunk.total for chunk in answer.chunks][-1] == 5


def test_keep_alive_comments_are_no_progress() -> None:
    asked: list[int] = []

    def stalled() -> bool:
        asked.append(1)
        return len(asked) > 2

    check_failed(ask_with({"hang": True, "comments": True}, stalled=stalled), "timeout")


def test_a_server_that_never_reads() -> None:
    """Not even the request goes out; the questions are asked all the same."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        asked: list[int] = []

        def stalled() -> bool:
            asked.append(1)
            return len(asked) > 2

        answer = ask(
            f"http://127.0.0.1:{listener.getsockname()[1]}", np.full(4 << 20, 99_999, np.uint32), stalled=stalled
        )
    check_failed(answer, "timeout")


def test_silence_is_no_reason_to_give_up(tmp_path: Path) -> None:
    """There is no read timeout: many polls without a byte, and then the answer."""
    hold = tmp_path / "hold"
    hold.touch()
    asked: list[int] = []

    def alive() -> bool:
        asked.append(1)
        if len(asked) == 5:
            hold.unlink()
        return True

    answer = ask_with({"hold": str(hold)}, alive=alive, stalled=lambda: False)
    assert answer.status == "ok"
    assert len(asked) >= 5


def test_a_health_check_that_hangs_delays_no_token() -> None:
    """SGLang's answers nothing during a prefill: the thread that reads the stream must not be the one that asks."""
    answered, asked, readers = threading.Event(), threading.Event(), []

    def alive() -> bool:
        readers.append(threading.current_thread())
        asked.set()
        return answered.wait(20)

    with silent_server() as (url, go):
        thread = threading.Thread(target=lambda: (asked.wait(20), go.set()), daemon=True)
        thread.start()
        answer = ask(url, alive=alive)
        assert answer.status == "ok", "it ended while the question was still open"
        assert not answered.is_set()
        answered.set()
    assert threading.current_thread() not in readers


def test_a_server_that_dies_while_it_is_silent_is_noticed_beside_the_reader() -> None:
    with silent_server() as (url, _):
        check_failed(ask(url, alive=lambda: False), "server_died")


@pytest.mark.process
@pytest.mark.parametrize("plan", [{"ttft_s": 60, "die_after_s": 0.1}, {"itl_s": 0.01, "die_after_tokens": 5}])
def test_a_server_that_dies(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DEATH_GRACE_S", 60.0)  # its socket closes before it is seen to be dead
    with fake_program(plan) as (url, process):
        check_failed(ask(url, alive=lambda: process.poll() is None), "server_died")
        assert process.poll() == -signal.SIGKILL


def test_a_server_that_is_dead_but_whose_socket_is_not() -> None:
    """The engine is gone, something still holds the connection open: alive() alone must end it."""
    check_failed(ask_with({"hang": True}, alive=lambda: False), "server_died")


def test_a_dead_engine_is_a_dead_server() -> None:
    plan = {"error_after": 2, "error_message": "EngineCore encountered an issue. See stack trace (above)"}
    with FakeServer(plan) as server:
        assert ask(server.url, alive=lambda: not server.truth).reason == "server_died"
        assert ask(server.url, alive=lambda: True).reason == "error_event"


def test_a_dead_engine_s_server_may_take_long_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the answer says that the engine is dead, and its server frees memory for seconds before it ends."""
    monkeypatch.setattr(request, "ENGINE_DEATH_GRACE_S", 60.0)
    plan = {"error_after": 0, "error_message": "EngineCore encountered an issue. See stack trace (above)"}
    ends: list[float] = []

    def alive() -> bool:
        if server.truth and not ends:
            ends.append(time.monotonic() + 3 * connection.DEATH_GRACE_S)
        return not ends or time.monotonic() < ends[0]

    with FakeServer(plan) as server:
        assert ask(server.url, alive=alive).reason == "server_died"


def test_refused_by_a_dead_server() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    check_failed(ask(f"http://127.0.0.1:{port}", alive=lambda: False), "server_died")


def test_a_kernel_that_does_not_say_how_long_we_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "run_delay_s", lambda: None)
    assert ask_with({}).starved_s is None


def test_starvation_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.0, 1.25])
    monkeypatch.setattr(request, "run_delay_s", lambda: next(readings))
    assert ask_with({}).starved_s == 0.25
