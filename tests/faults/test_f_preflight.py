"""The two famous ones, F1 and F2, as a user meets them: `air train` refuses to begin, and says why and what to mend."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.probe_cases import ARITH, chance, graded

from airloop.engine.embedded import EmbeddedEngine
from airloop.models.head import logits_head
from airloop.policy import Policy
from airloop_lab.faults import blindfold

pytestmark = pytest.mark.slow


def adapter_that_never_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine samples from weights of its own, which nobody brings up to date."""
    original = EmbeddedEngine.__init__

    def apart(self: EmbeddedEngine, policy: Policy, **options: Any) -> None:
        model = copy.deepcopy(policy.model)
        own = Policy(model, logits_head(model), policy.peft)
        original(self, own, **options)

    monkeypatch.setattr(EmbeddedEngine, "__init__", apart)


@pytest.fixture
def train(air: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`air train` with rewards that differ, so that nothing else is wrong: exit code, what it said, its run."""
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    flags = {**ARITH, "max_steps": "1", "orchestrator.eval.num_examples": "2", "output_dir": str(tmp_path)}

    def call() -> tuple[int, str, Path]:
        code, _, said = air("train", *(word for key, value in flags.items() for word in (f"--{key}", value)))
        (run,) = tmp_path.glob("exp*")
        return code, said, run

    return call


def judged(run: Path) -> dict[str, str]:
    return {told["name"]: told["verdict"] for told in json.loads((run / "doctor.json").read_text())["checks"]}


def nothing_was_spent(run: Path) -> bool:
    status = json.loads((run / "status.json").read_text())
    begun = [name for name in ("metrics.jsonl", "trajectories", "evaluations", "checkpoints") if (run / name).exists()]
    return status["status"] == status["proofs"] == "failed" and not begun


@pytest.mark.long
def test_F1_air_train_refuses_a_loss_mask_used_as_attention_mask(train: Any) -> None:
    began = time.process_time()
    with blindfold():
        code, said, run = train()
    assert code == 1 and time.process_time() - began < 60
    assert "F1: the prompt was changed and the trainer's log-probs of the answer moved by 0" in said
    assert "a loss mask used as attention mask" in said and "PackedPlan" in said and "--skip-proofs" in said
    assert judged(run)["context_is_seen"] == judged(run)["trainer_agrees"] == "fail" and nothing_was_spent(run)


@pytest.mark.long
def test_F2_air_train_refuses_an_adapter_that_never_reaches_the_engine(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter_that_never_arrives(monkeypatch)
    began = time.process_time()
    code, said, run = train()
    assert code == 1 and time.process_time() - began < 60
    assert "F2: " in said and "served log-probs moved by up to 0, the trainer's by" in said
    assert "goes on serving the old weights" in said and "refresh()" in said
    assert judged(run)["adapter_arrives"] == "fail" and judged(run)["context_is_seen"] == "pass"
    assert nothing_was_spent(run)


@pytest.mark.long
def test_F_air_train_begins_where_neither_is_wrong(train: Any) -> None:
    code, said, run = train()
    assert code == 0, said
    assert "fail" not in judged(run).values() and json.loads((run / "status.json").read_text())["proofs"] == "passed"
