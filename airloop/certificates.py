"""What httpx's clients check servers by. Each would read all certificates of the system anew, which takes longer than
a request."""

from __future__ import annotations

import functools
import ssl


def certificates_for(url: str) -> ssl.SSLContext | bool:
    """For `verify`. None are read where nothing is encrypted."""
    return False if url.lower().startswith("http:") else _certificates()


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()
