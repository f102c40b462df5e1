"""H of FAILURES.md where it takes several parts to see it; most of its tests are beside what they break: tests/engine,
tests/cluster, tests/serve, tests/rollout."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest
from support.engine_conformance import change
from support.launcher_contract import new_run
from support.vllm_served import served

from airloop.config import load_config, with_changes
from airloop.config.mistakes import Refused
from airloop.engine.base import Sampling
from airloop.engine.vllm.engine import VllmEngine
from airloop.errors import AirError
from airloop.launch.base import OnOutput, RankSpec
from airloop.launch.monitor import RankMonitor
from airloop.policy import Policy
from airloop.pulse import Pulse
from airloop.watch.display.display import Display

PULSE = Pulse(1.0, "", 0.0, 0.0, 0, False, False, 0.0, False, ())


class Stuck:
    """Implements Handle: a rank on another machine that says, whenever somebody looks at it, that it has not moved."""

    pid, host = 4711, "node7"

    def __init__(self, rank: int, waits: str, on_output: OnOutput) -> None:
        self.code: int | None = None
        self.on_output, self.pulse = on_output, replace(PULSE, waits=waits, waits_since=1.0 if waits else 0.0)
        on_output("event", json.dumps(["phase", f"step 3/9: {'training' if waits else 'sampling'}"]))

    def poll(self) -> int | None:
        if self.code is None:
            self.on_output("event", json.dumps(["pulse", asdict(self.pulse)]))
        return self.code

    def wait(self) -> int:
        return self.code or 0

    def send_signal(self, signal: int) -> None: ...

    def kill(self) -> None:
        self.code = -9


class StuckLauncher:
    settle_s = 0.0

    def __init__(self, waits: tuple[str, ...]) -> None:
        self.waits = waits

    def rank_specs(self, run: object, resuming: bool) -> list[RankSpec]:
        return [RankSpec("", rank, len(self.waits), "", "cpu", resuming) for rank in range(len(self.waits))]

    def spawn(self, spec: RankSpec, on_output: OnOutput) -> Stuck:
        return Stuck(spec.rank, self.waits[spec.rank], on_output)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        (
            ("the gradients of an update", ""),
            r"Rank 1 of 2 \(process 4711 on node7\) does not move since .* at: step 3/9: sampling\. "
            r"Rank 0 has waited \d+ s for it, at: the gradients of an update",
        ),
        (("the gradients", "the weights"), r"waited for one another .*rank 0 at: the gradients; rank 1 at: the weig"),
    ],
    ids=["one does not come", "all wait"],
)
def test_H8_a_collective_that_hangs_is_told_with_the_rank_and_the_work(
    tmp_path: Path, waits: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, nodes=1, ranks=2)
    run.config = with_changes(run.config, {"trainer.rank_timeout_s": 0.2})
    monkeypatch.setattr("airloop.launch.monitor.LOOK_S", 0.0)
    monkeypatch.setattr("airloop.launch.monitor.FRAMES_S", 0.1)
    monkeypatch.setattr("airloop.launch.monitor.GRACE_S", 0.1)
    monitor, launcher = RankMonitor(run, Display(quiet=True), 0.0), StuckLauncher(waits)
    for spec in launcher.rank_specs(run, False):
        monitor.start(launcher, spec)
    with pytest.raises(AirError, match=told) as error:
        monitor.until_done()
    assert f"air train --resume {run.path}" in error.value.fix and "trainer.rank_timeout_s" in error.value.fix
    run.close()


@pytest.mark.slow
def test_H9_an_adapter_is_read_once_however_long_it_serves(tmp_path: Path) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        change(policy, 1)
        await engine.publish(1)
        for step in range(3):
            await engine.generate([1, 2], Sampling(4, seed=step))
            await engine.publish(1)
        async with httpx.AsyncClient() as client:
            told = (await client.get(f"{engine.servers[0].url}/loads")).json()
        assert len(told) == len(set(told)) == 2, "one for each version"

    served(tmp_path, work)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], 'importance_mode = "truncate" only caps their weight'),
        (["--trainer.loss.geo_mask_low", "0.5"], "geo_mask_high or sequence_mask_high leaves whole trajectories out"),
    ],
)
def test_H14_without_a_trust_region_against_the_sampler_it_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        load_config(["--orchestrator.max_staleness", "3", *words])
