"""The paired runs of a hypothesis: every side on every seed, each an ordinary run in a process of its own.

    outputs/lab/mask/
      lab.json                         the hypothesis as it was when its first run began, seeds, minutes spent
      exp1.0-arith-base-seed0-1115/    ordinary runs; `lab` in status.json says which side and seed
      exp1.1-arith-changed-seed0-1115/
      warmstart-arith-…/               shared by the sides of a seed
      report.png

The same command goes on where it was stopped: a run that is complete is not repeated, one that is not is resumed.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop import locks
from airloop.errors import AirError, Stopped
from airloop.files import read_object, write_json
from airloop.runs.damaged import is_held
from airloop.runs.run import Run
from airloop.stats.looks import Looks
from airloop.text.figures import duration
from airloop.text.visible import one_line
from airloop.version import __version__
from airloop.waits import Wait, waiting
from airloop.watch.display.display import Display
from airloop_lab.factors import BASE, Variant
from airloop_lab.gpu_shares import GpuShares, check_spread, gpus_of, visible_gpus, worker_environment
from airloop_lab.hypothesis import Hypothesis, make_hypothesis
from airloop_lab.hypothesis_checks import check_alike, check_steps
from airloop_lab.hypothesis_file import FEWEST_SEEDS, Written, flat
from airloop_lab.hypothesis_process import Worker, Workers
from airloop_lab.hypothesis_worker import evaluated_fault_free

FILE = "lab.json"
LOOKS = "looks.jsonl"
SCHEMA_VERSION = 1
# Between two looks at the runs under way.
POLL_S = 0.2
# What has been spent is written down this often: a kill costs no more of the budget's count.
NOTED_S = 5.0
# After being told to stop, an update that has begun is finished and a checkpoint written.
STOP_S = 120.0
LAST_LINES = 3
SAID_BYTES = 1000


@dataclass(frozen=True)
class Member:
    """One run of the plan; `path` is None until it has begun for the first time."""

    variant: Variant
    seed: int
    path: Path | None = None

    @property
    def label(self) -> str:
        return f"seed {self.seed}, {self.variant.name}"

    @property
    def finished(self) -> bool:
        if self.path is None or Run.open(self.path).status()["status"] != "completed":
            return False
        return not self.variant.fault or evaluated_fault_free(self.path)

    @property
    def trouble(self) -> str:
        """Why it is not finished, for the report; empty where it has not begun."""
        if self.path is None:
            return ""
        status = Run.open(self.path).status()
        if is_held(self.path / ".lock"):
            return "is under way"
        if status["status"] in ("planned", "running", "completed"):  # nobody wrote down how it ended
            return _last_output(self.path)
        why = str(status["why"]).partition("\n")[0]  # its first sentence; the run has all of it
        return f"{status['status']}: {why}".rstrip(": ")


@dataclass
class Lab:
    """A hypothesis' directory."""

    path: Path
    hypothesis: Hypothesis
    seeds: list[int]
    sessions: list[dict[str, Any]]  # when seeds were asked for, and which air made their runs
    configs: dict[str, Any]  # of the base, resolved, as it was first
    spent_s: float = 0.0
    written: float = field(default=0.0, compare=False)

    def members(self) -> list[Member]:
        """The plan, seed by seed, so that what a budget leaves are pairs."""
        found: dict[tuple[str, int], Path] = {}
        for path in sorted(self.path.glob("exp*"), key=lambda p: p.stat().st_mtime):
            noted = Run.open(path).status().get("lab") if (path / "config.toml").is_file() else None
            if noted:
                found[noted["variant"], noted["seed"]] = path
        variants = self.hypothesis.variants
        return [Member(v, seed, found.get((v.name, seed))) for seed in self.seeds for v in variants]

    def save(self) -> None:
        self.written = time.monotonic()
        data = {
            "schema_version": SCHEMA_VERSION,
            "name": self.hypothesis.name,
            "folder": str(self.hypothesis.folder),
            "hypothesis": self.hypothesis.written.model_dump(),
            "seeds": self.seeds,
            "sessions": self.sessions,
            "configs": self.configs,
            "spent_s": self.spent_s,
            "air_version": __version__,
        }
        write_json(self.path / FILE, data)


def open_lab(path: Path) -> Lab:
    if not (path / FILE).is_file():
        raise AirError(f"{path} holds no runs of a hypothesis: it has no {FILE}.", "name what `air lab run` made.")
    data = read_object(path / FILE)
    written = Written.model_validate(data["hypothesis"])
    hypothesis = make_hypothesis(data["name"], written, Path(data["folder"]))
    return Lab(path, hypothesis, data["seeds"], data["sessions"], data["configs"], data["spent_s"])


def looks_before(lab: Lab, added: Sequence[int] = ()) -> list[frozenset[int]]:
    """The sets of seeds on which a verdict was shown before there were those of today, or before some are added.
    Earlier versions did not note it ("looks"), but showed one at the end of every `air lab run`."""
    seen: dict[frozenset[int], None] = {}
    so_far: list[int] = []
    noted = True
    for session in [*lab.sessions, {"added": added}]:
        if session["added"] and len(so_far) >= FEWEST_SEEDS and not noted:
            seen[frozenset(so_far)] = None
        if session["added"]:
            so_far, noted = [*so_far, *session["added"]], "looks" in session
    return [*(seen | dict.fromkeys(Looks(lab.path / LOOKS).before(so_far)))]


def run_hypothesis(hypothesis: Hypothesis, seeds: Sequence[int], out: Path, jobs: int, display: Display) -> Lab:
    """Every run that is not complete yet, within the budget. What is done stays done, however this ends."""
    check_run(hypothesis, seeds, jobs)  # what is refused leaves nothing behind
    out = out.expanduser().resolve()
    with _only_lab(out):
        lab = _begin(hypothesis, seeds, out)
        _Runs(lab, jobs, display).work()
    return lab


def check_run(hypothesis: Hypothesis, seeds: Sequence[int], jobs: int) -> None:
    """All that can be known before anything is spent."""
    check_steps(hypothesis, seeds)
    check_alike(hypothesis)
    names = visible_gpus(os.environ)
    for variant in hypothesis.variants:
        check_spread(f"{hypothesis.name}, {variant.name}", hypothesis.config(variant), jobs, names)


@contextmanager
def _only_lab(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AirError(f"{out} cannot be made: {error}.", "give another --out.") from None
    with (out / ".lock").open("w") as lock:
        if not locks.take(lock):
            raise AirError(f"Another `air lab run` works in {out}.", "wait for it, or give another --out.")
        yield


def _begin(hypothesis: Hypothesis, seeds: Sequence[int], out: Path) -> Lab:
    """A new lab, or the one that is there if it has the same hypothesis: a rule is not changed after its runs."""
    configs = {k: v for k, v in flat(hypothesis.config(hypothesis.base).model_dump(mode="json")).items()}
    configs = {key: value for key, value in configs.items() if key not in ("seed", "output_dir")}
    if (out / FILE).is_file():
        lab = open_lab(out)
        _check_same(lab, hypothesis, configs)
    else:
        if strangers := [p.name for p in out.iterdir() if p.name.startswith("exp")]:
            raise AirError(f"{out} holds other runs, such as {strangers[0]}.", "give another --out, new or empty.")
        lab = Lab(out, hypothesis, [], [], configs)
    added = [seed for seed in seeds if seed not in lab.seeds]
    check_steps(hypothesis, [*lab.seeds, *added])
    if hypothesis.is_sweep and added and looks_before(lab, added):
        raise AirError(
            f"{out} has been looked at: seeds that are added to a sweep now would be chosen by what was seen, and "
            f"among {len(hypothesis.changed)} lines chance will show something.",
            "confirm the line that matters with a hypothesis of its own, or give another --out with all seeds.",
        )
    lab.seeds = [*lab.seeds, *added]
    lab.sessions.append({"time": time.time(), "added": added, "air_version": __version__, "looks": True})
    lab.save()
    return lab


def _check_same(lab: Lab, hypothesis: Hypothesis, configs: dict[str, Any]) -> None:
    old, new = (flat(h.written.model_dump(exclude={"seeds", "budget"})) for h in (lab.hypothesis, hypothesis))
    differ = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    differ += sorted(f"{key} (config)" for key in {*lab.configs, *configs} if lab.configs.get(key) != configs.get(key))
    if differ:
        raise AirError(
            f"{lab.path} has runs of {lab.hypothesis.name!r} as it was then; since, changed: {', '.join(differ[:5])}.",
            "a hypothesis is not changed after its runs: start anew with another --out.",
        )
    lab.hypothesis = hypothesis  # its budget may have been raised


class _Runs:
    """The processes under way."""

    def __init__(self, lab: Lab, jobs: int, display: Display) -> None:
        self._lab = lab
        self._jobs = jobs
        self._display = display
        self._under_way: dict[Worker, tuple[Member, float]] = {}
        gpus = visible_gpus(os.environ)
        self._workers = Workers(forked=not gpus)
        # One at a time has all of them, as `air train` would.
        self._gpus = GpuShares(gpus if jobs > 1 else ())
        self._taken: dict[Worker, tuple[str, ...]] = {}
        self._clock = time.monotonic()
        self._took: list[float] = []  # seconds of those that ended well

    def work(self) -> None:
        todo = [member for member in self._lab.members() if not member.finished]
        total = len(self._lab.members())
        if len(todo) < total:
            self._display.say(f"{total - len(todo)} of {total} runs are complete already")
        budget_s = 60 * self._lab.hypothesis.written.budget.minutes
        try:
            if todo:
                self._display.phase("importing what every run needs")
                self._workers.prepare()
            with waiting("the runs", "their processes", budget_s) as wait:
                while (todo or self._under_way) and self._in_time():
                    while todo and len(self._under_way) < self._jobs:
                        self._start(todo.pop(0))
                    time.sleep(POLL_S)
                    self._look()
                    self._follow(wait)
        except KeyboardInterrupt:
            self._stop()
            raise Stopped(
                f"Stopped. What is done is in {self._lab.path}.", "the same command goes on from there."
            ) from None
        finally:
            self._stop()
            self._workers.close()
            self._spend()
            self._lab.save()
        if todo or any(not member.finished for member in self._lab.members()):
            self._tell_of_the_rest()

    def _in_time(self) -> bool:
        self._spend()
        if time.monotonic() - self._lab.written > NOTED_S:
            self._lab.save()
        return self._lab.spent_s < 60 * self._lab.hypothesis.written.budget.minutes

    def _spend(self) -> None:
        now = time.monotonic()
        self._lab.spent_s += now - self._clock
        self._clock = now

    def _start(self, member: Member) -> None:
        path = member.path or self._create(member)
        gpus = self._gpus.take(gpus_of(self._lab.hypothesis.config(member.variant)))
        process = self._workers.start(path, worker_environment(self._jobs, gpus))
        self._under_way[process] = (Member(member.variant, member.seed, path), time.monotonic())
        self._taken[process] = gpus
        done, total = sum(m.finished for m in self._lab.members()), len(self._lab.members())
        now = "; ".join(f"{m.label}{_on(self._taken[p])}" for p, (m, _) in self._under_way.items())
        left = f"; about {duration(self._left(total - done))} left" if self._took else ""
        self._display.phase(f"{done} of {total} runs complete{left}; under way: {now}")

    def _left(self, runs: int) -> float:
        return statistics.fmean(self._took) * -(-runs // self._jobs)

    def _follow(self, wait: Wait) -> None:
        """What the run that was started last says: how far it is."""
        for member, _ in [*self._under_way.values()][-1:]:
            assert member.path is not None
            said = last_line(member.path / "output.txt")
            if said and said != wait.so_far:
                wait.progress(said)

    def _create(self, member: Member) -> Path:
        """A planned run that knows its side, its fault and, if it is not the base, what it is compared with."""
        lab, variant = self._lab, member.variant
        config = lab.hypothesis.config(variant, member.seed, str(lab.path))
        noted = {"goal": lab.hypothesis.written.claim}
        base = next(m.path for m in lab.members() if m.variant.name == BASE and m.seed == member.seed)
        if base is not None and variant.name != BASE:
            noted["parent"] = base.name
        config = config.model_copy(update={"logbook": config.logbook.model_copy(update=noted)})
        run = Run.create(config, f"{config.task}-{variant.slug}-seed{member.seed}", planned=True)
        facts = {"variant": variant.name, "seed": member.seed, "fault": variant.fault}
        run.note(lab={"hypothesis": lab.hypothesis.name, **facts})
        return run.path

    def _look(self) -> None:
        for process in [p for p in self._under_way if p.ended()]:
            member, began = self._under_way.pop(process)
            self._gpus.give_back(self._taken.pop(process))
            process.end()
            took = f"{time.monotonic() - began:.0f} s"
            if member.finished:
                self._took.append(time.monotonic() - began)
                self._display.say(f"{member.label}: complete in {took}{_outcome(member)}")
            else:
                self._display.say(f"{member.label}: FAILED after {took}: {member.trouble}")

    def _stop(self) -> None:
        """Ask every run under way to stop, and kill what does not. Everything sampled is on disk either way."""
        for process in self._under_way:
            process.ask_to_stop()
        until = time.monotonic() + STOP_S
        for process in self._under_way:
            process.end(max(0.0, until - time.monotonic()))
        self._under_way.clear()

    def _tell_of_the_rest(self) -> None:
        minutes = self._lab.hypothesis.written.budget.minutes
        if self._lab.spent_s >= 60 * minutes:
            left = sum(not member.finished for member in self._lab.members())
            self._display.say(
                f"the budget of {minutes:g} minutes is spent with {left} runs not complete; what is done is kept. "
                "Raise budget.minutes and give the same command to go on."
            )


def _on(gpus: Sequence[str]) -> str:
    return f" on GPU {', '.join(gpus)}" if gpus else ""


def _outcome(member: Member) -> str:
    assert member.path is not None
    found = {m["name"]: m["reward"]["mean"] for m in Run.open(member.path).metrics("eval") if m["episodes"]}
    return f", held-out reward {found['before']:.3f} → {found['after']:.3f}" if {"before", "after"} <= {*found} else ""


def last_line(file: Path) -> str:
    """Read from the end: it may be long."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - SAID_BYTES))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return one_line(lines[-1], SAID_BYTES // 10) if lines else ""


def _last_output(path: Path) -> str:
    file = path / "output.txt"
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.is_file() else []
    if said := [line for line in lines if line.startswith("air: ")]:
        return said[-1].removeprefix("air: ")
    if not lines:
        return "is about to begin, or was killed before it did"
    return f"was killed; its last output lines: {' / '.join(line.strip() for line in lines[-LAST_LINES:])}"[:400]
