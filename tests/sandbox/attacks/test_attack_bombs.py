"""Attacks that use things up: memory, processes, disk, inodes, names. Limits are small, and so are the bombs."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.attack_arena import IMAGE, LIMITS, LOOKS, Arena

from airloop.sandbox.base import SandboxLost
from airloop.sandbox.bubblewrap import cgroups


def free_memory() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) >> 10


def survive(arena: Arena, command: str, timeout: float = 2.5) -> str:
    """A bomb in one sandbox; what a neighbour says meanwhile. The bomb may lose its sandbox, never be the machine's fault.
    Others use memory too: what a bomb takes from the machine it takes every time."""

    async def work() -> tuple[str, int]:
        attacker, neighbour = await arena.sandbox(), await arena.sandbox()
        try:
            before = free_memory()
            bomb = asyncio.create_task(attacker.run(command, timeout))
            await asyncio.sleep(1.0)
            said = (await neighbour.run("echo fine; python -c 'print(1)'", 10)).output
            with contextlib.suppress(SandboxLost):
                await bomb
                await attacker.run("echo still here", 5)
                await attacker.get("a.txt")
                await attacker.list("*")
            return said, before - free_memory()
        finally:
            await attacker.close()
            await neighbour.close()

    for _ in range(LOOKS):
        said, taken = arena.do(work(), 90)
        if said != "fine\n1\n" or taken < 3 * LIMITS.memory_mb:
            return said
    raise AssertionError(f"{taken} MB of the machine's memory are gone, every time")


@pytest.mark.long
@pytest.mark.parametrize(
    "bomb",
    [
        ":() { : | : & }; : 2>/dev/null; sleep 2",
        "python -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
        "python -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'",
        "for i in $(seq 30); do python -c 'import time; x = bytearray(b\"x\") * (20 << 20); time.sleep(3)' & done; wait",
        "python -c 'import mmap\nx = []\nwhile True: m = mmap.mmap(-1, 1 << 20); m.write(b\"x\" * (1 << 20)); x.append(m)'",
        "head -c 300M /dev/zero | tail",
        "python -c 'import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()'",
        "python -c 'import os, time\nfor _ in range(500):\n  try: os.fork() or os._exit(0)\n  except OSError: pass\ntime.sleep(3)'",
        "mkdir n; cd n; for i in $(seq 40000); do : > $i; done",
        "python -c 'import os\nx = []\nwhile True: x.append(os.pipe())'",
        "python -c 'import os\nfor i in range(3000): os.mkdir(\"d\"); os.chdir(\"d\")'",
        "for i in $(seq 300); do cat /dev/zero > f$i; done; cat /dev/zero > ~/f; cat /dev/zero > /tmp/f; cat /dev/zero > /dev/shm/f",
        "python -c 'import ctypes\nctypes.string_at(0)'; for i in $(seq 20); do bash -c 'kill -SEGV $$'; done",
        "find / -xdev | xargs -P 40 -n 1 true; seq 100000 | xargs -P 40 -n 100 sh -c 'sleep 1'",
        "python -c 'import hashlib\nwhile True: hashlib.sha256(b\"x\" * (1 << 20))' & while :; do :; done",
    ],
    ids=["fork", "fork-python", "memory", "many-small", "shared", "pipe", "threads", "zombies", "inodes", "descriptors",
         "deep", "disk", "crashes", "starts", "cpu"],
)  # fmt: skip
def test_a_bomb_harms_its_own_sandbox_only(arena: Arena, bomb: str) -> None:
    assert survive(arena, bomb) == "fine\n1\n"


FULL = "for d in /tmp /dev/shm ~ /usr/share; do for i in 1 2 3 4 5 6 7 8; do head -c 45M /dev/zero > $d/f$i; done; done 2>/dev/null"


@pytest.mark.long
@pytest.mark.bubblewrap  # Podman 4.3 does not say that a container was out of memory
@pytest.mark.slow
def test_files_that_use_up_the_memory_are_the_agents_own_trouble(arena: Arena) -> None:
    image = replace(IMAGE, limits=replace(LIMITS, memory_mb=96, disk_mb=64))

    async def work() -> None:
        sandbox = await arena.sandbox(image)
        try:
            for _ in range(2):
                await sandbox.run(FULL, 5)
                await sandbox.get("a.txt")
                await sandbox.list("**/*")
        except SandboxLost:
            pass
        finally:
            await sandbox.close()

    arena.do(work(), 100)


def test_a_file_larger_than_the_memory_left_is_the_agents_own_trouble(arena: Arena) -> None:
    image = replace(IMAGE, limits=replace(LIMITS, memory_mb=64, file_mb=200))

    async def work() -> None:
        sandbox = await arena.sandbox(image)
        await sandbox.run("truncate -s 190M submission.csv", 5)
        try:
            await sandbox.get("submission.csv")
        finally:
            await sandbox.close()

    arena.do(work())


DEEP = 'python -c \'import os\nfor i in range({depth}): os.mkdir("d" * {length}); os.chdir("d" * {length})\''


@pytest.mark.parametrize(("depth", "length"), [(1500, 1), (100, 60), (5000, 200)])
@pytest.mark.parametrize("what", ["list", "snapshot"])
def test_deep_directories_are_the_agents_own_trouble(arena: Arena, what: str, depth: int, length: int) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.run(DEEP.format(depth=depth, length=length), 10)
        try:
            await (sandbox.list("**/*") if what == "list" else sandbox.snapshot())
        except SandboxLost:
            pass
        finally:
            await sandbox.close()

    arena.do(work())


NAMES = r"""touch $'new\nline' $'\xff\xfe' $'tab\t' ' ' -- '-rf' '*' $'\x1e\x1f' "$(printf 'x%.0s' {1..255})"; touch -d @99999999999 late; touch -d @-9999999999 early"""


def test_odd_names_and_times_survive_listing_and_snapshots(arena: Arena) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.run(NAMES, 5)
        names = await sandbox.list("*")
        assert len(names) == 11
        for name in names:
            assert await sandbox.get(name) is not None
        again = await arena.backend.start(await sandbox.snapshot())
        assert await again.list("*") == names
        await again.close()
        await sandbox.close()

    arena.do(work())


def test_many_files_are_listed_within_bounds(arena: Arena) -> None:
    async def work() -> tuple[int, float]:
        sandbox = await arena.sandbox()
        await sandbox.run('python -c \'for i in range(30000): open(f"f{i}", "w")\'', 20)
        started = time.monotonic()
        names = await sandbox.list("**/*")
        seconds = time.monotonic() - started
        await sandbox.close()
        return len(names), seconds

    count, seconds = arena.do(work())
    assert count <= 10_000 and seconds < 10


@pytest.mark.bubblewrap
def test_closing_a_sandbox_full_of_everything_takes_no_time(arena: Arena) -> None:
    async def work() -> float:
        sandbox = await arena.sandbox()
        await sandbox.run(
            'python -c \'for i in range(20000): open(f"f{i}", "w")\'; for i in $(seq 40); do sleep 99 & done', 20
        )
        groups = list(sandbox.groups)
        started = time.monotonic()
        await sandbox.close()
        assert not any(os.path.exists(group) for group in groups)
        return time.monotonic() - started

    assert arena.do(work()) < 4
    assert cgroups.find() is not None
