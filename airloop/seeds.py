"""Random seeds that follow from what they are for: the same on every machine and in every process."""

from __future__ import annotations

import hashlib
import json


def stable_hash(*parts: object) -> int:
    """The same on every machine and in every process. 31 bits: every random generator takes it as a seed."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF


def episode_seed(run_seed: int, step: int, env: str, task_id: str, sample: int, refusals: int = 0) -> int:
    """`refusals`: how often the step was sampled and refused; each time the dice are others."""
    return stable_hash("episode", run_seed, step, env, task_id, sample, *([refusals] if refusals else []))


def turn_seed(seed: int, turn: int) -> int:
    return stable_hash("turn", seed, turn)
