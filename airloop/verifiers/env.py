"""The environment `verifiers`: one of that library's, unmodified, plays episodes with the policy as its model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, create_model

from airloop.envs.files import VERIFIERS, title
from airloop.envs.paths import Anchored, existing
from airloop.envs.splits import share_out
from airloop.errors import AirError, MissingRequirement, TaskProblem
from airloop.programs.env import AgentProgramArgs, AgentProgramEnv, by_hash
from airloop.rollout.program import Address
from airloop.types import Score, Task
from airloop.verifiers.host import Host

TOTAL = "total"  # the environment's own reward, where it is one component
POSITIONS = ("example_id", "idx")  # of a row in its data set: another row before it makes no other task
NEAR = 1e-6  # two ways to add up the same numbers


class VerifiersArgs(AgentProgramArgs):
    """What is not named here is the environment's own: v0's load_environment(…), v1's [env] table."""

    model_config = ConfigDict(extra="allow", frozen=True)

    environment: Annotated[str, Anchored(existing)] = Field(
        min_length=1, description='its name, or a path; said by the id: "verifiers:NAME", "verifiers:./PATH"'
    )
    max_tasks: int | None = Field(default=None, ge=1, description="the first so many rows; an endless taskset needs it")
    whole: bool = Field(default=False, description=f"its reward as one component, {TOTAL!r}, and functions as metrics")
    success: str = Field(default="none", description='the function that says what is wanted, from 0 to 1; "none"')


class VerifiersEnv(AgentProgramEnv[VerifiersArgs]):
    """An environment of the library verifiers, as it is: its tasks, its rollouts, its rewards."""

    name: ClassVar[str] = "verifiers"
    success: ClassVar[str | None] = None

    @classmethod
    def of(cls, env_id: str) -> type[VerifiersEnv]:
        """The environment of "verifiers:NAME"."""
        named = env_id.removeprefix(VERIFIERS)
        args = create_model("VerifiersArgs", __base__=VerifiersArgs, environment=(str, named))
        return type("VerifiersEnv", (cls,), {"name": title(env_id), "Args": args, "__doc__": cls.__doc__})

    def __init__(self, args: VerifiersArgs | None = None) -> None:
        super().__init__(args)
        self.success = None if self.args.success == "none" else self.args.success  # type: ignore[misc]
        self.host = Host(self.args.environment, self.args.python, self.args.model_extra or {})
        self._weights: Mapping[str, float] | None = None

    # --- what it is -----------------------------------------------------------------------------------------

    @cached_property
    def described(self) -> dict[str, Any]:
        return self.host.describe()

    @property
    def scores_groups(self) -> bool:
        """Whether its rubric compares the episodes of a task, as only verifiers' first interface can."""
        return bool(self.described["in_groups"])

    @property
    def beyond_scripts(self) -> Sequence[str]:  # type: ignore[override]
        """Components that compare the episodes of a group: a script runs one episode alone."""
        return [name for name in self.described["in_groups"] if name in self.own_weights]

    @property
    def own_weights(self) -> dict[str, float]:
        """Its functions, those that only measure among them with 0."""
        if self.args.whole or self.described["whole"]:
            return {TOTAL: 1.0}
        return dict(self.described["components"])

    @property
    def reward_weights(self) -> Mapping[str, float]:
        if self._weights is None:
            self._weights = {name: weight for name, weight in self.own_weights.items() if weight}
        return self._weights

    @reward_weights.setter
    def reward_weights(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(self.own_weights)

    def lacks(self) -> Sequence[MissingRequirement]:
        return [MissingRequirement(f"{self.name}: {what}", fix) for what, fix in self.described["lacks"]]

    def check_tasks(self) -> Iterator[TaskProblem]:
        if unsafe := self.described["unsafe"]:
            role, _, harness = unsafe.partition(": ")
            yield TaskProblem(
                "warn",
                f"{self.name} runs what the model writes on this machine: its harness {harness!r} has no sandbox",
                "a policy that tries things out may delete or send what it finds",
                f'args = {{ {role} = {{ harness = {{ id = "null" }} }} }}, or {role} = {{ runtime = {{ type = "docker" '
                "} }",
            )

    # --- tasks ----------------------------------------------------------------------------------------------

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        rows = self.host.rows(self.args.max_tasks)
        found = share_out(by_hash(rows["train"], POSITIONS), by_hash(rows["test"], POSITIONS), self.args.eval_share)
        return {
            split: [Task(self.name, hashed, split, row) for hashed, row in part.items()]
            for split, part in found.items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits.get(split, ())

    # --- episodes -------------------------------------------------------------------------------------------

    async def play(self, task: Task, seed: int, address: Address) -> Score:
        if self.scores_groups:
            await self.host.play_first(dict(task.payload), address)
            return Score({})
        return self._score(*await self.host.play(dict(task.payload), address))

    async def score_group(self, episodes: Sequence[str]) -> Sequence[Score]:
        return [self._score(values, reward) for values, reward in await self.host.score(episodes)]

    def forget(self, episodes: Sequence[str]) -> None:
        if self.scores_groups:
            self.host.forget(episodes)

    def _score(self, values: dict[str, float], reward: float) -> Score:
        if TOTAL in self.own_weights:
            values = {**values, TOTAL: reward}
        if lacking := [name for name in (*self.own_weights, *self.reward_weights) if name not in values]:
            raise self._other_reward(f"gave no {lacking[0]!r}")
        own = math.fsum(weight * values[name] for name, weight in self.own_weights.items())
        if not math.isclose(own, reward, rel_tol=NEAR, abs_tol=NEAR):
            raise self._other_reward(f"says {reward:g}, and its functions add up to {own:g}")
        return Score({name: values[name] for name in self.reward_weights}, values)

    def _other_reward(self, how: str) -> AirError:
        return AirError(
            f"The reward of {self.name!r} is not the weighted sum of its functions: an episode {how}.",
            f"args = {{ whole = true }}: its own reward counts, as {TOTAL!r}.",
        )

    def abandon(self) -> None:
        self.host.close()
