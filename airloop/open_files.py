"""How many files this process may have open: a connection is one, and systems give a process few at first."""

from __future__ import annotations

import contextlib

MOST_FILES = 1 << 15  # enough for every connection that the endpoint and the doors of sandboxes may have at once


def allow_files(most: int = MOST_FILES) -> None:
    """So many, as far as this process may; never fewer than before."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
