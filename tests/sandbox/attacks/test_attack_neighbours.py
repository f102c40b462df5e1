"""Many attackers at once, and what they leave with the host."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading

import pytest
from support.attack_arena import IMAGE, Arena

from airloop.errors import InfraError
from airloop.sandbox.base import SandboxLost
from airloop.sandbox.pool import Pool

pytestmark = pytest.mark.bubblewrap

OWN = f".3071{os.getpid()}"  # other workers make the same attacks at the same time
ATTACKS = [
    "kill -9 -1",
    "yes | head -c 5M; head -c 60M /dev/zero > f",
    f"for i in {{1..200}}; do sleep 9{OWN} & done 2>/dev/null",
    "rm -rf ~; ln -s /etc ~/workspace",
    "exec 1>&- 2>&- 8>&-",
    "python -c 'x = bytearray(400 << 20)'",
    "printf '\\036%s\\036' x; exit 3",
    "mkfifo p; ln -s /dev/zero submission.csv",
    f"setsid sleep 99{OWN} & disown; kill -9 $$",
    f"trap '' INT; (exec -a python sleep 99{OWN}) & cat /proc/*/environ > /dev/null",
]


async def attacked(arena: Arena, number: int) -> None:
    sandbox = await arena.backend.start(IMAGE)
    try:
        await sandbox.run(ATTACKS[number % len(ATTACKS)], 1.0)
        await sandbox.get("submission.csv", 1 << 20)
        await sandbox.list("*")
    except SandboxLost:
        pass
    finally:
        await sandbox.close()


def host() -> tuple[int, int, int]:
    gc.collect()
    return (
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def left_behind() -> set[str]:
    return {name for name in os.listdir("/proc") if name.isdigit() and OWN.encode() in read(f"/proc/{name}/cmdline")}


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.long
def test_sixty_four_attackers_at_once_leave_an_honest_sandbox_alone(arena: Arena) -> None:
    async def work() -> None:
        honest = await arena.sandbox()
        await honest.run("echo mine > mine.txt; export MINE=1", 5)
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with limit:
                await attacked(arena, number)

        attackers = asyncio.gather(*(one(number) for number in range(64)), return_exceptions=True)
        while not attackers.done():
            result = await honest.run("cat mine.txt; echo $MINE; find /tmp /dev/shm -maxdepth 1 -type f | wc -l", 20)
            assert result.output == "mine\n1\n0\n" and not result.shell_restarted
            await asyncio.sleep(0.1)
        assert not [error for error in await attackers if error is not None]
        await honest.close()

    arena.do(work(), 100)


@pytest.mark.long
@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_attacked_sandboxes_leave_nothing_with_the_host(arena: Arena, count: int) -> None:
    async def work(count: int) -> None:
        for start in range(0, count, 20):
            await asyncio.gather(*(attacked(arena, number) for number in range(start, start + 20)))

    others = {sandbox.name for sandbox in arena.backend.sandboxes}  # of a test that failed
    arena.do(work(20), 60)
    sleeping = left_behind()
    descriptors, threads, memory = host()
    arena.do(work(count), 110)
    descriptors_after, threads_after, memory_after = host()
    assert descriptors_after <= descriptors + 4
    assert threads_after <= threads + 16  # of the event loop's pool
    assert memory_after - memory < 250 * count  # KiB
    assert left_behind() <= sleeping
    assert {sandbox.name for sandbox in arena.backend.sandboxes} == others
    assert {folder.name for folder in (arena.backend.runtime.path / "worlds").iterdir()} == others


def test_a_lease_after_an_attacked_one_is_fresh(arena: Arena) -> None:
    async def work() -> str:
        pool = Pool(arena.backend, standby=1)
        for attack in ATTACKS[:4]:
            lease = await pool.lease(IMAGE)
            try:
                await lease.run(attack, 3)
                await lease.restore()
                said = (await lease.run("cat a.txt; ls -A ~; find /tmp -maxdepth 1 -type f; pgrep -c sleep", 5)).output
            except (InfraError, SandboxLost) as error:
                said = repr(error)
            await lease.close()
            assert said == "as it was\nworkspace\n0\n"
        pool._closed = True  # close() would end the arena's backend too; what is still on its way is not kept
        while pool._tasks:
            await asyncio.gather(*pool._tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for ready in pool._ready.values() for sandbox in ready))
        return said

    arena.do(work())
