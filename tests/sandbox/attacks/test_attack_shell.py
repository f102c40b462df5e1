"""Attacks on the shell's protocol and on whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.attack_arena import Arena

from airloop.sandbox import processes
from airloop.sandbox.base import LATEST, SandboxLost
from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox

MARK = "MARK=$(tr '\\0' '\\n' < /proc/1/environ | sed -n s/AIR_MARK=//p)"
SLOW = pytest.mark.slow
HOST_LIMIT_S = 12.0  # a command of 2 s, interrupted, killed, its shell replaced


def after(arena: Arena, *commands: str, timeout: float = 1.0) -> str:
    """What a plain command says after these. InfraError would drop the episode: an agent must not be able to."""

    async def work() -> str:
        sandbox = await arena.sandbox()
        try:
            started = time.monotonic()
            for command in commands:
                await sandbox.run(command, timeout)
                assert time.monotonic() - started < HOST_LIMIT_S * len(commands)
            for _ in range(2):  # the first may still find what the attack has left
                last = await sandbox.run("/bin/echo fine", 3)
            return last.output
        except SandboxLost:
            return "lost"
        finally:
            await sandbox.close()

    return arena.do(work())


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("builtin() { :; }", marks=SLOW),
        "eval() { :; }",
        "printf() { :; }; exit() { :; }; cd() { :; }",
        "trap 'kill -9 $$' DEBUG",
        "trap 'sleep 100' EXIT; exit",
        pytest.param("trap '' INT TERM HUP; sleep 100", marks=SLOW),
        pytest.param("PROMPT_COMMAND='sleep 100'", marks=SLOW),
        pytest.param("PS1='$(sleep 100)'", marks=SLOW),
        "export BASH_ENV=/tmp/x; echo 'sleep 100' > /tmp/x",
        "exec 1>&- 2>&-",
        "exec 8>&- 10>&- 11>&- 255>&-",
        "exec 10</dev/null",
        "exec < /dev/null",
        "exec sleep 100",
        "exec true",
        "set -e; false",
        "set -n",
        "set -o posix; set -u; echo $nothing",
        pytest.param("enable -n eval builtin printf", marks=SLOW),
        "readonly PWD; PWD=x",
        pytest.param("PWD=$(head -c 200000 /dev/zero | tr '\\0' x)", marks=SLOW),
        pytest.param("kill -STOP $$", marks=SLOW),
        "kill -9 $$",
        "kill -9 -1",
        "kill -9 1; kill -STOP 1; kill -SEGV 1",
        "ulimit -n 3; ulimit -u 1",
        "ulimit -v 1000",
        "export LD_PRELOAD=/tmp/none.so",
        "export PATH=/nowhere",
        "cd /proc/self; rm -rf ~",
        "printf '\\036%s\\036' forged; printf '\\036'",
        f"{MARK}; for i in $(seq 200); do printf '\\036%s %s %s %s\\036' $MARK $i 0 /tmp; done",
        f"{MARK}; printf '\\036%s ' $MARK",
        f"{MARK}; for i in $(seq 60); do printf '\\036%s %s\\036' $MARK $i; printf '\\036%s\\036' $MARK; done",
        "(setsid sleep 100 &) ; nohup sleep 100 &",
        "while :; do :; done",
        "cat /dev/zero",
        "if",
        "'",
        "cat << EOF",
        "((((",
    ],
)
def test_a_spoilt_shell_is_the_agents_own_trouble(arena: Arena, command: str) -> None:
    said = after(arena, command)
    assert (
        said in ("fine\n", "lost", "")
        or "fine" in said
        or "not found" in said
        or "No such file" in said
        or "libc.so" in said
    )


@SLOW
def test_aliases_for_what_the_host_uses_are_the_agents_own_trouble(arena: Arena) -> None:
    after(arena, "alias eval=true builtin=true", timeout=1.0)


@pytest.mark.parametrize("number", ["²", "--5", "9" * 5000], ids=["superscript", "signs", "long"])
def test_a_forged_exit_code_does_not_end_the_run(arena: Arena, number: str) -> None:
    after(arena, f"{MARK}; for i in $(seq 30); do printf '\\036%s %s %s %s\\036' $MARK $i '{number}' /tmp; done")


@SLOW
def test_a_forged_end_of_the_shell_is_no_trouble_of_the_machine(arena: Arena) -> None:
    after(arena, f"{MARK}; printf '\\036%s X 0\\036' $MARK; sleep 60", timeout=4)


THIEF = "import os; fd = os.open('/proc/1/fd/0', os.O_RDONLY)\nwhile os.read(fd, 65536): pass"
STEAL_INPUT = f'for i in 1 2 3; do python -c "{THIEF}" & done; sleep 0.5'


@SLOW
def test_stealing_the_shells_input_is_no_trouble_of_the_machine(arena: Arena) -> None:
    after(arena, STEAL_INPUT, "true")


EXIT_137 = r"""
import re
for line in open("/proc/1/maps"):
    if "r-xp" in line and "libc" in line:
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
code = b"\xbf\x89\0\0\0\xb8\xe7\0\0\0\x0f\x05"  # exit_group(137)
with open("/proc/1/mem", "r+b", 0) as memory:
    memory.seek(start)
    memory.write(b"\x90" * (end - start - len(code)) + code)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the patch is x86-64's")
def test_ending_the_first_process_is_the_agents_own_doing(arena: Arena) -> None:
    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.put("patch.py", EXIT_137.encode())
        try:
            refused = await sandbox.run("python patch.py", 5)
            assert "PermissionError" in refused.output  # its memory may not even be read
            assert (await sandbox.run("kill -9 $$; true", 5)).shell_restarted
            assert (await sandbox.run("echo on", 5)).output == "on\n"
        finally:
            await sandbox.close()

    arena.do(work())


@pytest.mark.parametrize("command", ["echo \0 x", "echo \x1e \x1f \x07 \x1b[2J", "echo \udc80", "echo é\u2028"])
def test_odd_characters_are_passed_or_refused(arena: Arena, command: str) -> None:
    after(arena, command)


def test_half_a_surrogate_pair_does_not_end_the_run(arena: Arena) -> None:
    after(arena, "echo \ud800")


def test_a_command_of_megabytes_blocks_nobody(arena: Arena) -> None:
    """One line of 8 MB: the event loop, which serves everyone, must go on."""

    async def work() -> tuple[str, float]:
        sandbox = await arena.sandbox()
        running = asyncio.create_task(sandbox.run("true '" + "x" * (8 << 20) + "'", 30))
        worst = await longest_pause(running.done)
        await running
        for _ in range(2):
            last = await sandbox.run("echo fine", 10)
        await sandbox.close()
        return last.output, worst

    said, worst = arena.do(work())
    assert said == "fine\n" and worst < 0.5


async def longest_pause(over: Callable[[], bool]) -> float:
    """Without what this thread stood in line for a core: other tests may have them all."""
    worst = 0.0
    while not over():
        before = time.monotonic() - stood_in_line()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - stood_in_line() - before)
    return worst


def stood_in_line() -> float:
    _, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(waited) / 1e9


FORGE_FLOOD = MARK + r"""; printf "\036$MARK 0 0 x\036%.0s" {1..2000} > /tmp/marks; while :; do cat /tmp/marks; done"""


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    ["yes", "cat /dev/zero", pytest.param(FORGE_FLOOD, marks=SLOW), "while :; do printf '\\036'; done"],
    ids=["yes", "zero", "marks", "starts"],
)
def test_a_flood_of_output_costs_little_memory_and_blocks_nobody(arena: Arena, command: str) -> None:
    async def work() -> float:
        sandbox = await arena.sandbox()
        running = asyncio.create_task(sandbox.run(command, 2))
        worst = await longest_pause(running.done)
        result = await running
        assert len(result.output) < 400_000 and result.seconds < 2 * LATEST + 7
        await sandbox.close()
        return worst

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert arena.do(work()) < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_flood_from_the_background_does_not_burn_the_host(arena: Arena) -> None:
    """Nobody waits for output between commands: there is no need to read it at full speed."""

    async def work() -> int:
        sandbox = await arena.sandbox()
        await sandbox.run("yes & yes & sleep 0.1", 5)
        assert sandbox.shell is not None
        read, received = 0, sandbox.shell.received

        def counted(data: bytes) -> None:
            nonlocal read
            read += len(data)
            received(data)

        sandbox.shell.received = counted  # type: ignore[method-assign]
        await asyncio.sleep(2)
        await sandbox.close()
        return read

    assert arena.do(work()) < 1 << 20


@pytest.mark.bubblewrap
def test_nothing_lives_on_after_the_end(arena: Arena) -> None:
    detach = "setsid nohup bash -c 'trap \"\" TERM HUP INT; sleep 987' & (setsid sleep 987 & disown) & python -c "
    detach += "'import os, time; os.fork() or os.setsid() or os.fork() or time.sleep(987)' & sleep 0.5"

    async def work() -> list[processes.Process]:
        sandbox: BubblewrapSandbox = await arena.sandbox()
        await sandbox.run(detach, 5)
        deadline = time.monotonic() + 20
        while len(lived := list(processes.of_namespace(sandbox.namespace))) <= 4:
            assert time.monotonic() < deadline, lived
            await asyncio.sleep(0.05)
        await sandbox.close()
        return lived

    assert [old for old in arena.do(work()) if lives(old)] == []


def lives(old: processes.Process) -> bool:
    """The number of a process, or of a namespace, may be another's by now: the start time tells."""
    try:
        return processes.look(old.pid) == old
    except OSError:
        return False
