"""The proxy that the environment names for a URL, looked up once for each URL instead of once for each request."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_of(url: str) -> str | None:
    """``HTTP_PROXY`` and its kin, unless ``NO_PROXY`` excepts the host; None for no proxy."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(parts.scheme)
