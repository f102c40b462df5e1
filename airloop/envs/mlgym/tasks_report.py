"""Research tasks for a person: which there are, and whether one can be run here, tried out from end to end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from airloop.envs.mlgym import baselines, metrics
from airloop.envs.mlgym.args import MlgymArgs
from airloop.envs.mlgym.checkout import find_root, load_checkout
from airloop.envs.mlgym.env import MlgymEnv
from airloop.envs.mlgym.halves import asks_for_labels
from airloop.envs.mlgym.imports import not_installed
from airloop.envs.mlgym.library import Library, builtin_keys
from airloop.envs.mlgym.replay_report import tolerance
from airloop.envs.mlgym.session import MlgymSession
from airloop.envs.mlgym.spec import TaskSpec
from airloop.envs.mlgym.workspace import SUBMISSION
from airloop.errors import AirError, InfraError
from airloop.sandbox.needs import sandbox_lacks
from airloop.types import Action, Message, Task

Source = Literal["auto", "builtin", "checkout"]
SUBMISSIONS = {
    "CSVSubmissionTasks": "table",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "language model",
    "PythonSubmissionTasks": "code",
}


class Watcher(Protocol):
    def phase(self, text: str, total: int = 0) -> None: ...


class Counter(Protocol):
    def __call__(self, messages: Sequence[Message]) -> int | None:
        """Tokens of a prompt; None if no tokenizer is at hand."""


# --- which there are ----------------------------------------------------------------------------------------


def catalogue(mlgym_root: str | None = None) -> list[dict[str, Any]]:
    """A row per task: the checkout's, if one is named, then ours. Nothing of a task is run."""
    root = find_root(mlgym_root)
    world = [lack.what for lack in sandbox_lacks(MlgymArgs().sandbox)]
    library = Library(MlgymArgs(source="builtin"))
    theirs = load_checkout(root) if root else []
    ours = [library.builtin(key) for key in builtin_keys()]
    keys = {spec.key for spec in theirs}
    rows = [describe(spec) for spec in theirs] + [describe(spec) | {"shadowed": spec.key in keys} for spec in ours]
    return [row | {"lacks": [*world, *row["lacks"]]} for row in rows]


def describe(spec: TaskSpec) -> dict[str, Any]:
    stick = spec.yardstick
    missing = [dataset.missing for dataset in spec.datasets if dataset.missing]
    on_hub = any(dataset.missing and not dataset.is_local for dataset in spec.datasets)
    data = "none needed" if not spec.datasets else "here"
    if missing or _unprepared(spec):
        data = "on the hub" if on_hub else "missing"
    return {
        "key": spec.key,
        "id": spec.id,
        "name": spec.name,
        "source": "air" if spec.builtin else "checkout",
        "shadowed": False,  # a task of the checkout has the same name
        "entry_point": spec.entry_point,
        "submission": SUBMISSIONS[spec.entry_point],
        "data": data,
        "get_data": missing or (list(spec.problems) if _unprepared(spec) else []),
        "metric": stick.metric,
        "direction": stick.direction if stick.metric else "",
        "baseline": baselines.known(spec),
        "reference": stick.reference,
        "how": stick.how,
        "noise": stick.noise,
        "runnable": spec.runnable,
        "lacks": [f"the Python module {name} is not installed" for name in not_installed(spec)],
        "warnings": list(spec.warnings),
        "problems": list(spec.problems),
    }


def _unprepared(spec: TaskSpec) -> bool:
    return spec.builtin and any(dataset.directory is None for dataset in spec.datasets)


def format_catalogue(rows: Sequence[Mapping[str, Any]]) -> str:
    width = max((len(row["key"]) for row in rows), default=4)
    head = f"{'task':{width}s}  {'from':8s}  {'hand in':14s}  {'data':11s}  {'metric':16s}  {'baseline':>9s}  "
    lines = [f"{head}{'reference':>9s}  state"]
    for row in rows:
        arrow = {"up": "↑", "down": "↓"}.get(row["direction"], "")
        metric = f"{row['metric']} {arrow}" if row["metric"] else "unknown"
        baseline = _number(row["baseline"]) if row["baseline"] is not None else "measured" if row["runnable"] else "–"
        lines.append(
            f"{row['key']:{width}s}  {row['source']:8s}  {row['submission']:14s}  {row['data']:11s}  {metric:16s}  "
            f"{baseline:>9s}  {_number(row['reference']):>9s}  {_state(row)}"
        )
    lines.append("↑ higher is better, ↓ lower; `measured`: by running it once. `air tasks check TASK` says more.")
    for lack in dict.fromkeys(lack for row in rows for lack in row["lacks"]):
        lines.append(f"! {lack.rstrip('.')}: {', '.join(row['key'] for row in rows if lack in row['lacks'])}")
    if any(row["shadowed"] for row in rows):
        lines.append("Where both have a task, the checkout's is used; args = { source = \"builtin\" } takes air's.")
    return "\n".join(lines)


def _state(row: Mapping[str, Any]) -> str:
    said = [_count(row["problems"], "problem")] if row["problems"] else []
    said += [_count(row["lacks"], "thing") + " missing"] if row["lacks"] else []
    said = said or ["ready"]
    said += [_count(row["warnings"], "warning")] if row["warnings"] else []
    said += ["the checkout's is used"] if row["shadowed"] else []
    return ", ".join(said)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


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


async def check_task(
    name: str, mlgym_root: str | None, source: Source, watcher: Watcher, count_tokens: Counter
) -> Check:
    """Opens the task, runs its baseline and validates it. What does not work is in `problems`; AirError only if
    there is no such task."""
    env = MlgymEnv(MlgymArgs(task_configs=[name], mlgym_root=mlgym_root, source=source, standby=0))
    watcher.phase(f"reading {name}")
    key = env.library.locate(name)[1]
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

    def __init__(self, check: Check, env: MlgymEnv, watcher: Watcher, count_tokens: Counter) -> None:
        self.check = check
        self.env = env
        self.watcher = watcher
        self.count_tokens = count_tokens

    async def run(self, task: Task, spec: TaskSpec) -> None:
        check = self.check
        with self._timed("starting the sandbox"):
            places = self.env.places()
            check.protections = dict(places.pool.backend.protections())
        if baselines.known(spec) is None:
            with self._timed("measuring the baseline"):
                await places.baselines.of(spec)
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
            command = baselines.command_line(spec, self.env.args.worlds())
            check.tried = f"the baseline, `{command}`" if command else "the starter code as it is"
        except AirError:
            if spec.sample_submission is None:
                check.warnings.append("There is no baseline script and no sample submission: grading was not tried.")
                return
            command = ""
            check.tried = f"the sample submission, {spec.sample_submission.name}"
            await session.world.put(SUBMISSION, spec.sample_submission.read_bytes())
        if command:
            with self._timed("running the baseline"):
                seen = await session.act(Action("command", command))
            if seen.failed:
                check.problems.append(f"`{command}` failed in the agent's world:\n{_last_lines(seen.text)}")
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
    return f"baseline {_number(baseline)}, reference {_number(reference)}"
