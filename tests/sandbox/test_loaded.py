"""What a script is worth must not depend on how busy the machine is: its time is its own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
from contract import PLAIN
from support.busy import busy_processes

from airloop.sandbox.base import LATEST, World

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's cores")]
CORE = min(os.sched_getaffinity(0))
PINNED = f"import os, time; os.sched_setaffinity(0, {{{CORE}}})"
COMPUTES = f"{PINNED}\nend = time.process_time() + 2.0\nwhile time.process_time() < end: pass\nprint('done')"
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
    async def check(world: World, backend: object) -> None:
        with busy_processes(6, CORE):
            result = await world.run(in_shell(COMPUTES), LIMIT_S)
            assert result.output == "done\n" and not result.timed_out
            assert result.seconds > LIMIT_S, "nobody was in its way: this shows nothing"
            idle = await world.run(in_shell(SLEEPS), LIMIT_S)
            assert idle.timed_out and idle.seconds < SLEEPS_S / 2
            endless = await world.run(in_shell(ENDLESS), LIMIT_S)
            assert endless.timed_out and LIMIT_S < endless.seconds < (LATEST + 2) * LIMIT_S

    bubblewrap.play(check, PLAIN)


@pytest.mark.long
def test_a_script_of_the_hosts_beside_others_has_its_own_time(bubblewrap) -> None:  # type: ignore[no-untyped-def]
    async def check(world: World, backend: object) -> None:
        with busy_processes(6, CORE):
            result = await world.python(COMPUTES, b"", LIMIT_S)
            assert result.output == "done\n" and not result.timed_out
            assert result.seconds > LIMIT_S, "nobody was in its way: this shows nothing"
            idle = await world.python(SLEEPS, b"", LIMIT_S)
            assert idle.timed_out and idle.seconds < SLEEPS_S / 2
            endless = await world.python(ENDLESS, b"", LIMIT_S)
            assert endless.timed_out and LIMIT_S < endless.seconds < (LATEST + 2) * LIMIT_S

    bubblewrap.play(check, PLAIN)


def test_a_command_that_stands_behind_itself_has_no_more_time(bubblewrap) -> None:  # type: ignore[no-untyped-def]
    """Many threads on few cores: each waits for the others, all together compute as much as they may."""
    endless = "os.execvp('python3', ['python3', '-c', 'while True: pass'])"
    source = f"import os\nfor _ in range(6): os.fork() or {endless}\nos.wait()"

    async def check(world: World, backend: object) -> None:
        before = world.cpu_seconds()
        result = await world.run(in_shell(source), LIMIT_S)
        assert result.timed_out
        if before is not None:
            assert (world.cpu_seconds() or 0.0) - before < 3 * LIMIT_S  # and not LATEST

    bubblewrap.play(check, replace(PLAIN, limits=replace(PLAIN.limits, cpus=1.0)))
