"""An embedded engine as a config asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.config import Config
from airloop.engine.embedded.engine import EmbeddedEngine
from airloop.events import Say
from airloop.policy import Policy
from airloop.ranks import Ranks

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded


def make_embedded_engine(
    config: Config,
    policy: Policy,
    loaded: Loaded,
    ranks: Ranks,
    say: Say,
    *,
    kv_tokens: int | None,
    lend: bool,
    own_forward: bool | None,
) -> EmbeddedEngine:
    return EmbeddedEngine(
        policy,
        context=config.seq_len,
        max_batch=config.inference.max_batch,
        kv_tokens=config.inference.kv_tokens if kv_tokens is None else kv_tokens,
        page_size=config.inference.page_size,
        lockstep=config.deterministic,
        eager=bool(config.inference.model.enforce_eager),
        lend=lend,
        own_forward=own_forward,
    )
