"""Several ranks that train beside servers of vLLM, as a person starts them: the servers are stand-ins in processes of
their own (tests/support/vllm_standin.py), the ranks real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support import warm_process
from support.rank_runs import FLAGS, alive, numbers, ranks_of, started_from, the_run, weights, what_happened, words
from support.vllm_standin import StandInServer, interpreter, stand_in

from airloop.engine.vllm.plugin.adapters import KEY

pytestmark = pytest.mark.slow
SERVED = {**FLAGS, "deterministic": "false", "inference.backend": "vllm", "orchestrator.max_concurrent": "8"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return started_from(tmp_path_factory.mktemp("start"))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandInServer]]:
    monkeypatch.setenv(KEY, "a key of both sides")
    started = [stand_in(), stand_in()]
    for server in started:
        server.start()
    for server in started:
        until(lambda url=server.url: answers(url))  # type: ignore[misc]
    yield started
    for server in started:
        assert server.process is not None
        server.process.kill()


def flags(start: dict[str, str], servers: list[StandInServer], directory: Path, **changes: str) -> list[str]:
    urls = str([server.url for server in servers]).replace("'", '"')
    named = {"inference.vllm.urls": urls, "output_dir": str(directory)}
    return ["train", "--skip-proofs", *words({**SERVED, **start, **named, **changes})]


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health").status_code == 200
    return False


def loads(server: StandInServer) -> list[str]:
    return [str(name) for name in httpx.get(f"{server.url}/loads").json()]


@pytest.mark.long
def test_two_ranks_beside_servers_make_the_run_that_one_process_makes(
    tmp_path: Path, start: dict[str, str], servers: list[StandInServer]
) -> None:
    runs = []
    for processes in ("1", "2"):
        before = [len(loads(server)) for server in servers] if runs else [0, 0]
        done = warm_process.run(
            flags(start, servers, tmp_path / processes, **{"trainer.processes": processes}),
        )
        assert done.returncode == 0, done.stderr
        runs.append(the_run(tmp_path / processes))
        for server, known in zip(servers, before, strict=True):
            published = loads(server)[known:]
            assert len(published) == len({*published}) == 4, "each version once, whatever the number of ranks"
    one, two = runs
    assert what_happened(one) == what_happened(two)
    for a, b in zip(numbers(one), numbers(two), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    first, second = weights(one), weights(two)
    assert max((first[k] - second[k]).abs().max().item() for k in first) < 2e-4
    assert len(list(two.path.glob("trajectories/*/*.json"))) == 60
    assert any(loss for _, loss, *_ in numbers(two))
    assert max(m["learner"]["logprob_gap_mean"] for m in two.metrics("train")) < 1e-4


def test_servers_pull_what_the_first_rank_publishes(
    tmp_path: Path, start: dict[str, str], servers: list[StandInServer]
) -> None:
    pulled = {"trainer.processes": "2", "max_steps": "2", "inference.vllm.adapters": "http"}
    done = warm_process.run(flags(start, servers, tmp_path, **pulled))
    assert done.returncode == 0, done.stderr
    assert not any(loads(server) for server in servers), "none was told of a file"
    lines = the_run(tmp_path).metrics("train")
    assert [m["rollout"]["infra_errors"] for m in lines] == [0, 0]
    assert max(m["learner"]["logprob_gap_mean"] for m in lines) < 1e-4


@pytest.mark.long
def test_a_server_that_dies_costs_no_rank_an_episode(
    tmp_path: Path, start: dict[str, str], servers: list[StandInServer]
) -> None:
    httpx.post(f"{servers[0].url}/break", json={"after": 90})
    done = warm_process.run(flags(start, servers, tmp_path, **{"trainer.processes": "2", "max_steps": "2"}))
    assert done.returncode == 0, done.stderr
    assert servers[0].ended() is not None and servers[1].ended() is None
    run = the_run(tmp_path)
    rollouts = [m["rollout"] for m in run.metrics("train")]
    assert [(r["episodes"], r["infra_errors"]) for r in rollouts] == [(20, 0), (20, 0)]


@pytest.mark.long
def test_the_first_rank_starts_a_server_and_starts_it_again_when_it_is_killed(
    tmp_path: Path, start: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks wait for it and go on, nothing is sampled twice, and it ends with the run."""
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    script = interpreter(tmp_path)
    named = {"inference.vllm.python": str(script), "trainer.processes": "2", "output_dir": str(tmp_path / "out")}
    process = warm_process.Process(["train", "--skip-proofs", *words({**SERVED, **start, **named})], stderr=True)
    try:
        until(lambda: len(list(tmp_path.glob("out/exp*/trajectories/*/*.json"))) > 8 or process.poll() is not None)
        first = serving(script)
        assert len(first) == 1, "one, for both ranks"
        os.kill(first[0], signal.SIGKILL)
        errors = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode == 0, errors
    run = the_run(tmp_path / "out")
    assert [m["rollout"]["episodes"] for m in run.metrics("train")] == [20, 20, 20]
    assert all(m["rollout"]["infra_errors"] == 0 for m in run.metrics("train")), "a reply that was cut off went on"
    assert len(list(run.path.glob("trajectories/*/*.json"))) == 60
    assert list(tmp_path.glob("cache/vllm/run-*/server-0.log")), "kept, because it was started twice"
    until(lambda: not serving(script))
    assert not any(alive(pid) for pid in ranks_of(tmp_path / "out").values())


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def serving(script: Path) -> list[int]:
    """Processes that are servers which this script has become: it is gone, but for the arguments that it was given."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().decode(errors="replace").split("\0")
            if "support.vllm_standin" in " ".join(line) and str(script.parent / "cache") in " ".join(line):
                found.append(int(path.parent.name))
    return found


BESIDE = {"orchestrator.max_staleness": "2", "trainer.loss.importance_mode": "mask", "trainer.processes": "2"}


@pytest.mark.long
def test_two_ranks_train_while_servers_sample(
    tmp_path: Path, start: dict[str, str], servers: list[StandInServer]
) -> None:
    """Killed on the way: every group is trained once, in the order of admission, within the bound."""
    argv = flags(start, servers, tmp_path, **BESIDE, **{"max_steps": "8", "ckpt.interval": "2"})
    process = warm_process.Process(argv, stderr=True)
    try:
        until(lambda: process.poll() is not None or len(list(tmp_path.glob("exp*/checkpoints/step_2"))) > 0)
        assert process.poll() is None, process.communicate()[1]
        os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
        assert "Rank 1 of 2 was killed by SIGKILL" in process.communicate()[1]
    finally:
        process.kill()
    again = warm_process.run(["train", "--skip-proofs", "--resume", str(the_run(tmp_path).path)])
    assert again.returncode == 0 and "after step 0" not in again.stderr, again.stderr
    run = the_run(tmp_path)
    lines = run.metrics("train")
    assert [line["step"] for line in lines] == list(range(8))
    ages = {int(age) for line in lines for age in line["ages"]}
    assert max(ages) in (1, 2), "sampling went on beside training, and within the bound"
    assert max(line["ages"]["0"]["gap"] for line in lines if "0" in line["ages"]) < 1e-4
    told = [json.loads(line) for line in (run.path / "stream.jsonl").read_text().splitlines()]
    trained = [number for line in told for number in line.get("trained", ())]
    assert trained == list(range(40)), "each once, in the order of admission"
    assert [line["admitted"] for line in told if "admitted" in line] == trained
    assert len(list(run.path.glob("trajectories/step_*/*.json"))) == 160
