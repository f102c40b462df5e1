"""A run's directory: open, record, resume.

    exp1.3-tune-1115/
      config.toml                     resolved; itself a valid config
      status.json                     planned, running, completed, stopped or failed, and why; whether proofs were
                                      run; sessions: when it was started and when it ended, each time
      logbook.json                    its parent, and what people add: goal, notes, superseded by … (lab/entries.py)
      doctor.json                     what probes and proofs found before the first step
      metrics.jsonl                   a line per step, with its ledger, and per evaluation
      alarms.jsonl                    alarms as they were raised and cleared
      trajectories/step_0012/*.json   one file per episode, written at its end, never changed
      tokens/step_0012.jsonl          what training made of each episode: rewards (those it has only within its
                                      group included), advantage, trainer log-probs, entropies
      warmstart/                      a supervised start while it is made, for whoever resumes (start_checkpoint.py)
      stream.jsonl                    with max_staleness: which groups were admitted and trained (runs/admissions.py)
      refused.jsonl                   steps that were sampled but not accepted, and why; their episodes are in
                                      trajectories/refused_0012_1/, what training made of them in tokens/
      evaluations/before/*.json       episodes on held-out tasks
      checkpoints/step_20/            adapter, optimiser, random states, position, policy version
      log.txt

A step is sampled, updated, accepted. Only then it has its record in tokens/ and its line in metrics.jsonl; one whose
update cannot be made, or after which an alarm stops the run, is refused: set aside, and sampled anew with other seeds.

Resuming is replaying: from the last checkpoint on, a step's finished episodes are read back instead of
sampled, the update is computed again, and sampling sets in where the run was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from airloop import locks
from airloop.config import Config, load_config, to_toml, with_changes
from airloop.errors import AirError
from airloop.files import GrowingLines, append_line, parse_json, read_lines, read_object, write_json, write_text
from airloop.os_errors import reading
from airloop.rollout.schedule import place_in_step
from airloop.runs.config_digest import digest_of
from airloop.runs.damaged import is_held
from airloop.runs.entries import add_entry, locked
from airloop.runs.env_names import names_by_id, with_run_name
from airloop.runs.fence import Overtaken, is_overtaken
from airloop.runs.lineage import as_noted, given_parent, run_before
from airloop.runs.new_directory import NAME, new_directory
from airloop.runs.results import last_sign
from airloop.runs.step_record import StepRecord
from airloop.runs.trajectory_file import from_json, to_json
from airloop.text.keys import without_keys
from airloop.types import Alarm, Trajectory

# Whoever asks whether a run is held holds its lock for a moment (airloop/runs/damaged.py): we try again for as long.
LOCK_S = 0.2
# Windows does not rename a directory in which a file is open.
MOVES_LOCKED = os.name != "nt"


class Run:
    """A run's directory, which `create` makes and `open` opens. One that is there already may be read while it is being
    written.

        run = Run.open(Path("outputs/exp1.0-arith-1117"))
        [line["reward"] for line in run.metrics("train")]
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self.first_step = 0  # the first that is not in the checkpoint we start from
        self._accepted = -1  # the last step that was, in this session
        self.session = 0  # that this process is of, by its number; 0: it only reads
        self.writes = True  # of several ranks, only the first keeps the books; all save their episodes
        self._lock: IO[str] | None = None
        self._spent: tuple[float, float, float] | None = None
        self._evaluations = GrowingLines(path / "metrics.jsonl", lambda line: line["kind"] == "eval")

    @classmethod
    def create(
        cls, config: Config, task: str, major: int | None = None, planned: bool = False, since: float | None = None
    ) -> Run:
        """A new directory `exp{major}.{minor}-{task}-{MMDD}` with the next free minor. One that is planned waits to be
        resumed."""
        root = Path(config.output_dir).expanduser().resolve()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AirError(
                f"output_dir = {config.output_dir!r} cannot be made: {error}.", "name another place."
            ) from None
        # Absolute in the saved config: a run is resumed from anywhere.
        config = config.model_copy(update={"output_dir": str(root)})
        major = config.logbook.major if major is None else major
        given = config.logbook.parent
        parent = given_parent(given, root) if given else None
        with new_directory(root, major, task) as made:
            hidden = cls(made.hidden, config)
            if not planned and MOVES_LOCKED:
                hidden.lock(since)
            write_text(made.hidden / "config.toml", to_toml(config))
            parent = parent or run_before(made.path)
            add_entry(made.hidden, "parent", as_noted(parent, root) if parent else "")
            hidden.note(asked=digest_of(config))
            hidden.set_status("planned" if planned else "running")
        run = cls(made.path, config)
        run._lock, run.session = hidden._lock, hidden.session
        if not planned and not MOVES_LOCKED:
            run.lock(since)
        return run

    @classmethod
    def unfinished(cls, config: Config) -> Path | None:
        """The latest run of the very same config that was killed, stopped or failed, and that nobody works on."""
        root = Path(config.output_dir).expanduser().resolve()
        asked = digest_of(config.model_copy(update={"output_dir": str(root)}))
        for path in sorted(root.glob("exp*"), key=_number, reverse=True):
            try:
                status = cls(path, config).status()
            except (OSError, ValueError, AirError):  # damaged: `air log list` says so
                continue
            if status.get("asked") == asked and _can_go_on(status) and not is_held(path / ".lock"):
                return path
        return None

    @classmethod
    def open(cls, path: Path) -> Run:
        """An existing run, to be resumed or read; AirError if the directory is none."""
        with reading(path / "config.toml"):
            if not (path / "config.toml").is_file():
                raise AirError(f"{path} is not a run: it has no config.toml.", "name one that `air train` made.")
        return cls(path.resolve(), load_config(["@", str(path / "config.toml")], environments=False))

    @property
    def name(self) -> str:
        """As in `air log`: exp1.3-tune-1115."""
        return self.path.name

    def resume(self, step: int) -> None:
        """Go on from a checkpoint that holds the first `step` updates."""
        self.first_step = step
        if not self.writes:
            return
        # A checkpoint holds the first `step` steps and follows the evaluation of the same number.
        kept = [
            m for m in self.metrics() if m["step"] < step or (m["step"] == step and m.get("name", "")[:5] == "step_")
        ]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(m, ensure_ascii=False) + "\n" for m in kept))
        for alarm in self._stops():  # their step was refused: what they saw is gone with it
            append_line(self.path / "alarms.jsonl", {**alarm, "event": "cleared", "time": time.time()})
        self.set_status("running")

    def _stops(self) -> list[dict[str, Any]]:
        """Alarms that stopped the run and are still up, and those that were raised in the same step."""
        last = {(line["id"], line["name"]): line for line in self.alarms()}  # the last word about each
        up = [line for line in last.values() if line["event"] == "raised"]
        refused = {line["step"] for line in up if line["severity"] == "stop"}
        return [line for line in up if line["step"] in refused]

    def remaining_steps(self) -> Iterator[int]:
        """Up to max_steps, which a budget of time may change while the run goes on. One comes again until accepted."""
        step = self.first_step
        while step < self.config.max_steps:
            yield step
            step += self._accepted == step

    def change(self, changes: Mapping[str, Any]) -> Config:
        """Replace some keys of the run's config, by their dotted names; the file follows. The new config."""
        self.fence()
        if self.writes and changes:
            # A rank has a view of its own of the devices; what is on disk is the whole run's.
            write_text(self.path / "config.toml", to_toml(with_changes(Run.open(self.path).config, changes)))
        self.config = with_changes(self.config, changes)
        return self.config

    def spent_s(self, this_session_only: bool = False) -> float:
        """Seconds that its sessions took, this one included."""
        if self._spent is not None:
            whole, this_session, since = self._spent
            return (this_session if this_session_only else whole) + time.monotonic() - since
        sessions = self.status().get("sessions", [])[-1 if this_session_only else 0 :]
        # Of one that was killed its files say when it ended, and their times may be another machine's.
        return sum(max(0.0, (time.time() if end is None else end) - began) for began, end in sessions)

    def spent_before(self, whole: float, this_session: float, since: float) -> None:
        """What its sessions had taken by `since` of our monotonic clock: another machine knows when they began."""
        self._spent = whole, this_session, since

    def fence(self) -> None:
        """Before anything is written that counts: Overtaken where the run was resumed without this process."""
        if is_overtaken(self.session, self.status()):
            raise Overtaken(self.name, self.session)

    def set_status(self, status: str, why: str = "") -> None:
        if is_overtaken(self.session, self.status()):  # the status is another session's
            return
        now = time.time()
        sessions = self._sessions(ended=None if status == "running" else now)
        why = why.encode("utf-8", "backslashreplace").decode()  # an error may name a file whose name is no UTF-8
        self.note(status=status, why=why, pid=os.getpid(), time=now, sessions=sessions)

    def _sessions(self, ended: float | None) -> list[list[float | None]]:
        """When it was started and when it ended, each time; one that was killed could not write its end."""
        return [[began, ended if end is None else end] for began, end in self.status().get("sessions", [])]

    def note(self, **facts: Any) -> None:
        """Facts that status.json keeps until they are noted anew, such as whether the doctor's proofs were run."""
        with locked(self.path):
            self.fence()
            write_json(self.path / "status.json", {**self.status(), **facts})

    def status(self) -> dict[str, Any]:
        """What status.json says: `status` (running, completed, stopped …), `why`, `sessions`."""
        path = self.path / "status.json"
        return read_object(path) if path.is_file() else {"status": "unknown", "why": ""}

    def save_trajectory(self, trajectory: Trajectory, step: int) -> None:
        self.fence()
        write_json(self._episodes(step) / f"{trajectory.id}.json", to_json(trajectory))

    def save_evaluation(self, trajectory: Trajectory, name: str) -> None:
        self.fence()
        write_json(self.path / "evaluations" / name / f"{trajectory.id}.json", to_json(trajectory))

    def finished(self, step: int, spoilt: bool = False) -> dict[tuple[int, int], Trajectory]:
        """Episodes of a step that are on disk, by their place in it. Those that infrastructure errors spoilt are
        left out, to be tried again, unless they are asked for, or the step's update was made without them: it is then
        repeated so."""
        found = self.episodes_in(self._episodes(step))
        lost = {place_in_step(t.id): t for t in found} if spoilt or self.recorded(step) else {}
        return lost | _by_place(found)

    def recorded(self, step: int) -> bool:
        """Whether the step's update was made and accepted."""
        return self._tokens(step).is_file()

    def set_aside(self, step: int) -> None:
        """Take the episodes of a step that will be sampled anew out of its way, and what was made of them; nothing is
        deleted."""
        if self.writes and self._episodes(step).is_dir():
            tries = len(list(self._episodes(step).parent.glob(f"aside_{step:04d}_*")))
            if self.recorded(step):
                os.replace(self._tokens(step), self._tokens(step).with_name(f"aside_{step:04d}_{tries}.jsonl"))
            os.replace(self._episodes(step), self._episodes(step).with_name(f"aside_{step:04d}_{tries}"))

    def _set_aside_after(self, step: int) -> None:
        """What an earlier session has sampled from policies that will not be again: steps, and evaluations after it."""
        for path in sorted((self.path / "trajectories").glob("step_*")):
            if (number := path.name.removeprefix("step_")).isdecimal() and int(number) > step:
                self.set_aside(int(number))
        for path in sorted((self.path / "evaluations").glob("*")):
            number = path.name.removeprefix("step_")
            if path.name == "after" or (number.isdecimal() and int(number) > step):
                self.set_evaluation_aside(path.name)

    def set_evaluation_aside(self, name: str) -> None:
        """One of a policy that is not the one that is to be judged."""
        path = self.path / "evaluations" / name
        if self.writes and path.is_dir():
            tries = len(list(path.parent.glob(f"aside_{name}_*")))
            os.replace(path, path.with_name(f"aside_{name}_{tries}"))

    def move_episodes(self, ids: Iterable[str], step: int, to: str) -> None:
        """Of a group that is trained in another step than it was planned for, or sampled anew: `to` is a folder beside
        those of the steps. One that is there already was moved before the run was killed."""
        target = self._episodes(step).with_name(to)
        target.mkdir(parents=True, exist_ok=True)
        for id in ids:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._episodes(step) / f"{id}.json", target / f"{id}.json")

    def evaluated(self, name: str) -> dict[tuple[int, int], Trajectory]:
        """Scored episodes of an evaluation, by their place in it."""
        return _by_place(self.episodes_in(self.path / "evaluations" / name))

    def episodes_in(self, directory: Path) -> list[Trajectory]:
        """Of one of its folders, with the names that its config gives the environments."""
        names = names_by_id((entry.id, entry.title) for entry in self.config.orchestrator.env)
        return [with_run_name(t, names) for t in read_trajectories(directory)]

    def evaluation(self, name: str) -> list[Trajectory]:
        """Scored episodes of "before", "after" or "step_0010"."""
        return list(self.evaluated(name).values())

    def accept(self, step: int, made: StepRecord) -> None:
        """The step counts: what training made of its episodes is written down, and a resumed run repeats its update."""
        self.fence()
        if self.writes:
            write_text(self._tokens(step), made.text())
            append_line(self.path / "metrics.jsonl", made.metrics)
        self._accepted = step

    def refuse(self, step: int, why: str, made: StepRecord | None = None, later: bool = True) -> None:
        """The step does not count: it comes again, with other seeds. What was sampled, and what training made of it if
        it came so far, is kept beside the steps. `later`: so are episodes of later steps, which a policy may have
        sampled that will not be again."""
        self.fence()
        if not self.writes:
            return
        if later:
            self._set_aside_after(step)
        attempt = self.refusals(step) + 1
        beside = self._tokens(step).with_name(f"refused_{step:04d}_{attempt}.jsonl")
        if made is not None:
            write_text(beside, made.text(fate="refused"))
        self._tokens(step).unlink(missing_ok=True)  # of one that an earlier session had accepted
        line = {"step": step, "attempt": attempt, "time": time.time(), "why": why}
        append_line(self.path / "refused.jsonl", line | {"metrics": made.metrics if made else None})
        # Last, as it is what counts: killed before, the step is still one that was only sampled.
        self._episodes(step).mkdir(parents=True, exist_ok=True)
        os.replace(self._episodes(step), self._episodes(step).with_name(f"refused_{step:04d}_{attempt}"))

    def refused(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "refused.jsonl")

    def refusals(self, step: int) -> int:
        """How often the step was sampled and refused."""
        return len(list((self.path / "trajectories").glob(f"refused_{step:04d}_*")))

    def record_alarm(self, event: str, alarm: Alarm) -> None:
        """`event`: raised or cleared."""
        if self.writes:
            append_line(self.path / "alarms.jsonl", {"event": event, "time": time.time(), **asdict(alarm)})

    def alarms(self) -> list[dict[str, Any]]:
        """Lines of alarms.jsonl: each was raised or cleared (`event`)."""
        return read_lines(self.path / "alarms.jsonl")

    def record_evaluation(self, step: int, name: str, metrics: Mapping[str, Any]) -> None:
        if self.writes:
            append_line(self.path / "metrics.jsonl", {"kind": "eval", "step": step, "name": name, **metrics})

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl, of steps ("train") or of evaluations ("eval"); docs/metrics.md has their names."""
        return [m for m in read_lines(self.path / "metrics.jsonl") if kind is None or m["kind"] == kind]

    def evaluations(self) -> list[dict[str, Any]]:
        """Their lines of metrics.jsonl, which is not read again from its beginning: this is asked at every step."""
        return self._evaluations.read()

    def log(self, text: str) -> None:
        # A full disk is reported by whatever must not be lost; the log is not.
        with contextlib.suppress(OSError), open(self.path / "log.txt", "a", -1, "utf-8", "backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {without_keys(text)}\n")

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _episodes(self, step: int) -> Path:
        return self.path / "trajectories" / f"step_{step:04d}"

    def _tokens(self, step: int) -> Path:
        return self.path / "tokens" / f"step_{step:04d}.jsonl"

    def lock(self, since: float | None = None) -> None:
        """Two processes must never write one run. The lock goes with the process, however it ends. `since`: when the
        work on this session of the run began, if that was earlier."""
        handle = (self.path / ".lock").open("w")
        if not locks.take_within(handle, LOCK_S):
            handle.close()
            raise AirError(
                f"{self.path} is in use by another process (pid {self.status().get('pid')}).",
                "wait for it or stop it; a new run needs no name, it takes the next free one.",
            )
        self._lock, now = handle, time.time()
        sessions = [*self._sessions(ended=last_sign(self.path) or now), [since or now, None]]
        self.session = len(sessions)
        self.note(sessions=sessions)


def _can_go_on(status: Mapping[str, Any]) -> bool:
    """Killed, interrupted, paused or failed. One that an alarm stopped waits for somebody who has read it."""
    interrupted = status.get("status") == "stopped" and status.get("why") == "interrupted"
    return interrupted or status.get("status") in ("running", "paused", "failed")


def _number(path: Path) -> tuple[int, int]:
    found = NAME.match(path.name)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def read_trajectories(directory: Path) -> list[Trajectory]:
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(from_json(parse_json(path.read_text(encoding="utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AirError(f"{path} is not a trajectory of ours: {error}.", "move it away, then go on.") from error
    return found


def _by_place(trajectories: list[Trajectory]) -> dict[tuple[int, int], Trajectory]:
    return {place_in_step(t.id): t for t in trajectories if t.ending != "infra_error"}
