"""The keys of [orchestrator]: what is sampled, how much of it, from which environments."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airloop.config.env_aliases import env_synonyms
from airloop.envs.files import title
from airloop.section import Section

DEFAULT_ENV = "tune"


class SamplingConfig(Section):
    max_tokens: int = Field(default=128, ge=1, description="Most tokens in one reply.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature in training.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample from the smallest set with this probability.")
    top_k: int = Field(default=0, ge=0, description="Sample from the k likeliest tokens (0: all).")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="Leave out tokens below this share of the likeliest.")


class BufferConfig(Section):
    online_difficulty_filtering: bool = Field(
        default=False,
        description="Leave out groups whose rewards are all equal; oversampling_factor > 1 samples others instead, and "
        "all that have signal are trained on.",
    )


class EvalConfig(Section):
    interval: int = Field(default=0, ge=0, description="Steps between evaluations (0: only before and after).")
    num_examples: int = Field(default=48, ge=1, description="Tasks in an evaluation.")
    rollouts_per_example: int = Field(default=1, ge=1, description="Episodes per task in an evaluation.")
    split: str = Field(default="eval", min_length=1, description="The split evaluated during training.")
    test_split: str = Field(default="test", min_length=1, description="The split evaluated before and after only.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature in evaluations (0: greedy).")
    base: bool | None = Field(
        default=None,
        description="With a supervised start, the model itself on the same tasks too, as it was before that start; by "
        "default on a GPU, where no budget of time is set.",
    )


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe messages that are shown."
    )


class CurriculumConfig(Section):
    """Families of tasks are sampled by how well they go: in full within the band, less outside of it."""

    low: float = Field(default=0.2, gt=0, lt=1, description="Success below which a family is sampled less.")
    high: float = Field(default=0.8, gt=0, lt=1, description="Success above which a family is sampled less.")
    floor: float = Field(default=0.1, gt=0, le=1, description="The least weight of a family, against 1 in the band.")
    episodes: int = Field(default=64, ge=1, description="A family is judged by so many of its last episodes.")

    @model_validator(mode="after")
    def _a_band(self) -> CurriculumConfig:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        return self


class EnvConfig(Section):
    id: str = Field(min_length=1, description='As `air tasks` lists it, or a file and class: "./my_env.py:MyEnv".')
    name: str | None = Field(default=None, min_length=1, description="What it is called in metrics; by default its id.")
    args: dict[str, Any] = Field(default_factory=dict, description="The environment's own settings.")
    rewards: dict[str, float] | None = Field(
        default=None, description="Weight of each reward component; by default the environment's own."
    )

    ratio: float | None = Field(
        default=None,
        gt=0,
        description="Its share of a step's tasks, against the other environments' (1); by default by how many tasks "
        "each has.",
    )
    families: dict[str, float] | None = Field(
        default=None,
        description="Weights of the families of its tasks in training (those not named: 1; 0: left out); by default by "
        "how many tasks each has.",
    )

    @property
    def title(self) -> str:
        """What it is called in metrics and file names."""
        return self.name or title(self.id)

    @field_validator("id")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return env_synonyms().get(value, value)

    @field_validator("families")
    @classmethod
    def _weights(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if wrong := [name for name, weight in (value or {}).items() if not 0 <= weight < float("inf")]:
            raise ValueError(f"expected weights from 0 on, not {wrong[0]} = {(value or {})[wrong[0]]}")
        return value

    @field_validator("args")
    @classmethod
    def _writable(cls, value: dict[str, Any]) -> dict[str, Any]:
        """What cannot be written to the resolved TOML could not be loaded back from it."""
        if (stray := not_toml(value)) is not None:
            raise ValueError(f"expected values that TOML can hold, not {stray!r}")
        return value


def not_toml(value: Any) -> object | None:
    """The first value inside `value` that TOML has no form for; "null" stands for None."""
    if isinstance(value, dict):
        strays = [not_toml(v) if isinstance(k, str) else k for k, v in value.items()]
        return next((stray for stray in strays if stray is not None), None)
    if isinstance(value, list):
        return next((stray for stray in map(not_toml, value) if stray is not None), None)
    known = (str, bool, int, float, datetime.datetime, datetime.date, datetime.time)
    return None if isinstance(value, known) else ("null" if value is None else value)


class OrchestratorConfig(Section):
    batch_size: int = Field(default=32, ge=2, description="Trajectories per step.")
    rollouts_per_example: int = Field(default=8, ge=1, description="Trajectories per task: the group of the baseline.")
    trajectory_strategy: Literal["interleaved", "branching"] = Field(
        default="interleaved",
        description="One sequence per trajectory, or one per turn; the loss weights are the same.",
    )
    oversampling_factor: float = Field(
        default=1.0,
        ge=1,
        description="With online_difficulty_filtering: sample at most this many times the groups of a step.",
    )
    max_staleness: int = Field(
        default=0,
        ge=0,
        description="Sample while training: a token may be so many updates old when it is trained (0: take turns).",
    )
    max_concurrent: int = Field(default=64, ge=1, description="Most episodes under way at once.")
    episode_timeout_s: float = Field(default=600, gt=0, description="An episode's deadline in seconds.")
    retries: int = Field(
        default=2, ge=0, description="Attempts after infrastructure trouble before an episode is dropped."
    )
    workers_per_env: int | None = Field(
        default=None, ge=1, description="Worker processes of each environment that has some; by default its own choice."
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    buffer: BufferConfig = Field(default_factory=BufferConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    curriculum: CurriculumConfig | None = Field(
        default=None, description="Sample families of tasks by their success; by default as many as there are."
    )
    log: LogConfig = Field(default_factory=LogConfig)
    env: list[EnvConfig] = Field(
        default_factory=lambda: [EnvConfig(id=DEFAULT_ENV)], min_length=1, description="The environments."
    )
