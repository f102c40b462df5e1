"""One episode of research: a leased world, the agent's commands in it, and scores from outside it."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from airloop.envs.base import Opening, Session
from airloop.envs.mlgym import metrics, rewards
from airloop.envs.mlgym.args import MlgymArgs
from airloop.envs.mlgym.baselines import Baselines
from airloop.envs.mlgym.commands import clean_output, cut_middle, is_training, prepare, requests
from airloop.envs.mlgym.grading import Grade, Grader, Submission, collect
from airloop.envs.mlgym.idle import same_score, same_work
from airloop.envs.mlgym.prompts import opening, shorten, status
from airloop.envs.mlgym.spec import TaskSpec
from airloop.envs.mlgym.workspace import agent_image
from airloop.sandbox.base import WORKSPACE, WorldLost
from airloop.sandbox.pool import Lease, Pool
from airloop.types import Action, Message, Observation, Score, Task

log = logging.getLogger(__name__)

TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
QUALITY_S = 20.0
MOST_REQUESTS = 3  # of one command that are answered
# Compiles every file the agent wrote and counts style errors: run inside, where agents' text can do no harm.
# By its path and without the shell's variables, because names in the shell are the agent's.
QUALITY = r"""/usr/bin/env -i PATH=/opt/air/bin:/usr/local/bin:/usr/bin:/bin python3 -I - <<'AIR_END'
import os
os.chdir("/home/agent/workspace")
own = [f for f in sorted(os.listdir(".")) if f.endswith(".py") and os.access(f, os.W_OK)]
good = total = 0.0
for name in own:
    total += 1
    try:
        text = open(name, encoding="utf-8").read()
        compile(text, name, "exec")
    except Exception:
        continue
    lines = max(1, text.count("\n"))
    long = sum(len(line) > 100 or line != line.rstrip() for line in text.split("\n"))
    good += 0.5 + 0.5 * max(0.0, 1 - 10 * long / lines)
print(good / total if total else 0.0)
AIR_END"""


@dataclass(frozen=True)
class Places:
    """Where an episode's work is done, shared by all of a run: worlds, grading, and what baselines score."""

    pool: Pool
    grader: Grader
    baselines: Baselines


@dataclass
class Attempt:
    """What the episode has produced so far. All scores are from grading."""

    first: str = ""  # digest of a submission that lay there before the agent did anything
    submission: Submission | None = None  # the last one that was graded
    grade: Grade | None = None
    step: int = 0  # in which it was made
    scores: list[float] = field(default_factory=list)  # of every valid grading of a new artefact, in order
    too_good: float | None = None  # a score that cannot be: withheld
    ending: str = ""  # submitted, forfeited, or empty while it goes on


class MlgymSession(Session):
    def __init__(self, task: Task, spec: TaskSpec, args: MlgymArgs, places: Places, names: Sequence[str]) -> None:
        self.task = task
        self.spec = spec
        self.args = args
        self.places = places
        self.grader = places.grader
        self.names = names  # of the reward components that count
        self.baseline = math.nan  # known once the session is open
        self.attempt = Attempt()
        self.step = 0
        self.failed_commands = 0
        self.validated = False
        self.lost = False  # the agent ended its own world
        self._delta = 0.0  # what this turn's validations gained
        self._lease: Lease | None = None

    async def __aenter__(self) -> Self:
        self.baseline = await self.places.baselines.of(self.spec)
        self._lease = await self.places.pool.lease(agent_image(self.spec, self.args.worlds()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.close()

    @property
    def world(self) -> Lease:
        assert self._lease is not None
        return self._lease

    async def begin(self) -> Opening:
        there = await collect(self.spec, self.world)
        self.attempt.first = there.digest if there is not None else ""
        system, user = opening(self.spec, self.baseline, self.args)
        return Opening((Message(role="system", content=system), Message(role="user", content=user)))

    def view(self, messages: Sequence[Message]) -> Sequence[Message]:
        return shorten(messages, self.args.history)

    # --- a command ----------------------------------------------------------------------------------------

    async def act(self, action: Action) -> Observation:
        self.step += 1
        state = ("", WORKSPACE)
        try:
            text, failed = await self._run(action.text)
            if not self.attempt.ending:
                state = await self._shell_state()
        except WorldLost:
            self.lost = True
            self.attempt.ending = "lost"
            text, failed = "The command ended the machine it ran on. The task is over.", True
        gained = {"tool": rewards.tool(failed)} if "tool" in self.names else {}
        if "delta" in self.names:
            gained["delta"] = self._delta
        self.failed_commands += failed
        done = bool(self.attempt.ending)
        if not done:
            text += status(self.args, self.step, state)
        return Observation(text, gained, done=done, failed=failed)

    def invalid(self, action: Action) -> Observation:
        self.step += 1
        self.failed_commands += 1
        gained = {"tool": rewards.tool(True)} if "tool" in self.names else {}
        return Observation(action.text + status(self.args, self.step, ("", WORKSPACE)), gained, failed=True)

    async def _run(self, command: str) -> tuple[str, bool]:
        """The command's output with what `validate` or `submit` had to say in its place, and whether it failed."""
        self._delta = 0.0
        timeout = self._timeout(command)
        result = await self.world.run(prepare(command.strip("\n")), timeout)
        parts: list[str] = []
        failed = result.exit_code != 0 or result.timed_out or bool(TRACEBACK.search(result.output))
        at = 0
        for wish in requests(result.output)[:MOST_REQUESTS]:  # each may cost an evaluation
            parts.append(self._readable(result.output[at : wish.start]))
            at = wish.end
            said, good = await self._request(wish.kind)
            parts.append(said)
            failed = failed or not good
            if self.attempt.ending:
                break
        else:
            parts.append(self._readable(result.output[at:]))
        if result.timed_out:
            parts.append(f"[stopped after {timeout:g} s: the time for one command was up]")
        if result.shell_restarted:
            parts.append("[the shell ended; a new one was started, without the variables of the old one]")
        text = "\n".join(part.strip("\n") for part in parts if part.strip("\n"))
        return text or ("[no output]" if not failed else f"[no output, exit code {result.exit_code}]"), failed

    def _timeout(self, command: str) -> float:
        if not is_training(command):
            return self.args.command_timeout_s
        return self.args.training_timeout_s or self.spec.training_timeout

    def _readable(self, output: str) -> str:
        return cut_middle(clean_output(output), self.args.observation_chars)

    async def _shell_state(self) -> tuple[str, str]:
        """The open file and the working directory."""
        result = await self.world.run('builtin printf %s "$CURRENT_FILE"', 5.0)
        return result.output, result.cwd

    # --- scores -------------------------------------------------------------------------------------------

    async def _request(self, kind: str) -> tuple[str, bool]:
        """What is said, and whether it went well."""
        if kind in ("skip", "exit_forfeit"):
            self.attempt.ending = "forfeited"
            return "The task was given up.", True
        before = self.attempt.submission
        grade = await self.score()
        if kind == "submit":
            self.attempt.ending = "submitted"
            return self._said(grade, unchanged=False), grade.scores is not None
        self.validated = self.validated or grade.scores is not None
        unchanged = before is not None and self.attempt.submission is before and grade.scores is not None
        return self._said(grade, unchanged), grade.scores is not None

    async def score(self) -> Grade:
        """Grades the artefact that is there now, if it is new; an artefact has one score (D15)."""
        found = await self._collected()
        attempt = self.attempt
        untouched = found is not None and found.digest == attempt.first
        if found is None or (untouched and not self._starts_valid()):
            return Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        if attempt.submission is not None and attempt.grade is not None and found.digest == attempt.submission.digest:
            return attempt.grade
        try:
            async with self.world.frozen():  # what graded code sees must not reach a process the agent has left behind
                grade = await self.grader.grade(self.spec, found)
        except WorldLost:  # nothing can stop them
            self.lost = True
            return Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        attempt.submission, attempt.grade, attempt.step = found, grade, self.step
        if grade.scores is not None and not untouched:  # starter code has a score, but nobody here has earned it
            self._take(grade)
        return grade

    async def _collected(self) -> Submission | None:
        if self.lost:
            return None
        try:
            return await collect(self.spec, self.world)
        except WorldLost:  # nothing can be read from there any more
            self.lost = True
            return None

    def _starts_valid(self) -> bool:
        """Tasks whose submission is code start with one; a table that lay there was made by nobody here."""
        return self.spec.entry_point in ("PythonSubmissionTasks", "LMSubmissionTasks")

    def _take(self, grade: Grade) -> None:
        assert grade.scores is not None
        value = metrics.pick(grade.scores, self.spec.yardstick.metric)
        if metrics.too_good(self.spec.yardstick, value):
            self.attempt.too_good = value
            log.warning(
                "too good to be true: task %s scored %s = %g where %g is the best there is; the score is withheld",
                self.task.id, self.spec.yardstick.metric, value, self.spec.yardstick.reference,
            )  # fmt: skip
            return
        before = self.attempt.scores[-1] if self.attempt.scores else self.baseline
        self._delta += metrics.gain(self.spec.yardstick, before, value)
        self.attempt.scores.append(value)

    def _said(self, grade: Grade, unchanged: bool) -> str:
        if grade.scores is None:
            return grade.text
        path = self.attempt.submission.path if self.attempt.submission else ""
        baseline = {self.spec.yardstick.metric: round(self.baseline, 5)}
        scores = {name: round(value, 5) for name, value in grade.scores.items()}
        old = f" (the same as in step {self.attempt.step})" if unchanged else ""
        return f"valid submission: {path}{old}\nbaseline: {baseline}\nscore: {scores}"

    # --- the end ------------------------------------------------------------------------------------------

    async def finish(self) -> Score:
        """However it ended, what is there counts; who gave up or lost the machine has what was graded before."""
        if self.attempt.ending in ("", "submitted") and not self.lost:
            last = await self.score()
        else:
            last = self.attempt.grade or Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        score = self._counted(last)
        quality = await self._code_quality() if "code_quality" in self.names and self._improved(score) else 0.0
        idle = await self._idle(score)
        given = rewards.for_episode(
            self.names, self.spec.yardstick, self.baseline, score, self.validated, quality, idle
        )
        return Score(given, {**self._metrics(score, last), "idle": float(idle)})

    async def _idle(self, score: float | None) -> bool:
        """Whether what counts is the starter's work or the sample's, and so nobody's here."""
        handed_in = self.attempt.submission
        if handed_in is None or self._improved(score):
            return False
        if score is None or self.args.score != "best":
            untouched = handed_in.digest == self.attempt.first
            if untouched or await asyncio.to_thread(same_work, self.spec, handed_in):
                return True
        sample = await self.places.baselines.of_sample(self.spec) if score is not None else None
        return score is not None and same_score(self.spec, score, (self.baseline, sample))

    def _counted(self, last: Grade) -> float | None:
        scores = self.attempt.scores
        if not scores or self.attempt.ending == "forfeited" or self.attempt.too_good is not None:
            return None
        if self.args.score == "best":
            return max(scores) if self.spec.yardstick.direction == "up" else min(scores)
        untouched = self.attempt.submission is not None and self.attempt.submission.digest == self.attempt.first
        return scores[-1] if last.scores is not None and not untouched else None

    def _metrics(self, score: float | None, last: Grade) -> dict[str, float]:
        yardstick = self.spec.yardstick
        ending = self.attempt.ending
        shown = {
            "baseline": self.baseline,
            "scored": float(score is not None),
            "improved": float(self._improved(score)),
            "validated": float(self.validated),
            "submitted": float(ending == "submitted" and score is not None),
            "autosubmitted": float(ending == "" and score is not None),
            "submission_not_found": float(last.error == "submission_not_found"),
            "evaluation_failed": float(last.scores is None and last.error != "submission_not_found"),
            "too_good": float(self.attempt.too_good is not None),
            "world_lost": float(self.lost),
            "commands_failed": float(self.failed_commands),
        }
        if score is not None:
            shown["score"] = score
        if yardstick.reference is not None and not metrics.no_headroom(yardstick, self.baseline):
            shown["reference"] = yardstick.reference
            shown["headroom"] = (
                rewards.WORST_HEADROOM if score is None else metrics.headroom(yardstick, self.baseline, score)
            )
        return shown

    def _improved(self, score: float | None) -> bool:
        """Better than the baseline by more than noise."""
        yardstick = self.spec.yardstick
        return score is not None and metrics.gain(yardstick, self.baseline, score) > 2 * yardstick.noise

    async def _code_quality(self) -> float:
        if self.lost:
            return 0.0
        try:
            result = await self.world.run(QUALITY, QUALITY_S)
            return min(1.0, max(0.0, float(result.output.strip().splitlines()[-1])))
        except (WorldLost, ValueError, IndexError):  # the agent has seen to it that nothing can be measured
            return 0.0


NOT_FOUND = "No submission found: make the one that the task describes, then validate again."
