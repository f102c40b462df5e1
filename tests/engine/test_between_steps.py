"""What happens between steps: training begins, a policy is published, a step fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from support.engine_conformance import agrees
from test_engine import in_loop, prompts
from test_own_forward import change_adapter, make

from airloop.engine.base import EngineFailed, Generation, Sampling, update_served
from airloop.engine.embedded import EmbeddedEngine
from airloop.engine.embedded.runner import FastRunner, PlainRunner

EVERYTHING = tuple(range(512))


@pytest.mark.parametrize("own", [False, True])
def test_training_may_begin_right_after_a_stop_or_a_deadline(own: bool) -> None:
    """Ahead of the answers, a burst is under way when the last reply is known; a cancelled one is not dropped yet."""

    async def work() -> None:
        _, engine = make(own=own)
        for _ in range(5):
            await engine.generate([1, 2, 3], Sampling(50, stop_ids=EVERYTHING))
            async with engine.paused():
                assert not engine._scheduler.running and engine._idle.is_set()
            job = asyncio.ensure_future(engine.generate([4, 5, 6], Sampling(200)))
            await asyncio.sleep(0.02)
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            async with engine.paused():
                assert not engine._scheduler.running

    in_loop(work)


def test_an_update_is_time_in_which_nobody_is_served() -> None:
    async def work() -> None:
        _, engine = make(own=False)
        await engine.generate([1, 2, 3], Sampling(5))
        assert engine.downtime.seconds == 0
        async with engine.paused():
            await asyncio.sleep(0.1)
        assert 0.1 <= engine.downtime.seconds < 5

    in_loop(work)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_policy_is_published_between_two_steps_while_others_sample(own: bool) -> None:
    async def work() -> None:
        _, engine = make(own=own)
        jobs = [asyncio.ensure_future(engine.generate(p, Sampling(150, seed=i))) for i, p in enumerate(prompts(4))]
        await asyncio.sleep(0.02)
        await asyncio.wait_for(engine.publish(1), 5)
        assert engine.version == 1 and not all(job.done() for job in jobs)
        assert [len(g.token_ids) for g in await asyncio.gather(*jobs)] == [150] * 4

    in_loop(work)


@pytest.mark.parametrize("own", [False, True])
def test_after_a_failed_step_nothing_of_it_is_found_again(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompts(1, low=60, high=60)[0]
    kind: Any = FastRunner if own else PlainRunner
    launch = kind.launch
    failures = iter([True])

    def failing(self: Any, step: Any) -> Any:
        if next(failures, False):
            raise torch.OutOfMemoryError("provoked")
        return launch(self, step)

    async def work() -> None:
        _, healthy = make(own=own)
        wanted = await healthy.generate(prompt, Sampling(8, temperature=0))
        monkeypatch.setattr(kind, "launch", failing)
        _, engine = make(own=own)
        with pytest.raises(EngineFailed, match="provoked"):
            await engine.generate(prompt, Sampling(8, temperature=0))
        again = await engine.generate(prompt, Sampling(8, temperature=0))
        assert again.token_ids == wanted.token_ids and again.cached_tokens == 0
        assert engine._tree.claimed == 0 and not engine._scheduler.busy

    in_loop(work)


def test_nothing_to_sample_is_refused() -> None:
    engine: EmbeddedEngine = make()[1]
    with pytest.raises(ValueError, match="asked for none"):
        in_loop(lambda: engine.generate([1, 2], Sampling(0)))


@pytest.mark.parametrize("own", [False, True])
def test_replies_under_way_are_finished_by_the_weights_that_they_were_begun_with(own: bool) -> None:
    """Sampling beside training: no reply has tokens of two policies, and each has the version of the one it has."""

    async def work() -> None:
        policy, engine = make(lora=True, own=own)
        asked = prompts(3)
        jobs = [asyncio.ensure_future(engine.generate(p, Sampling(60, seed=i))) for i, p in enumerate(asked)]
        await asyncio.sleep(0.02)
        assert engine._scheduler.running
        later: list[asyncio.Task[Generation]] = []

        async def update() -> None:
            assert all(agrees(policy, p, job.result()) for p, job in zip(asked, jobs, strict=True))
            later.append(asyncio.ensure_future(engine.generate([7, 8, 9], Sampling(20, seed=9))))
            await asyncio.sleep(0.02)
            assert not engine._scheduler.running and not later[0].done()
            change_adapter(policy.model, 5)
            assert not agrees(policy, asked[0], jobs[0].result())

        await update_served(engine, update, lambda: 1)
        assert [(job.result().version, len(job.result().token_ids)) for job in jobs] == [(0, 60)] * 3
        after = await later[0]
        assert after.version == engine.version == 1 and agrees(policy, [7, 8, 9], after)

    in_loop(work)
