"""H12 and H3 of FAILURES.md in whole runs: what a run that is stopped, or has no engine any more, leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.killed_runs import first_difference, flags, run_here, what_happened
from support.rank_runs import the_run

from airloop import step as steps
from airloop.config import load_config
from airloop.engine.base import EngineFailed
from airloop.engine.embedded import EmbeddedEngine
from airloop.errors import AirError, Stopped
from airloop.learn.checkpoints import checkpoints
from airloop.learn.learner import Learner
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display

QUICK = {
    "warmstart": "none",
    "orchestrator.eval.interval": "0",
    "orchestrator.eval.num_examples": "2",
    "orchestrator.batch_size": "8",
    "ckpt.interval": "10",
    "max_steps": "5",
}
BESIDE = {"orchestrator.max_staleness": "2", "trainer.loss.importance_mode": "mask"}
AT = 3  # updates, after which it ends


def notice() -> None:
    """What `kill` is turned into (airloop/interrupts.py)."""
    signal.raise_signal(signal.SIGINT)


def no_engine() -> None:
    raise EngineFailed("No server of vLLM is left.", "resume.")


def end_early(directory: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[], None], **more: str) -> Run:
    """While it samples, when so many steps count."""
    generate, noticed = EmbeddedEngine.generate, list[bool]()

    async def failing(engine: EmbeddedEngine, *given: Any, **named: Any) -> Any:
        reply = await generate(engine, *given, **named)
        again = how is notice and noticed  # it would not wait for anything
        if engine.version == AT and not again and len(the_run(directory).metrics("train")) == AT:
            noticed.append(True)
            how()
        return reply

    with monkeypatch.context() as patch, pytest.raises(AirError) as ended:
        patch.setattr(EmbeddedEngine, "generate", failing)
        start(load_config(flags(directory, **more)), Display(quiet=True), skip_proofs=True)
    assert isinstance(ended.value, Stopped) == (how is notice)
    return the_run(directory)


def resume(run: Run, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many updates were made."""
    made, update = [], Learner.update

    def counted(learner: Learner, *given: Any) -> Any:
        made.append(1)
        return update(learner, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", counted)
        start(run.config, Display(quiet=True), resume=run.path, skip_proofs=True)
    return len(made)


@pytest.mark.slow
@pytest.mark.parametrize("how", [notice, no_engine], ids=["H12", "H3"])
@pytest.mark.parametrize("train", ["lora", "full"])
def test_H12_a_run_that_ends_early_has_a_checkpoint_of_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[], None], train: str
) -> None:
    run = end_early(tmp_path, monkeypatch, how, **QUICK, **{"trainer.model.train": train})
    assert [step for step, _ in checkpoints(run.path / "checkpoints")] == [AT]
    assert resume(run, monkeypatch) == 5 - AT
    assert [line["step"] for line in run.metrics("train")] == [*range(5)]


@pytest.mark.slow
def test_H12_weights_that_were_changed_by_an_update_that_does_not_count_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = EmbeddedEngine.publish

    async def failing(engine: EmbeddedEngine, version: int) -> None:
        if version == AT:
            no_engine()
        await publish(engine, version)

    with monkeypatch.context() as patch, pytest.raises(EngineFailed):
        patch.setattr(EmbeddedEngine, "publish", failing)
        start(load_config(flags(tmp_path, **QUICK)), Display(quiet=True), skip_proofs=True)
    run = the_run(tmp_path)
    assert len(run.metrics("train")) == AT - 1 and not checkpoints(run.path / "checkpoints")


@pytest.mark.slow
def test_H12_where_it_cannot_be_written_the_run_ends_for_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps, "save_checkpoint", full)
    run = end_early(tmp_path, monkeypatch, no_engine, **QUICK)
    assert run.status()["why"].startswith("No server of vLLM is left")
    assert "no checkpoint of step 3 could be written: [Errno 28]" in (run.path / "log.txt").read_text()


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, BESIDE], ids=["in turns", "side by side"])
@pytest.mark.parametrize("how", [notice, no_engine], ids=["H12", "H3"])
def test_H12_the_run_that_goes_on_from_there_is_the_one_that_was_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], how: Callable[[], None]
) -> None:
    given = {"ckpt.interval": "10", "max_steps": "6", "orchestrator.eval.interval": "2", **more}
    wanted = what_happened(run_here(tmp_path / "whole", **given))
    run = end_early(tmp_path / "stopped", monkeypatch, how, **given)
    assert checkpoints(run.path / "checkpoints")[-1][0] == AT
    resume(run, monkeypatch)
    assert first_difference(run, wanted) is None
