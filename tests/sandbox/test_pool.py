"""The pool: ready sandboxes, resets, broken sandboxes, deadlines, and what a crash leaves. On the real bubblewrap."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from airloop.errors import InfraError
from airloop.sandbox import pool as pools
from airloop.sandbox import processes
from airloop.sandbox.base import Backend, Image, Sandbox, Snapshot
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.pool import Pool

IMAGE = Image(files=(("a.txt", b"as it was\n", 0o644),), setup="greet() { echo hello; }")


def alive(old: processes.Process) -> bool:
    """The number of a process, or of a namespace, may be another's by now: the start time tells."""
    try:
        return processes.look(old.pid) == old
    except OSError:
        return False


def orphan(pid: int) -> bool:
    """A sandbox's first process without its bwrap. Other tests' sandboxes, running beside this one, have theirs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return "(first)" in stat and stat[stat.rindex(")") + 2 :].split()[1] == "1"


def with_pool(work: Callable[[Pool], Awaitable[None]], backend: Backend | None = None, **options: float) -> None:
    async def run() -> None:
        pool = Pool(backend or Bubblewrap(warm_python=False), **options)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(work(pool), 120)
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_lease_starts_as_the_image_and_a_restore_brings_it_back() -> None:
    async def work(pool: Pool) -> None:
        async with await pool.lease(IMAGE) as lease:
            await lease.run("echo changed > a.txt; export X=1; cd /tmp; sleep 100 &", 5)
            await lease.restore()
            result = await lease.run("cat a.txt; echo [$X]; pwd; greet; pgrep sleep", 5)
            assert result.output == "as it was\n[]\n/home/agent/workspace\nhello\n"

    with_pool(work)


def test_a_snapshot_keeps_files_modes_and_links() -> None:
    async def work(pool: Pool) -> None:
        async with await pool.lease(IMAGE) as lease:
            await lease.run("mkdir -p d/e; echo x > d/e/f; chmod 555 d/e/f; ln -s d/e/f link; echo h > ~/.hidden", 5)
            snapshot = await lease.snapshot()
            await lease.run("rm -rf d link a.txt ~/.hidden", 5)
            await lease.restore(snapshot)
            result = await lease.run("cat d/e/f link a.txt ~/.hidden; stat -c %a d/e/f; readlink link; greet", 5)
            assert result.output == "x\nx\nas it was\nh\n555\nd/e/f\nhello\n"
            await lease.restore()
            assert (await lease.run("ls", 5)).output == "a.txt\n"

    with_pool(work)


def test_ready_sandboxes_are_used_and_made_again() -> None:
    async def work(pool: Pool) -> None:
        await pool.warm(IMAGE)
        for _ in range(5):
            await pool.warm(IMAGE)
            async with await pool.lease(IMAGE) as lease:
                assert (await lease.run("cat a.txt", 5)).output == "as it was\n"
        assert pool.counts["warm"] == 5 and pool.counts["cold"] == 0

    with_pool(work, standby=2)


def test_a_broken_ready_sandbox_is_replaced() -> None:
    async def work(pool: Pool) -> None:
        await pool.warm(IMAGE, 2)
        for ready in pool._ready[IMAGE]:
            os.kill(ready.first, signal.SIGKILL)  # type: ignore[attr-defined]
            await asyncio.to_thread(ready.process.wait, 10)  # type: ignore[attr-defined]
        async with await pool.lease(IMAGE) as lease:
            assert (await lease.run("echo fine", 5)).output == "fine\n"
        assert pool.counts["broken"] == 2

    with_pool(work, standby=0)


def test_a_sandbox_killed_from_outside_is_trouble_of_the_machine() -> None:
    async def work(pool: Pool) -> None:
        async with await pool.lease(IMAGE) as lease:
            running = asyncio.create_task(lease.run("sleep 20", 30))
            await asyncio.sleep(0.2)
            os.kill(lease.sandbox.first, signal.SIGKILL)  # type: ignore[attr-defined]
            with pytest.raises(InfraError, match="killed from outside"):
                await running

    with_pool(work)


class Flaky(Backend):
    """A real backend whose first starts fail."""

    name = "flaky"

    def __init__(self, failures: int) -> None:
        self.real = Bubblewrap(warm_python=False)
        self.failures = failures

    async def start(self, image: Image | Snapshot) -> Sandbox:
        if self.failures > 0:
            self.failures -= 1
            raise InfraError("not this time")
        return await self.real.start(image)

    def protections(self) -> dict[str, str]:
        return dict(self.real.protections())

    async def close(self) -> None:
        await self.real.close()

    def abandon(self) -> None:
        self.real.abandon()


def test_starting_is_tried_again_and_then_given_up() -> None:
    async def mended(pool: Pool) -> None:
        async with await pool.lease(IMAGE) as lease:
            assert (await lease.run("echo fine", 5)).output == "fine\n"

    async def hopeless(pool: Pool) -> None:
        with pytest.raises(InfraError, match="not this time"):
            await pool.lease(IMAGE)

    with_pool(mended, Flaky(2), standby=0)
    with_pool(hopeless, Flaky(3), standby=0)


def test_a_lease_held_too_long_is_closed_under_its_holder() -> None:
    async def work(pool: Pool) -> None:
        lease = await pool.lease(IMAGE, deadline_s=0.3)
        begin = time.monotonic()
        with pytest.raises(InfraError, match="deadline"):
            await lease.run("sleep 60", 90)
        assert time.monotonic() - begin < 40
        await lease.close()

    with_pool(work)


@pytest.mark.long
def test_sixty_four_leases_at_once_are_apart() -> None:
    async def work(pool: Pool) -> None:
        leases = await asyncio.gather(*(pool.lease(IMAGE) for _ in range(64)))

        async def use(i: int) -> None:
            await leases[i].run(f"echo {i} > own; X={i}; cd /tmp; echo {i} > t", 20)
            result = await leases[i].run("cat ~/workspace/own t; echo $X; ls ~/workspace", 20)
            assert result.output == f"{i}\n{i}\n{i}\na.txt\nown\n"

        await asyncio.gather(*(use(i) for i in range(64)))

    with_pool(work)


@pytest.mark.long
def test_nothing_is_left_after_many_short_lives() -> None:
    tokens: list[str] = []
    roots: list[str] = []

    async def work(pool: Pool) -> None:
        for _ in range(40):
            async with await pool.lease(IMAGE) as lease:
                await lease.run("(setsid sleep 300 &); (setsid nohup sleep 300 >/dev/null 2>&1 &); touch x /tmp/y", 5)
                lived = list(processes.of_namespace(lease.sandbox.namespace))  # type: ignore[attr-defined]
            assert len(lived) >= 4
            assert not [old for old in lived if alive(old)]
        root = pool.backend.runtime.path  # type: ignore[attr-defined]
        tokens.append(pool.backend.runtime.token)  # type: ignore[attr-defined]
        roots.append(str(root))
        assert len(list((root / "worlds").iterdir())) <= len(pool._ready[IMAGE]) + pool._coming[IMAGE]

    with_pool(work)
    groups = cgroups.find()
    for parent in groups.parents():
        assert not list(parent.glob(f"air-{os.getpid()}/{tokens[0]}-*"))
    assert roots[0] not in Path("/proc/self/mounts").read_text()  # other mounts may be a neighbour's


@pytest.mark.long
def test_what_is_wanted_again_is_started_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many at once as stand by: the third time they are ready. Of what was wanted once, or where nothing is to
    stand by, there are no more than before."""
    monkeypatch.setattr(pools, "QUIET_S", 0.05)
    many, once = 6, Image(files=(("b.txt", b"", 0o644),))

    async def burst(pool: Pool, image: Image) -> None:
        for lease in await asyncio.gather(*(pool.lease(image) for _ in range(many))):
            await lease.close()

    async def ready(pool: Pool, image: Image) -> int:
        await asyncio.sleep(0.2)
        await asyncio.gather(*pool._tasks)  # those that start, and those that end
        return len(pool._ready.get(image, ()))

    async def work(pool: Pool) -> None:
        for count in (pool.standby, many if pool.standby else 0):
            await burst(pool, IMAGE)
            assert await ready(pool, IMAGE) == count
        before = pool.counts["cold"]
        await burst(pool, IMAGE)
        assert pool.counts["cold"] - before == (0 if pool.standby else many)
        await burst(pool, once)
        assert await ready(pool, once) == pool.standby

    with_pool(work, standby=2)
    with_pool(work, standby=0)


@pytest.mark.long
@pytest.mark.parametrize(("held", "there"), [(0, 4), (1, 4), (3, 5)])
def test_none_is_started_ahead_beyond_the_bound(monkeypatch: pytest.MonkeyPatch, held: int, there: int) -> None:
    """Six at once, twice: with a bound of four, four are there when it is quiet, those in use counted. Beside three in
    use, the two that stand by are."""
    monkeypatch.setattr(pools, "QUIET_S", 3600)  # it is quiet when all are closed, however long that takes

    async def work(pool: Pool) -> None:
        for held_now in (0, held):
            leases = await asyncio.gather(*(pool.lease(IMAGE) for _ in range(6)))
            await asyncio.gather(*(lease.close() for lease in leases[held_now:]))
            pool._start_ahead()
            await asyncio.gather(*pool._tasks)
        assert len(pool._ready[IMAGE]) + len(pool.leases) == there

    with_pool(work, standby=2, most=4)


def test_abandon_needs_no_event_loop() -> None:
    async def leave() -> Bubblewrap:
        backend = Bubblewrap(warm_python=False)
        await backend.start(IMAGE)
        await backend.start(IMAGE)
        return backend

    backend = asyncio.run(leave())
    lived = [old for sandbox in backend.sandboxes for old in processes.of_namespace(sandbox.namespace)]
    backend.abandon()
    assert len(lived) >= 4 and not any(map(alive, lived))
    assert not backend.runtime.path.exists()


def test_a_sandbox_given_up_while_it_starts_leaves_nothing() -> None:
    async def work(pool: Pool) -> None:
        before = set(processes.all_pids())
        for i in range(30):
            starting = asyncio.create_task(pool.backend.start(IMAGE))
            await asyncio.sleep(0.0015 * i)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        for sandbox in list(pool.backend.sandboxes):  # type: ignore[attr-defined]
            await sandbox.close()
        deadline = time.monotonic() + 20
        while left := [pid for pid in processes.all_pids() if pid not in before and orphan(pid)]:
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.1)

    with_pool(work, standby=0)
