"""Addresses of servers as they are written, and as they go over the wire."""

import pytest
from longctx.addresses import ascii_url, host_header
from longctx.campaign.campaign import from_dict
from longctx.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://h", "h"), ("http://h:8000/v1", "h:8000"), ("https://H.example", "h.example"),
     ("http://10.0.0.1:1", "10.0.0.1:1"),
     ("http://[::1]:8000", "[::1]:8000"), ("https://[2001:db8::1]", "[2001:db8::1]"),
     ("http://[fe80::1%25eth0]:8000", "[fe80::1]:8000"), ("http://user:word@[::1]:8000", "[::1]:8000")],
)  # fmt: skip
def test_the_host_header_is_that_of_rfc_9110(url: str, host: str) -> None:
    assert host_header(url) == host


@pytest.mark.parametrize(
    ("url", "sent"),
    [("http://h", "http://h"), ("http://[::1]:8000", "http://[::1]:8000"),
     ("http://b\u00fccher:1/a b", "http://xn--bcher-kva:1/a%20b"), ("https://h/team@x/", "https://h/team@x")],
)  # fmt: skip
def test_an_address_goes_over_the_wire_in_ascii(url: str, sent: str) -> None:
    assert ascii_url(url) == sent


@pytest.mark.parametrize(
    "url",
    ["http://h:abc", "http://h:99999", "http://h:0", "http:///x", "http://::1:8000", "http://h ost:8000",
     "http://a..b:1", "http://.b", "http://h:8000?x=1", "http://h/v1?x=1", "http://h#x", "http://h/\x00", "http://[::1"],
)  # fmt: skip
def test_what_is_no_address_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^config key external.url: .* is no address of a server: "):
        from_dict({"lengths": ["1Ki"], "model": {"source": "synthetic", "weights": "dummy"}, "launcher": "external",
                   "external": {"url": url}})  # fmt: skip
