"""Family D, fast: environments, their tasks and yardsticks, and the sandbox that commands run in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Broken, Case, NotJudged
from airloop.errors import AirError, InfraError, MissingRequirement, TaskProblem
from airloop.sandbox.base import SandboxLost, StartTimeout

if TYPE_CHECKING:
    from airloop.envs.base import Environment
    from airloop.types import Task

# A sandbox starts in milliseconds to seconds; on a machine that is busy with others, later.
LOOK_S = 120.0


@check("D5", "D18", "D-tasks", stage="fast", title="tasks, baselines and metrics are known")
def tasks_can_be_run(case: Case) -> Iterator[Finding]:
    """Every task of every split is there, and a research task has a metric with a direction (D18) and a baseline,
    written or to be measured (D5)."""
    found = [problem for env in _environments(case) for problem in env.check_tasks()]
    yield from (_finding(problem) for problem in found if problem.severity != "note")
    if any(problem.severity == "fail" for problem in found):
        return
    yield from _trained_on_too(case)
    counts = {split: _count(case, split) for split in _splits(case)}
    tasks = ", ".join(f"{count} {split}" for split, count in counts.items())
    notes = [problem.seen for problem in found if problem.severity == "note"]
    yield passed("; ".join([f"{tasks} tasks of {', '.join(case.envs)}", *notes]))


def _trained_on_too(case: Case) -> Iterator[Finding]:
    """Held-out tasks that are the very tasks of training, by their id and what they hold."""
    from airloop.envs.contract import list_tasks

    for name, env in case.envs.items():
        trained = {task.id: task for task in list_tasks(env, "train")}
        for split in _splits(case)[1:]:
            held = list_tasks(env, split)
            same = [task.id for task in held if task.id in trained and _is_same(task, trained[task.id])]
            if same:
                yield Finding(
                    "warn",
                    f"{len(same)} of {len(held)} {split} tasks of {name} are train tasks, too (the first: {same[0]!r})",
                    "what is measured on them was trained on: a gain may be what is remembered",
                    f"let tasks({split!r}) give tasks of its own",
                )


def _is_same(task: Task, other: Task) -> bool:
    """In doubt they are not: tasks may hold anything, and nothing."""
    try:
        return bool(task.payload) and bool(task.payload == other.payload)
    except Exception:
        return False


def _splits(case: Case) -> list[str]:
    o = case.config.orchestrator.eval
    return list(dict.fromkeys(["train", *([o.split] if o.interval else []), o.test_split]))


def _count(case: Case, split: str) -> int:
    from airloop.rollout.schedule import TaskSchedule

    return len(TaskSchedule(case.envs, split, case.config.seed))


def _environments(case: Case) -> list[Environment]:
    """Those of the run; where one of them refuses what the config asks of it, each by itself: it says what is wrong
    with its tasks. What cannot be loaded at all is told by whoever needs all of them."""
    from airloop.envs.base import load_environment

    with contextlib.suppress(AirError):
        return list(case.envs.values())
    found = []
    for entry in case.config.orchestrator.env:
        with contextlib.suppress(AirError):
            found.append(load_environment(entry.id, entry.args))
    return found


def _finding(problem: TaskProblem) -> Finding:
    assert problem.severity != "note"
    ids = (problem.id,) if problem.id else ()
    return Finding(problem.severity, problem.seen, problem.why, problem.fix, ids=ids)


@check("D16", stage="fast", title="answers are out of the agent's sight")
def answers_are_hidden(case: Case) -> Iterator[Finding]:
    """Answers that the agent can read, and labels that are a rule of one feature: by looking at the data."""
    found = [problem for env in _environments(case) for problem in env.check_answers()]
    wrong = [problem for problem in found if problem.severity != "note"]
    yield from map(_finding, wrong)
    if not wrong:
        yield passed("; ".join(problem.seen for problem in found) or "no task brings its own files")


@check("D-sandbox", stage="fast", title="the sandbox works")
def sandbox_works(case: Case) -> Finding:
    """One is made and ended, as the environments that use it will."""
    wanted = {str(s): name for name, env in case.envs.items() if (s := getattr(env.args, "sandbox", None))}
    for backend, name in wanted.items():
        try:
            _try(case, backend)
        except NotJudged:
            raise
        except (AirError, InfraError) as error:
            why = f"{name} runs its agents' commands in it, and would not open an episode"
            fix = getattr(error, "fix", "") or "start the container engine, or choose another sandbox in args"
            return Finding("fail", getattr(error, "problem", str(error)), why, fix)
    return passed(f"{', '.join(wanted)} tried" if wanted else "no environment runs commands in one")


@check("D20", stage="fast", title="agents find what they need where they run")
def sandboxes_are_whole(case: Case) -> Iterator[Finding]:
    """Modules, devices and programs that episodes need, looked for in the very sandbox that agents get."""
    complete = True
    for name, env in case.envs.items():
        backend = getattr(env.args, "sandbox", None)
        if backend:
            try:
                _try(case, str(backend))
            except NotJudged:
                raise
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


def _looked_inside(case: Case, env: Environment) -> Sequence[MissingRequirement]:
    async def look() -> Sequence[MissingRequirement]:
        async with asyncio.timeout(LOOK_S):
            return await env.check_sandbox()

    try:
        return case.wait(look())
    except TimeoutError:
        raise _unknown(f"a sandbox of {env.name} did not say within {LOOK_S:.0f} s what it has") from None
    except StartTimeout as late:
        raise _unknown(f"{env.name}: {late}") from None
    except (InfraError, SandboxLost) as error:
        raise Broken(
            f"{env.name}: {error}",
            "mend what the error names; no episode could be played in such a sandbox",
            ("D20",),
            "what agents need is looked for inside a sandbox like theirs, and there was none to look into",
        ) from error


def _unknown(seen: str) -> NotJudged:
    """On a machine that is busy with others this says nothing of the sandbox."""
    return NotJudged(seen, "nothing need be changed: the probe's episodes will show what is missing", ("D20",))


def _try(case: Case, backend: str) -> None:
    if backend == "bubblewrap":
        from airloop.sandbox.bubblewrap.backend import check as try_bubblewrap

        try:
            try_bubblewrap()
        except StartTimeout as late:
            raise _unknown(str(late)) from None
    elif backend == "container":
        from airloop.sandbox.container.backend import Container
        from airloop.sandbox.container.docker_api import Engine

        async def connect() -> None:
            await (await Engine.connect(Container().socket)).close()

        case.wait(connect())
