"""What the doctor is told of research tasks: those that cannot be run (D5, D18), and answers in sight (D16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airloop.errors import TaskProblem
from airloop_envs.mlgym.leaks import inspect_task
from airloop_envs.mlgym.spec import TaskSpec

SPELLING = "baseline_scores spells"  # leaks.py also tells of spellings, which air reads without regard to case


def task_problems(specs: Sequence[TaskSpec]) -> Iterator[TaskProblem]:
    for spec in specs:
        if spec.problems:
            yield _cannot_run(spec)
    for spec in specs:
        for warning in spec.warnings:
            if "against its usual direction" in warning:
                yield TaskProblem(
                    "warn",
                    f"task {spec.key!r}: {warning}",
                    "an error rewarded upwards trains the opposite of what is wanted",
                    "turn the direction round in args.metrics or in the task's YAML, unless it is meant so",
                    "D18",
                )
    later = sum(spec.yardstick.baseline is None for spec in specs)
    seen = f"{len(specs) - later} baselines are written down, {later} are measured before the first episode"
    yield TaskProblem("note", seen)


def answer_problems(specs: Sequence[TaskSpec]) -> Iterator[TaskProblem]:
    chosen = [spec for spec in specs if spec.runnable]
    for spec in chosen:
        for warning in inspect_task(spec).warnings:
            if not warning.startswith(SPELLING):
                yield TaskProblem(
                    "warn",
                    f"task {spec.key!r}: {warning}",
                    "the score would measure reading or agreement with a rule, not the work that was asked for",
                    "add the files to secret_files in the task's YAML, or leave the task out of task_configs",
                )
    yield TaskProblem("note", f"{len(chosen)} research tasks looked at")


def _cannot_run(spec: TaskSpec) -> TaskProblem:
    seen = f"the task {spec.key!r} cannot be run: {spec.problems[0]}"
    if not spec.yardstick.metric:
        id, why = "D18", "a metric or a direction that is guessed rewards the wrong thing, and nothing else shows it"
    elif spec.yardstick.baseline is None and "baseline" in spec.problems[0]:
        id, why = "D5", "rewards compare with the baseline, and there is neither one nor a way to measure it"
    else:
        id, why = "D-tasks", "an episode of it could not be opened"
    return TaskProblem("fail", seen, why, f"do what the sentence says; `air tasks check {spec.key}` tries it", id)
