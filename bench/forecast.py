"""Is what the doctor says of a run's length true? Its forecast at the start of a run, and the run.

    python bench/forecast.py arith -- --max_steps 40
    python bench/forecast.py @ gsm8k.toml -- --max_steps 30

One line of a table for docs/results.md. The clock starts with the first evaluation, as the forecast does; a config with
a budget of time is no good here, since its steps are corrected on the way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from airloop.config import load_config
from airloop.doctor import forecast as forecasts
from airloop.doctor.forecast import Forecast
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display
from airloop_lab.faults import replaced


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
    told: list[Forecast] = []
    original = forecasts.forecast

    def noted(*args: Any, **named: Any) -> Forecast:
        told.append(original(*args, **named))
        return told[-1]

    with tempfile.TemporaryDirectory(prefix="air-bench-") as folder, replaced(forecasts, "forecast", noted):
        config = load_config([*options.config, *flags, "--output_dir", folder])
        if config.ranks > 1:
            raise SystemExit("of several processes the doctor speaks in another one: not here")
        clock = Clock(Console(quiet=True), quiet=True)
        run = Run.open(start(config, clock).run.path)
        took = time.perf_counter() - clock.began
        times = [sum(m["times"][k] for k in ("sampling", "training", "sync")) for m in run.metrics("train")]
    if not told:
        raise SystemExit("the doctor gave no forecast: `air doctor --only D6` says why")
    last = told[-1]
    step = statistics.median(times)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    name = options.name or Path(next(word for word in options.config if word != "@")).stem
    print("| run | on | a step: told, took | the run: told, took | factor |\n|---|---|---|---|---|")
    factor = max(last.total_s / took, took / last.total_s)
    print(
        f"| {name}, {config.max_steps} steps | {device}, {time.strftime('%F')} | {last.step_s:.2f} s, {step:.2f} s | "
        f"{last.total_s:.0f} s, {took:.0f} s | {factor:.2f} |"
    )


if __name__ == "__main__":
    main()
