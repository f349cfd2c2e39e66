"""HTTP to a server: its address, its key, and the certificates that are trusted."""

import errno
import functools
import socket
import ssl
import time
from urllib.parse import urlsplit

import certifi
import httpx

from longctx.addresses import base_url
from longctx.redaction import printable

# Metrics of many engines are some MB.
LONGEST_ANSWER_BYTES = 1 << 26
LONGEST_ANSWER_S = 60.0


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """Return this host's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR, and Mozilla's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def listens(url: str, *, timeout_s: float) -> bool:
    """Return False where the host of a URL refuses the connection or cannot be reached; busy is not dead."""
    parts = urlsplit(url)
    try:
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        socket.create_connection(address, timeout=timeout_s).close()
    except OSError as error:
        return error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
    return True


def model_names(answer: httpx.Response) -> list[str]:
    """Return the names in an answer of /v1/models; [] where it is no such list."""
    try:
        return [printable(str(model["id"])) for model in answer.json()["data"]] if answer.is_success else []
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header that carries an API key; {} without a key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def get(http: httpx.Client, path: str) -> httpx.Response:
    """Return the answer for a path, read as a whole; httpx.HTTPError, too, where it does not end."""
    limit_s, content = time.monotonic() + LONGEST_ANSWER_S, bytearray()
    with http.stream("GET", path) as response:
        for part in response.iter_bytes():
            content += part
            if len(content) > LONGEST_ANSWER_BYTES or time.monotonic() > limit_s:
                raise httpx.ReadError(f"the answer for {path} does not end", request=response.request)
    kept = {name: response.headers[name] for name in ("content-type", "location") if name in response.headers}
    return httpx.Response(response.status_code, headers=kept, content=bytes(content), request=response.request)


def client(url: str, api_key: str | None = None, *, timeout_s: float = 20.0) -> httpx.Client:
    """Return a client for paths of one server. Proxies of the environment are not for a server next door."""
    return httpx.Client(
        base_url=base_url(url),
        headers={"Accept-Encoding": "identity"} | authorization(api_key),
        timeout=timeout_s,
        trust_env=False,
        # loading certificates takes a while: not for plain HTTP
        verify=trusted_certificates() if url.startswith("https:") else False,
    )
