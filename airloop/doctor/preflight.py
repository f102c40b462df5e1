"""The doctor at the beginning of a run: what `air train` asks it before it spends anything.

Fast checks come before there is a run directory: what they refuse leaves nothing behind. Probes and proofs need the
loaded model; they come when it is loaded, and what they say is kept in the run (doctor.json, and `proofs` in
status.json). Failures stop the run, warnings are shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.config import Config, to_toml
from airloop.cpu_progress import CpuTimeout
from airloop.doctor.case import Case
from airloop.doctor.checks.signal import RANKS
from airloop.doctor.examine import examine
from airloop.doctor.report import as_json, exit_code, refusal, summary, unjudged, warnings
from airloop.errors import AirError
from airloop.events import Watcher
from airloop.files import write_json
from airloop.launch.monitor import config_for_one
from airloop.runs.run import Run
from airloop.text.figures import duration
from airloop.waits import waiting

if TYPE_CHECKING:
    from airloop.assemble import Components

SKIPPED = "skipped (--skip-proofs)"
# Loading a large model, then probes and proofs: minutes. A process that computes after this is given longer
# (CpuTimeout); one that does not is ended, and what it was to find out is not judged.
APART_S = 1800.0
LAST_LINES = 12
# What this check warns of is also said by every run, with the notes on its parts.
SAID_ELSEWHERE = ("settings_are_usual",)


def look(config: Config, watcher: Watcher) -> None:
    """The fast checks; AirError with what stops the run."""
    with Case(config, watcher.say) as case:
        report = as_json(examine(case, ("fast",), watch=watcher.phase))
    _judge(report, watcher)


async def prove(parts: Components, run: Run, watcher: Watcher) -> None:
    """Probes and proofs with a run's own parts, which are afterwards as they were before."""
    case = Case(parts.config, watcher.say, parts=parts, loop=asyncio.get_running_loop())
    # In a thread: checks wait for episodes, which are played in this event loop.
    work = asyncio.to_thread(examine, case, ("probe", "proof"), watch=watcher.phase)
    try:
        results = await work
    except asyncio.CancelledError:
        case.stop()  # Ctrl-C: what the checks wait for is cancelled with this loop's other tasks
        raise
    watcher.say(f"doctor: {summary(results)}")
    _keep(run, as_json(results), "passed" if exit_code(results) < 2 else "failed", watcher)


def prove_apart(run: Run, watcher: Watcher) -> None:
    """The same for a run of several processes, in one process that ends before they start. Replicas are alike, so one
    speaks for all; weights in shards cannot be looked at by one."""
    config = run.config
    if config.trainer.model.train == "full":
        why = f"not run: the weights are in shards on {config.ranks} processes"
        run.note(proofs=why)
        watcher.say(f"doctor: probes and proofs were {why}; `air doctor` with one GPU and a smaller model runs them")
        return
    watcher.phase("probing and proving in one process, before the others start")
    report = _examined_apart(_for_one(config), run, config.ranks)
    if report is None:
        why = f"not judged: the process that makes them did not end within {duration(APART_S)}"
        run.note(proofs=why)
        watcher.say(f"doctor: probes and proofs were {why}; the run goes on")
        return
    # The fast checks of one process say nothing new.
    report["checks"] = [check for check in report["checks"] if check["stage"] != "fast"]
    _keep(run, report, "failed" if _fails(report) else "passed", watcher)


def wanted(run: Run) -> bool:
    """Once for a run: a resumed one has been through it, or its owner has decided against it."""
    return run.status().get("proofs", "failed") == "failed"


def skip(run: Run, watcher: Watcher) -> None:
    run.note(proofs=SKIPPED)
    watcher.say("doctor: probes and proofs are skipped, and the run says so")


def _for_one(config: Config) -> Config:
    """Servers on other machines are compared with the trainer when they come."""
    return config_for_one(config.sampled_here(), None if config.gpu is None else [config.gpu])


def _examined_apart(config: Config, run: Run, ranks: int) -> dict[str, Any] | None:
    """The report of another process, whose forecast is of `ranks`; None if it did not end in time."""
    with tempfile.TemporaryDirectory(prefix="air-doctor-") as folder:
        file = Path(folder) / "config.toml"
        file.write_text(to_toml(config), encoding="utf-8")
        command = [sys.executable, "-m", "airloop.cli", "doctor", "@", str(file), "--json"]
        with waiting("probes and proofs", "the doctor's process", APART_S):
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, RANKS: str(ranks)},
            )
            out, errors, in_time = _communicate(process)
    run.log(errors)
    if not in_time:
        return None
    try:
        report: dict[str, Any] = json.loads(out)
    except ValueError:
        last = "\n".join((errors or out).strip().splitlines()[-LAST_LINES:])
        raise AirError(
            f"The doctor ended with exit code {process.returncode} and no report:\n{last}",
            "mend what it names, or start without it: --skip-proofs is recorded in the run.",
        ) from None
    return report


def _communicate(process: subprocess.Popen[str]) -> tuple[str, str, bool]:
    """What it writes, and whether it ended by itself. It never outlives us, however this ends."""
    deadline = CpuTimeout(APART_S, process.pid)
    try:
        while left := deadline.left():
            try:
                return *process.communicate(timeout=left), True
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
    return *process.communicate(), False


def _keep(run: Run, report: Mapping[str, Any], proofs: str, watcher: Watcher) -> None:
    write_json(run.path / "doctor.json", report)
    run.note(proofs=proofs)
    try:
        _judge(report, watcher)
    except AirError as error:
        anyway = f"to train anyway: `air train --resume {run.path} --skip-proofs`, which the run records."
        raise AirError(error.problem, f"{error.fix}\n  {anyway}" if error.fix else anyway) from None


def _fails(report: Mapping[str, Any]) -> bool:
    return any(check["verdict"] == "fail" for check in report["checks"])


def _judge(report: Mapping[str, Any], watcher: Watcher) -> None:
    if (error := refusal(report)) is not None:
        raise error
    for text in warnings(report, leave_out=SAID_ELSEWHERE):
        watcher.say(f"warning: {text}")
    for text in unjudged(report):
        watcher.say(f"note: {text}")
