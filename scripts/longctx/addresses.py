"""A server's address: what a configuration may say, and what goes over the wire."""

from urllib.parse import urlsplit

import httpx


def base_url(url: str) -> str:
    """Return 'http://host:port' of a server's URL, which may end with '/v1/'."""
    return url.rstrip("/").removesuffix("/v1")


def ascii_url(url: str) -> str:
    """Return a URL as it goes over the wire: the host in IDNA, the path percent-encoded; ValueError says what is wrong.

    Paths are added to it, so it has neither query nor fragment.
    """
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from error
    host = parsed.raw_host.decode()
    if not host or (port is not None and not 0 < port < 1 << 16):
        raise ValueError("no host, or a port that cannot be")
    if ":" not in host and (".." in host or host.startswith(".") or "%" in host):
        raise ValueError("its host is no name and no number")
    if parsed.query or parsed.fragment:
        raise ValueError("a query or fragment cannot stand before /v1/completions; remove it")
    return f"{parsed.scheme}://{parsed.netloc.decode()}{parsed.raw_path.decode().rstrip('/')}"


def host_header(url: str) -> str:
    """Return the Host header for a URL: its host, an IPv6 address in brackets and without zone, and its port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").partition("%")[0]
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host
