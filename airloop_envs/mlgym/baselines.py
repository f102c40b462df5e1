"""Baselines that no file names: run once in a sandbox like the agent's, graded like an agent's work, and kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airloop.errors import AirError, InfraError
from airloop.files import cache_directory, write_json
from airloop.sandbox.base import SandboxLost
from airloop.sandbox.pool import Pool
from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.digests import add_files
from airloop_envs.mlgym.grading import Grader, Submission, collect
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.workspace import SUBMISSION, Sandboxes, agent_image

log = logging.getLogger("airloop.envs.mlgym.baselines")  # among the environments': a run shows them

LAST_LINES = 12  # of a baseline that failed, which say why
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


@dataclass(frozen=True)
class Measurement:
    scores: Mapping[str, float]  # everything the evaluation printed
    command: str  # that was run; empty: the starter code was graded as it is
    run_s: float
    grade_s: float
    date: str


class Baselines:
    """One measurement per task, whoever asks at the same time, and for as long as its files stay the same."""

    def __init__(self, pool: Pool, grader: Grader, sandboxes: Sandboxes) -> None:
        self.pool = pool
        self.grader = grader
        self.sandboxes = sandboxes
        self._places: dict[tuple[Path, str, int], Path] = {}
        self._locks: dict[Path, asyncio.Lock] = {}
        self._failed: dict[Path, AirError] = {}
        self._samples: dict[tuple[Path, str, int], asyncio.Task[float | None]] = {}

    async def of(self, spec: TaskSpec) -> float:
        """The task's own baseline if it names one, else the measured one."""
        if spec.yardstick.baseline is not None:
            return spec.yardstick.baseline
        return metrics.pick((await self.measured(spec)).scores, spec.yardstick.metric)

    async def of_sample(self, spec: TaskSpec) -> float | None:
        """What the sample submission of a task with a table scores, graded once; None if there is none to grade."""
        if spec.entry_point != "CSVSubmissionTasks" or spec.sample_submission is None:
            return None
        name = (spec.root, spec.key, spec.variant)
        task = self._samples.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._samples[name] = asyncio.create_task(self._grade_sample(spec, spec.sample_submission))
        return await asyncio.shield(task)

    async def _grade_sample(self, spec: TaskSpec, sample: Path) -> float | None:
        if not sample.is_file():
            return None
        try:
            grade = await self.grader.grade(spec, Submission(SUBMISSION, {SUBMISSION: sample.read_bytes()}, ""))
        except InfraError as error:  # an episode is not lost for want of a comparison
            log.warning("the sample submission of %s could not be graded: %s", spec.key, error)
            return None
        return metrics.pick(grade.counted, spec.yardstick.metric) if grade.counted is not None else None

    async def measured(self, spec: TaskSpec) -> Measurement:
        """From the cache, or measured now. What failed once is not tried again: its files have not changed."""
        place = await self._place(spec)
        async with self._locks.setdefault(place, asyncio.Lock()):
            if place in self._failed:
                raise self._failed[place]
            if (known := read(place)) is not None:
                return known
            try:
                found = await self.measure(spec)
            except AirError as error:
                self._failed[place] = error
                raise
            # Another process may have been quicker: then its measurement is everybody's.
            if (known := read(place)) is None:
                write_json(place, {"task": spec.key, "root": str(spec.root), **vars(found)})
            return known or found

    async def measure(self, spec: TaskSpec) -> Measurement:
        """Runs the baseline in a fresh sandbox and grades what it made; AirError if it cannot."""
        command = command_line(spec, self.sandboxes)
        log.info("measuring the baseline of %s: %s", spec.key, command or "its starter code as it is")
        began = time.perf_counter()
        deadline = 2 * spec.training_timeout + 600
        async with await self.pool.lease(agent_image(spec, self.sandboxes), deadline) as lease:
            if command:
                try:
                    result = await lease.run(command, spec.training_timeout)
                except SandboxLost:
                    raise _failure(spec, f"`{command}` ended its sandbox", "") from None
                if result.timed_out:
                    raise _failure(spec, f"`{command}` took longer than {spec.training_timeout:g} s", result.output)
                if result.exit_code != 0:
                    raise _failure(spec, f"`{command}` ended with exit code {result.exit_code}", result.output)
            submission = await collect(spec, lease)
            ran = time.perf_counter()
            if submission is None:
                said = f"`{command}` left no submission" if command else "its starter code is no submission"
                raise _failure(spec, said, result.output if command else "")
        grade = await self.grader.grade(spec, submission)
        if grade.counted is None:
            raise _failure(spec, "what it made could not be scored", grade.text)
        metrics.pick(grade.counted, spec.yardstick.metric)
        today = datetime.now(UTC).isoformat(timespec="seconds")
        return Measurement(dict(grade.counted), command, ran - began, time.perf_counter() - ran, today)

    async def _place(self, spec: TaskSpec) -> Path:
        name = (spec.root, spec.key, spec.variant)
        if name not in self._places:
            self._places[name] = await asyncio.to_thread(cache_file, spec)
        return self._places[name]


def command_line(spec: TaskSpec, sandboxes: Sandboxes) -> str:
    """How the baseline is run; empty if the starter code itself is the baseline. AirError if there is none."""
    script = next(iter(spec.baseline_paths), "")
    # MLGym's games name their evaluation, which scores the starter code; without the hidden opponent it cannot run
    scores_the_starter = spec.entry_point == "PythonSubmissionTasks" and script in spec.evaluation_paths
    if script and script in spec.visible_files() and not scores_the_starter:
        if spec.entry_point == "LMSubmissionTasks":
            return f"torchrun --nproc_per_node={max(1, len(sandboxes.gpus))} --standalone {shlex.quote(script)}"
        return f"python {shlex.quote(script)}"
    if spec.entry_point == "PythonSubmissionTasks":
        return ""
    raise _failure(spec, f"its script {script} is not in the agent's sandbox" if script else "it names no script", "")


def cache_file(spec: TaskSpec) -> Path:
    """Named by all that a baseline's score depends on: how it is run and scored, and every file of the task."""
    how = (spec.entry_point, spec.training_timeout, spec.evaluation_paths, spec.baseline_paths, spec.secret_files)
    digest = hashlib.sha256(repr(how).encode())
    files = dict(spec.workspace_files())
    if spec.answers is not None:
        files |= {f"answers/{p.relative_to(spec.answers)}": p for p in spec.answers.rglob("*") if p.is_file()}
    if spec.requirements is not None:
        files["requirements"] = spec.requirements
    add_files(digest, files)
    return cache_directory() / "mlgym" / "baselines" / f"{digest.hexdigest()[:24]}.json"


def read(place: Path) -> Measurement | None:
    """What was measured earlier. A file that cannot be read is measured again."""
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        scores = {str(name): float(value) for name, value in data["scores"].items()}
        return Measurement(scores, data["command"], float(data["run_s"]), float(data["grade_s"]), data["date"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def known(spec: TaskSpec) -> float | None:
    """The baseline as far as it is known without running anything."""
    if spec.yardstick.baseline is not None or spec.problems or not spec.yardstick.metric:
        return spec.yardstick.baseline
    stored = read(cache_file(spec))
    return metrics.pick(stored.scores, spec.yardstick.metric) if stored else None


def _failure(spec: TaskSpec, what: str, output: str) -> AirError:
    lines = [line for line in output.rstrip().splitlines() if line.strip()][-LAST_LINES:]
    shown = ":\n" + "\n".join(f"    {line}" for line in lines) if lines else "."
    missing = NO_MODULE.search(output)
    install = f"install {missing[1].split('.')[0]} where the sandbox's python finds it, or " if missing else ""
    line = f"args = {{ metrics = {{ {spec.key} = {{ baseline = 0.5 }} }} }}"
    return AirError(
        f"The baseline of task {spec.key} cannot be measured: {what}{shown}",
        f"{install}say its score: {line} with the right number.",
    )
