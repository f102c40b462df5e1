"""The engine that a config asks for."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol

from airloop.config import Config
from airloop.config.engines import ENGINES
from airloop.engine.base import Engine
from airloop.events import Say
from airloop.policy import Policy
from airloop.ranks import Ranks

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded


class MakeEngine(Protocol):
    """`kv_tokens`: by the memory plan, or None to go by the config. `lend`: its memory is given back while training.
    `own_forward`: see EmbeddedEngine. An engine with weights of its own needs none of these."""

    def __call__(
        self,
        config: Config,
        policy: Policy,
        loaded: Loaded,
        ranks: Ranks,
        say: Say,
        *,
        kv_tokens: int | None,
        lend: bool,
        own_forward: bool | None,
    ) -> Engine: ...


def engine_maker(config: Config) -> MakeEngine:
    found: MakeEngine = resolve_name(ENGINES[config.inference.backend].make)
    return found
