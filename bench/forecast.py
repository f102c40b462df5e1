"""Is what the doctor says of a run's length true? The forecast of a config, then the run itself.

    python bench/forecast.py arith -- --max_steps 40
    python bench/forecast.py @ gsm8k.toml -- --max_steps 30

One line of a table for docs/results.md. A supervised start is made first and not counted, as in `air train`; a config
with a budget of time is no good here, since its steps are corrected on the way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from airloop.config import load_config
from airloop.doctor.case import Case
from airloop.doctor.forecast import forecast
from airloop.doctor.preflight import _for_one
from airloop.run import Run
from airloop.speed import measure_speed
from airloop.train import start
from airloop.warmstart import started
from airloop.watch.display import Display


class Clock(Display):
    """Notes when the first evaluation began: loading and the supervised start are over then."""

    began = 0.0

    def phase(self, text: str, total: int = 0) -> None:
        if text.startswith("evaluating") and not self.began:
            self.began = time.perf_counter()
        super().phase(text, total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="+", help="as for air train: a name, or @ FILE")
    parser.add_argument("--name", default="", help="in the table")
    options, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    with tempfile.TemporaryDirectory(prefix="air-bench-") as folder:
        config = load_config([*options.config, *flags, "--output_dir", folder])
        clock = Clock(Console(quiet=True), quiet=True)
        run = Run.open(start(config, clock, skip_proofs=True).run.path)
        took = time.perf_counter() - clock.began
        times = [sum(m["times"][k] for k in ("sampling", "training", "sync")) for m in run.metrics("train")]
        with Case(started(_for_one(config)) if config.warmstart else config) as case:
            played = [t for t in case.probe.trajectories if t.turns]
            told = forecast(config, played, case.wait(measure_speed(case.parts)), config.ranks)
    step = statistics.median(times)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    name = options.name or Path(next(word for word in options.config if word != "@")).stem
    print("| run | on | a step: told, took | the run: told, took | factor |\n|---|---|---|---|---|")
    factor = max(told.total_s / took, took / told.total_s)
    print(
        f"| {name}, {config.max_steps} steps | {device}, {time.strftime('%F')} | {told.step_s:.2f} s, {step:.2f} s | "
        f"{told.total_s:.0f} s, {took:.0f} s | {factor:.2f} |"
    )


if __name__ == "__main__":
    main()
