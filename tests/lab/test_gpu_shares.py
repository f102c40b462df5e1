"""`air lab run --jobs`: every run has GPUs of its own, by the environment that its process is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_hypotheses import sweep, written

from airloop.config import load_config
from airloop.doctor.gpus import Gpu
from airloop.errors import AirError
from airloop.forkserver import ForkServer
from airloop.shipped import shipped
from airloop.watch.display.display import Display
from airloop_lab import gpu_shares, hypothesis_process, hypothesis_runs
from airloop_lab.gpu_shares import GpuShares, check_spread, gpus_of, visible_gpus
from airloop_lab.hypotheses import read_hypothesis
from airloop_lab.hypothesis_runs import run_hypothesis

VISIBLE = gpu_shares.VISIBLE


def test_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(i, f"GPU-{i}{i}", "H200", 1, 0) for i in range(2)]
    monkeypatch.setattr(gpu_shares, "listed", lambda: gpus)
    assert visible_gpus({}) == ["GPU-00", "GPU-11"]
    assert visible_gpus({VISIBLE: "4, 5,7"}) == ["4", "5", "7"]
    assert visible_gpus({VISIBLE: ""}) == [] and visible_gpus({VISIBLE: "-1"}) == []
    assert visible_gpus({VISIBLE: "2,-1,3"}) == ["2"]


def test_none_has_two_while_another_is_idle() -> None:
    shares = GpuShares(["a", "b", "c"])
    first, second, third = (shares.take(1) for _ in range(3))
    assert {*first, *second, *third} == {"a", "b", "c"}
    fourth = shares.take(1)  # more jobs than GPUs: one has two
    shares.give_back(second)
    assert fourth == ("a",) and shares.take(1) == ("b",)
    shares.give_back(third)
    assert shares.take(2)[-1] == "c" and GpuShares([]).take(1) == () and GpuShares(["a"]).take(2) == ()


def test_how_many_a_run_uses() -> None:
    def of(*flags: str) -> int:
        return gpus_of(load_config(["@", str(shipped("arith")), *flags]))

    assert of() == 1 and of("--trainer_gpu_ids=[0,1]") == 2 and of("--model.device=cpu") == 0


class Process:
    """A worker's process that ends at the third look, and keeps what it was given."""

    started: ClassVar[list[Process]] = []

    def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
        self.env, self.looks = env, 0
        self.beside = [p.env[VISIBLE] for p in Process.started if p.looks < 3 and VISIBLE in p.env]
        Process.started.append(self)

    def poll(self) -> int | None:
        self.looks += 1
        return 1 if self.looks >= 3 else None

    def send_signal(self, signal: int) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    Process.started = []
    monkeypatch.setattr(hypothesis_process.subprocess, "Popen", Process)
    monkeypatch.setattr(hypothesis_runs, "POLL_S", 0.001)
    return Process.started


def test_every_job_has_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Process]
) -> None:
    monkeypatch.setenv(VISIBLE, "4,5,7")
    found = read_hypothesis(sweep(tmp_path, "trainer.optim.lr = [1e-3, 4e-3]"))
    run_hypothesis(found, [0, 1, 2], tmp_path / "out", 3, Display(quiet=True))
    assert len(started) == 9 and {process.env[VISIBLE] for process in started} == {"4", "5", "7"}
    assert all(process.env[VISIBLE] not in process.beside for process in started)
    assert any(len(process.beside) == 2 for process in started)


def test_a_run_that_uses_two_has_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Process]) -> None:
    monkeypatch.setenv(VISIBLE, "1,2,3,6")
    found = read_hypothesis(written(tmp_path, "trainer.optim.lr = 1e-3", deterministic="trainer_gpu_ids = [0, 1]"))
    run_hypothesis(found, [0, 1, 2], tmp_path / "out", 2, Display(quiet=True))
    assert {process.env[VISIBLE] for process in started} == {"1,2", "3,6"}


def test_one_at_a_time_and_runs_on_the_cpu_see_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Process]
) -> None:
    monkeypatch.setenv(VISIBLE, "4,5")
    run_hypothesis(read_hypothesis(written(tmp_path)), [0, 1, 2], tmp_path / "one", 1, Display(quiet=True))
    on_cpu = read_hypothesis(written(tmp_path, deterministic='model.device = "cpu"'))
    run_hypothesis(on_cpu, [0, 1, 2], tmp_path / "cpu", 2, Display(quiet=True))
    assert {process.env[VISIBLE] for process in started} == {"4,5"}


def test_gpus_that_a_config_names_cannot_be_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, air: Any) -> None:
    config = load_config(["@", str(shipped("arith")), "--trainer_gpu_ids=[2]"])
    with pytest.raises(AirError, match=r"names the GPUs \[2\]") as error:
        check_spread("x", config, 2, ["4", "5", "7"])
    assert "trainer_gpu_ids = [0]" in error.value.fix and f"{VISIBLE}=7" in error.value.fix
    check_spread("x", config, 1, ["4", "5", "7"])
    three = load_config(["@", str(shipped("arith")), "--trainer_gpu_ids=[0,1,2]"])
    with pytest.raises(AirError, match="uses 3 GPUs, and 2 are visible"):
        check_spread("x", three, 1, ["4", "5"])
    check_spread("x", three, 1, [])  # a plan can be made where there is none
    check_spread("x", config, 2, [])
    monkeypatch.setenv(VISIBLE, "4,5,7")
    path = written(tmp_path, deterministic="trainer_gpu_ids = [2]")
    assert air("lab", "run", path, "--jobs", "2", "--dry-run", "--out", tmp_path / "o")[0] == 1
    code, out, _ = air("lab", "run", path, "--dry-run", "--out", tmp_path / "o")
    assert code == 0 and "Nothing was started" in out and not (tmp_path / "o").exists()


@pytest.fixture
def closed_server() -> ForkServer:
    server = ForkServer(["json"])
    server.close()
    return server


def test_without_gpus_a_server_that_is_gone_is_done_without(
    closed_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Process]
) -> None:
    """It is started before `started` takes the place of Popen."""
    monkeypatch.setenv(VISIBLE, "")
    monkeypatch.setattr(hypothesis_process.local, "fork_server", lambda *modules: closed_server)
    run_hypothesis(read_hypothesis(written(tmp_path)), [0, 1, 2], tmp_path / "out", 1, Display(quiet=True))
    assert len(started) == 6
