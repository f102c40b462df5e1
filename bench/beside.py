"""One device, one copy of the weights: does sampling beside training pay where episodes wait for tools?

    python bench/beside.py                   about three minutes on two cores

A tiny model adds numbers in an environment whose answer takes a while: log-normal, sigma 1, of a mean of 0, 0.5 and 2
seconds. The whole trainer runs, with the embedded engine, in turns (staleness 0) and beside: seconds a step, the first
steps left out, and how much of that the learner waited.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from pydantic import Field

from airloop.config import load_config
from airloop.envs.arith import ArithArgs, ArithEnv, ArithSession
from airloop.training import start
from airloop.types import Action, Observation, Task
from airloop.watch.display.display import Display

SIGMA = 1.0
FIRST = 3  # steps: the fleet's start
MEANS = (0.0, 0.5, 2.0)
STALENESS = (0, 1, 4)


class SlowArgs(ArithArgs):
    mean_s: float = Field(default=0.0, ge=0, description="mean time of an answer")


class SlowSession(ArithSession):
    """Right or wrong by chance: there is something to train on in every group, and nothing to learn."""

    def __init__(self, task: Task, seconds: float, right: bool) -> None:
        super().__init__(task)
        self.seconds, self.right = seconds, right

    async def act(self, action: Action) -> Observation:
        await asyncio.sleep(self.seconds)
        self.correct = float(self.right)
        return Observation("", done=True)


class SlowArith(ArithEnv):
    name = "slow-arith"
    Args = SlowArgs

    def open(self, task: Task, seed: int) -> SlowSession:
        dice = random.Random(seed)
        seconds = min(3.0, dice.lognormvariate(-(SIGMA**2) / 2, SIGMA)) * self.args.mean_s  # type: ignore[attr-defined]
        return SlowSession(task, seconds, dice.random() < 0.5)


def measure(folder: str, mean_s: float, staleness: int, steps: int) -> tuple[float, float]:
    words = {
        "output_dir": folder,
        "max_steps": str(steps),
        "orchestrator.max_staleness": str(staleness),
        "trainer.loss.importance_mode": "mask",
        "orchestrator.env.0.id": f"{Path(__file__).resolve()}:SlowArith",
        "orchestrator.env.0.args": f'{{ max_number = 4, split_by = "none", mean_s = {mean_s} }}',
        "orchestrator.max_concurrent": "64",
        "orchestrator.batch_size": "64",
        "orchestrator.eval.num_examples": "1",
    }
    config = load_config(["arith", *(word for key, value in words.items() for word in (f"--{key}", value))])
    config = config.model_copy(update={"warmstart": None})
    clock = Times()
    done = start(config, clock, skip_proofs=True)
    seconds = (clock.ends[-1] - clock.ends[FIRST - 1]) / (steps - FIRST)
    waited = statistics.fmean(line["times"]["sampling"] for line in done.run.metrics("train")[FIRST:])
    return seconds, waited


class Times(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.ends: list[float] = []

    def step(self, metrics: dict[str, object]) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    steps = parser.parse_args().steps
    print("answer takes  staleness  s/step  of which the learner waits  against turns")
    for mean_s in MEANS:
        turns = 0.0
        for staleness in STALENESS:
            with tempfile.TemporaryDirectory() as folder:
                seconds, waited = measure(folder, mean_s, staleness, steps)
            turns = turns or seconds
            print(
                f"{mean_s:10.1f} s {staleness:10d} {seconds:7.2f} {waited:27.2f} {turns / seconds:13.2f}x", flush=True
            )


if __name__ == "__main__":
    main()
