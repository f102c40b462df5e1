"""The engine that a config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airloop.config import Config
from airloop.engine.base import Engine
from airloop.events import Say
from airloop.policy import Policy
from airloop.ranks import Ranks

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded


def make_engine(
    config: Config,
    policy: Policy,
    loaded: Loaded,
    ranks: Ranks,
    say: Say,
    *,
    kv_tokens: int | None = None,
    lend: bool = False,
    own_forward: bool | None = None,
) -> Engine:
    """`kv_tokens`: by the memory plan, or None to go by the config. `lend`: its memory is given back while training.
    `own_forward`: see EmbeddedEngine."""
    if config.inference.backend == "vllm":
        from airloop.engine.vllm.start import make_vllm_engine

        engine = make_vllm_engine(config, policy, loaded, ranks)
        engine.say = say if ranks.first else engine.say  # all ranks ask the same servers
        return engine
    from airloop.engine.embedded import EmbeddedEngine

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
