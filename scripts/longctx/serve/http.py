"""HTTP to a server: its address, its key, and the certificates that are trusted."""

import functools
import ssl

import certifi
import httpx


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """Return this host's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR, and Mozilla's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def base_url(url: str) -> str:
    """Return 'http://host:port' of a server's URL, which may end with '/v1/'."""
    return url.rstrip("/").removesuffix("/v1")


def model_names(answer: httpx.Response) -> list[str]:
    """Return the names in an answer of /v1/models; [] where it is no such list."""
    try:
        return [str(model["id"]) for model in answer.json()["data"]] if answer.is_success else []
    except (ValueError, KeyError, TypeError):
        return []


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header that carries an API key; {} without a key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


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
