"""What names a thing in the cache that depends on files: their names and contents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

LARGE = 32 << 20  # bytes: of larger files the size and the date stand for the content


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def add_files(digest: Digest, files: Mapping[str, Path]) -> None:
    for name, path in sorted(files.items()):
        facts = path.stat()
        large = facts.st_size > LARGE
        content = str(facts.st_mtime_ns).encode() if large else hashlib.sha256(path.read_bytes()).digest()
        digest.update(repr((name, facts.st_size, content)).encode())
