"""Whose certificates are trusted: one answer for the measured request and for every question beside it."""

import functools
import ssl

import certifi


@functools.cache
def context() -> ssl.SSLContext:
    """Return this host's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR, and Mozilla's."""
    made = ssl.create_default_context()
    made.load_verify_locations(certifi.where())
    return made


def verify(url: str) -> ssl.SSLContext | bool:
    """Return httpx's argument `verify` for a URL: loading certificates takes a while that plain HTTP need not wait."""
    return context() if url.startswith("https:") else False
