"""Typed configuration: TOML files and flags in, one frozen `Config` out; every refusal explains itself.

`schema`, `trainer` and `orchestrator` have the keys, `defaults` what follows from others, `rules` what they must not
say together, `cautions` what is seldom meant; `config` is all of it. `sources` reads files and flags, `lines` knows
where in a file a key stands, `review` finds all that is wrong, `mistakes` says it, `translate`, `foreign` and
`foreign_paths` know other trainers' files, `environments` asks those that are named, `toml` writes, `keys`
describes. Imports go one way: sections ← schema ← keys ← rules ← config ← review.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from airloop.config.config import Config
from airloop.config.foreign import ALIASES
from airloop.config.keys import describe_keys, format_keys
from airloop.config.mistakes import Refused, as_error
from airloop.config.orchestrator import EnvConfig, SamplingConfig
from airloop.config.review import review
from airloop.config.schema import BudgetConfig, ClusterConfig, LogbookConfig, WarmstartConfig
from airloop.config.sources import Mistake, read_sources
from airloop.config.toml import changes_toml, to_toml
from airloop.config.trainer import LossConfig

__all__ = [
    "ALIASES",
    "BudgetConfig",
    "ClusterConfig",
    "Config",
    "EnvConfig",
    "LogbookConfig",
    "LossConfig",
    "Mistake",
    "Refused",
    "SamplingConfig",
    "WarmstartConfig",
    "changes_toml",
    "describe_keys",
    "format_keys",
    "load_config",
    "to_toml",
    "with_changes",
]

T = TypeVar("T", bound=BaseModel)


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with some keys replaced, by their dotted names. They are not checked again: what comes from people is
    for load_config.

        longer = with_changes(config, {"max_steps": 200, "trainer.optim.lr": 1e-5})
    """
    for name, value in changes.items():
        config = _with(config, name.split("."), value)
    return config


def _with(section: T, path: Sequence[str], value: Any) -> T:
    first, *rest = path
    inner = _with(getattr(section, first), rest, value) if rest else value
    return section.model_copy(update={first: inner})


def load_config(argv: Sequence[str], *, environments: bool = True) -> Config:
    """Files (`@ a.toml @b.toml`) left to right, then flags (`--trainer.optim.lr 2e-5`).

    All mistakes are reported in one AirError (Refused). Without `environments` their ids and arguments are taken as
    they are: a run is read also where its environment is not installed, and reading one must not run its code.

        config = load_config(["@", "my.toml", "--max_steps", "200"])
    """
    settings = read_sources(argv, foreign=list(ALIASES), environments=environments)
    config, mistakes = review(settings, environments=environments)
    if mistakes or config is None:
        raise as_error(mistakes)
    return config
