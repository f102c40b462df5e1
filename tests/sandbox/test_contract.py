"""The contract of a sandbox, kept by every backend."""

from __future__ import annotations

from contract import *  # noqa: F403
