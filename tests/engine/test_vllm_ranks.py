"""Several ranks that train beside servers of vLLM, as a person starts them: the servers are stand-ins in processes of
their own (tests/support/vllm_standin.py), the ranks real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import warm_process
from support.rank_runs import FLAGS, alive, numbers, ranks_of, started_from, the_run, weights, what_happened, words
from support.vllm_standin import StandInServer, stand_in

pytestmark = pytest.mark.slow
SERVED = {**FLAGS, "deterministic": "false", "inference.backend": "vllm", "orchestrator.max_concurrent": "8"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return started_from(tmp_path_factory.mktemp("start"))


@pytest.fixture
def servers() -> Iterator[list[StandInServer]]:
    started = [stand_in(), stand_in()]
    for server in started:
        server.start()
    yield started
    for server in started:
        assert server.process is not None
        server.process.kill()


def flags(start: dict[str, str], servers: list[StandInServer], directory: Path, **changes: str) -> list[str]:
    urls = str([server.url for server in servers]).replace("'", '"')
    named = {"inference.vllm.urls": urls, "output_dir": str(directory)}
    return ["train", "--skip-proofs", *words({**SERVED, **start, **named, **changes})]


def loads(server: StandInServer) -> list[str]:
    return [str(name) for name in httpx.get(f"{server.url}/loads").json()]


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
