"""Typed configuration: TOML files and flags in, one frozen `Config` out; every refusal explains itself.

`schema` has the keys, `rules` what they must not say together, `sources` reads files and flags, `lines` knows
where in a file a key stands, `mistakes` and `foreign` say what is wrong, `toml` writes, `keys` describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from airloop.config.foreign import ALIASES
from airloop.config.keys import Key, describe_keys, format_keys
from airloop.config.mistakes import Refused, as_error, explain, explain_conflict, foreign_flags, missing_template
from airloop.config.rules import Conflict, check_sinks, check_wandb, wandb_key
from airloop.config.schema import (
    AcConfig,
    BudgetConfig,
    BufferConfig,
    CkptConfig,
    Config,
    EnvConfig,
    EvalConfig,
    InferenceConfig,
    InferenceModelConfig,
    LogbookConfig,
    LogConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    OrchestratorConfig,
    SamplingConfig,
    TensorboardConfig,
    TrainerConfig,
    TrainerModelConfig,
    WandbConfig,
    WarmstartConfig,
)
from airloop.config.sources import KeyPath, Mistake, Settings, read_sources
from airloop.config.toml import to_toml

__all__ = [
    "ALIASES",
    "AcConfig",
    "BudgetConfig",
    "BufferConfig",
    "CkptConfig",
    "Config",
    "EnvConfig",
    "EvalConfig",
    "InferenceConfig",
    "InferenceModelConfig",
    "Key",
    "LogConfig",
    "LogbookConfig",
    "LoraConfig",
    "LossConfig",
    "Mistake",
    "ModelConfig",
    "OptimConfig",
    "OrchestratorConfig",
    "Refused",
    "SamplingConfig",
    "TensorboardConfig",
    "TrainerConfig",
    "TrainerModelConfig",
    "WandbConfig",
    "WarmstartConfig",
    "check_sinks",
    "check_wandb",
    "describe_keys",
    "format_keys",
    "load_config",
    "to_toml",
    "wandb_key",
    "with_changes",
]

T = TypeVar("T", bound=BaseModel)


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with some keys replaced, by their dotted names."""
    for name, value in changes.items():
        config = _with(config, name.split("."), value)
    return config


def _with(section: T, path: Sequence[str], value: Any) -> T:
    first, *rest = path
    inner = _with(getattr(section, first), rest, value) if rest else value
    return section.model_copy(update={first: inner})


def load_config(argv: Sequence[str]) -> Config:
    """Files (`@ a.toml @b.toml`) left to right, then flags (`--trainer.optim.lr 2e-5`).

    All mistakes are reported in one AirError (Refused).
    """
    settings = read_sources(argv, foreign=list(ALIASES))
    mistakes = [*settings.mistakes, *foreign_flags(settings), *missing_template(settings)]
    config, found = _validate(settings)
    mistakes += found
    spoken_for = {key for mistake in mistakes for key in mistake.keys}
    for conflict in _conflicts(settings):
        # A conflict about a key that is already complained of would go away with the correction.
        if not spoken_for & {*conflict.keys}:
            mistakes.append(explain_conflict(conflict, settings))
    if mistakes or config is None:
        raise as_error(mistakes)
    return config


def _validate(settings: Settings) -> tuple[Config | None, list[Mistake]]:
    """The config by the schema alone; what the schema refuses is taken out of the tree."""
    try:
        return Config.model_validate(settings.tree, context=[]), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        mistakes = {detail["loc"]: explain(detail, settings) for detail in details}
        for loc in mistakes:
            _remove(settings.tree, loc)
        return None, list(dict.fromkeys(mistakes.values()))


def _conflicts(settings: Settings) -> list[Conflict]:
    conflicts: list[Conflict] = []
    try:
        Config.model_validate(settings.tree, context=conflicts)
    except ValidationError:
        return []  # nothing sensible is left to check
    return conflicts


def _remove(node: Any, path: KeyPath) -> None:
    """Take out the value at a path, or the deepest that exists on the way to it."""
    for part in path[:-1]:
        child = node.get(part) if isinstance(node, dict) else None
        if not isinstance(child, dict | list):
            break
        if isinstance(child, list):
            node.pop(part)
            return
        node = child
    else:
        part = path[-1]
    if isinstance(node, dict):
        node.pop(part, None)
