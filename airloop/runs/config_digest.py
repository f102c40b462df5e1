"""Which runs are of the same config: what was asked for, and what the user's own files said then."""

from __future__ import annotations

import hashlib

from airloop.config import Config, to_toml
from airloop.envs.files import content_digest


def digest_of(config: Config) -> str:
    """Of a config as it was asked for, before a budget of time or a supervised start changed anything in it."""
    files = [content_digest(name) for name in config.own_code]
    return hashlib.sha256("\n".join([to_toml(config), *filter(None, files)]).encode()).hexdigest()[:16]
