"""Alarms about the update, the engine and the memory: provoked in real runs of a tiny model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.talk_env import Talk, talking
from support.watched_runs import Witness, freeze_engine, run_watched

from airloop.assemble import Components
from airloop.engine.base import EngineFailed
from airloop.types import Alarm
from airloop.watch.alarms.learner_rules import memory_grows, weights_do_not_change
from airloop.watch.alarms.monitor import Halted
from airloop.watch.metrics.facts import memory

FRESH = {
    "warmstart.steps": "0",
    "orchestrator.batch_size": "16",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "4",
    "orchestrator.retries": "0",
}
COIN = Talk(lambda number, seed: ({"won": float(seed % 2)}, {}))


def the(witness: Witness, name: str) -> Alarm:
    found = witness.of(name)
    assert len(found) == 1, [(alarm.name, alarm.seen) for alarm in witness.alarms]
    return found[0]


def names(witness: Witness) -> set[str]:
    return {alarm.name for alarm in witness.alarms} - {"replies_run_to_the_limit"}  # random weights never stop


@pytest.mark.slow
def test_a_healthy_update_raises_nothing(tmp_path: Path) -> None:
    """With an adapter, with all weights in bf16 at a small but usual rate, and with a KL term."""
    for i, changes in enumerate(
        (
            {"trainer.model.train": "lora", "trainer.optim.lr": "1e-4"},
            {"model.dtype": "bfloat16", "trainer.optim.lr": "1e-6"},
            {"trainer.loss.kl_beta": "0.01", "trainer.optim.lr": "1e-4"},
        )
    ):
        _, witness, error = run_watched(tmp_path / str(i), talking(COIN), **{**FRESH, "max_steps": "4", **changes})
        assert error is None and names(witness) == set()


def test_A10_updates_of_an_adapter_that_nobody_will_see(tmp_path: Path) -> None:
    changes = {"trainer.model.train": "lora", "trainer.optim.lr": "1e-7", "max_steps": "3"}
    _, witness, error = run_watched(tmp_path, talking(COIN), **{**FRESH, **changes})
    alarm = the(witness, "updates_too_small")
    assert error is None and (alarm.id, alarm.severity, alarm.step) == ("A10", "note", 2)
    assert "(trainer.optim.lr = 1e-07, gradient norm" in alarm.seen and "in 100 steps" in alarm.seen
    assert "trainer.optim.lr = 1e-4" in alarm.fix


def test_A10_a_rate_at_which_all_weights_stay_as_they_are(tmp_path: Path) -> None:
    changes = {"trainer.model.train": "full", "trainer.optim.lr": "1e-9", "max_steps": "3"}
    _, witness, error = run_watched(tmp_path, talking(COIN), **{**FRESH, **changes})
    alarm = the(witness, "updates_too_small")
    assert error is None and (alarm.id, alarm.step) == ("A10", 2)
    assert "trainer.optim.lr = 1e-6 is usual where all weights are trained" in alarm.fix


@pytest.mark.parametrize("train", ["full", "lora"])
def test_E7_a_rate_that_destroys_the_policy_pauses_the_run_at_once(train: str, tmp_path: Path) -> None:
    changes = {"trainer.model.train": train, "trainer.optim.lr": "1.0", "max_steps": "3"}
    _, witness, error = run_watched(tmp_path, talking(COIN), **{**FRESH, **changes})
    alarm = the(witness, "update_replaces_weights")
    assert isinstance(error, Halted) and (alarm.id, alarm.severity, alarm.step) == ("E7", "pause", 0)
    assert "times their own size (lr 1, gradient norm" in alarm.seen and "lower trainer.optim.lr" in alarm.fix


@pytest.mark.slow
def test_F5_gradients_that_change_no_weight_pause_the_run(tmp_path: Path) -> None:
    """Steps so small that bf16 weights never see them."""
    changes = {"model.dtype": "bfloat16", "trainer.optim.lr": "1e-12", "max_steps": "4"}
    run, witness, error = run_watched(tmp_path, talking(COIN), **{**FRESH, **changes})
    alarm = the(witness, "weights_do_not_change")
    assert isinstance(error, Halted) and (alarm.id, alarm.severity, alarm.step) == ("F5", "pause", 1)
    assert "the update changed 0.00% of the trained weights" in alarm.seen and "raise trainer.optim.lr" in alarm.fix
    assert (run.path / "checkpoints" / "step_2").is_dir()


@pytest.mark.parametrize(("lr", "changed", "told"), [(1e-8, 2e-5, False), (1e-6, 2e-5, True), (0.0, 0.0, False)])
def test_F5_a_rate_that_warms_up_or_ends_is_no_fault(lr: float, changed: float, told: bool) -> None:
    """Of all weights in bf16, the share that changes follows the rate: 2 % at the whole of it here."""
    learner = {"weights_changed": changed, "tokens_trained": 9, "grad_norm": 1.0, "update_ratio": 1e-7, "lr": lr}
    sign = weights_do_not_change({"learner": learner, "plan": {"lr": 1e-6}}, [])
    assert (sign is not None) is told


def test_C6_memory_that_grows_until_it_is_full_is_an_alarm() -> None:
    """A real leak of 8 MiB a step, measured; the run is so long that it would end for want of memory."""
    kept, lines = [], []

    def line(step: int) -> dict[str, Any]:
        return {"step": step, "memory": memory("cpu"), "plan": {"max_steps": 1_000_000}}

    for step in range(20):
        kept.append(bytearray(b"x" * (8 << 20)))
        lines.append(line(step))
    sign = memory_grows(lines[-1], lines[:-1])
    assert sign is not None and "Memory of the process grows by 8 MiB a step" in sign.seen
    assert "before the run's end" in sign.why and "ckpt.interval" in sign.fix
    short = {**lines[-1], "plan": {"max_steps": 25}}  # the same leak, but there is room for it to the end
    assert memory_grows(short, lines[:-1]) is None
    steady = [line(step) for step in range(20)]
    assert memory_grows(steady[-1], steady[:-1]) is None and len(kept) == 20


def test_F2_a_version_that_is_never_published_stops_the_run(tmp_path: Path) -> None:
    async def forget(version: int) -> None: ...

    def tamper(parts: Components) -> None:
        talking(COIN)(parts)
        parts.engine.publish = forget  # type: ignore[method-assign]

    run, witness, error = run_watched(tmp_path, tamper, **{**FRESH, "max_steps": "3", "ckpt.interval": "1"})
    alarm = the(witness, "engine_serves_another_policy")
    assert isinstance(error, Halted) and (alarm.id, alarm.severity, alarm.step) == ("F2", "stop", 0)
    assert "The trainer is at version 1, the engine serves 0." in alarm.seen and "air doctor --only F2" in alarm.fix
    assert len(list(run.path.glob("trajectories/refused_0000_1/*.json"))) == 16 and not run.recorded(0)
    assert not list(run.path.glob("checkpoints/*"))  # what is in doubt is not kept


def apart(parts: Components) -> None:
    talking(COIN)(parts)
    freeze_engine(parts)


def test_F2_weights_that_never_reach_the_engine_stop_the_run(tmp_path: Path) -> None:
    changes = {"max_steps": "20", "trainer.optim.lr": "2e-2"}
    _, witness, error = run_watched(tmp_path, apart, **{**FRESH, **changes})
    alarm = the(witness, "engine_serves_another_policy")
    assert isinstance(error, Halted) and alarm.step > 0  # the first update made the difference
    assert "Engine and trainer differ by" in alarm.seen and "Worst token: " in alarm.seen
    assert "the update does not reach the engine" in alarm.why


@pytest.mark.slow
def test_F7_a_gap_that_grows_is_an_alarm_with_its_percentiles(tmp_path: Path) -> None:
    changes = {"max_steps": "10", "trainer.optim.lr": "5e-5"}
    _, witness, _ = run_watched(tmp_path, apart, **{**FRESH, **changes})
    alarm = the(witness, "logprob_gap_grows")
    assert (alarm.id, alarm.severity) == ("F7", "note")
    assert "in the first 3 steps. By percentile, then and now: p50" in alarm.seen and "Worst token: " in alarm.seen
    assert 'importance_mode = "mask"' in alarm.fix


def test_F4_an_exploding_kl_pauses_the_run_and_names_the_token(tmp_path: Path) -> None:
    def tamper(parts: Components) -> None:
        """The policy is far from where the run says that it started."""
        talking(COIN)(parts)
        assert parts.learner._initial is not None
        start = dict(zip(parts.learner.optimiser.names, parts.learner._initial, strict=True))
        with torch.no_grad():
            start["lm_head.weight" if "lm_head.weight" in start else "model.embed_tokens.weight"].mul_(40)

    changes = {"trainer.loss.kl_beta": "1e-6", "max_steps": "3", "trainer.optim.lr": "1e-4"}
    run, witness, error = run_watched(tmp_path, tamper, **{**FRESH, **changes})
    alarm = the(witness, "kl_explodes")
    assert isinstance(error, Halted) and (alarm.id, alarm.severity) == ("F4", "pause")
    worst = run.metrics("train")[0]["worst"]["kl"]
    assert (
        f"Worst token: {worst['text']!r} (id {worst['token']}, number {worst['place']} of {worst['row']})" in alarm.seen
    )
    episode = next(t for t in run.finished(0).values() if worst["row"].startswith(t.id))
    branch = episode.branches[int(worst["row"].rpartition("#")[2])]
    trained = [token for token, train in zip(branch.tokens, branch.train, strict=True) if train]
    assert trained[worst["place"]] == worst["token"]
    assert "trainer.loss.kl_estimator" in alarm.fix


def test_G7_an_engine_that_dies_is_an_alarm_within_seconds(tmp_path: Path) -> None:
    died: list[float] = []

    def tamper(parts: Components) -> None:
        talking(COIN)(parts)
        launch = parts.engine._runner.launch
        steps = iter(range(100))

        def dying(step: Any) -> Any:
            if next(steps) > 12:
                died.append(time.monotonic())
                raise RuntimeError("CUDA error: an illegal memory access was encountered (provoked)")
            return launch(step)

        parts.engine._runner.launch = dying  # type: ignore[method-assign]

    run, witness, error = run_watched(tmp_path, tamper, **{**FRESH, "max_steps": "20"})
    noticed = time.monotonic() - died[0]
    alarm = the(witness, "engine_failed")
    assert noticed < 5 and (alarm.id, alarm.severity) == ("G7", "stop")
    assert "The engine failed in a step: RuntimeError: CUDA error: an illegal memory access" in alarm.seen
    assert "dying" in alarm.seen  # the traceback
    assert "air train --resume" in alarm.fix and isinstance(error.__cause__, EngineFailed)
    assert "The engine failed" in str(error) and "Environment" not in str(error)
    assert [line["id"] for line in run.alarms() if line["name"] == "engine_failed"] == ["G7"]
    assert len(list(run.path.glob("evaluations/before/*.json"))) >= 1
