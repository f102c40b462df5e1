"""Runs of a tiny model without the checks before them: what an alarm says is then the alarm's own doing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from airloop import stream
from airloop.assemble import Components, assemble
from airloop.config import Config, load_config
from airloop.engine.embedded.runner import PlainRunner
from airloop.learn.checkpoints import checkpoints, load_checkpoint
from airloop.loop import train
from airloop.runs.run import Run
from airloop.types import Alarm
from airloop.warmstart import warmstart, with_warmstart
from airloop.watch.display.display import Display
from airloop_lab.faults import frozen_copy

# After demonstrations that are right 35 % of the time: groups have signal, and replies end by themselves.
FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "orchestrator.env.0.args": '{ max_number = 4, split_by = "none", demo_accuracy = 0.35 }',
    "orchestrator.batch_size": "32",
    "orchestrator.rollouts_per_example": "8",
    "seq_len": "48",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "4",
    "trainer.model.train": "full",
    "trainer.optim.lr": "2e-3",
    "warmstart.steps": "150",
    "warmstart.episodes": "400",
    "warmstart.batch_size": "40",
    "warmstart.lr": "3e-3",
    "max_steps": "3",
}


class Witness(Display):
    """The real display, writing to nowhere, that remembers which alarms it was told of."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True), quiet=True)
        self.alarms: list[Alarm] = []
        self.said: list[str] = []

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        super().alarm(alarm)

    def say(self, text: str) -> None:
        self.said.append(text)
        super().say(text)

    def of(self, name: str) -> list[Alarm]:
        return [alarm for alarm in self.alarms if alarm.name == name]


def config(directory: Path, **changes: str) -> Config:
    settings = {**FLAGS, "output_dir": str(directory), **changes}
    if settings["warmstart.steps"] == "0":
        settings = {key: value for key, value in settings.items() if not key.startswith("warmstart")}
    return load_config([word for key, value in settings.items() for word in (f"--{key}", value)])


def run_watched(
    directory: Path, tamper: Callable[[Components], Any] | None = None, resume: Path | None = None, **changes: str
) -> tuple[Run, Witness, BaseException | None]:
    """A whole run, or the rest of one. `tamper` gets the parts before the first step. The error that ended it, if any,
    is returned with what was seen until then."""
    witness = Witness()
    run = Run.open(resume) if resume else Run.create(config(directory, **changes), "watched")
    witness.run = run

    async def work() -> None:
        settings = run.config
        if settings.warmstart:
            await warmstart(settings, witness)
            settings = with_warmstart(settings)
        parts = assemble(settings, lambda _: None)
        try:
            if resume:
                step = load_checkpoint(checkpoints(run.path / "checkpoints")[-1][1], parts.learner)
                parts.engine.set_version(parts.policy.version)
                run.resume(step)
            if tamper:
                tamper(parts)
            await (stream.train if run.config.orchestrator.max_staleness else train)(parts, run, witness)
        finally:
            await parts.close()

    try:
        asyncio.run(work())
    except Exception as error:
        return run, witness, error
    finally:
        run.close()
    return run, witness, None


def freeze_engine(parts: Components) -> None:
    """It samples from a copy of the weights, which no update reaches; its version counts on."""
    engine: Any = parts.engine
    engine._runner = PlainRunner(frozen_copy(parts.policy), engine._kv, engine._runner.why)
