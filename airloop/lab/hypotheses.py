"""A hypothesis is a small TOML: a claim, the one thing changed, and the rule that decides, written before the runs.

    claim  = "Without division by the group's spread it learns less."
    config = "../arith.toml"            # of both sides: beside this file, here, or in the checkout
    seeds  = [0, 1, 2]

    [both]                              # keys that both sides have beside the config's
    max_steps = 25
    [change]                            # exactly one config key, or `fault = "mask"` (airloop/lab/faults.py)
    trainer.loss.scale_rewards = false
    [rule]
    metric = "reward"                   # of held-out tasks, by the trained weights
    prediction = "lower"                # changed less base: lower, higher, or same
    margin = 0.1                        # by at least this; for same: by at most this
    [budget]
    minutes = 10
    steps = 250                         # of all runs together

A sweep has [vary] in place of [change]: keys with lists of values, each tried alone against the same base.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airloop.config import Config, load_config
from airloop.errors import AirError
from airloop.lab.faults import find_fault
from airloop.shipped import HYPOTHESES, name_of, shipped
from airloop.stats.intervals import FEWEST

BASE, CHANGED = "base", "changed"
# What `air lab run` sets itself, for both sides alike.
OWN_KEYS = ("seed", "output_dir", "logbook.goal", "logbook.parent")
# Fewer seeds say nothing about how seeds differ.
FEWEST_SEEDS = 3

Prediction = Literal["higher", "lower", "same"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class Rule(_Table):
    """What decides. `prediction` is None for a sweep, which ranks."""

    metric: str = Field(default="reward", min_length=1)
    prediction: Prediction | None = None
    margin: float = Field(default=0.0, ge=0)
    base_gain: float | None = Field(default=None, gt=0)  # the base must learn this much, or there is nothing to compare


class Budget(_Table):
    minutes: float = Field(gt=0)
    steps: int = Field(ge=1)


class Written(_Table):
    """The file as it stands; kept with the runs, so that the rule cannot change after them."""

    claim: str = Field(min_length=1)
    why: str = ""
    config: str = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    both: dict[str, Any] = Field(default_factory=dict)
    change: dict[str, Any] | None = None
    vary: dict[str, Any] | None = None
    rule: Rule = Field(default_factory=Rule)
    budget: Budget


@dataclass(frozen=True)
class Variant:
    """One side: the base, or the base with one thing changed."""

    name: str
    key: str = ""
    value: Any = None
    fault: str = ""

    @property
    def slug(self) -> str:
        """In a run's name."""
        long = f"{self.key.rpartition('.')[2]}-{shown(self.value)}" if self.name not in (BASE, CHANGED) else self.name
        return re.sub(r"[^A-Za-z0-9]+", "-", long).strip("-")

    @property
    def text(self) -> str:
        """What is changed, in words."""
        if self.fault:
            return f"the fault {self.fault!r}: {find_fault(self.fault).text}"
        return f"{self.key} = {shown(self.value)}" if self.key else "nothing"


@dataclass(frozen=True)
class Hypothesis:
    name: str
    written: Written
    variants: tuple[Variant, ...]  # the base first
    folder: Path  # of the file, where its config may lie

    @property
    def is_sweep(self) -> bool:
        return self.written.vary is not None

    @property
    def changed(self) -> tuple[Variant, ...]:
        return self.variants[1:]

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)

    def config(self, variant: Variant, seed: int = 0, output_dir: str = "outputs") -> Config:
        own = {"seed": seed, "output_dir": output_dir}
        change = {variant.key: variant.value} if variant.key else {}
        argv = ["@", str(self._config_file()), *flags({**flat(self.written.both), **change, **own})]
        try:
            return load_config(argv)
        except AirError as error:
            raise AirError(f"{self.name}, {variant.name}: {error.problem}", error.fix) from None

    def _config_file(self) -> Path:
        """Beside the hypothesis or here; or the one that comes with air, for one that was copied or has moved."""
        name = self.written.config
        known = name_of(name)
        places = [self.folder / name, Path(name).expanduser(), *([shipped(known)] if known else [])]
        found = [p for p in places if p.is_file()]
        if not found:
            raise AirError(
                f"{self.name}: its config {name!r} is neither beside it nor here.",
                f"name a TOML of `air train`, such as arith or ./my.toml; {self.folder} is looked in first.",
            )
        return found[0].resolve()


# --- reading ----------------------------------------------------------------------------------------------------------


def find_hypothesis(name: str) -> Path:
    """A file, or the name of one that comes with air."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known_names = {p.stem: p for p in sorted(HYPOTHESES.glob("*.toml"))}
    if (stem := name.removeprefix("lab/")) in known_names:
        return known_names[stem]
    close = difflib.get_close_matches(path.stem, known_names, 1, 0.5)
    known = f"did you mean {close[0]!r}?" if close else "`air lab list` shows those that come with air."
    raise AirError(f"There is no hypothesis {name!r}: no file, and none of that name.", known)


def read_hypothesis(path: Path) -> Hypothesis:
    """Refuses what could not be decided or changes more than one thing."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AirError(f"{path} is not valid TOML: {error}.", "`air lab show mask` is one to start from.") from None
    try:
        written = Written.model_validate(tree)
    except ValidationError as error:
        raise _explained(path, error) from None
    _check_seeds(path.stem, written)
    hypothesis = make_hypothesis(path.stem, written, path.resolve().parent)
    check_steps(hypothesis, written.seeds)
    base = hypothesis.config(hypothesis.variants[0])
    if (tasks := base.orchestrator.eval.num_examples) < FEWEST:
        raise AirError(
            f"{hypothesis.name}: {tasks} held-out tasks cannot tell a difference from luck, whatever they show.",
            f"at least {FEWEST}, in [both]: orchestrator.eval.num_examples = {FEWEST}",
        )
    for variant in hypothesis.changed:
        _check_one_thing(hypothesis, base, variant)
    return hypothesis


def make_hypothesis(name: str, written: Written, folder: Path) -> Hypothesis:
    """From the text alone: the config may have changed since, or be gone."""
    if (written.change is None) == (written.vary is None):
        has = "both [change] and [vary]" if written.change is not None else "neither [change] nor [vary]"
        raise AirError(f"{name} has {has}.", "a hypothesis has [change] with one thing, a sweep [vary] with lists.")
    changed = _sweep(name, written) if written.vary is not None else (_change(name, written),)
    if own := [key for key in OWN_KEYS if key in flat(written.both) or any(v.key == key for v in changed)]:
        raise AirError(f"{name} sets {own[0]}, which `air lab run` sets for every run.", f"leave {own[0]} out.")
    return Hypothesis(name, written, (Variant(BASE), *changed), folder)


def _explained(path: Path, error: ValidationError) -> AirError:
    """The first mistake as a sentence, with the keys that would be right there."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    tables: dict[str, type[_Table]] = {"": Written, "rule": Rule, "budget": Budget}
    known = ", ".join(tables.get(str(first["loc"][0]) if len(first["loc"]) > 1 else "", Written).model_fields)
    if first["type"] == "extra_forbidden":
        return AirError(f"{path}: {where} is no key of a hypothesis.", f"known here: {known}.")
    if first["type"] == "missing":
        return AirError(f"{path}: {where} is missing.", f"`air lab show mask` is one to start from; known: {known}.")
    text = first["msg"][0].lower() + first["msg"][1:]
    return AirError(f"{path}: {where} = {first['input']!r}: {text}.", "`air lab show mask` is one to start from.")


def _check_seeds(name: str, written: Written) -> None:
    seeds = written.seeds
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise AirError(
            f"{name}: seeds = {seeds}: each once, none below 0.", f"seeds = {sorted({abs(s) for s in seeds})}"
        )
    if len(seeds) < FEWEST_SEEDS:
        raise AirError(
            f"{name}: {len(seeds)} seeds cannot tell the change from luck.",
            f"give at least {FEWEST_SEEDS}: seeds = {list(range(FEWEST_SEEDS))}",
        )


def _change(name: str, written: Written) -> Variant:
    assert written.change is not None
    if written.rule.prediction is None:
        raise AirError(
            f"{name}: [rule] has no prediction, so nothing could decide.", 'prediction = "higher", "lower" or "same"'
        )
    if written.rule.prediction == "same" and not written.rule.margin:
        raise AirError(f'{name}: "same" to no margin can never be shown.', "margin = 0.1, or what does not matter.")
    things = flat(written.change)
    if len(things) != 1:
        named = ", ".join(things) or "nothing"
        raise AirError(
            f"{name}: [change] names {len(things)} things ({named}); with more than one, no verdict says which it was.",
            "keep one; what both sides share belongs to [both].",
        )
    ((key, value),) = things.items()
    if key == "fault":
        return Variant(CHANGED, fault=find_fault(str(value)).name)
    return Variant(CHANGED, key, value)


def _sweep(name: str, written: Written) -> tuple[Variant, ...]:
    assert written.vary is not None
    if written.rule.prediction is not None:
        raise AirError(f"{name}: a sweep ranks and predicts nothing.", "leave prediction out, or take [change].")
    if written.rule.margin or written.rule.base_gain is not None:
        raise AirError(f"{name}: a sweep decides nothing, so margin and base_gain say nothing.", "leave them out.")
    things = flat(written.vary)
    if wrong := [key for key, values in things.items() if not isinstance(values, list) or not values]:
        raise AirError(
            f"{name}: [vary] {wrong[0]} = {shown(things[wrong[0]])} is no list of values.", f"{wrong[0]} = […]"
        )
    if not things or "fault" in things:
        raise AirError(f"{name}: [vary] has {'a fault' if things else 'no key'}.", "it has config keys, with lists.")
    found = tuple(Variant(f"{key} = {shown(v)}", key, v) for key, values in things.items() for v in values)
    if twice := [v.name for i, v in enumerate(found) if v.name in {other.name for other in found[:i]}]:
        raise AirError(f"{name}: [vary] has {twice[0]} twice.", "name each value once.")
    return found


def check_steps(hypothesis: Hypothesis, seeds: Sequence[int]) -> None:
    """The budget of steps is known to suffice before the first run."""
    configs = [hypothesis.config(variant) for variant in hypothesis.variants]
    if any(config.budget.minutes for config in configs):
        raise AirError(
            f"{hypothesis.name}: its config has budget.minutes, so the clock would give each side steps of its own.",
            "take a config without [budget]; `air configs copy NAME` writes one that can be changed.",
        )
    each, budget = sum(config.max_steps for config in configs), hypothesis.written.budget.steps
    if not all(config.max_steps for config in configs):
        raise AirError(f"{hypothesis.name}: max_steps = 0 trains nothing.", "set max_steps in [both].")
    if each * len(seeds) > budget:
        raise AirError(
            f"{hypothesis.name}: {len(seeds)} seeds of {len(configs)} runs take {each * len(seeds)} steps, "
            f"and budget.steps = {budget}.",
            f"take {budget // each} seeds, a smaller max_steps in [both], or budget.steps = {each * len(seeds)}.",
        )


def _check_one_thing(hypothesis: Hypothesis, base: Config, variant: Variant) -> None:
    """In the resolved configs too: one key may bring others along by its defaults."""
    name = hypothesis.name
    if variant.fault:
        if base.ranks > 1:
            raise AirError(
                f"{name}: a fault is put into one process, and this config trains in {base.ranks}.",
                "leave trainer_gpu_ids and trainer.processes out.",
            )
        return
    if variant.key.startswith("orchestrator.eval."):
        raise AirError(
            f"{name}: {variant.key} changes what is measured, so the two sides could not be compared.",
            "put it into [both].",
        )
    here, there = (flat(config.model_dump(mode="json")) for config in (base, hypothesis.config(variant)))
    differ = {key for key in {*here, *there} if here.get(key) != there.get(key)}
    if not differ:
        raise AirError(f"{name}: {variant.text} is what the base has already.", "change it, or the base in [both].")
    # What has no value on one side comes or goes with the key; another value on both would be a second change.
    two = {key for key in differ if here.get(key) is not None and there.get(key) is not None}
    more = sorted(key for key in two if not _same_key(key, variant.key))
    if more:
        was, becomes = shown(here[more[0]]), shown(there[more[0]])
        raise AirError(
            f"{name}: {variant.text} also changes {more[0]} from {was} to {becomes}.",
            f"hold it in [both], if it can be held: {more[0]} = {was}",
        )


def _same_key(key: str, written: str) -> bool:
    return key == written or key.startswith(f"{written}.")


# --- showing ----------------------------------------------------------------------------------------------------------


def format_hypothesis(hypothesis: Hypothesis) -> str:
    w = hypothesis.written
    base = hypothesis.config(hypothesis.variants[0])
    lines = [f"{hypothesis.name}: {w.claim}", *([f"  {w.why}"] if w.why else []), ""]
    lines.append(f"  config    {w.config}, {base.max_steps} steps, {base.model.name}")
    lines += [f"  both      {key} = {shown(value)}" for key, value in flat(w.both).items() if key != "max_steps"]
    lines += [f"  {'vary' if hypothesis.is_sweep else 'change':8s}  {v.text}" for v in hypothesis.changed]
    lines.append(f"  rule      {rule_text(w.rule)}")
    runs = len(w.seeds) * len(hypothesis.variants)
    lines.append(f"  runs      {runs}: seeds {' '.join(map(str, w.seeds))} of each side, paired by seed")
    lines.append(f"  budget    {w.budget.minutes:g} minutes, {w.budget.steps} steps")
    return "\n".join(lines)


def rule_text(rule: Rule) -> str:
    what = f"changed less base in {rule.metric!r} of held-out tasks"
    control = ""
    if rule.base_gain:
        control = f" Undecided unless the base itself gains {rule.base_gain:g} or more, its whole interval."
    m = rule.margin
    match rule.prediction:
        case None:
            return f"ranked by {what}, each with its interval.{control}"
        case "same":
            inside = f"within ±{m:g}"
            return f"supported if {what} is {inside}, its whole interval; rejected if that is outside.{control}"
        case "higher":
            bound, side, other = m, "above", "below"
        case "lower":
            bound, side, other = -m, "below", "above"
    return f"supported if {what} is {side} {bound:+g}, its whole interval; rejected if that is {other}.{control}"


def as_json(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "name": hypothesis.name,
        **hypothesis.written.model_dump(),
        "kind": "sweep" if hypothesis.is_sweep else "hypothesis",
        "variants": [{"name": v.name, "text": v.text} for v in hypothesis.variants],
        "rule_text": rule_text(hypothesis.written.rule),
    }


def format_list(found: Sequence[Hypothesis]) -> str:
    width = max((len(h.name) for h in found), default=0)
    lines = []
    for h in found:
        changes = f"{len(h.changed)} variations of {len(flat(h.written.vary or {}))} keys"
        what = changes if h.is_sweep else h.changed[0].text.partition(":")[0]
        runs = len(h.written.seeds) * len(h.variants)
        lines.append(f"{h.name:{width}s}  {h.written.claim}")
        lines.append(f"{'':{width}s}  {what}; {runs} runs, at most {h.written.budget.minutes:g} minutes")
    return "\n".join(lines)


# --- keys -------------------------------------------------------------------------------------------------------------


def flat(tree: Any, at: str = "") -> dict[str, Any]:
    """Dotted keys. Lists of tables, as the environments are, by number; an empty table is a value."""
    return dict(_leaves(tree, at))


def _leaves(node: Any, at: str) -> Iterator[tuple[str, Any]]:
    inside: Mapping[str, Any] = {}
    if isinstance(node, Mapping):
        inside = node
    elif isinstance(node, list) and node and all(isinstance(item, Mapping) for item in node):
        inside = {str(i): item for i, item in enumerate(node)}
    if not inside:
        if at:
            yield at, node
        return
    for key, value in inside.items():
        yield from _leaves(value, f"{at}.{key}" if at else str(key))


def flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def shown(value: Any) -> str:
    """As TOML has it."""
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
