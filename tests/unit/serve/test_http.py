"""The address of a server, and a client for it."""

import gzip
import itertools
import json
import socket
from contextlib import closing

import httpx
import pytest
from longctx.addresses import base_url
from longctx.serve import http as http_module
from longctx.serve.http import authorization, client, get, listens, model_names


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_server_has_one_address(url: str) -> None:
    assert base_url(url) == "http://h:1"
    with client(url, "key-1234") as http:
        assert http.build_request("GET", "/metrics").url == "http://h:1/metrics"
        assert http.headers["Authorization"] == "Bearer key-1234"
        assert not http.trust_env


@pytest.mark.parametrize("key", [None, ""])
def test_no_key_no_header(key: str | None) -> None:
    assert authorization(key) == {}


def test_who_does_not_answer_may_still_listen() -> None:
    """A server that prefills may answer no request for hours; a closed port is a dead server."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listens(url, timeout_s=5)
    assert not listens(url, timeout_s=5)
    assert listens("http://no-such-host.invalid:8000", timeout_s=5), "a name server's trouble is not the server's"


def endless(part: bytes) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=itertools.repeat(part))

    return httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer))


def test_an_answer_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's metrics that never stop would hold the measurement up for ever, or fill the memory."""
    with endless(b"x" * (1 << 20)) as http, pytest.raises(httpx.HTTPError, match="does not end"):
        get(http, "/metrics")
    monkeypatch.setattr(http_module, "LONGEST_ANSWER_S", 0.0)
    with endless(b"x") as http, pytest.raises(httpx.HTTPError, match="does not end"):
        get(http, "/metrics")


def test_an_answer_keeps_its_status_its_type_and_where_it_leads() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            307, headers={"Location": "http://other", "Content-Type": "a/b"}, content=gzip.compress(b"x")
        )

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer)) as http:
        found = get(http, "/v1/models")
    assert (found.status_code, found.is_redirect, found.headers["location"]) == (307, True, "http://other")
    assert found.headers["content-type"] == "a/b"


@pytest.mark.parametrize("name", [r"a\u001b[31mb", r"a\ud83d", r"a\u0000b"])
def test_a_model_s_name_can_be_shown_and_written(name: str) -> None:
    answer = httpx.Response(200, content=b'{"data": [{"id": "%s"}]}' % name.encode())
    (shown,) = model_names(answer)
    assert shown.isprintable()
    json.dumps(shown).encode()
    shown.encode()


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"data": 7}', b"\xff", b'{"data": [7]}', b'{"data": [{}]}'])
def test_a_model_list_of_another_form_has_no_names(content: bytes) -> None:
    assert model_names(httpx.Response(200, content=content)) == []
