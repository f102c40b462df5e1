"""Success: the metric that an environment's users want, from 0 to 1 (`Environment.success`).

Every scored trajectory of such an environment carries it as `metrics["success"]`, a copy of the metric that the
environment names. So whoever reads runs needs no environment, and a mixture has one figure. The name by which people
know it ("correct") stands in every line of metrics and in every evaluation as `success_name`. Directories that were
made before there was either fall back on what their environments measured: KNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from airloop.envs.base import Environment

METRIC = "success"
NAME = "success_name"
# In this order: what the environments of older directories called it.
KNOWN = ("passed", "improved", "correct", "f1")

T = TypeVar("T")


class NoSuccess(Exception):
    """A score without the metric that its environment promised; `fix` says what to change."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


def measured_success(env: Environment, metrics: Mapping[str, float], rewards: Mapping[str, float]) -> dict[str, float]:
    """What is added to an episode's metrics: nothing where the environment names no success. The metric it names may
    also be a component of the reward."""
    name = env.success
    if name is None:
        return {}
    values = {**rewards, **metrics}
    if name not in values:
        raise NoSuccess(
            f"its success is {name!r}, but the score has no such metric (it has: {', '.join(values) or 'none'})",
            f"give {name!r} in Score.metrics of every episode, or name another metric in {type(env).__name__}.success",
        )
    value = values[name]
    if not 0.0 <= value <= 1.0:  # also what is no number
        raise NoSuccess(
            f"its success, the metric {name!r}, is {value}",
            f"{name!r} must be a share, from 0 to 1; name another metric in {type(env).__name__}.success",
        )
    if name != METRIC and metrics.get(METRIC, value) != value:
        raise NoSuccess(
            f"it measures {METRIC!r} and says that its success is {name!r}",
            f'rename the metric, or set success = "{METRIC}" in {type(env).__name__}',
        )
    return {METRIC: float(value)}


def name_of(envs: Iterable[Environment]) -> str | None:
    """By which the success of a run is shown: the metric's name, or "success" where several have several."""
    names = {env.success for env in envs if env.success is not None}
    return names.pop() if len(names) == 1 else METRIC if names else None


def success_in(values: Mapping[str, T], said: object = None) -> tuple[str, T] | None:
    """Name and value among the figures of an episode, a step, a family or an evaluation. `said`: their success_name."""
    if values.get(METRIC) is not None:
        return (said if isinstance(said, str) and said else METRIC), values[METRIC]
    found = next((name for name in KNOWN if values.get(name) is not None), None)
    return None if found is None else (found, values[found])


def step_success(line: Mapping[str, Any]) -> tuple[str, float] | None:
    """Of a training step's line of metrics: the mean over its episodes."""
    if line.get(METRIC) is not None:
        return success_in(line, line.get(NAME))
    metrics = line.get("metrics")
    return success_in(metrics) if isinstance(metrics, Mapping) else None


def in_order(names: Iterable[str], said: object = None) -> list[str]:
    """As results are shown: success, the reward, then the others by name. Of success and the metric it is a copy of,
    one is shown, under the metric's name."""
    rest = set(names)
    found = success_in(dict.fromkeys(rest, True), said)
    first = [] if found is None else [found[0] if found[0] in rest else METRIC]
    rest -= {*first, METRIC} if first else set()
    return [*first, *(["reward"] if "reward" in rest else []), *sorted(rest - {"reward"})]


def common_name(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Of a run's training lines: the last one knows."""
    return next((found[0] for line in reversed(lines) if (found := step_success(line))), None)
