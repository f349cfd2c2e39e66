"""The address of a server, and a client for it."""

import pytest
from longctx.serve.http import authorization, base_url, client


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
