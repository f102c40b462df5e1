"""Invariant 3: at step 0 the trainer's log-probs equal the engine's, on real multi-turn episodes through the
prefix cache, page copies, packing and the adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from airloop.assemble import assemble
from airloop.config import load_config
from airloop.envs.tune.env import TuneSession
from airloop.learn.advantages import trajectory_rows
from airloop.rollout.schedule import TaskSchedule
from airloop.types import Message, Trajectory


def gaps(flags: dict[str, str]) -> tuple[list[float], list[Trajectory]]:
    """|trainer - engine| of every sampled token of one step, with an adapter that is not zero."""
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])

    async def work() -> Any:
        parts = assemble(config, print)
        try:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for name, parameter in parts.policy.trainable():
                    if "lora_B" in name:
                        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            groups = config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
            plan = TaskSchedule(parts.envs, "train", 0).batch(0, groups)
            collected = await parts.sampler(lambda *_: None).collect(0, plan, 0)
            trajectories = [t for g in collected.groups for t in g.trajectories]
            rows = [row for t in trajectories for row in trajectory_rows(t, [1.0], 1.0)]
            return parts.learner.logprobs(rows), rows, trajectories
        finally:
            await parts.close()

    trainer, rows, trajectories = asyncio.run(work())
    found = []
    for row in rows:
        sampler = [lp for lp, t in zip(row.logprobs, row.train, strict=True) if t]
        found += [abs(a - b) for a, b in zip(trainer[row.key], sampler, strict=True)]
    return found, trajectories


TUNE = {
    "orchestrator.env.0.id": "tune",
    "orchestrator.env.0.args.datasets": '["concrete", "storms"]',
    "orchestrator.batch_size": "8",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "24",
    "model.dtype": "float32",
}


@pytest.mark.parametrize("strategy", ["interleaved", "branching"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_engine_and_trainer_agree_on_multi_turn_episodes(kind: str, strategy: str) -> None:
    flags = {"model.name": f"tiny:{kind}", "orchestrator.trajectory_strategy": strategy}
    found, trajectories = gaps({**TUNE, **flags, "orchestrator.seq_len": "1500", "inference.page_size": "16"})
    assert max(len(t.turns) for t in trajectories) > 1 and len(found) > 200
    assert max(found) < 1e-4


@pytest.mark.parametrize("strategy", ["interleaved", "branching"])
def test_engine_and_trainer_agree_when_the_environment_shortens_what_was_seen(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def view(self: TuneSession, messages: Sequence[Message]) -> list[Message]:
        last = len(messages) - 1
        return [
            {**m, "content": "(old)"} if m["role"] != "assistant" and 1 < i < last else m
            for i, m in enumerate(messages)
        ]

    monkeypatch.setattr(TuneSession, "view", view)
    flags = {"model.name": "tiny:llama", "orchestrator.trajectory_strategy": strategy}
    found, trajectories = gaps({**TUNE, **flags, "orchestrator.seq_len": "1500", "inference.page_size": "16"})
    assert max(len(t.branches) for t in trajectories) > 2
    assert len(found) == sum(len(turn.sampled.token_ids) for t in trajectories for turn in t.turns if turn.sampled)
    assert any("(old)" in m["content"] for t in trajectories for turn in t.turns for m in turn.shown)
    assert max(found) < 1e-4


@pytest.mark.slow
def test_engine_and_trainer_agree_on_the_default_model() -> None:
    fewer = {"orchestrator.batch_size": "4", "orchestrator.rollouts_per_example": "2"}  # it takes half a minute
    found, trajectories = gaps({**TUNE, **fewer, "orchestrator.seq_len": "768"})
    assert max(len(t.turns) for t in trajectories) > 1 and len(found) > 200
    assert max(found) < 1e-4
