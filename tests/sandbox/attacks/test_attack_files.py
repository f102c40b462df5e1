"""Attacks with links, pipes and swaps on every path the host reads or writes."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from support.attack_arena import Arena

from airloop.errors import InfraError
from airloop.sandbox.base import SandboxLost


@pytest.mark.parametrize(
    "make",
    [
        "ln -s /etc/shadow s",
        pytest.param("ln -s /proc/self/environ s", marks=pytest.mark.bubblewrap),  # there it is the reader's own
        "ln -s /proc/self/root/etc/shadow s",
        "ln -s /dev/zero s",
        "ln -s /dev/random s",
        "ln -s s s",
        "mkfifo s",
        "mkdir s",
        "ln -s /proc/1/fd/0 s",
        "ln -s /proc/kmsg s",
        "python -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'",
        "ln -s /opt/air/run/python.sock s",
        "ln -s /proc/1/fd/1 s",
        "truncate -s 40M s",
        "ln -s /proc/1/task s",
    ],
)
def test_what_is_no_file_of_the_agents_is_read_as_nothing(arena: Arena, make: str) -> None:
    async def work() -> bytes | None:
        sandbox = await arena.sandbox()
        await sandbox.run(make, 5)
        started = time.monotonic()
        found = await sandbox.get("s", 1 << 20)
        assert time.monotonic() - started < 20
        await sandbox.close()
        return found

    assert arena.do(work()) is None


@pytest.mark.parametrize("target", ["/proc/1/mem", "/proc/1/clear_refs", "/proc/1/pagemap", "/proc/1/auxv"])
def test_odd_files_of_proc_are_the_agents_own_trouble(arena: Arena, target: str) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.run(f"ln -s {target} s", 5)
        try:
            await sandbox.get("s", 1 << 20)
        except SandboxLost:
            pass
        finally:
            await sandbox.close()

    arena.do(work())


def test_a_file_that_grows_while_it_is_read_is_cut_off(arena: Arena) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.run("(while :; do head -c 1M /dev/zero >> s; truncate -s 1M s; done) 2>/dev/null & sleep 0.2", 5)
        for _ in range(20):
            found = await sandbox.get("s", 2 << 20)
            assert found is None or len(found) <= 2 << 20
        await sandbox.close()

    arena.do(work())


SWAP = """(echo honest > h; while :; do ln -sf /etc/passwd s; cp h s2; mv -f s2 s; rm -f s; mkdir s; rmdir s; mkfifo s
rm -f s; done) 2>/dev/null & sleep 0.1"""


def test_swapping_a_file_while_it_is_read_gives_one_or_nothing(arena: Arena) -> None:
    async def work() -> set[bytes | None]:
        sandbox = await arena.sandbox()
        await sandbox.run(SWAP, 5)
        found = {await sandbox.get("s") for _ in range(15 if arena.container else 100)}  # each an exec there
        await sandbox.close()
        return found

    passwd = b"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    own = b"1000:*:1000:1000:container user:/:/bin/sh\n" if arena.container else passwd
    assert arena.do(work()) <= {None, b"", b"honest\n", own}  # the sandbox's own passwd


@pytest.mark.parametrize(
    "make",
    [
        "ln -s /usr/bin d",
        "ln -s /etc d",
        "ln -s /opt/air/run d",
        "ln -s /proc/sys/kernel d",
        "ln -s /proc/1/root/usr d",
        "ln -s /proc/1/fd d",
        "ln -s d d",
        "echo x > d",
        "mkfifo d",
        "mkdir d; chmod 000 d",
        "mkdir -p d/put.txt/deep; chmod 000 d/put.txt",
        "mkdir d; ln -s /etc/passwd d/put.txt",
        "mkdir d; mkfifo d/put.txt",
        "mkdir d; (while :; do rm -rf d; ln -s /usr/bin d; rm -f d; mkdir d; done) 2>/dev/null &",
    ],
)
def test_putting_a_file_writes_nothing_outside(arena: Arena, make: str) -> None:
    """It may fail; that it is the agent's fault or not matters where the host puts files after the agent has been."""

    async def work() -> str:
        sandbox = await arena.sandbox()
        await sandbox.run(make, 5)
        for _ in range(5):
            with contextlib.suppress(InfraError, SandboxLost):
                await sandbox.put("d/put.txt", b"from the host")
        said = (
            await sandbox.run(
                "ls /usr/bin/put.txt /etc/put.txt /opt/air/run/put.txt /usr/put.txt 2>/dev/null; cat /etc/passwd", 5
            )
        ).output
        await sandbox.close()
        return said

    assert arena.do(work()).startswith("1000:" if arena.container else "root:x:0:0")


def test_listing_follows_no_link(arena: Arena) -> None:
    async def work() -> list[str]:
        sandbox = await arena.sandbox()
        await sandbox.run(
            "ln -s / all; ln -s /etc/passwd p; mkdir -p real/in; echo x > real/in/f; ln -s ../.. real/up", 5
        )
        found = await sandbox.list("**/*")
        await sandbox.close()
        return found

    assert arena.do(work()) == ["a.txt", "real/in/f"]


def test_a_snapshot_of_what_changes_all_the_time(arena: Arena) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.run(
            "(while :; do mkdir -p x/y; head -c 100K /dev/zero > x/y/z; truncate -s 10 x/y/z; rm -rf x; done) 2>/dev/null & sleep 0.2",
            5,
        )
        try:
            for _ in range(10):
                await sandbox.snapshot()
        except SandboxLost:
            pass
        finally:
            await sandbox.close()

    arena.do(work())


def test_a_link_in_place_of_the_workspace_leads_nowhere(arena: Arena) -> None:
    async def work() -> tuple[list[str], bytes | None]:
        sandbox = await arena.sandbox()
        await sandbox.run("cd ~; rm -rf workspace; ln -s /etc workspace", 5)
        found = await sandbox.list("*"), await sandbox.get("shadow")
        await asyncio.sleep(0)
        await sandbox.close()
        return found

    names, shadow = arena.do(work())
    assert shadow is None and "shadow" not in names
