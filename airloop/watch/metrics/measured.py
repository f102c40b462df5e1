"""What the environments measure of an episode, by name: unit and meaning. A component of the reward has the same name
and meaning as the metric. A package describes its own by an entry point in the group "airloop.metrics", under its
environment's name: a table like OWN, in a module that imports nothing slow."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import EntryPoint

from airloop.plugins import plugins
from airloop.success import METRIC

log = logging.getLogger(__name__)

SHARE = "share"
Table = dict[str, tuple[str, str]]


def is_share(name: str) -> bool:
    """Whether a metric of this name lies between 0 and 1."""
    return name == METRIC or measured().get(name, ("", ""))[0] == SHARE


def measured() -> Table:
    """Every name with its unit and meaning; of a name that several environments have, the meaning in each."""
    return _measured(tuple(sorted(plugins("metrics").items())))


@cache
def _measured(added: tuple[tuple[str, EntryPoint], ...]) -> Table:
    found = {name: {"": described} for name, described in OWN.items()}
    for environment, point in added:
        try:
            table = {str(name): (str(unit), str(text)) for name, (unit, text) in point.load().items()}
        except Exception as error:  # a description is no reason to stop a run
            log.warning("the metrics of %s are not described: %r", environment, error)
            continue
        for name, described in table.items():
            found.setdefault(name, {})[environment] = described
    return {name: _joined(by_environment) for name, by_environment in found.items()}


def _joined(described: Table) -> tuple[str, str]:
    """Of one name, by environment; that of all has none."""
    (unit, text), *more = described.values()
    if not more:
        return unit, text
    return unit, " ".join(
        f"{environment}: {text}" if environment else text for environment, (_, text) in described.items()
    )


OWN: dict[str, tuple[str, str]] = {
    # every episode of a policy
    "turns": ("turns", "replies of the agent."),
    "invalid_actions": (SHARE, "actions that could not be read from the reply."),
    "sampled_tokens": ("tokens", "tokens that were sampled."),
    "length_stops": (SHARE, "replies that ended at max_tokens instead of a stop token."),
    "cached_share": (SHARE, "prompt tokens that were found in the engine's cache."),
    "seconds_opening": ("s", "until the session was open."),
    "seconds_scoring": ("s", "until the episode was graded."),
    # of a model behind a URL
    "tokens_in": ("tokens", "tokens of the requests, as the server counts them."),
    "tokens_out": ("tokens", "tokens of the replies, as the server counts them."),
    "cost": ("price", "what the tokens cost by the prices that were given."),
    "request_retries": ("count", "requests that were repeated."),
    # environments of verifiers
    "reward_errors": ("count", "reward functions that failed on the episode, and count 0 as in that library."),
    "reward_spread": ("reward", "the best attempt of an episode of several less the worst; its reward is their mean."),
    "scored_together": ("episodes", "episodes that were compared for the score, this one among them."),
    # research: tune, and others whose agents improve something
    "score": ("metric", "the score of what was submitted, in the task's own metric."),
    "baseline": ("metric", "the baseline's score in the task's own metric."),
    "reference": ("metric", "the best known score in the task's own metric."),
    "improved": (SHARE, "1 if the baseline was beaten."),
    "improvement": ("", "10 × (score − baseline)/|baseline|, signed by the metric's direction; not below -2."),
    "headroom": ("", "share of the way from the baseline to the reference that was gone, from -1 to 1."),
    "trained": (SHARE, "1 if the agent trained a model at all."),
    "validated": (SHARE, "1 if the agent validated a submission."),
    "submitted": (SHARE, "1 if the agent submitted."),
    "too_good": (SHARE, "1 if the score lay above the known optimum and was withheld."),
    "idle": ("", "metric: 1 if what was submitted is the starter's work; component: what that costs, -0.5."),
    # answers: arith, gsm8k
    "correct": (SHARE, "1 if the answer was right."),
    "answered": (SHARE, "1 if an answer was given."),
    "format": (SHARE, "how far the reply, or its calls, had the right form."),
    "calculator_calls": ("count", "calls of the calculator."),
    "tool_errors": ("count", "tool calls that were refused."),
    # of training itself
    "overlong": (
        "",
        "what length near its limit costs (trainer.loss.overlong): 0 or less; 0 in groups without signal.",
    ),
}
