"""Family D, fast: environments, their tasks and yardsticks, and the sandbox that commands run in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Case
from airloop.errors import AirError, InfraError

if TYPE_CHECKING:
    from airloop.envs.mlgym.spec import TaskSpec

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
