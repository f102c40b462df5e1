"""The fitting processes of `tune`: what happens when they die or hang, and what is kept of their work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airloop.envs.tune import TuneEnv, pool
from airloop.envs.tune.env import TuneArgs, measured
from airloop.envs.tune.pool import FitPool, ResultCache
from airloop.errors import AirError, InfraError
from airloop.types import Action

TREE = {"model": "tree", "depth": 4, "scale": False}
SLOWEST = {"model": "boost", "depth": 16, "trees": 50, "lr": 0.01, "scale": False}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True)
def cache(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty but for the prepared tables, so that every test counts its own fits."""
    directory = tmp_path / "cache"
    (directory / "tune").mkdir(parents=True)
    (directory / "tune" / "tables").symlink_to(tables)
    monkeypatch.setenv("AIR_CACHE", str(directory))
    return directory


def digest(dataset: str) -> str:
    return str(measured()[dataset]["digest"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def pid_of(fits: FitPool, place: int = 0) -> int:
    """The worker's process id, once there is one."""
    fits.warm()
    while (worker := fits.workers[place]) is None:  # noqa: ASYNC110 - a thread starts it
        await asyncio.sleep(0.01)
    return worker.pid


def gone(pid: int, within: float = 30.0) -> bool:
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.slow
def test_64_sessions_at_once_do_not_affect_each_other(cache: Path) -> None:
    """D1, D14: the same answers as one after the other, whatever the neighbours do."""

    async def session(env: TuneEnv, number: int) -> tuple[list[str], dict[str, float]]:
        task = env.tasks("train")[number // 4 % 2]
        commands = [
            [f"python train.py --model tree --depth {1 + number // 8 % 4}", "validate", "submit"],
            ["submit", f"python train.py --model knn --k {1 + number // 8 % 3}", "submit"],
            ["validate", "nonsense", "python train.py --model linear --scale"],
            ["submit", "validate", "nonsense"],
        ][number % 4]
        async with env.open(task, number) as opened:
            await opened.begin()
            texts = []
            for command in commands:
                texts.append((await opened.act(Action("command", command))).text)
                await asyncio.sleep(0)
            score = await opened.finish()
            return texts, {**score.rewards, **score.metrics}

    async def main() -> None:
        env = TuneEnv(TuneArgs(datasets=["spam", "quakes"]))
        together = await asyncio.gather(*(session(env, number) for number in range(64)))
        alone = [await session(env, number) for number in range(64)]
        assert together == alone
        assert len({str(result) for result in together}) >= 12
        assert env.pool.fits <= 2 * (4 + 3 + 1)  # equal requests share a fit
        await env.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_fit_done_again() -> None:
    async def main() -> None:
        fits = FitPool(1)
        first = await fits.fit("quakes", 0, TREE, digest("quakes"))
        victim = await pid_of(fits)
        os.kill(victim, signal.SIGKILL)
        second = await fits.fit("quakes", 0, {**TREE, "depth": 5}, digest("quakes"))
        assert fits.restarts == 1 and await pid_of(fits) != victim
        assert set(second) == {"cv", "valid", "test"} and second != first
        fits.close()

    asyncio.run(main())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")
def test_workers_are_forked_from_one_process_that_has_imported_all_and_may_be_killed() -> None:
    """Importing scikit-learn takes each of them seconds of a core."""

    async def main() -> None:
        fits = FitPool(2, use_cache=False)
        await asyncio.gather(*(fits.fit("quakes", seed, TREE, digest("quakes")) for seed in range(8)))
        parents = {parent_of(worker.pid) for worker in fits.workers if worker}
        assert len(parents) == 1 and os.getpid() not in parents, pool.SERVER.cannot
        before = [worker.pid for worker in fits.workers if worker]
        os.kill(parents.pop(), signal.SIGKILL)
        os.kill(before[0], signal.SIGKILL)
        found = await asyncio.gather(*(fits.fit("quakes", seed, TREE, digest("quakes")) for seed in range(9, 13)))
        assert all(set(scores) == {"cv", "valid", "test"} for scores in found)
        after = [worker.pid for worker in fits.workers if worker]
        fits.close()
        assert all(gone(pid) for pid in {*before, *after})

    asyncio.run(main())


@pytest.mark.long
def test_where_nothing_can_be_forked_workers_are_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.SERVER, "cannot", "it has 2 threads")

    async def main() -> None:
        fits = FitPool(1, use_cache=False)
        assert set(await fits.fit("quakes", 0, TREE, digest("quakes"))) == {"cv", "valid", "test"}
        assert parent_of(await pid_of(fits)) == os.getpid()
        fits.close()

    asyncio.run(main())


def test_workers_that_keep_dying_are_an_infra_error_with_their_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        broken = "import sys; sys.stderr.write('out of memory, it seems'); sys.exit(3)"
        monkeypatch.setattr(pool, "COMMAND", [sys.executable, "-c", broken])
        monkeypatch.setattr(pool.SERVER, "cannot", "it has 2 threads")  # as where nothing can be forked
        fits = FitPool(1)
        with pytest.raises(InfraError, match=r"(?s)died.*out of memory, it seems"):
            await fits.fit("quakes", 0, TREE, digest("quakes"))
        monkeypatch.undo()
        fits.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_fit_beyond_its_deadline_is_an_infra_error_and_the_worker_is_replaced() -> None:
    async def main() -> None:
        fits = FitPool(1, timeout=300)
        await fits.fit("quakes", 0, TREE, digest("quakes"))
        hung = await pid_of(fits)
        os.kill(hung, signal.SIGSTOP)  # a worker that hangs
        started = time.monotonic()
        fits.timeout = 0.01  # the second attempt, by a healthy worker, is too slow as well
        with pytest.raises(InfraError, match="did not answer within"):
            await fits.fit("storms", 0, SLOWEST, digest("storms"))
        assert time.monotonic() - started < 150 and gone(hung)
        fits.timeout = 300
        assert await fits.fit("quakes", 0, {**TREE, "depth": 6}, digest("quakes"))
        fits.close()

    asyncio.run(main())


@pytest.mark.slow
def test_an_infra_error_reaches_the_episode_as_such() -> None:
    async def main() -> None:
        env = TuneEnv(TuneArgs(datasets=["quakes"], fit_timeout_s=0.001, workers=1))
        async with env.open(env.tasks("train")[0], 0) as session:
            with pytest.raises(InfraError):
                await session.act(Action("command", "python train.py --model forest --trees 50"))
        await env.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_cached_result_equals_a_recomputation_and_survives_the_process() -> None:
    async def main() -> None:
        fits, uncached = FitPool(1), FitPool(1, use_cache=False)
        computed = await fits.fit("spam", 1, TREE, digest("spam"))
        assert await fits.fit("spam", 1, TREE, digest("spam")) == computed and fits.fits == 1
        later = FitPool(1)  # as another process would: nothing in memory
        assert await later.fit("spam", 1, TREE, digest("spam")) == computed and later.fits == 0
        assert await uncached.fit("spam", 1, TREE, digest("spam")) == computed and uncached.fits == 1
        assert await fits.fit("spam", 2, TREE, digest("spam")) != computed and fits.fits == 2
        for used in (fits, uncached, later):
            used.close()

    asyncio.run(main())


def test_a_damaged_or_unwritable_cache_only_costs_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ResultCache()
    stored.put("abcdef", {"cv": 1.0})
    assert ResultCache().get("abcdef") == {"cv": 1.0}
    stored.file("abcdef").write_text('{"cv"')
    assert ResultCache().get("abcdef") is None
    blocked = cache / "file"
    blocked.write_text("")
    monkeypatch.setenv("AIR_CACHE", str(blocked))
    elsewhere = ResultCache()
    elsewhere.put("abcdef", {"cv": 2.0})
    assert elsewhere.get("abcdef") == {"cv": 2.0}


@pytest.mark.slow
def test_another_table_than_the_measured_one_is_refused() -> None:
    async def main() -> None:
        fits = FitPool(1)
        with pytest.raises(AirError, match="not the one its baseline was measured on"):
            await fits.fit("quakes", 0, TREE, "0123456789abcdef")
        fits.close()

    asyncio.run(main())


@pytest.mark.slow
def test_one_who_is_cancelled_does_not_take_the_fit_from_the_others() -> None:
    async def main() -> None:
        fits = FitPool(1)
        one = asyncio.create_task(fits.fit("quakes", 0, TREE, digest("quakes")))
        other = asyncio.create_task(fits.fit("quakes", 0, TREE, digest("quakes")))
        await asyncio.sleep(0.05)
        one.cancel()
        assert (await other)["cv"] > 0 and fits.fits == 1 and one.cancelled()
        fits.close()

    asyncio.run(main())


@pytest.mark.slow
def test_closing_ends_the_workers_and_what_waits() -> None:
    async def main() -> None:
        fits = FitPool(1)
        await fits.fit("quakes", 0, TREE, digest("quakes"))
        pid = await pid_of(fits)
        waiting = [asyncio.create_task(fits.fit("storms", s, SLOWEST, digest("storms"))) for s in range(3)]
        await asyncio.sleep(0.05)
        fits.close()
        for task in waiting:
            with pytest.raises(InfraError, match="closed"):
                await task
        assert gone(pid)
        with pytest.raises(InfraError, match="closed"):
            await fits.fit("storms", 3, SLOWEST, digest("storms"))

    asyncio.run(main())


@pytest.mark.slow
def test_an_environment_can_be_used_again_after_close_and_in_another_event_loop() -> None:
    env = TuneEnv(TuneArgs(datasets=["quakes"], workers=1))

    async def main(depth: int) -> str:
        async with env.open(env.tasks("train")[0], 0) as session:
            observation = await session.act(Action("command", f"python train.py --model tree --depth {depth}"))
        return observation.text

    assert asyncio.run(main(2)) != asyncio.run(main(3))  # one pool, two loops
    asyncio.run(env.close())
    assert asyncio.run(main(4)).startswith("cv r2")
    asyncio.run(env.close())


def test_workers_end_when_their_parent_is_killed() -> None:
    """D10: also by SIGKILL, also in the middle of a fit."""
    script = """
import asyncio, sys
from airloop.envs.tune.pool import FitPool
async def main():
    fits = FitPool(1)
    await fits.fit("quakes", 0, {"model": "tree", "depth": 2, "scale": False}, "")
    print(fits.workers[0].pid, flush=True)
    slow = dict(model="boost", depth=16, trees=50, lr=0.01, scale=False)
    await asyncio.gather(*(fits.fit("cells", seed, slow, "") for seed in range(4)))
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        time.sleep(0.3)
        parent.kill()
    assert gone(worker)
