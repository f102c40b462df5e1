"""What orchestrator.max_staleness excludes and asks for, each with its reason and its correction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airloop.config.conflict import Conflict

if TYPE_CHECKING:
    from airloop.config.schema import RunConfig

KEY = "orchestrator.max_staleness"


def stream_conflicts(config: RunConfig) -> Iterator[Conflict]:
    staleness, loss = config.orchestrator.max_staleness, config.trainer.loss
    if not staleness:
        return
    whole = loss.geo_mask_high is not None or loss.sequence_mask_high is not None
    if loss.importance_mode == "truncate" and loss.anchor == "trainer" and not whole:
        yield Conflict(
            (KEY, "trainer.loss.importance_mode"),
            f'max_staleness = {staleness} trains on tokens of earlier policies, and importance_mode = "truncate" only '
            "caps their weight: a token that the policy has left far behind goes on pushing it. A trust region around "
            'the policy that sampled is needed: importance_mode = "mask" leaves such tokens out, anchor = "sampler" '
            "clips by the sampler's log-probs, geo_mask_high or sequence_mask_high leaves whole trajectories out",
            {"trainer.loss.importance_mode": "mask"},
        )
    if config.ranks > 1 and config.inference.own_weights:
        several = "trainer.processes" if config.trainer.processes else "trainer_gpu_ids"
        yield Conflict(
            (KEY, several),
            f"max_staleness = {staleness} with {config.ranks} trainer processes needs servers of vLLM: without them "
            "each samples on its own weights, and all would stop for every update",
            {KEY: 0},
        )
    if config.orchestrator.curriculum is not None:
        yield Conflict(
            (KEY, "orchestrator.curriculum"),
            f"max_staleness = {staleness} with [orchestrator.curriculum] is not in this version: which tasks come next "
            "would follow from how fast episodes were, and a resumed run would be another one",
            {KEY: 0},
        )
