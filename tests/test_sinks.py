"""Sinks: the same names everywhere, and one that fails never stops a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_runs import write_config

from air.config import load_config
from air.errors import AirError
from air.train import start
from air.watch.display import Display
from air.watch.sinks import Watchers, flatten


def test_names_are_the_path_to_the_number() -> None:
    metrics = {"kind": "train", "step": 3, "learner": {"loss": 0.5}, "reward": None, "rewards": [1.0]}
    assert flatten(metrics, "train/") == {"train/step": 3.0, "train/learner/loss": 0.5}


def test_a_sink_that_fails_is_left_out_and_named() -> None:
    said: list[str] = []

    class Broken:
        calls = 0

        def __getattr__(self, name: str) -> Any:
            self.calls += 1
            raise ConnectionError("provoked")

    class Quiet(Display):
        def say(self, text: str) -> None:
            said.append(text)

    broken = Broken()
    watchers = Watchers(Quiet(Console(quiet=True)), [broken])
    watchers.phase("one")
    watchers.phase("two")
    assert broken.calls == 1 and "Broken failed and is left out from now on: provoked" in said[0]


def test_wandb_offline_gets_every_step_or_its_absence_is_a_sentence(tmp_path: Path) -> None:
    config = load_config(["@", str(write_config(tmp_path, extra='[wandb]\nproject = "test"\n'))])
    try:
        import wandb  # noqa: F401
    except ImportError:
        with pytest.raises(AirError, match=r"the package wandb is not installed"):
            start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True)
        return
    run = start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True).run
    assert list(run.path.glob("wandb/offline-run-*/*.wandb"))
