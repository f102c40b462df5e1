"""The engine lays projections side by side in memory; training, saving and loading must not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_engine import in_loop, prompts
from test_own_forward import greedy, make

from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row
from airloop.learn.checkpoints import load_checkpoint, save_checkpoint
from airloop.learn.learner import Learner, LearnerSettings
from airloop.policy import Policy


def trained(kind: str, directory: Path) -> tuple[Policy, EmbeddedEngine, Learner]:
    policy, engine = make(kind)
    policy.model.requires_grad_(True)
    learner = Learner(policy, LearnerSettings(lr=1e-2))
    row = Row("a#0", (1, 2, 3, 4), (False, True, True, True), (0.0, -1.0, -1.0, -1.0), 1.0, 1.0)
    learner.update(Batch((row,), {}, 1))
    save_checkpoint(directory, learner, 1)
    return policy, engine, learner


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_full_checkpoint_holds_each_weight_once_and_loads_into_shared_memory(kind: str, tmp_path: Path) -> None:
    policy, engine, _ = trained(kind, tmp_path)
    size = sum(f.stat().st_size for f in (tmp_path / "step_1" / "model").glob("*.safetensors"))
    numbers = sum(p.numel() for p in policy.model.parameters())
    assert size < 4 * numbers * 1.1 + 20_000

    fresh, other = make(kind)
    fresh.model.requires_grad_(True)
    load_checkpoint(tmp_path / "step_1", Learner(fresh, LearnerSettings(lr=1e-2)))
    for (name, a), (_, b) in zip(policy.model.named_parameters(), fresh.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    asked = prompts(5)
    engine.set_version(1)
    other.set_version(1)
    assert in_loop(lambda: greedy(engine, asked)) == in_loop(lambda: greedy(other, asked))
