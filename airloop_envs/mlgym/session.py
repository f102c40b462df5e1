"""One episode of research: a leased sandbox, the agent's commands in it, and scores from outside it."""

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
from airloop.sandbox.base import WORKSPACE, SandboxLost
from airloop.sandbox.pool import Lease, Pool
from airloop.types import Action, Message, Observation, Score, Task
from airloop_envs.mlgym import metrics, rewards
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.baselines import Baselines
from airloop_envs.mlgym.commands import clean_output, cut_middle, is_training, prepare, requests
from airloop_envs.mlgym.grading import Grade, Grader, Submission, collect
from airloop_envs.mlgym.halves import shown_baseline
from airloop_envs.mlgym.idle import same_score, same_work
from airloop_envs.mlgym.prompts import opening, shorten, status
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.submissions import own_code
from airloop_envs.mlgym.workspace import agent_image

log = logging.getLogger("airloop.envs.mlgym.session")  # among the environments': a run shows them

TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
MOST_REQUESTS = 3  # of one command that are answered; all of them by one grading


@dataclass(frozen=True)
class Places:
    """Where an episode's work is done, shared by all of a run: sandboxes, grading, and what baselines score."""

    pool: Pool
    grader: Grader
    baselines: Baselines


@dataclass(frozen=True)
class Work:
    """An artefact that was graded, without its bytes: a trainer holds many episodes."""

    path: str
    grade: Grade
    step: int  # in which it was graded
    score: float | None = None  # what it is worth to who made it here; None: nothing
    is_given: bool = False  # the starter's work, or the sample's


@dataclass
class Attempt:
    """What the episode has produced so far. All scores are from grading."""

    first: str = ""  # digest of a submission that lay there before the agent did anything
    works: dict[str, Work] = field(default_factory=dict)  # by digest, in the order in which they were graded
    last: Work | None = None  # that was handed in
    too_good: float | None = None  # a score that cannot be: withheld
    ending: str = ""  # submitted, forfeited, or empty while it goes on

    @property
    def grade(self) -> Grade | None:
        return self.last.grade if self.last is not None else None


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
        self.lost = False  # the agent ended its own sandbox
        self._answer: Grade | None = None  # to this command's requests
        self._code: Sequence[bytes] | None = None  # that was submitted
        self._delta = 0.0  # what this turn's validations gained
        self._lease: Lease | None = None

    async def __aenter__(self) -> Self:
        self.baseline = await self.places.baselines.of(self.spec)
        self._lease = await self.places.pool.lease(agent_image(self.spec, self.args.sandboxes()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await self._lease.close()

    @property
    def sandbox(self) -> Lease:
        assert self._lease is not None
        return self._lease

    async def begin(self) -> Opening:
        there = await collect(self.spec, self.sandbox)
        self.attempt.first = there.digest if there is not None else ""
        system, user = opening(self.spec, self._shown_baseline(), self.args)
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
        except SandboxLost:
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
        self._delta, self._answer = 0.0, None
        timeout = self._timeout(command)
        result = await self.sandbox.run(prepare(command.strip("\n")), timeout)
        parts: list[str] = []
        failed = result.exit_code != 0 or result.timed_out or bool(TRACEBACK.search(result.output))
        at = 0
        for wish in requests(result.output)[:MOST_REQUESTS]:
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
        result = await self.sandbox.run('builtin printf %s "$CURRENT_FILE"', 5.0)
        return result.output, result.cwd

    # --- scores -------------------------------------------------------------------------------------------

    async def _request(self, kind: str) -> tuple[str, bool]:
        """What is said, and whether it went well."""
        if kind in ("skip", "exit_forfeit"):
            self.attempt.ending = "forfeited"
            return "The task was given up.", True
        ends = kind == "submit"
        if ends and "code_quality" in self.names:  # now: after grading it may be other code that lies there
            self._code = await self._own_code()
        # A command is over when its requests are read, so they all ask about the same files: these are collected once.
        if self._answer is None or (ends and self._answer.error == "no_gradings_left"):
            self._answer = await self.score(last=ends)
        if ends:
            self.attempt.ending = "submitted"
            return self._said(self._answer, final=True), self._answer.scores is not None
        self.validated = self.validated or self._answer.scores is not None
        return self._said(self._answer), self._answer.scores is not None

    async def score(self, last: bool = False) -> Grade:
        """Grades the artefact that is there now, if it is new; an artefact has one score (D15)."""
        found = await self._collected()
        if found is None or (found.digest == self.attempt.first and not self._starts_valid()):
            return Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        work = self.attempt.works.get(found.digest)
        if work is None:
            if not last and self._gradings_left() <= 0:
                return Grade(None, "no_gradings_left", NONE_LEFT.format(self.args.max_gradings), 0.0)
            try:
                work = self.attempt.works[found.digest] = await self._graded(found)
            except SandboxLost:  # nothing can stop what the agent has left running there
                self.lost = True
                return Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        self.attempt.last = work
        return work.grade

    def _gradings_left(self) -> float:
        """For `validate`; the last one is kept for the end. Our own tasks need no limit: see halves.py."""
        return math.inf if self.spec.builtin else self.args.max_gradings - 1 - len(self.attempt.works)

    async def _graded(self, found: Submission) -> Work:
        async with (
            self.sandbox.frozen()
        ):  # what graded code sees must not reach a process that the agent has left behind
            grade = await self.grader.grade(self.spec, found)
        untouched = found.digest == self.attempt.first  # it may have a score, but nobody here has earned it
        score = self._take(grade) if not untouched else None
        is_given = untouched
        if not untouched and not self._improved(score):
            is_given = await asyncio.to_thread(same_work, self.spec, found)
        return Work(found.path, grade, self.step, score, is_given)

    async def _collected(self) -> Submission | None:
        if self.lost:
            return None
        try:
            return await collect(self.spec, self.sandbox)
        except SandboxLost:  # nothing can be read from there any more
            self.lost = True
            return None

    def _starts_valid(self) -> bool:
        """Tasks whose submission is code start with one; a table that lay there was made by nobody here."""
        return self.spec.entry_point in ("PythonSubmissionTasks", "LMSubmissionTasks")

    def _take(self, grade: Grade) -> float | None:
        """The score of a new artefact, if it has one that can be."""
        if grade.counted is None:
            return None
        value = metrics.pick(grade.counted, self.spec.yardstick.metric)
        limit = metrics.exceeded(self.spec.yardstick, value)
        if limit is not None:
            self.attempt.too_good = value
            log.warning(
                "too good to be true: task %s scored %s = %g where %g is the best there is; the score is withheld",
                self.task.id, self.spec.yardstick.metric, value, limit,
            )  # fmt: skip
            return None
        scores = [work.score for work in self.attempt.works.values() if work.score is not None]
        self._delta += metrics.gain(self.spec.yardstick, scores[-1] if scores else self.baseline, value)
        return value

    def _shown_baseline(self) -> float:
        """On the rows that `validate` looks at."""
        shown = shown_baseline(self.spec)
        return self.baseline if shown is None else metrics.pick(shown, self.spec.yardstick.metric)

    def _said(self, grade: Grade, final: bool = False) -> str:
        numbers = grade.counted if final else grade.scores
        if numbers is None:
            return grade.text
        work = self.attempt.last
        assert work is not None
        value = self.baseline if final else self._shown_baseline()
        baseline = {self.spec.yardstick.metric: round(value, 5)}
        scores = {name: round(value, 5) for name, value in numbers.items()}
        old = f" (the same as in step {work.step})" if work.step < self.step and not final else ""
        return f"valid submission: {work.path}{old}\nbaseline: {baseline}\nscore: {scores}"

    # --- the end ------------------------------------------------------------------------------------------

    async def finish(self) -> Score:
        """However it ended, what is there counts; who gave up or lost the machine has what was graded before. What was
        submitted is not collected again: it may be another file by now."""
        if self.attempt.ending == "submitted" and self._answer is not None:
            last = self._answer
        elif not self.attempt.ending and not self.lost:
            last = await self.score(last=True)
        else:
            last = self.attempt.grade or Grade(None, "submission_not_found", NOT_FOUND, 0.0)
        work = self._counted(last)
        score = work.score if work is not None else None
        quality = await self._code_quality() if "code_quality" in self.names and self._improved(score) else 0.0
        idle = await self._idle(score)
        given = rewards.for_episode(
            self.names, self.spec.yardstick, self.baseline, score, self.validated, quality, idle
        )
        return Score(given, {**self._metrics(work, last), "idle": float(idle)})

    async def _idle(self, score: float | None) -> bool:
        """Whether what counts is the starter's work or the sample's, and so nobody's here."""
        handed_in = self.attempt.last
        if handed_in is None or self._improved(score):
            return False
        if handed_in.is_given and (score is None or self.args.score != "best"):
            return True
        sample = await self.places.baselines.of_sample(self.spec) if score is not None else None
        return score is not None and same_score(self.spec, score, (self.baseline, sample))

    def _counted(self, last: Grade) -> Work | None:
        """The artefact whose score counts. The best one is the best by what `validate` shows: who chooses among many
        by the score itself would choose its luck."""
        if self.attempt.ending == "forfeited" or self.attempt.too_good is not None:
            return None
        if self.args.score == "best":
            works = [work for work in self.attempt.works.values() if work.score is not None]
            return max(works, key=self._worth, default=None)
        work = self.attempt.last
        return work if work is not None and work.score is not None and last.scores is not None else None

    def _worth(self, work: Work) -> float:
        return self._shown_score(work) * (1 if self.spec.yardstick.direction == "up" else -1)

    def _shown_score(self, work: Work) -> float:
        return metrics.pick(work.grade.scores or {}, self.spec.yardstick.metric)

    def _metrics(self, work: Work | None, last: Grade) -> dict[str, float]:
        yardstick = self.spec.yardstick
        score = work.score if work is not None else None
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
        shown |= self._standing()
        if work is not None and work.grade.final is not None:
            shown["validate_score"] = self._shown_score(work)
        if yardstick.reference is not None and not metrics.no_headroom(yardstick, self.baseline):
            shown["reference"] = yardstick.reference
            shown["headroom"] = (
                rewards.WORST_HEADROOM if score is None else metrics.headroom(yardstick, self.baseline, score)
            )
        return shown

    def _standing(self) -> dict[str, float]:
        """For a comparison with others' runs, whichever of the two is paid for here."""
        if self.attempt.too_good is not None:
            return {}
        earned = [work for work in self.attempt.works.values() if work.score is not None]
        best, last = max(earned, key=self._worth, default=None), self.attempt.last
        named = {"best_score": best, "final_score": last if self.attempt.ending != "forfeited" else None}
        return {name: work.score for name, work in named.items() if work is not None and work.score is not None}

    def _improved(self, score: float | None) -> bool:
        return score is not None and metrics.improved(self.spec.yardstick, self.baseline, score)

    async def _code_quality(self) -> float:
        files = self._code if self._code is not None else await self._own_code()
        return await self.grader.quality(files) if files else 0.0

    async def _own_code(self) -> Sequence[bytes]:
        if self.lost:
            return ()
        try:
            return await own_code(self.spec, self.sandbox)
        except SandboxLost:  # the agent has seen to it that nothing can be read
            return ()


NONE_LEFT = (
    "Not graded: an episode has {} gradings, and the last one is kept for the end. Go on without, or submit; what is "
    "there at the end is scored."
)
NOT_FOUND = "No submission found: make the one that the task describes, then validate again."
