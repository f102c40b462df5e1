"""What a run pays for, kept with it: defaults may have changed when it is resumed, compared or evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airloop.errors import AirError

if TYPE_CHECKING:
    from airloop.config import Config
    from airloop.envs.base import Environment
    from airloop.runs.run import Run

Weights = dict[str, dict[str, float]]  # environment → component → weight


def recorded_rewards(run: Run) -> Weights:
    """As noted at its start, or as its last step had them; empty for a run from before either was written."""
    noted: Weights = run.status().get("rewards") or {}
    if noted:
        return noted
    plans: list[dict[str, Any]] = [line["plan"] for line in run.metrics("train") if line.get("plan")]
    return plans[-1].get("rewards", {}) if plans else {}


def with_run_rewards(config: Config, run: Run) -> Config:
    """With the run's own weights where the config leaves them to the environment."""
    kept = recorded_rewards(run)
    o = config.orchestrator
    entries = [
        entry.model_copy(update={"rewards": kept[entry.title]})
        if entry.rewards is None and entry.title in kept
        else entry
        for entry in o.env
    ]
    return config.model_copy(update={"orchestrator": o.model_copy(update={"env": entries})})


def record_rewards(run: Run, envs: dict[str, Environment], made: frozenset[str] = frozenset()) -> None:
    """Note them for whoever goes on with the run. One that has made steps and says nothing of its weights goes on only
    where today's default pays for the same components; `made` are components that training itself adds."""
    kept, lines = recorded_rewards(run), run.metrics("train")
    if lines and not kept and any(entry.rewards is None for entry in run.config.orchestrator.env):
        given = [{**line["components"], **line.get("turn_components", {})} for line in lines]
        was = {name for one in given for name, value in one.items() if value is not None} - made
        now = {name for env in envs.values() for name in env.reward_weights}
        if was != now:
            raise AirError(
                f"The episodes of {run.name} have the reward components {', '.join(sorted(was))}; by default they "
                f"would now have {', '.join(sorted(now))}: the rest of it would be trained on another reward.",
                f"write the weights that it began with into its {run.path / 'config.toml'}, under "
                "[[orchestrator.env]], as in rewards = { correct = 1.0 }, and resume again.",
            )
    found = {**kept, **{title: dict(env.reward_weights) for title, env in envs.items()}}
    if run.writes and found != run.status().get("rewards"):
        run.note(rewards=found)
