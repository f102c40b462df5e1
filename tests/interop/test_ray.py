"""Ray itself, with raylets of this machine as nodes: runs of two of them, and what can happen to those."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.interop_world import ROOT, interpreter
from support.rank_runs import FLAGS, alive, ranks_of, same, started_from, the_run, words
from support.raylets import Raylet, Raylets

import airloop
from airloop.runs.run import Run

pytestmark = pytest.mark.interop
NODES = {"cluster.nodes": "2", "model.device": "cpu"}
WAIT_S = 600.0  # for what comes in seconds, where nobody else uses the machine
NOTICE_S = 30.0  # that clusters give


class Cluster:
    """Two raylets; one that a test has ended is started again for the next."""

    def __init__(self) -> None:
        self.python = interpreter("ray")
        self.raylets = Raylets(self.python)
        self.warm = warm_process.server_of(self.python)
        self.head, self._second = self.raylets.add(), self.raylets.add()
        self.env = {**os.environ, "RAY_ADDRESS": self.raylets.address, "PYTHONPATH": str(ROOT / "tests")}

    @property
    def second(self) -> Raylet:
        if not self._second.up:
            self._second = self.raylets.add()
        return self._second


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.raylets.close()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has what it starts look for packages in the directory that the command is called in: not in this tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**FLAGS, **started_from(tmp_path_factory.mktemp("start"))}


class Training:
    """`air train` in Ray's environment."""

    def __init__(self, cluster: Cluster, *given: str, **env: str) -> None:
        env = {**cluster.env, **env}
        self.process = warm_process.Process(["train", *given], env=env, stderr=True, server=cluster.warm)

    def until(self, directory: Path, episodes: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(list(directory.glob("exp*/trajectories/*/*.json"))) < episodes:
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self, code: int | None = None) -> str:
        """What it has said on its errors' side."""
        said = self.process.communicate(timeout=WAIT_S)[1]
        assert code is None or self.process.returncode == code, said
        assert "Traceback" not in said
        return said


@pytest.fixture
def training() -> Iterator[list[Training]]:
    """What a test leaves running is ended."""
    found: list[Training] = []
    yield found
    for one in found:
        one.process.kill()
        one.process.wait()


def many_steps(start: dict[str, str], directory: Path) -> list[str]:
    more = {"output_dir": str(directory), "max_steps": "4000", "ckpt.interval": "3"}
    return ["--skip-proofs", *words({**start, **NODES, **more})]


def shorten(run: Run, steps: int) -> None:
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("max_steps = 4000", f"max_steps = {steps}"))


CONTRACT = "from support import ray_contract\nray_contract.main()"


def test_a_launcher_above_ray_does_what_every_launcher_must(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.second.up
    done = warm_process.run([tmp_path], env=cluster.env, code=CONTRACT, server=cluster.warm)
    assert done.returncode == 0, done.stderr


def test_two_nodes_make_the_run_that_one_machine_makes(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    """And take a killed rank, as one machine does."""
    assert cluster.second.up
    (tmp_path / "here").mkdir()
    training.append(Training(cluster, "--skip-proofs", *words({**start, **NODES, "output_dir": str(tmp_path / "two")})))
    said = training[0].end(0)
    here = ["train", "--skip-proofs", *words({**start, "output_dir": str(tmp_path / "here"), "trainer.processes": "2"})]
    assert warm_process.run(here).returncode == 0
    same(the_run(tmp_path / "here"), the_run(tmp_path / "two"))
    assert said.count("never run") == 1 and "2 processes" in said
    assert not list(the_run(tmp_path / "two").path.glob(".[rs]*"))


DIES = """
import os
from pathlib import Path

finish = MySession.finish

async def dies(self):
    if Path(__file__).with_name("die").exists():
        print("the disk is on fire", flush=True)
        os._exit(7)
    return await finish(self)

MySession.finish = dies
"""


def test_a_raylet_may_pause_and_a_rank_that_dies_is_told_with_its_last_lines(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    starter = Path(airloop.__file__).parent / "starter" / "my_env.py"
    (tmp_path / "my_env.py").write_text(starter.read_text() + DIES)
    kept = {key: value for key, value in start.items() if not key.startswith("orchestrator.env")}
    own = {"orchestrator.env.0.id": f"{tmp_path / 'my_env.py'}:MyEnv"}
    second = cluster.second
    training.append(Training(cluster, *many_steps({**kept, **own}, tmp_path)))
    training[0].until(tmp_path, 60)
    second.signal(signal.SIGSTOP)
    try:
        time.sleep(20)
    finally:
        second.signal(signal.SIGCONT)
    time.sleep(8)  # longer than Ray takes to find out
    steps, until = len(the_run(tmp_path).metrics("train")), time.monotonic() + WAIT_S
    while len(the_run(tmp_path).metrics("train")) <= steps:
        assert training[0].process.poll() is None, training[0].end()
        assert time.monotonic() < until, "it does not go on"
        time.sleep(0.1)
    (tmp_path / "die").touch()
    said = training[0].end(1)
    assert "ended without a word" in said and "the disk is on fire" in said
    assert "air train --resume" in said and the_run(tmp_path).status()["status"] == "failed"


def test_a_notice_stops_a_run_and_a_lost_node_ends_it_and_it_goes_on_with_what_is_left(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    second = cluster.second
    training.append(Training(cluster, *many_steps(start, tmp_path)))
    training[0].until(tmp_path, 90)
    ranks, began = ranks_of(tmp_path), time.monotonic()
    training[0].process.send_signal(signal.SIGTERM)
    run = the_run(tmp_path)
    while run.status()["status"] != "stopped" and training[0].process.poll() is None:
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.05)
    took = time.monotonic() - began  # until all is saved: then Ray is shut down, which may take its time
    training[0].end(143)
    assert run.status()["status"] == "stopped" and took < NOTICE_S
    assert not any(alive(pid) for pid in ranks.values()) and list(run.path.glob("checkpoints/step_*"))

    sampled = len(list(tmp_path.glob("exp*/trajectories/*/*.json")))
    training.append(Training(cluster, "--resume", str(run.path)))
    training[1].until(tmp_path, sampled + 40)
    second.signal(signal.SIGKILL)
    said = training[1].end(1)
    assert "of 2 was lost" in said and f"air train --resume {run.path}" in said
    assert run.status()["status"] == "failed"
    second.end()

    steps = len(run.metrics("train"))
    shorten(run, steps + 1)
    kept = {path.name: path.read_bytes() for path in run.path.glob("trajectories/step_*/*.json")}
    training.append(Training(cluster, "--resume", str(run.path)))
    said = training[2].end(0)
    assert "1 of 2 nodes are there" in said and "after step 0" not in said
    assert [m["step"] for m in run.metrics("train")] == list(range(steps + 1))
    now = {path.name: path.read_bytes() for path in run.path.glob("trajectories/*/*.json")}
    assert all(now[name] == text for name, text in kept.items()), "nothing that was sampled is lost"
    trained = [path.name for path in run.path.glob("trajectories/step_*/*.json")]
    assert len(trained) == 20 * (steps + 1), "nothing is trained twice"


def test_a_node_of_another_version_is_refused(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    assert cluster.second.up
    other = tmp_path / "other"
    shutil.copytree(ROOT / "airloop", other / "airloop", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "airloop" / "version.py").write_text('__version__ = "0.0.9"\n')
    third = cluster.raylets.add(env={"PYTHONPATH": str(other)})
    try:
        given = {**start, **NODES, "cluster.nodes": "3", "output_dir": str(tmp_path)}
        training.append(Training(cluster, "--skip-proofs", *words(given)))
        said = training[0].end(1)
    finally:
        third.end()
    assert "has air 0.0.9 (here" in said and "install the same on every node" in said


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt-get install bubblewrap")
def test_a_node_without_the_runs_directory_is_refused(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    assert cluster.second.up
    third = cluster.raylets.add(front=["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(tmp_path)])
    try:
        given = {**start, **NODES, "cluster.nodes": "3", "output_dir": str(tmp_path)}
        training.append(Training(cluster, "--skip-proofs", *words(given)))
        said = training[0].end(1)
    finally:
        third.end()
    assert "is not the same directory on every node" in said and "a file system that all nodes share" in said


def test_where_no_cluster_runs_how_to_start_one_is_said(
    cluster: Cluster, start: dict[str, str], training: list[Training], tmp_path: Path
) -> None:
    given = words({**start, **NODES, "output_dir": str(tmp_path)})
    training.append(Training(cluster, "--skip-proofs", *given, RAY_ADDRESS="127.0.0.1:9"))
    said = training[0].end(1)
    assert "No Ray cluster could be joined" in said and "ray start --head" in said
