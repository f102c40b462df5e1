"""Which number counts, which way is better, and what is known about it.

MLGym's files say none of that. It is written down here for its own tasks and for metrics whose direction
their name leaves no doubt about; for anything else the user is asked, with the line to write. Names are
compared without case. A direction is never guessed from a run.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from airloop.envs.base import EnvArgs
from airloop.errors import AirError
from airloop_envs.mlgym.spec import Direction, Yardstick

STANDARD_ERRORS = 5  # a score this far above the optimum is no luck
LEAST_STEP = 0.01  # of the way from the baseline to the reference that has to be gone
ROUNDING = 1e-9


class UnknownMetric(AirError):
    """The metric that counts, or its direction, has to be said by the user."""


class ScoreError(AirError):
    """An evaluation's output does not hold a usable number for the metric."""


class Override(EnvArgs):
    """What a user says about one task: `args = { metrics = { mytask = { metric = "…", direction = "up" } } }`.

    The same keys may stand in a section `air:` of a task's YAML.
    """

    metric: str | None = None
    direction: Direction | None = None
    baseline: float | None = None
    reference: float | None = None
    how: str | None = None
    optimum: bool | None = None
    noise: float | None = None
    floor: float | None = None
    bound: float | None = None


Overrides = Mapping[str, Override | Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    direction: Direction
    bound: float | None = None
    floor: float = 1e-9


@dataclass(frozen=True)
class KnownTask:
    """A task of MLGym. `secret` is what its agent must not see, whether its YAML says so or not."""

    metric: str
    reference: float | None = None
    how: str = ""
    optimum: bool = False
    noise: float = 0.0
    secret: tuple[str, ...] = ()


# A share of one: its bound serves as the reference where nothing better is known.
SHARE = Metric("up", bound=1.0, floor=0.05)
UP = Metric("up")
ERROR = Metric("down", bound=0.0)

METRICS: dict[str, Metric] = {
    **dict.fromkeys(
        ("accuracy", "val_accuracy", "validation_accuracy", "test_accuracy", "balanced_accuracy", "r2"), SHARE
    ),
    **dict.fromkeys(("f1", "f1_score", "auc", "roc_auc"), SHARE),
    **dict.fromkeys(("score", "reward mean", "correct", "bleu", "bleu score"), UP),
    **dict.fromkeys(("rmse", "rmsle", "mae", "mse", "time", "loss", "val_loss", "test_loss", "log_loss"), ERROR),
    "perplexity": Metric("down", bound=1.0),
    "val_perplexity": Metric("down", bound=1.0),
}

BEST_PUBLISHED = "best published score"
SAID = "as the config or the task's YAML says"
OPTIMUM = "known optimum against the fixed opponent"


def _game(optimum: float) -> KnownTask:
    return KnownTask("Score", optimum, OPTIMUM, optimum=True, noise=0.006, secret=("target.py",))


TASKS: dict[str, KnownTask] = {
    "prisonersDilemma": _game(2.6251),
    "battleOfSexes": _game(1.44),
    "blotto": _game(0.25),
    "regressionKaggleHousePrice": KnownTask("r2", 0.931, BEST_PUBLISHED, secret=("answer.csv",)),
    "imageClassificationFMnist": KnownTask("accuracy", 0.945, BEST_PUBLISHED),
    "imageClassificationCifar10": KnownTask("accuracy"),
    "naturalLanguageInferenceMNLI": KnownTask("accuracy"),
    "imageCaptioningCOCO": KnownTask("BLEU Score"),
    "languageModelingFineWeb": KnownTask("val_loss"),
    "rlMetaMaze": KnownTask("Reward Mean"),
    "rlMetaMazeNavigation": KnownTask("Reward Mean"),
    "rlMountainCarContinuous": KnownTask("Reward Mean"),
    "rlBreakoutMinAtar": KnownTask("Reward Mean"),
    "3SATTime": KnownTask("Time"),
    "titanic": KnownTask("accuracy"),
    "titanicSurvival": KnownTask("accuracy"),
}
_BY_NAME = {name.casefold(): task for name, task in TASKS.items()}


def known_task(key: str, task_id: str) -> KnownTask | None:
    return _BY_NAME.get(task_id.casefold()) or _BY_NAME.get(key.casefold())


def known_metric(name: str) -> Metric | None:
    return METRICS.get(name.casefold())


# --- what a task is measured with -----------------------------------------------------------------------


def yardstick(
    key: str,
    task_id: str,
    baseline_scores: Sequence[Mapping[str, float]] = (),
    overrides: Overrides | None = None,
    declared: Override | None = None,
) -> Yardstick:
    """`declared` is what the task's own YAML says, `overrides` what the user says of any task (it wins).

    For a task not known here whose baseline was measured, `baseline_scores` may be that one evaluation.
    Raises UnknownMetric with the line to write where metric or direction would be a guess.
    """
    said = _merge(declared or Override(), override_for(overrides, key, task_id))
    known = known_task(key, task_id)
    metric = said.metric or _counting_metric(key, known, baseline_scores)
    registered = known_metric(metric)
    direction = said.direction or (registered.direction if registered else None)
    if direction is None:
        raise UnknownMetric(
            f"Task {key}: it is not known whether a higher or a lower {metric!r} is better.", _ask(key, metric)
        )
    trusted = registered if registered and registered.direction == direction else Metric(direction)
    same = known if known and known.metric.casefold() == metric.casefold() else KnownTask(metric)
    baseline = said.baseline if said.baseline is not None else _find_baseline(baseline_scores, metric)
    reference, reference_how = _reference(said, same, trusted)
    of_registry = said.reference is None
    return Yardstick(
        metric=metric,
        direction=direction,
        baseline=baseline,
        reference=reference,
        how=said.how or f"baseline: {_baseline_how(said, baseline)}; reference: {reference_how}",
        optimum=said.optimum if said.optimum is not None else same.optimum and of_registry,
        noise=said.noise if said.noise is not None else same.noise,
        floor=said.floor if said.floor is not None else trusted.floor,
        bound=said.bound if said.bound is not None else trusted.bound,
    )


def _counting_metric(key: str, known: KnownTask | None, baseline_scores: Sequence[Mapping[str, float]]) -> str:
    """The registry's metric of this task; of an unknown task, the one metric it reports that has a direction."""
    there = list(dict.fromkeys(name for scores in baseline_scores for name in scores))
    if known and (not there or known.metric.casefold() in {name.casefold() for name in there}):
        return known.metric
    usable = list({name.casefold(): name for name in there if known_metric(name)}.values())
    if len(usable) == 1:
        return usable[0]
    if usable:
        names = " and ".join(repr(name) for name in usable)
        raise UnknownMetric(f"Task {key} reports {names}: which of them counts is not said.", _ask(key, usable[0]))
    if there:
        names = ", ".join(repr(name) for name in there)
        raise UnknownMetric(f"Task {key} reports {names}, of which none has a known direction.", _ask(key, there[0]))
    raise UnknownMetric(f"Task {key} does not say which metric of its evaluation counts.", _ask(key, "…"))


def _ask(key: str, metric: str) -> str:
    direction = registered.direction if (registered := known_metric(metric)) else "up"
    name = key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else f'"{key}"'
    line = f'args = {{ metrics = {{ {name} = {{ metric = "{metric}", direction = "{direction}" }} }} }}'
    return f'write in this [[orchestrator.env]]: {line} (direction "down" where lower is better).'


def _find_baseline(baseline_scores: Sequence[Mapping[str, float]], metric: str) -> float | None:
    """Of the first data set that has it."""
    for scores in baseline_scores:
        if any(name.casefold() == metric.casefold() for name in scores):
            return pick(scores, metric)
    return None


def _baseline_how(said: Override, baseline: float | None) -> str:
    if baseline is None:
        return "measured once, by running it"
    return SAID if said.baseline is not None else "the task's baseline_scores"


def _reference(said: Override, known: KnownTask, metric: Metric) -> tuple[float | None, str]:
    if said.reference is not None:
        return said.reference, SAID
    if known.reference is not None:
        return known.reference, known.how
    if metric is SHARE:
        return metric.bound, "the metric's upper bound, no documented search"
    return None, "none known"


# --- what users say ---------------------------------------------------------------------------------------


def override_for(overrides: Overrides | None, key: str, task_id: str) -> Override:
    """A task may be named as in task_configs ("titanic", "titanic.yaml") or by its id."""
    for name, value in (overrides or {}).items():
        if name.removesuffix(".yaml") in (key, task_id):
            return value if isinstance(value, Override) else read_override(value, f"metrics.{name}")
    return Override()


def read_override(value: Any, where: str) -> Override:
    try:
        return Override.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join((where, *(str(part) for part in first["loc"])))
        raise AirError(
            f"{place} = {first['input']!r}: {first['msg']}.",
            f'write {where} = {{ metric = "…", direction = "up" }}; also known: '
            f"{', '.join(name for name in Override.model_fields if name not in ('metric', 'direction'))}.",
        ) from None


def check_overrides(overrides: Overrides, names: Iterable[str]) -> None:
    """Refuses an override that no task would use; `names` are the keys and ids of all tasks there are."""
    known = sorted(set(names))
    for name, value in overrides.items():
        if name.removesuffix(".yaml") not in known:
            near = difflib.get_close_matches(name.removesuffix(".yaml"), known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise AirError(
                f"args.metrics names a task {name!r} that is not there.", f"{hint}Known: {', '.join(known)}."
            )
        if not isinstance(value, Override):
            read_override(value, f"metrics.{name}")


def _merge(below: Override, above: Override) -> Override:
    return below.model_copy(update=above.model_dump(exclude_none=True))


# --- scores -----------------------------------------------------------------------------------------------


def pick(scores: Mapping[str, Any], metric: str) -> float:
    """The metric's value in an evaluation's output; ScoreError if it is not there or no finite number."""
    names = [metric] if metric in scores else [n for n in scores if str(n).casefold() == metric.casefold()]
    if not names:
        there = ", ".join(repr(name) for name in scores) or "nothing"
        raise ScoreError(
            f"The evaluation has no {metric!r}; it has {there}.",
            'name the one that counts: args = { metrics = { <task> = { metric = "…", direction = "up" } } }.',
        )
    if len(names) > 1:
        raise ScoreError(
            f"The evaluation has {' and '.join(repr(n) for n in names)}, which differ only in case.",
            "write the one that counts exactly as it is printed, in args.metrics.",
        )
    value = scores[names[0]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScoreError(f"The evaluation's {names[0]!r} is {value!r}, which is not a number.")
    # An int too large for a float is no score either.
    if abs(value) > 1e300 or not math.isfinite(value):
        raise ScoreError(f"The evaluation's {names[0]!r} is {value}, which is not a finite score.")
    return float(value)


def gain(yardstick: Yardstick, baseline: float, score: float) -> float:
    """How much better than the baseline, in the metric's unit: positive is better, whatever the direction."""
    return score - baseline if yardstick.direction == "up" else baseline - score


def better(yardstick: Yardstick, a: float, b: float) -> bool:
    return gain(yardstick, b, a) > 0


def improved(yardstick: Yardstick, baseline: float, score: float) -> bool:
    """Better than the baseline by more than noise and, where a reference is known, by more than a hundredth of the way
    to it: the same script on another machine differs in the last digits, and a lucky row or two is no success."""
    room = 0.0 if no_headroom(yardstick, baseline) else abs((yardstick.reference or 0.0) - baseline)
    least = max(2 * yardstick.noise, LEAST_STEP * room, ROUNDING * abs(baseline))
    return gain(yardstick, baseline, score) > least


def improvement(yardstick: Yardstick, baseline: float, score: float) -> float:
    return 10 * gain(yardstick, baseline, score) / max(abs(baseline), yardstick.floor)


def headroom(yardstick: Yardstick, baseline: float, score: float) -> float:
    """The share of the way from baseline to reference, within [-1, 1]."""
    room = no_headroom(yardstick, baseline)
    if room:
        raise AirError(room, 'use the reward "improvement" for this task, or give a reference in args.metrics.')
    assert yardstick.reference is not None
    share = gain(yardstick, baseline, score) / gain(yardstick, baseline, yardstick.reference)
    return max(-1.0, min(1.0, share))


def no_headroom(yardstick: Yardstick, baseline: float) -> str:
    """Why the reward `headroom` cannot be given; empty if it can."""
    if yardstick.reference is None:
        return f"No reference score is known for {yardstick.metric!r} of this task."
    if not better(yardstick, yardstick.reference, baseline):
        return f"The reference {yardstick.reference:g} is not better than the baseline {baseline:g}."
    return ""


def too_good(yardstick: Yardstick, score: float) -> bool:
    """Beyond what can be had: above the optimum by more than noise, or beyond the bound of the metric or the task."""
    return exceeded(yardstick, score) is not None


def exceeded(yardstick: Yardstick, score: float) -> float | None:
    """The limit that a score which cannot be lies beyond; None if it can be."""
    slack = STANDARD_ERRORS * yardstick.noise
    limits = [(yardstick.reference, slack)] if yardstick.optimum else []
    limits.append((yardstick.bound, 0.0))
    for limit, allowed in limits:
        if limit is not None and gain(yardstick, limit, score) > allowed + 1e-9:
            return limit
    return None
