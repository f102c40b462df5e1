"""Whether a research task can be run here, tried out from end to end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from airloop.errors import AirError, InfraError
from airloop.types import Action, Message, Task
from airloop_envs.mlgym import baselines, metrics
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.catalogue import describe, shown
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.halves import asks_for_labels
from airloop_envs.mlgym.replay_report import tolerance
from airloop_envs.mlgym.session import MlgymSession
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.workspace import SUBMISSION


class Progress(Protocol):
    def phase(self, text: str, total: int = 0) -> None: ...


class Counter(Protocol):
    def __call__(self, messages: Sequence[Message]) -> int | None:
        """Tokens of a prompt; None if no tokenizer is at hand."""


# --- trying one ---------------------------------------------------------------------------------------------


@dataclass
class Check:
    task: dict[str, Any]
    times: dict[str, float] = field(default_factory=dict)  # seconds of each thing that was done
    prompt_characters: int = 0
    prompt_tokens: int | None = None
    baseline: float | None = None
    tried: str = ""  # what was validated
    scores: Mapping[str, float] | None = None
    score: float | None = None
    protections: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


async def check_task(args: MlgymArgs, watcher: Progress, count_tokens: Counter) -> Check:
    """Opens the one task that the arguments name, runs its baseline and validates it. What does not work is in
    `problems`; AirError only if there is no such task."""
    env = MlgymEnv(args)
    watcher.phase(f"reading {args.task_configs[0]}")
    key = env.library.locate(args.task_configs[0])[1]
    task = Task("mlgym", key, "train", {"task": key, "variant": env.library.variant(key, 0, "train")}, family=key)
    spec = env.spec(task)
    check = Check(describe(spec), warnings=list(spec.warnings), problems=list(spec.problems))
    if asks_for_labels(spec):
        check.warnings.append(
            "`validate` is scored on the rows that count in the end, so an agent that asks often learns their labels: "
            f"it gets at most {env.args.max_gradings} gradings an episode (args.max_gradings), and small gains over "
            "many of them prove nothing."
        )
    if check.problems:
        return check
    trial = Trial(check, env, watcher, count_tokens)
    try:
        await trial.run(task, spec)
    except (AirError, InfraError) as error:
        check.problems.append(str(error))
    finally:
        await env.close()
    check.task = describe(spec)  # its baseline may have been measured meanwhile
    return check


class Trial:
    """The task's own session, worked in as an agent would."""

    def __init__(self, check: Check, env: MlgymEnv, watcher: Progress, count_tokens: Counter) -> None:
        self.check = check
        self.env = env
        self.watcher = watcher
        self.count_tokens = count_tokens

    async def run(self, task: Task, spec: TaskSpec) -> None:
        with self._timed("starting the sandbox"):
            places = self.env.places()
        try:
            if baselines.known(spec) is None:
                with self._timed("measuring the baseline"):
                    await places.baselines.of(spec)
            await self._work(task, spec)
        finally:  # an engine says what it cannot do when it is asked for a container
            self.check.protections = dict(places.pool.backend.protections())

    async def _work(self, task: Task, spec: TaskSpec) -> None:
        check = self.check
        async with AsyncExitStack() as stack:
            with self._timed("opening the task"):
                session = await stack.enter_async_context(self.env.open(task, 0))
                messages = list((await session.begin()).messages)
            check.baseline = session.baseline
            check.prompt_characters = sum(len(message["content"]) for message in messages)
            check.prompt_tokens = self.count_tokens(messages)
            await self._try(session, spec)

    async def _try(self, session: MlgymSession, spec: TaskSpec) -> None:
        """The baseline's work, or else the sample submission: something that has to be given a score."""
        check = self.check
        try:
            command = baselines.command_line(spec, self.env.args.sandboxes())
            check.tried = f"the baseline, `{command}`" if command else "the starter code as it is"
        except AirError:
            if spec.sample_submission is None:
                check.warnings.append("There is no baseline script and no sample submission: grading was not tried.")
                return
            command = ""
            check.tried = f"the sample submission, {spec.sample_submission.name}"
            await session.sandbox.put(SUBMISSION, spec.sample_submission.read_bytes())
        if command:
            with self._timed("running the baseline"):
                seen = await session.act(Action("command", command))
            if seen.failed:
                check.problems.append(f"`{command}` failed in the agent's sandbox:\n{_last_lines(seen.text)}")
                return
        with self._timed("validating"):
            seen = await session.act(Action("command", "validate"))
        grade = session.attempt.grade
        if seen.failed or grade is None or grade.counted is None:
            check.problems.append(f"{check.tried} was given no score: {_last_lines(seen.text)}")
            return
        check.scores = dict(grade.counted)
        check.score = metrics.pick(grade.counted, spec.yardstick.metric)
        self._judge(spec, check.score, ran_baseline=not check.tried.startswith("the sample"))

    def _judge(self, spec: TaskSpec, score: float, ran_baseline: bool) -> None:
        stick, baseline = spec.yardstick, self.check.baseline
        if metrics.too_good(stick, score):
            self.check.warnings.append(f"{self.check.tried} scores {score:g}, beyond what can be had.")
        assert baseline is not None
        allowed = tolerance(stick)
        if ran_baseline and abs(score - baseline) > allowed(score, baseline):
            self.check.warnings.append(
                f"The baseline is {baseline:g} ({stick.how}), and running it here gives {score:g}: rewards compare "
                "with the former."
            )

    def _timed(self, what: str) -> _Timer:
        self.watcher.phase(what)
        return _Timer(self.check.times, what)


class _Timer:
    def __init__(self, times: dict[str, float], what: str) -> None:
        self.times, self.what = times, what

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.times[self.what] = time.perf_counter() - self.began


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-12:])


def check_json(check: Check) -> dict[str, Any]:
    return {**vars(check), "runnable": not check.problems}


def format_check(check: Check) -> str:
    task = check.task
    lines = [f"{task['key']} ({task['source']}): {task['name']}; hand in: {task['submission']}; data: {task['data']}"]
    if check.prompt_characters:
        tokens = f"{check.prompt_tokens} tokens, " if check.prompt_tokens is not None else ""
        lines.append(f"prompt: {tokens}{check.prompt_characters} characters")
    if task["metric"]:
        better = "higher is better" if task["direction"] == "up" else "lower is better"
        noise = f"; standard error {task['noise']:g}" if task["noise"] else ""
        baseline = task["baseline"] if check.baseline is None else check.baseline
        lines.append(f"metric: {task['metric']}, {better}; {_scale(baseline, task['reference'])}{noise}")
        lines += [f"  {task['how']}"] if task["how"] else []
    if check.scores is not None:
        lines.append(f"validated: {check.tried}: {dict(check.scores)}")
    lines += [f"  {what}: {seconds:.1f} s" for what, seconds in check.times.items()]
    for kind, how in check.protections.items():
        lines.append(f"  {'! ' if how.startswith('weaker') else ''}sandbox, {kind}: {how}")
    lines += [f"warning: {text}" for text in check.warnings]
    lines += [f"problem: {text}" for text in check.problems]
    lines.append("It can be run." if not check.problems else "It cannot be run.")
    return "\n".join(lines)


def _scale(baseline: float | None, reference: float | None) -> str:
    return f"baseline {shown(baseline)}, reference {shown(reference)}"
