"""Playing a recorded episode again, command by command, through the session that training uses."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from airloop.errors import AirError
from airloop.types import Observation, Score, Task
from airloop_envs.mlgym import metrics, rewards
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.checkout import find_root, load_checkout, load_task
from airloop_envs.mlgym.data import BUILTIN
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.fields import cannot_run
from airloop_envs.mlgym.grading import Grade
from airloop_envs.mlgym.library import builtin_keys
from airloop_envs.mlgym.older_files import older_files
from airloop_envs.mlgym.replay_report import EXACT, Compared, Replay, ReplayedTurn, Tolerance, tolerance
from airloop_envs.mlgym.session import MlgymSession, Places
from airloop_envs.mlgym.spec import TaskSpec, Yardstick
from airloop_envs.mlgym.traj import RecordedStep, Recording, Scores, read_recording, read_view

NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
STOPPED = re.compile(r"^\[stopped after ([\d.e+]+) s", re.MULTILINE)
TIMED_OUT = "EXECUTION TIMED OUT"  # in MLGym's words
EDIT = re.compile(r"\s*(edit|insert)\s")
REFUSED = re.compile(r"introduced new syntax error|^Not applied", re.MULTILINE)  # MLGym's words, and ours
SLOW_S = 2.0  # turns that take longer are told of while the replay goes on
WHOLE = 1_000_000  # characters of an observation: nothing is cut, so that file views can be compared


class Progress(Protocol):
    def phase(self, text: str, total: int = 0) -> None: ...

    def advance(self, detail: str = "") -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class ReplayOptions:
    mlgym_root: str | None = None
    task: str | None = None  # instead of what the file says
    timeout_s: float | None = None  # for commands that train
    relative: float | None = None  # tolerance, instead of the task's own noise


class WatchedSession(MlgymSession):
    """Training's own session, which also remembers what every grading gave."""

    def __init__(self, task: Task, spec: TaskSpec, args: MlgymArgs, places: Places, names: Sequence[str]) -> None:
        super().__init__(task, spec, args, places, names)
        self.graded: list[Grade] = []

    async def score(self, last: bool = False) -> Grade:
        grade = await super().score(last)
        self.graded.append(grade)
        return grade


async def replay_file(path: Path, options: ReplayOptions, watcher: Progress) -> Replay:
    """AirError if the file cannot be replayed here."""
    recording = read_recording(path)
    task = _task(recording, options)
    env = MlgymEnv(_args(recording, task, options))
    if names := {*recording.rewards, *(n for turn in recording.turn_rewards for n in turn)} & {*rewards.COMPONENTS}:
        env.weigh(dict.fromkeys(sorted(names), 1.0))
    spec = env.spec(task)
    if spec.problems:
        raise cannot_run(spec.key, spec.problems[0])
    try:
        session = WatchedSession(task, spec, env.args, env.places(), tuple(env.reward_weights))
        watcher.phase(f"replaying {path.name}", len(recording.steps))
        return await Player(recording, session, tolerance(spec.yardstick, options.relative), watcher).play()
    finally:
        await env.close()


def _args(recording: Recording, task: Task, options: ReplayOptions) -> MlgymArgs:
    return MlgymArgs(
        task_configs=[str(task.payload["task"])],
        mlgym_root=options.mlgym_root,
        source="checkout" if recording.form == "mlgym" else "auto",
        max_turns=len(recording.steps) + 1,
        observation_chars=WHOLE,
        training_timeout_s=options.timeout_s,
        max_gradings=len(recording.steps) + 2,  # there nobody counted
        score=_which_counted(recording),
        standby=0,
    )


def _which_counted(recording: Recording) -> Literal["last", "best"]:
    """A trajectory of air does not say it; one whose score is not its last but an earlier one does."""
    shown = [value for step in recording.steps if step.scores for value in step.scores.values()]
    final = recording.final
    if not isinstance(final, float) or not recording.steps or not (last := recording.steps[-1].scores):
        return "last"

    def among(wanted: float, values: Sequence[float]) -> bool:
        return any(abs(value - wanted) < 1e-4 for value in values)

    told = recording.shown if recording.shown is not None else final
    return "best" if among(told, shown) and not among(final, list(last.values())) else "last"


# --- which task ---------------------------------------------------------------------------------------------


def _task(recording: Recording, options: ReplayOptions) -> Task:
    if recording.task is not None and options.task is None:
        return recording.task
    if recording.task is not None:
        payload = {**recording.task.payload, "task": options.task}
        return Task("mlgym", recording.task.id, recording.task.split, payload, family=options.task or "")
    root = find_root(options.mlgym_root)
    if root is None:
        raise AirError(
            f"{recording.path.name} was played on MLGym's own tasks, and no checkout of MLGym is named.",
            "add --mlgym-root DIR, or set the variable AIR_MLGYM_ROOT.",
        )
    if options.task:
        key = load_task(root, options.task).key
    else:
        known = {spec.key: (spec.key, spec.id) for spec in load_checkout(root)}
        ours = {key: (key, load_task(BUILTIN, key).id) for key in builtin_keys() if key not in known}
        key = name_task(recording.names, known | ours)
        load_task(root, key)  # an AirError that names the checkout's tasks, if it is one of ours only
    return Task("mlgym", key, "replay", {"task": key, "variant": 0}, family=key)


def name_task(texts: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    """The task whose key or id occurs in the first text that has any; the longest name wins ("titanicSurvival"
    says more than "titanic"). Signs between words do not matter."""
    for text in texts:
        found = [
            (len(_letters(name)), key)
            for key, names in known.items()
            for name in names
            if _letters(name) in _letters(text)
        ]
        longest = {key for length, key in found if length == max(found)[0]}
        if len(longest) == 1:
            return longest.pop()
        if longest:
            raise AirError(f"{text!r} names several tasks: {', '.join(sorted(longest))}.", "choose one with --task.")
    raise AirError(
        "Neither the file nor its path names a task that is known here.", f"add --task NAME; known: {', '.join(known)}."
    )


def _letters(text: str) -> str:
    return "".join(sign for sign in text.casefold() if sign.isalnum())


# --- playing ------------------------------------------------------------------------------------------------


class Player:
    """One replay: the session, what it is compared with, and the report that grows."""

    def __init__(self, recording: Recording, session: WatchedSession, allowed: Tolerance, watcher: Progress) -> None:
        spec = session.spec
        self.recording = recording
        self.session = session
        self.allowed = allowed
        self.watcher = watcher
        self.report = Replay(
            file=str(recording.path),
            form=recording.form,
            task=spec.key,
            source="air" if spec.builtin else "checkout",
            metric=spec.yardstick.metric,
            direction=spec.yardstick.direction,
            ending=recording.ending,
            tolerance=allowed.why,
        )
        self.turn_rewards: dict[str, float] = defaultdict(float)
        self.views_differ = 0  # the first turn in which a file looked otherwise

    async def play(self) -> Replay:
        began = time.perf_counter()
        async with self.session as session:
            self.report.baseline = session.baseline
            await self._prepare()
            await session.begin()
            for number, step in enumerate(self.recording.steps, 1):
                await self._turn(number, step)
                if session.attempt.ending:
                    self._note_early_end(number)
                    break
            await self._finish()
        self.report.seconds = time.perf_counter() - began
        return self.report

    async def _prepare(self) -> None:
        """Starter files as they were there, put in place before anything is played."""
        files = {name: (content, mode) for name, content, mode in self.session.sandbox.sandbox.image.files}
        older = older_files(self.recording.steps, {name: content for name, (content, _) in files.items()})
        for name, content in older.contents.items():
            await self.session.sandbox.put(name, content, files[name][1])
        self.report.without_header = older.cut
        self.report.notes += older.notes

    async def _turn(self, number: int, step: RecordedStep) -> None:
        began = time.perf_counter()
        before = len(self.session.graded)
        first = step.action.text.strip().split("\n")[0][:60]
        if step.action.kind == "invalid":
            seen = self.session.invalid(step.action)
        else:
            seen = await self.session.act(step.action)
        seconds = time.perf_counter() - began
        self.watcher.advance()
        if seconds > SLOW_S:
            self.watcher.say(f"turn {number} of {len(self.recording.steps)}: {first} ({seconds:.1f} s)")
        self.report.turns.append(ReplayedTurn(number, step.action.text, step.shown, seen.text, seen.failed, seconds))
        for name, value in seen.rewards.items():
            self.turn_rewards[name] += value
        self._look(number, step, seen)
        graded = self.session.graded[before:]
        if self.session.attempt.ending != "submitted" and (graded or step.scores is not None):
            self._compare(number, "validate", step.scores, graded[-1].scores if graded else None)

    def _look(self, number: int, step: RecordedStep, seen: Observation) -> None:
        """What went otherwise than there, for whoever looks for the cause of a difference."""
        for package in sorted({*NO_MODULE.findall(seen.text)} - {*NO_MODULE.findall(step.shown)}):
            self.report.missing_packages.setdefault(package, []).append(number)
        if stopped := STOPPED.search(seen.text):
            self.report.notes.append(f"turn {number} was stopped here after {stopped[1]} s")
        elif TIMED_OUT in step.shown:
            self.report.notes.append(f"turn {number} was stopped there and not here")
        refused = bool(REFUSED.search(step.shown))
        if EDIT.match(step.action.text) and refused != bool(REFUSED.search(seen.text)):
            said = "refused there and applied here" if refused else "applied there and refused here"
            self.report.notes.append(f"turn {number}: the edit was {said}")
        there, here = read_view(step.shown), read_view(seen.text)
        if there and here and there.unlike(here) and not self.views_differ:
            self.views_differ = number
            self.report.notes.append(f"turn {number} is the first that shows a file other than there")

    def _note_early_end(self, number: int) -> None:
        left = len(self.recording.steps) - number
        if self.session.lost:
            self.report.notes.append(f"turn {number} ended the sandbox it ran in")
        elif left:
            self.report.notes.append(f"turn {number} ended the episode here; {left} more turns were played there")

    # --- the end ------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        score = await self.session.finish()
        attempt, number = self.session.attempt, len(self.report.turns)
        if attempt.too_good is not None:
            self.report.notes.append(f"the score {attempt.too_good:g} is too good to be true and would be withheld")
        if not self.recording.final_known:
            self.report.notes.append("the file does not say what the last score was")
            return
        what = "submit" if attempt.ending == "submitted" else "end"
        here: Scores | float | None
        if self.recording.form == "air":
            here = score.metrics.get("score")
        else:
            graded = self.session.graded[-1:] if attempt.ending in ("", "submitted") else []
            here = graded[0].scores if graded else None
        self._compare(number, what, self.recording.final, here)
        self._compare_rewards(number, score)

    def _compare(self, turn: int, what: str, there: Scores | float | None, here: Scores | float | None) -> None:
        yardstick = self.session.spec.yardstick
        try:
            a, b = (_value(scores, yardstick) for scores in (there, here))
        except metrics.ScoreError as error:
            self.report.notes.append(f"turn {turn}, {what}: not compared: {error.problem}")
            return
        allowed = self.allowed(a, b) if a is not None and b is not None else 0.0
        note = "the score there is beyond what can be had" if a is not None and metrics.too_good(yardstick, a) else ""
        self.report.compared.append(Compared(turn, what, a, b, allowed, note))

    def _compare_rewards(self, turn: int, score: Score) -> None:
        for name, there in self.recording.rewards.items():
            if name in rewards.EPISODE_COMPONENTS:
                self._compare_reward(turn, name, there, score.rewards.get(name))
        for name in rewards.TURN_COMPONENTS:
            given = [turn_rewards[name] for turn_rewards in self.recording.turn_rewards if name in turn_rewards]
            if given:
                self._compare_reward(turn, name, sum(given), self.turn_rewards.get(name))

    def _compare_reward(self, turn: int, name: str, there: float, here: float | None) -> None:
        """A reward may differ by as much as the score's noise moves it."""
        stick, baseline = self.session.spec.yardstick, self.report.baseline
        value = _value(self.recording.final, stick)
        noise = self.allowed(value, value) if value is not None else 0.0
        room = abs((stick.reference if stick.reference is not None else baseline) - baseline)
        share = noise / room if room else 0.0
        gradings = max(1, len(self.session.graded))
        allowed = {
            "improvement": 10 * noise / max(abs(baseline), stick.floor),
            "headroom": share,
            "tier": 0.25 * (1 + share // 0.25) if share else 0.0,
            "episode_end": noise,
            "delta": 2 * gradings * noise,
        }.get(name, 0.0)
        self.report.compared.append(Compared(turn, name, there, here, max(allowed, EXACT)))


def _value(scores: Scores | float | None, yardstick: Yardstick) -> float | None:
    if scores is None or isinstance(scores, float | int):
        return scores
    return metrics.pick(scores, yardstick.metric)
