"""A hypothesis is a small TOML: a claim, what is changed, and the rule that decides, written before the runs.

    claim  = "Without division by the group's spread it learns less."
    config = "arith"                    # of both sides: beside this file, here, or one that comes with air
    seeds  = [0, 1, 2]

    [both]                              # keys that both sides have beside the config's
    max_steps = 25
    [change]                            # exactly one config key, `config = "…"` (below), or `fault = "mask"`
    trainer.loss.scale_rewards = false
    [rule]
    metric = "reward"                   # of held-out tasks, by the trained weights
    prediction = "lower"                # changed less base: lower, higher, or same
    margin = 0.1                        # by at least this; for same: by at most this
    [budget]
    minutes = 10
    steps = 250                         # of all runs together

A sweep has, in place of [change], [vary]: keys with lists of values, each tried alone against the same base; or [grid]:
two keys with lists, in every combination, of which the first of each is the base. `exploratory = true` lets a sweep
have fewer seeds, and gives no verdict.

Where several keys belong together they are one thing with a name, and `config` is the key that takes it, in [change],
[vary] and [grid]; a TOML of `air train` is such a thing too:

    [sets.conservative]
    trainer.optim.lr = 1e-6
    trainer.optim.max_norm = 0.1
    [vary]
    config = ["conservative", "musique/qwen3_4b"]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airloop.errors import AirError
from airloop.os_errors import reading

# Fewer seeds say nothing about how seeds differ.
FEWEST_SEEDS = 3
WHOLE = "config"  # the key whose value is a whole config, or a set of keys
START = "`air lab show mask` is one to start from."

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
    exploratory: bool = False
    both: dict[str, Any] = Field(default_factory=dict)
    sets: dict[str, dict[str, Any]] = Field(default_factory=dict)
    change: dict[str, Any] | None = None
    vary: dict[str, Any] | None = None
    grid: dict[str, Any] | None = None
    rule: Rule = Field(default_factory=Rule)
    budget: Budget

    @property
    def is_sweep(self) -> bool:
        return self.vary is not None or self.grid is not None


def read_written(path: Path) -> Written:
    try:
        with reading(path):
            text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AirError(f"{path} is not valid TOML: {error}.", START) from None
    try:
        return Written.model_validate(tree)
    except ValidationError as error:
        raise _explained(path, error) from None


def _explained(path: Path, error: ValidationError) -> AirError:
    """The first mistake as a sentence, with the keys that would be right there."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    tables: dict[str, type[_Table]] = {"": Written, "rule": Rule, "budget": Budget}
    known = ", ".join(tables.get(str(first["loc"][0]) if len(first["loc"]) > 1 else "", Written).model_fields)
    if first["type"] == "extra_forbidden":
        return AirError(f"{path}: {where} is no key of a hypothesis.", f"known here: {known}.")
    if first["type"] == "missing":
        return AirError(f"{path}: {where} is missing.", f"{START[:-1]}; known: {known}.")
    text = first["msg"][0].lower() + first["msg"][1:]
    return AirError(f"{path}: {where} = {first['input']!r}: {text}.", START)


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


def lists(tree: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Dotted keys of [vary] and [grid]: a list is what is tried, even one of tables (weights of rewards)."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{at}.{key}" if at else str(key)
        found |= lists(value, name) if isinstance(value, Mapping) else {name: value}
    return found


def flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]


def shown(value: Any) -> str:
    """As TOML has it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {shown(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def line(key: str, value: Any) -> str:
    """A line of a hypothesis' file, to be copied."""
    return f"{key} = {shown(value)}"
