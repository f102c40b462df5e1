"""Attacks on a grading's silence: what graded code has seen, told to a process that the agent left running."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.attack_arena import IMAGE, Arena, Episodes, write

from airloop.sandbox import processes
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox

pytestmark = pytest.mark.bubblewrap

SHARED = "/usr/bin/env"  # any file that every sandbox has
LOCK = """
import fcntl, os, struct
FORM = "hhqqi4x"
def lock(number):
    fd = os.open("{shared}", os.O_RDONLY)
    fcntl.fcntl(fd, 37, struct.pack(FORM, 0, 0, number, 1, 0))  # F_OFD_SETLK, for reading
    return fd
def seen(fd):
    kind, _, start, _, _ = struct.unpack(FORM, fcntl.fcntl(fd, 36, struct.pack(FORM, 1, 0, 0, 0, 0)))
    return start if kind != 2 else None
""".replace("{shared}", SHARED)
SPY = (
    LOCK
    + """
import time
fd = os.open("{shared}", os.O_RDONLY)
open("spying", "w").close()
end = time.time() + 40
while time.time() < end:
    found = seen(fd)
    if found is not None:
        print(found, flush=True)
    time.sleep(0.002)
""".replace("{shared}", SHARED)
)
TELLER = (
    LOCK
    + """
held = lock(4242)  # in earnest: of what it has been asked
def row_strategy(history):
    return 0
"""
)
OWN = "import lock, time; held = lock.lock(77); time.sleep(0.3)"


@pytest.mark.slow
@pytest.mark.parametrize("files", ["own", "shared"])
def test_D22_a_lock_of_graded_code_is_not_seen_by_what_the_agent_left_running(
    episodes: Episodes, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    """Shared: as where no overlays can be made."""
    running = episodes.env._running
    assert running is not None
    if files == "shared":
        monkeypatch.setattr(running.places.pool.backend, "layered", False)
    start = "(setsid python spy.py > seen.txt 2>&1 &); until [ -e spying ]; do sleep 0.05; done"
    played = episodes.play(
        "prisonersDilemma",
        write("spy.py", SPY),
        write("lock.py", LOCK),
        f"{start}; python -c '{OWN}'; sleep 0.2",  # the spy does see a lock that it may see
        write("strategy.py", TELLER),
        "validate",
        "sleep 0.5; sort seen.txt | uniq -c | head -20",
        "submit",
    )
    said = episodes.seen(played)
    assert "valid submission" in said and " 77\n" in said + "\n", said
    assert "4242" not in said


def test_no_list_of_locks_shows_those_of_other_sandboxes(arena: Arena) -> None:
    async def work() -> str:
        teller, spy = await arena.sandbox(), await arena.sandbox()
        await teller.put("lock.py", (LOCK + "import time\nheld = lock(4242)\ntime.sleep(9)").encode())
        await teller.run("python lock.py & sleep 0.7", 5)
        said = (await spy.run("cat /proc/locks", 5)).output
        await teller.close()
        await spy.close()
        return said

    assert "4242" not in arena.do(work())


# Whatever two sandboxes can both open. Those of python lie where the agents' python has them.
HOLD = """
import fcntl, glob, os, struct, sys, time
import numpy
FORM = "hhqqi4x"
places = ["/usr/bin/env", "/usr", "/bin/sh", "/opt/air/bin/python", "/opt/air/bin", "/etc/passwd", "/etc/ld.so.cache",
          numpy.__file__, os.__file__, sys.executable, os.path.realpath(sys.executable), "/home/agent/data/x.csv",
          "/home/agent/data", "/proc/self/exe", "/proc/1/exe", "/", "/proc", "/dev", "/opt", "/usr/share", "/etc",
          *glob.glob("/dev/*"), *glob.glob("/proc/*"), *glob.glob("/proc/self/ns/*"), *glob.glob("/proc/self/fd/*"),
          "/proc/sys/kernel/ostype", "/proc/sys/fs/nr_open", *glob.glob("/opt/air/*/*"), *glob.glob("/etc/*")]
places = [place for place in dict.fromkeys(places) if not place.startswith("/dev/nvidia")]
opened = {}
for place in places:
    try:
        opened[place] = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        pass
"""
TAKE = (
    HOLD
    + """
for fd in opened.values():
    for lock in (lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
                 lambda: fcntl.fcntl(fd, 37, struct.pack(FORM, 0, 0, 4242, 1, 0))):
        try:
            lock()
        except OSError:
            pass
print(len(opened), flush=True)
time.sleep(20)
"""
)
LOOK = (
    HOLD
    + """
for place, fd in opened.items():
    try:
        kind, _, start, _, _ = struct.unpack(FORM, fcntl.fcntl(fd, 36, struct.pack(FORM, 1, 0, 0, 0, 0)))
        if kind != 2:
            print("seen:", place)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        print("held:", place)
    except OSError:
        pass
print("done")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_no_lock_of_one_sandbox_is_seen_in_another(arena: Arena, tmp_path: Path, cold: bool) -> None:
    """Agents that play at the same time could else tell each other what their graded code has seen."""
    if not arena.backend.layered:
        pytest.skip(arena.backend.protections()["collusion"])
    (tmp_path / "x.csv").write_text("1\n")
    image = replace(IMAGE, binds=((str(tmp_path), "/home/agent/data"),))
    python = arena.backend.interpreter.executable if cold else "python"

    async def work() -> tuple[str, str, str]:
        sandboxes = [await arena.sandbox(image) for _ in range(2)]
        for sandbox in sandboxes:
            await sandbox.put("take.py", TAKE.encode())
            await sandbox.put("look.py", LOOK.encode())
        await sandboxes[0].run(f"{python} take.py > taken 2>&1 & sleep 3", 10)
        taken = (await sandboxes[0].run("cat taken", 5)).output
        own = (await sandboxes[0].run(f"{python} look.py", 15)).output  # in its own sandbox they are there
        other = (await sandboxes[1].run(f"{python} look.py", 15)).output
        for sandbox in sandboxes:
            await sandbox.close()
        return taken, own, other

    taken, own, other = arena.do(work())
    assert int(taken) > 40 and own.count("held:") > 20, (taken, own)
    assert other == "done\n"


CACHED = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/usr/bin/env", os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
print(libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(4096), ctypes.create_string_buffer(1)),
      libc.syscall(451, fd, ctypes.create_string_buffer(16), ctypes.create_string_buffer(64), 0))
"""


def test_which_pages_of_a_file_were_read_is_not_told(arena: Arena) -> None:
    """Told after a grading, it would be what graded code wrote there. How long a read takes still tells it."""
    assert arena.python(CACHED) == "-1 -1\n"


# --- nothing escapes being stopped ------------------------------------------------------------------------------

# Put in its place whole: frozen between opening and writing, the file would be empty.
COUNT = (
    "import os, time\nn = 0\nwhile True:\n    n += 1\n    open('m', 'w').write(str(n))\n    os.replace('m', 'n')\n"
    "    time.sleep(0.001)"
)
# Its first thread ends, and the process looks like one that has ended.
LEADERLESS = f"""
import ctypes, threading
def count():
    {COUNT.replace(chr(10), chr(10) + "    ")}
threading.Thread(target=count).start()
ctypes.CDLL(None).syscall(93 if __import__("os").uname().machine == "aarch64" else 60, 0)  # exit, of this thread alone
"""
BREED = "while :; do (sleep 0.01 &); echo x >> bred; done"


async def grown(sandbox: BubblewrapSandbox, name: str, seconds: float) -> tuple[bytes | None, bytes | None]:
    """The file as it is when the sandbox has been frozen, and some time later."""
    async with sandbox.frozen():
        before = await sandbox.get(name)
        await asyncio.sleep(seconds)
        return before, await sandbox.get(name)


@pytest.mark.parametrize("by", ["group", "signals"])
@pytest.mark.parametrize(
    ("command", "name"),
    [("python count.py", "n"), ("python leaderless.py", "n"), (BREED, "bred"), ("setsid bash -c 'trap \"\" TSTP CONT; "
     + BREED + "'", "bred")],
    ids=["script", "leaderless", "breeding", "session"],
)  # fmt: skip
def test_nothing_runs_in_a_frozen_sandbox(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, by: str, command: str, name: str
) -> None:
    if by == "signals":
        monkeypatch.setattr(cgroups, "freeze", lambda groups, frozen: False)

    async def work() -> None:
        sandbox = await arena.sandbox()
        await sandbox.put("count.py", COUNT.encode())
        await sandbox.put("leaderless.py", LEADERLESS.encode())
        await sandbox.run(f"{command} >/dev/null 2>&1 & until [ -s {name} ]; do sleep 0.05; done; sleep 0.3", 60)
        before, after = await grown(sandbox, name, 0.5)
        assert before and before == after
        deadline = time.monotonic() + 20
        while await sandbox.get(name) == after:  # and it goes on
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await sandbox.close()

    arena.do(work())


def test_what_the_agent_itself_has_stopped_stays_so(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "freeze", lambda groups, frozen: False)

    async def work() -> str:
        sandbox = await arena.sandbox()
        await sandbox.run("sleep 50 & kill -STOP $!; sleep 0.2", 5)
        async with sandbox.frozen():
            pass
        said = (await sandbox.run("grep State /proc/$!/status", 5)).output
        await sandbox.close()
        return said

    assert "stopped" in arena.do(work())


def test_a_sandbox_left_frozen_by_a_killed_run_is_removed(arena: Arena) -> None:
    """Nobody thaws it any more, and version 1's groups let nothing frozen die."""
    groups = cgroups.find()
    if groups.freezer is None:
        pytest.skip("no control group can freeze here")
    maker = subprocess.Popen(["sleep", "100"])  # while it lives, other tests' backends leave its group alone
    group = groups.freezer / f"{cgroups.PREFIX}{maker.pid}-left"
    group.mkdir()
    sleeper = subprocess.Popen([*cgroups.entering([group]), "sleep", "100"])
    try:
        until(lambda: sleeper.pid in cgroups.members(group))
        cgroups.freeze([group], True)
        until(lambda: cgroups.is_frozen([group]))
        maker.kill()
        maker.wait()
        cgroups.reap()  # or another test's backend, which starts just now
        assert sleeper.wait(30) == -signal.SIGKILL
        until(lambda: not group.exists())
    finally:
        maker.kill()
        maker.wait()
        with contextlib.suppress(OSError):
            cgroups.freeze([group], False)
        sleeper.kill()
        cgroups.remove([group])


def until(there: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_freezing_takes_no_time(arena: Arena) -> None:
    async def work() -> float:
        sandbox = await arena.sandbox()
        await sandbox.run("for i in 1 2 3 4; do (while :; do :; done) & done", 5)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            async with sandbox.frozen():
                times.append(time.perf_counter() - started)
            await asyncio.sleep(0.01)
        await sandbox.close()
        return sorted(times)[2]  # what takes time takes it every time; the slowest wait for a core

    assert arena.do(work()) < 0.02  # 2 ms is the bar, on a machine with nothing else to do: bench/sandbox.py


def test_a_process_that_has_ended_counts_as_stopped() -> None:
    assert processes.is_stopped(2**22 - 7) and not processes.is_stopped(1)
