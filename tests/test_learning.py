"""It learns, and the test can tell: the same run with the advantage's sign flipped, or with the loss mask
used as attention mask, must fail to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import air.learn.advantages as advantages
from air.config import load_config
from air.learn.batches import PackedPlan
from air.run import Run
from air.train import start
from air.watch.alarms import Alarms
from air.watch.display import Display

CONFIG = Path(__file__).parent.parent / "configs" / "arith.toml"


def learn(directory: Path, **changes: str) -> tuple[float, float]:
    """Held-out reward before and after RL."""
    flags = [word for key, value in changes.items() for word in (f"--{key}", value)]
    config = load_config(["@", str(CONFIG), "--output_dir", str(directory), *flags])
    finished = start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True)
    evaluations = {m["name"]: m["reward"]["mean"] for m in Run.open(finished.run.path).metrics("eval")}
    return evaluations["before"], evaluations["after"]


@pytest.mark.slow
def test_a_tiny_model_learns_arith(tmp_path: Path) -> None:
    before, after = learn(tmp_path)
    assert before < 0.4
    assert after >= 0.9


@pytest.mark.slow
def test_with_the_advantage_flipped_it_does_not_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = advantages.group_advantages
    monkeypatch.setattr(advantages, "group_advantages", lambda *a: [-x for x in right(*a)])
    before, after = learn(tmp_path)
    assert after < before


@pytest.mark.slow
def test_with_the_loss_mask_as_attention_mask_it_does_not_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: the training forward sees only what the loss counts, so it cannot see the question."""
    original = PackedPlan.__init__

    def blind(self: PackedPlan, batch: Any, device: torch.device) -> None:
        original(self, batch, device)
        trained = torch.zeros(len(self.tokens), dtype=torch.bool)
        for r, row in enumerate(batch.rows):
            flat = [batch.segments[s].start + i for s in batch.paths[r] for i in range(len(batch.segments[s].tokens))]
            trained[[f for f, t in zip(flat, row.train, strict=True) if t]] = True
        for i, segment in enumerate(batch.segments):
            path = (*segment.ancestors, i)
            seen = torch.cat([trained[batch.segments[s].start :][: len(batch.segments[s].tokens)] for s in path])
            itself = torch.eye(self._masks[i].shape[1], dtype=torch.bool)[segment.place :]
            self._masks[i] = (self._masks[i] & seen[None]) | itself  # a token always sees itself, or softmax is NaN

    # The supervised start is made with right masks: only RL is blinded.
    learn(tmp_path, max_steps="0")
    monkeypatch.setattr(PackedPlan, "__init__", blind)

    async def silent(self: Alarms, metrics: Any, world: Any) -> None:
        """Else the alarm F2 stops it after its first step."""

    monkeypatch.setattr(Alarms, "look", silent)
    _before, after = learn(tmp_path)
    assert after < 0.6
