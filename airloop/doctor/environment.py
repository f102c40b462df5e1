"""Family D, fast: environments, their tasks and yardsticks, and the sandbox that commands run in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Broken, Case, NotJudged
from airloop.errors import AirError, InfraError, Lack
from airloop.sandbox.base import WorldLost

if TYPE_CHECKING:
    from airloop.envs.base import Environment
    from airloop.envs.mlgym.spec import TaskSpec

# A world starts in milliseconds to seconds; on a machine that is busy with others, later.
LOOK_S = 120.0
SPELLING = "baseline_scores spells"  # leaks.py also tells of spellings, which air reads without regard to case


@check("D5", "D18", "D-tasks", stage="fast", title="tasks, baselines and metrics are known")
def tasks_can_be_run(case: Case) -> Iterator[Finding]:
    """Every task of every split is there, and a research task has a metric with a direction (D18) and a baseline,
    written or to be measured (D5)."""
    specs = _research_tasks(case)
    wrong = [spec for spec in specs if spec.problems]
    for spec in wrong:
        yield _cannot_run(spec)
    for spec in specs:
        yield from _odd_direction(spec)
    if wrong:
        return
    counts = {split: _count(case, split) for split in _splits(case)}
    tasks = ", ".join(f"{count} {split}" for split, count in counts.items())
    later = sum(spec.yardstick.baseline is None for spec in specs)
    seen = f"{tasks} tasks of {', '.join(case.envs)}"
    if specs:
        seen += f"; {len(specs) - later} baselines are written down, {later} are measured before the first episode"
    yield passed(seen)


def _splits(case: Case) -> list[str]:
    o = case.config.orchestrator.eval
    return list(dict.fromkeys(["train", *([o.split] if o.interval else []), o.test_split]))


def _count(case: Case, split: str) -> int:
    from airloop.rollout.schedule import TaskSchedule

    return len(TaskSchedule(case.envs, split, case.config.seed))


def _research_tasks(case: Case) -> list[TaskSpec]:
    """Those that mlgym entries name, also the ones that an environment would refuse to open."""
    from airloop.envs.base import load_environment

    found = []
    for entry in case.config.orchestrator.env:
        if entry.id == "mlgym":
            library = load_environment(entry.id, entry.args).library  # type: ignore[attr-defined]
            found += [library.spec(n, library.variant(n, 0, "train")) for n in library.args.task_configs]
    return found


def _cannot_run(spec: TaskSpec) -> Finding:
    seen = f"the task {spec.key!r} cannot be run: {spec.problems[0]}"
    if not spec.yardstick.metric:
        id, why = "D18", "a metric or a direction that is guessed rewards the wrong thing, and nothing else shows it"
    elif spec.yardstick.baseline is None and "baseline" in spec.problems[0]:
        id, why = "D5", "rewards compare with the baseline, and there is neither one nor a way to measure it"
    else:
        id, why = "D-tasks", "an episode of it could not be opened"
    return Finding("fail", seen, why, f"do what the sentence says; `air tasks check {spec.key}` tries it", ids=(id,))


def _odd_direction(spec: TaskSpec) -> Iterator[Finding]:
    for warning in spec.warnings:
        if "against its usual direction" in warning:
            yield Finding(
                "warn",
                f"task {spec.key!r}: {warning}",
                "an error rewarded upwards trains the opposite of what is wanted",
                "turn the direction round in args.metrics or in the task's YAML, unless it is meant so",
                ids=("D18",),
            )


@check("D16", stage="fast", title="answers are out of the agent's sight")
def answers_are_hidden(case: Case) -> Iterator[Finding]:
    """Answers that the agent can read, and labels that are a rule of one feature: by looking at the data."""
    from airloop.envs.mlgym.leaks import inspect_task

    specs = [spec for spec in _research_tasks(case) if spec.runnable]
    clean = True
    for spec in specs:
        for warning in inspect_task(spec).warnings:
            if not warning.startswith(SPELLING):
                clean = False
                yield Finding(
                    "warn",
                    f"task {spec.key!r}: {warning}",
                    "the score would measure reading or agreement with a rule, not the work that was asked for",
                    "add the files to secret_files in the task's YAML, or leave the task out of task_configs",
                )
    if clean:
        yield passed(f"{len(specs)} research tasks looked at" if specs else "no task brings its own files")


@check("D-sandbox", stage="fast", title="the sandbox works")
def sandbox_works(case: Case) -> Finding:
    """One is made and ended, as the environments that use it will."""
    wanted = {str(s): name for name, env in case.envs.items() if (s := getattr(env.args, "sandbox", None))}
    for backend, name in wanted.items():
        try:
            _try(case, backend)
        except (AirError, InfraError) as error:
            why = f"{name} runs its agents' commands in it, and would not open an episode"
            fix = getattr(error, "fix", "") or "start the container engine, or choose another sandbox in args"
            return Finding("fail", getattr(error, "problem", str(error)), why, fix)
    return passed(f"{', '.join(wanted)} tried" if wanted else "no environment runs commands in one")


@check("D20", stage="fast", title="agents find what they need where they run")
def worlds_are_whole(case: Case) -> Iterator[Finding]:
    """Modules, devices and programs that episodes need, looked for in the very sandbox that agents get."""
    complete = True
    for name, env in case.envs.items():
        backend = getattr(env.args, "sandbox", None)
        if backend:
            try:
                _try(case, str(backend))
            except (AirError, InfraError) as error:  # another check's finding, in the same words
                problem, fix = getattr(error, "problem", str(error)), getattr(error, "fix", "")
                raise Broken(problem, fix, ("D-sandbox",), f"{name} could not open an episode") from error
        for lack in env.lacks() or _looked_inside(case, env):
            complete = False
            why = "every episode would fail at it, and the reward would be blamed"
            yield Finding("fail", lack.what, why, lack.fix)
    if complete:
        yield passed(f"{', '.join(case.envs)}: nothing is missing")


@check("D21", stage="fast", title="the reward pays for success")
def rewards_pay_for_success(case: Case) -> Iterator[Finding]:
    """Some component with a weight says something of success by itself; `air tasks audit` plays scripts to see that it
    does."""
    paid = True
    for name, env in case.envs.items():
        weighed = [component for component, weight in env.reward_weights.items() if weight]
        if weighed and all(component in env.shaping for component in weighed):
            paid = False
            work = [c for c in env.components if c not in env.shaping] or [env.success or "success"]
            yield Finding(
                "fail",
                f"the reward of {name} is {', '.join(weighed)}, and nothing else",
                "that can be earned without any success, so it would be",
                f"give a weight to a component of the work as well: {', '.join(work)}; `air tasks audit {env.name}` "
                "shows who earns what.",
            )
    if paid:
        shown = "; ".join(f"{name}: {', '.join(env.reward_weights)}" for name, env in case.envs.items())
        yield passed(shown)


def _looked_inside(case: Case, env: Environment) -> Sequence[Lack]:
    async def look() -> Sequence[Lack]:
        async with asyncio.timeout(LOOK_S):
            return await env.check_world()

    try:
        return case.wait(look())
    except TimeoutError:
        raise NotJudged(
            f"a sandbox of {env.name} did not say within {LOOK_S:.0f} s what it has",
            "nothing need be changed: the probe's episodes will show what is missing",
            ("D20",),
        ) from None
    except (InfraError, WorldLost) as error:
        raise Broken(
            f"{env.name}: {error}",
            "mend what the error names; no episode could be played in such a sandbox",
            ("D20",),
            "what agents need is looked for inside a sandbox like theirs, and there was none to look into",
        ) from error


def _try(case: Case, backend: str) -> None:
    if backend == "bubblewrap":
        from airloop.sandbox.bubblewrap import check as try_bubblewrap

        try_bubblewrap()
    elif backend == "container":
        from airloop.sandbox.container import Container
        from airloop.sandbox.docker_api import Engine

        async def connect() -> None:
            await (await Engine.connect(Container().socket)).close()

        case.wait(connect())
