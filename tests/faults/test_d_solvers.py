"""D11 to D13 in every environment that there is: scripts that do nothing, cheat, or solve play a task of each family
through the tools alone. (On every task, and in every mode: tests/envs/.)"""

from __future__ import annotations

import asyncio
import shutil
from importlib.metadata import entry_points
from typing import Any

import pytest

from airloop.envs.base import Environment, load_environment
from airloop.rollout.episode import run_episode
from airloop.types import Task, Trajectory

SOLVERS = ("noop", "cheat", "oracle")
FEW: dict[str, dict[str, Any]] = {  # what keeps an environment's share of the time short
    "mlgym": {"task_configs": ["prisonersDilemma"], "num_examples_per_task": 1, "prompt": "short", "max_turns": 5},
    "tune": {"datasets": ["spam", "quakes"], "workers": 1},
}
IN_SANDBOX = ("mlgym", "soup")
no_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: apt-get install bubblewrap")
GIVEN = ("program", "prompts", "verifiers")  # their tasks and rewards are the user's
ENVIRONMENTS = [
    pytest.param(name, marks=[no_sandbox] if name in IN_SANDBOX else [])
    for name in sorted(point.name for point in entry_points(group="airloop.envs") if point.value.startswith("airloop."))
    if name not in GIVEN
]
Games = dict[str, list[Trajectory]]


def one_of_each(env: Environment) -> list[Task]:
    """The first of each family, in the order of the tasks."""
    return list({task.curve: task for task in reversed(env.tasks("train"))}.values())


async def played(name: str) -> Games:
    env = load_environment(name, FEW.get(name, {}))
    try:
        tasks = one_of_each(env)
        return {
            solver: [await run_episode(env, t, env.scripted(solver, t, 0), id=t.id, seed=0) for t in tasks]
            for solver in SOLVERS
        }
    finally:
        await env.close()


@pytest.fixture(scope="module")
def games(request: pytest.FixtureRequest) -> Games:
    return asyncio.run(played(request.param))


@pytest.mark.slow
@pytest.mark.parametrize("games", ENVIRONMENTS, indirect=True)
def test_D11_doing_nothing_earns_nothing_and_a_cheat_next_to_it(games: Games) -> None:
    for noop, cheat, oracle in zip(*(games[solver] for solver in SOLVERS), strict=True):
        assert noop.reward <= 0, noop.task.id
        # A research task's cheat may hand in the baseline itself; elsewhere there is some credit for well-formed calls.
        earned = cheat.metrics.get("improved", (cheat.reward - noop.reward) / (oracle.reward - noop.reward))
        assert earned < 0.5, cheat.task.id
        assert not cheat.error and cheat.metrics.get("too_good", 0) == 0


@pytest.mark.parametrize("games", ENVIRONMENTS, indirect=True)
def test_D12_an_oracle_that_acts_through_the_tools_alone_solves_each_family(games: Games) -> None:
    for oracle in games["oracle"]:
        assert oracle.ending == "done" and oracle.reward > 0, (oracle.task.id, oracle.error)
        assert not any(observation.failed for turn in oracle.turns for observation in turn.observations)


@pytest.mark.parametrize("games", ENVIRONMENTS, indirect=True)
def test_D13_what_an_oracle_answers_is_marked_right(games: Games) -> None:
    """By the first of the names that environments have for that."""
    for oracle in games["oracle"]:
        marks = {**oracle.rewards, **oracle.metrics}
        right = next(marks[name] for name in ("passed", "correct", "em", "improved") if name in marks)
        assert right == 1, (oracle.task.id, marks)
