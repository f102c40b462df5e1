"""Configs of runs whose samplers are on nodes of their own, and waiting for what those do."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.rank_runs import FLAGS, words

from airloop.config import Config, load_config

WAIT_S = 60.0
CPUS = {"model.device": "cpu", "cluster.nodes": "3", "cluster.roles.learner": "1", "cluster.roles.sampler": "2"}


def config_of(**more: str) -> Config:
    return load_config(words({**FLAGS, "deterministic": "false", **more}))


def until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)
