"""H11 of FAILURES.md: a machine that was paused and taken for lost comes back, after the run was resumed without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.killed_runs import flags
from support.launcher_contract import new_run
from support.rank_runs import the_run

from airloop.config import load_config
from airloop.engine.embedded import EmbeddedEngine
from airloop.launch.base import OnOutput, RankSpec
from airloop.launch.monitor import RankMonitor, run_ranks
from airloop.rank import open_run
from airloop.runs.fence import Overtaken
from airloop.runs.run import Run
from airloop.runs.step_record import StepRecord
from airloop.start_checkpoint import KEPT, Progress, StartCheckpoint
from airloop.step import checkpoint
from airloop.training import start
from airloop.watch.display.display import Display

RECORD: Any = StepRecord({"kind": "train", "step": 0}, [])


def files(run: Run) -> dict[str, bytes]:
    names = (path for path in run.path.rglob("*") if path.is_file() and path.name not in ("log.txt", ".lock"))
    return {str(path.relative_to(run.path)): path.read_bytes() for path in names}


def kept_of(run: Run) -> StartCheckpoint:
    return StartCheckpoint(run.path / KEPT, "start", run.fence)


def resumed_elsewhere(path: Path) -> Run:
    """As from another machine, by which the lock of a paused one is not held any more."""
    again = Run.open(path)
    again.lock(time.time())
    again.set_status("running")
    return again


@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.save_trajectory(None, 0),
        lambda run: run.save_evaluation(None, "before"),
        lambda run: run.accept(0, RECORD),
        lambda run: run.refuse(0, "not finite", RECORD),
        lambda run: checkpoint(None, run, 1),
        lambda run: run.change({"max_steps": 7}),
        lambda run: run.note(start="another"),
        lambda run: kept_of(run).keep(None),
        lambda run: kept_of(run).save(None, Progress(), print),
        lambda run: kept_of(run).remove(),
    ],
    ids=[
        "an episode",
        "an evaluation",
        "a step",
        "a refusal",
        "a checkpoint",
        "its config",
        "its status",
        "a demonstration",
        "supervised steps",
        "their end",
    ],
)
def test_H11_a_rank_of_an_earlier_session_writes_nothing(tmp_path: Path, write: Callable[[Any], None]) -> None:
    first = new_run(tmp_path, nodes=1, ranks=2)
    rank = open_run(RankSpec(str(first.path), 0, 2, "", "cpu", False, session=first.session))
    rank.accept(0, RECORD)
    first.close()
    second = resumed_elsewhere(first.path)
    assert (first.session, second.session) == (1, 2)
    before = files(second)
    with pytest.raises(Overtaken, match=r"of session 1 of exp.*, which has been resumed since"):
        write(rank)
    first.set_status("failed", "its ranks were lost")
    assert files(second) == before and second.status()["status"] == "running"
    second.accept(1, RECORD)
    second.close()


def test_H11_every_rank_is_told_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Specs:
        settle_s, given = 0.0, list[RankSpec]()

        def rank_specs(self, run: Run, resuming: bool) -> list[RankSpec]:
            return [RankSpec(str(run.path), rank, 2, "", "cpu", resuming) for rank in range(2)]

        def spawn(self, spec: RankSpec, on_output: OnOutput) -> Any:
            raise NotImplementedError

        def close(self) -> None: ...

    monkeypatch.setattr(RankMonitor, "start", lambda monitor, launcher, spec: launcher.given.append(spec))
    new_run(tmp_path, nodes=1, ranks=2).close()
    run, launcher = resumed_elsewhere(the_run(tmp_path).path), Specs()
    run_ranks(run, Display(quiet=True), True, launcher)
    assert [spec.session for spec in launcher.given] == [2, 2]
    run.close()


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True], ids=["in turns", "side by side"])
def test_H11_a_process_that_wakes_up_in_a_resumed_run_ends_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    more = {"orchestrator.max_staleness": "1", "trainer.loss.importance_mode": "mask"} if beside else {}
    given = {"warmstart": "none", "orchestrator.eval.interval": "0", "orchestrator.eval.num_examples": "2"}
    generate, left = EmbeddedEngine.generate, list[dict[str, bytes]]()

    async def paused(engine: EmbeddedEngine, *words: Any, **named: Any) -> Any:
        if engine.version == 1 and not left:
            run = the_run(tmp_path)
            (run.path / ".lock").unlink()  # which another machine does not see
            resumed_elsewhere(run.path).close()
            left.append(files(run))
        return await generate(engine, *words, **named)

    monkeypatch.setattr(EmbeddedEngine, "generate", paused)
    with pytest.raises(Overtaken):
        start(load_config(flags(tmp_path, **given, **more)), Display(quiet=True), skip_proofs=True)
    assert files(the_run(tmp_path)) == left[0]
    assert "which has been resumed since" in (the_run(tmp_path).path / "log.txt").read_text()
