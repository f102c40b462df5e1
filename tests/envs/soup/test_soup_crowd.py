"""Many episodes and few sandboxes: waiting is no error, nothing is shared, the bound holds."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from support.soup_samples import sample_env

from airloop.errors import InfraError
from airloop.rollout.episode import run_episode
from airloop.sandbox.backends import make_backend
from airloop.sandbox.pool import QUIET_S, Pool
from airloop.types import Action, Trajectory
from airloop_envs.soup.sandbox_pool import PACKAGES, PRELOAD, SandboxPool, image

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

KINDS = ("rating", "count", "names", "detail")


@pytest.mark.long
@pytest.mark.parametrize("episodes", [32, pytest.param(256, marks=pytest.mark.soak)])
def test_many_episodes_at_once_share_four_sandboxes(episodes: int) -> None:
    async def crowd() -> tuple[list[Trajectory], int, int, int]:
        env = sample_env(sandboxes=4)
        tasks = [env.named(KINDS[i % len(KINDS)]) for i in range(episodes)]
        try:
            sandbox_pool = env.sandbox_pool()
            there: set[object] = sandbox_pool.pool.backend.sandboxes  # type: ignore[attr-defined]
            counts = [0]
            counting = asyncio.create_task(count_often(there, counts))
            played = await asyncio.gather(
                *(run_episode(env, t, env.scripted("oracle", t, 0), id=str(i), seed=i) for i, t in enumerate(tasks))
            )
            await asyncio.sleep(2 * QUIET_S)  # what is started ahead, has been
            counting.cancel()
            return played, sandbox_pool.most, max(counts), len(there)
        finally:
            await env.close()

    played, most, most_there, left = asyncio.run(crowd())
    assert {t.ending for t in played} == {"done"}
    assert all(t.rewards["answer"] == 1.0 for t in played)
    assert most <= 4
    assert most_there <= 4 + 2 + 1  # in use, ready, and one that is being ended
    assert left <= 4  # what stands ready for the next step's episodes


async def count_often(there: set[object], counts: list[int]) -> None:
    while True:
        counts.append(len(there))
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_an_episode_whose_sandbox_was_taken_goes_on_with_another() -> None:
    async def in_turns() -> list[str]:
        env = sample_env(sandboxes=1)
        said = []
        try:
            first, second = env.open(env.named("rating"), 0), env.open(env.named("count"), 0)
            for _ in range(3):
                for session in (first, second):
                    run = Action("tool", name="run_python", arguments={"code": "print(make_soup().get_text())"})
                    said.append((await session.act(run)).text)
            assert env.sandbox_pool().most == 1
        finally:
            await env.close()
        return said

    assert asyncio.run(in_turns()) == ["4.8", "abc"] * 3


@pytest.mark.slow
def test_no_two_episodes_meet_in_one_sandbox() -> None:
    """Whatever an episode could make, the next must not find it."""

    async def visits() -> list[str]:
        env = sample_env(sandboxes=1)
        said = []
        look = (
            "import os; print(os.listdir('/tmp'), os.listdir('.'))\n"
            "for place in ('/tmp/sign', 'sign'):\n    try: open(place, 'w')\n    except OSError: pass"
        )
        try:
            for _ in range(3):
                async with env.open(env.named("rating"), 0) as session:
                    said.append((await session.act(Action("tool", name="run_python", arguments={"code": look}))).text)
        finally:
            await env.close()
        return said

    said = asyncio.run(visits())
    assert said == [said[0]] * 3 and said[0].endswith(" []") and "sign" not in said[0]  # an interpreter may lie in /tmp


@pytest.mark.slow
def test_an_episode_that_is_stopped_gives_its_sandbox_back() -> None:
    async def stopped() -> tuple[int, str]:
        env = sample_env(sandboxes=1)
        endless = Action("tool", name="run_python", arguments={"code": "while True: pass"})
        run = Action("tool", name="run_python", arguments={"code": "print(make_soup().p.text)"})
        try:
            session = env.open(env.named("rating"), 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await session.act(endless)
            await session.__aexit__(None, None, None)
            async with env.open(env.named("rating"), 1) as another:
                text = (await another.act(run)).text
            return env.sandbox_pool().busy, text
        finally:
            await env.close()

    assert asyncio.run(stopped()) == (0, "4.8")


def test_a_sandbox_that_dies_is_replaced_and_a_pool_that_is_closed_is_the_machines_fault() -> None:
    async def deaths() -> str:
        pool = Pool(make_backend("bubblewrap", "", PACKAGES, PRELOAD), standby=1)
        sandbox_pool = SandboxPool(pool, image(256, 5), 2)
        from support.soup_samples import RATING

        page = RATING.pages["/"]
        await sandbox_pool.run("me", RATING, page, "print(1)", 5)
        for sandbox in list(pool.backend.sandboxes):  # type: ignore[attr-defined]
            await sandbox.close()
        said = await sandbox_pool.run("me", RATING, page, "print(make_soup().p.text)", 5)
        await sandbox_pool.close()
        with pytest.raises(InfraError):
            await sandbox_pool.run("another", RATING, page, "print(1)", 5)
        return said.output

    assert asyncio.run(deaths()) == "4.8\n"
