"""What a script is worth must not depend on how busy the machine is: its time is its own."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

import pytest
from support.busy import busy_processes
from support.sandbox_contract import PLAIN

from airloop.sandbox.base import LATEST, Image, Sandbox
from airloop.sandbox.container import signaller
from airloop.sandbox.container.backend import Container

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's cores")]
CORE = min(os.sched_getaffinity(0))
PINNED = f"import os, time; os.sched_setaffinity(0, {{{CORE}}})"
COMPUTES = f"{PINNED}\nend = time.process_time() + 1.6\nwhile time.process_time() < end: pass\nprint('done')"
ENDLESS = f"{PINNED}\nwhile True: pass"
SLEEPS_S = 30
SLEEPS = f"{PINNED}\ntime.sleep({SLEEPS_S})"
LIMIT_S = 2.6


@pytest.fixture
def bubblewrap(backend):  # type: ignore[no-untyped-def]
    if backend.kind != "bubblewrap":
        pytest.skip("a container's processes are not this machine's to look at")
    return backend


def in_shell(source: str) -> str:
    return f'python3 -c "{source}"'


@pytest.mark.long
def test_a_command_beside_others_has_its_own_time(bubblewrap) -> None:  # type: ignore[no-untyped-def]
    async def check(sandbox: Sandbox, backend: object) -> None:
        with busy_processes(6, CORE):
            result = await sandbox.run(in_shell(COMPUTES), LIMIT_S)
            assert result.output == "done\n" and not result.timed_out
            assert result.seconds > LIMIT_S, "nobody was in its way: this shows nothing"
            idle = await sandbox.run(in_shell(SLEEPS), LIMIT_S)
            assert idle.timed_out and idle.seconds < SLEEPS_S / 2
            endless = await sandbox.run(in_shell(ENDLESS), LIMIT_S)
            assert endless.timed_out and LIMIT_S < endless.seconds < (LATEST + 2) * LIMIT_S

    bubblewrap.play(check, PLAIN)


@pytest.mark.long
def test_a_script_of_the_hosts_beside_others_has_its_own_time(bubblewrap) -> None:  # type: ignore[no-untyped-def]
    async def check(sandbox: Sandbox, backend: object) -> None:
        with busy_processes(6, CORE):
            result = await sandbox.python(COMPUTES, b"", LIMIT_S)
            assert result.output == "done\n" and not result.timed_out
            assert result.seconds > LIMIT_S, "nobody was in its way: this shows nothing"
            idle = await sandbox.python(SLEEPS, b"", LIMIT_S)
            assert idle.timed_out and idle.seconds < SLEEPS_S / 2
            endless = await sandbox.python(ENDLESS, b"", LIMIT_S)
            assert endless.timed_out and LIMIT_S < endless.seconds < (LATEST + 2) * LIMIT_S

    bubblewrap.play(check, PLAIN)


@pytest.mark.long
def test_a_command_that_stands_behind_itself_has_no_more_time(bubblewrap) -> None:  # type: ignore[no-untyped-def]
    """Many threads on few cores: each waits for the others, all together compute as much as they may."""
    endless = "os.execvp('python3', ['python3', '-c', 'while True: pass'])"
    source = f"import os\nfor _ in range(6): os.fork() or {endless}\nos.wait()"

    async def check(sandbox: Sandbox, backend: object) -> None:
        before = sandbox.cpu_seconds()
        result = await sandbox.run(in_shell(source), LIMIT_S)
        assert result.timed_out
        if before is not None:
            assert (sandbox.cpu_seconds() or 0.0) - before < 3 * LIMIT_S  # and not LATEST

    bubblewrap.play(check, replace(PLAIN, limits=replace(PLAIN.limits, cpus=1.0)))


def test_a_container_is_not_given_up_because_the_machine_is_slow_to_start_its_processes(
    container_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sends signals has to answer soon once there is an agent, who could keep it from that: not before."""
    monkeypatch.setattr(signaller, "SIGNAL_S", 0.0)

    async def work() -> None:
        backend = Container()
        try:
            sandbox = await backend.start(Image(container=container_image))
            assert (await sandbox.run("echo works", 60)).output == "works\n"
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(work(), 120))
