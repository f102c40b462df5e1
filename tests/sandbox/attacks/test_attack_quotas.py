"""Attacks on what sandboxes share without seeing it: processors, and what the kernel counts per user."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.attack_arena import HONEST, IMAGE, LIMITS, Arena, Episodes, write
from test_attack_grading import HIDDEN_TIME, IGNORE

from airloop.errors import AirError
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import Sandbox
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.backend import Bubblewrap

pytestmark = pytest.mark.bubblewrap

# --- processors ---------------------------------------------------------------------------------------------------

# What is judged is how processors' time was divided, not how long anything took: tests beside these take their part of
# both sides alike.
JOB = "python -c 'for i in range(6_000_000): pass'"
SPIN = "for i in $(seq 40); do setsid sh -c 'while :; do :; done' & done; sleep 0.5"
MOST = 8.0  # times the neighbour's time; of forty processes that are equal to its own one it would be forty


@pytest.mark.slow
def test_D25_forty_spinners_leave_a_neighbour_its_share(arena: Arena) -> None:
    if "weaker" in arena.backend.protections()["cpu"]:
        pytest.skip(arena.backend.protections()["cpu"])

    async def work() -> tuple[float, float]:
        attacker, neighbour = await arena.sandbox(), await arena.sandbox()
        await attacker.run(SPIN, 10)
        before = attacker.cpu_seconds() or 0.0, neighbour.cpu_seconds() or 0.0
        result = await neighbour.run(JOB, 60)
        after = attacker.cpu_seconds() or 0.0, neighbour.cpu_seconds() or 0.0
        assert result.exit_code == 0
        await attacker.close()
        await neighbour.close()
        return after[0] - before[0], after[1] - before[1]

    theirs, own = arena.do(work())
    assert own > 0.05 and theirs < MOST * own, f"{own:.2f} s, and {theirs:.2f} s for the spinners"


@pytest.mark.long
def test_many_busy_sandboxes_leave_the_host_its_share(arena: Arena) -> None:
    """On each core a process of the host's, and four busy sandboxes: all of them together have as much as it. Each by
    itself would weigh as much, and they would have four times as much."""
    if "weaker" in arena.backend.protections()["cpu"]:
        pytest.skip(arena.backend.protections()["cpu"])
    cores = sorted(os.sched_getaffinity(0))
    spin = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"

    def divided(sandboxes: list[Sandbox]) -> tuple[float, float]:
        # In sessions of their own: what is in one session weighs as one process where the kernel groups by them.
        jobs = [subprocess.Popen([sys.executable, "-ISc", spin, str(core)], start_new_session=True) for core in cores]

        def used() -> tuple[float, float]:
            return sum(sandbox.cpu_seconds() or 0.0 for sandbox in sandboxes), sum(seconds_of(job.pid) for job in jobs)

        try:
            while used()[1] < 0.2 * len(jobs):  # they are on their cores
                time.sleep(0.05)
            before = after = used()
            while after[1] - before[1] < 1.0 * len(jobs):
                time.sleep(0.05)
                after = used()
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        return after[0] - before[0], after[1] - before[1]

    async def work() -> tuple[float, float]:
        sandboxes = [await arena.sandbox() for _ in range(4 * len(cores))]
        for sandbox in sandboxes:
            await sandbox.run("(while :; do :; done) &", 10)
        found = await asyncio.to_thread(divided, sandboxes)
        for sandbox in sandboxes:
            await sandbox.close()
        return found

    theirs, own = arena.do(work())
    assert theirs < 2.0 * own, f"the host's {own:.2f} s, and {theirs:.2f} s of the sandboxes"


def seconds_of(pid: int) -> float:
    """Of a processor, that this process has had."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def test_a_sandbox_has_no_more_cores_than_it_may_have(arena: Arena) -> None:
    if "weaker" in arena.backend.protections()["cpu"]:
        pytest.skip(arena.backend.protections()["cpu"])

    async def work() -> float:
        sandbox = await arena.sandbox(replace(IMAGE, limits=replace(LIMITS, cpus=0.25)))
        before = sandbox.cpu_seconds() or 0.0
        await sandbox.run("for i in 1 2 3 4; do (while :; do :; done) & done; sleep 2; kill $(jobs -p)", 20)
        used = (sandbox.cpu_seconds() or 0.0) - before
        await sandbox.close()
        return used

    assert arena.do(work()) < 1.0  # of the half second that two seconds have for it, and what starting took


# --- quotas -------------------------------------------------------------------------------------------------------

HOARD_WATCHES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
held = [libc.inotify_init1(0) for _ in range(200)] + [libc.inotify_init() for _ in range(9)]
held += [libc.fanotify_init(0, 0)]
print("held:", sum(fd >= 0 for fd in held))"""


def test_D26_no_watch_on_files_is_taken_from_others(arena: Arena) -> None:
    assert arena.python(HOARD_WATCHES) == "held: 0\n"
    assert arena.python(HOARD_WATCHES, cold=True) == "held: 0\n"


HOARD_SIGNALS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
count = 0
while count < 100_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0:
    count += 1
print(count)"""


def test_signals_that_wait_are_few(arena: Arena) -> None:
    for cold in (False, True):
        assert 0 < int(arena.python(HOARD_SIGNALS, cold=cold)) <= LIMITS.signals


HOARD_QUEUES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(sum(libc.mq_open(f"/q{i}".encode(), 0o102, 0o600, None) >= 0 for i in range(20)))"""


def test_no_message_queue_is_taken_from_others(arena: Arena) -> None:
    assert arena.python(HOARD_QUEUES).split() == ["0"]


GROW_PIPES = """
import fcntl, os, time
grown, held = 0, []
for _ in range(100):
    try:
        held.append(os.pipe())
        fcntl.fcntl(held[-1][1], 1031, 1 << 20)  # F_SETPIPE_SZ
        grown += 1
    except OSError:
        pass
print(grown, len(held), flush=True)
time.sleep({seconds})"""
PIPE_SIZE = "import fcntl, os\nprint(fcntl.fcntl(os.pipe()[1], 1032))"


def test_pipes_do_not_grow(arena: Arena) -> None:
    grown, held = arena.python(GROW_PIPES.format(seconds=0)).split()
    assert grown == "0" and int(held) > 50


@pytest.mark.long
@pytest.mark.slow
def test_a_neighbours_pipes_work_beside_a_hoarder(arena: Arena) -> None:
    """All sandboxes' pipes have one quota: beyond it new ones are small, and as quick as the machine makes them."""

    async def work() -> tuple[str, float]:
        attacker, victim = await arena.sandbox(), await arena.sandbox()
        await attacker.put("grow.py", GROW_PIPES.format(seconds=60).encode())
        await attacker.run("for i in $(seq 30); do python grow.py > /dev/null & done; sleep 2", 10)
        times = []
        for _ in range(3):  # at first the hoarders, which are still starting, keep a slow machine busy
            started = time.monotonic()
            said = (await victim.run("head -c 50M /dev/zero | cat | wc -c", 20)).output
            times.append(time.monotonic() - started)
        await attacker.close()
        await victim.close()
        return said, min(times)

    said, seconds = arena.do(work())
    assert said.strip() == str(50 << 20) and seconds < 5
    reads, writes = os.pipe()  # the host's own
    assert fcntl.fcntl(writes, 1032) >= 65536
    os.close(reads)
    os.close(writes)


# --- without control groups -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bubblewrap]:
    """A backend as it is where no control group can be written."""
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Groups(None, None, 1))
    backend = Bubblewrap()
    yield backend
    arena.do(backend.close())


LOOSE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
try:
    os.memfd_create("x")
    print("memfd_create")
except PermissionError:
    pass
for name in ("shmget", "semget", "msgget"):
    if getattr(libc, name)(*([0, 1 << 20, 0o1600] if name == "shmget" else [0, 1, 0o1600] if name == "semget"
                             else [0, 0o1600])) >= 0:
        print(name)
print("done")"""


@pytest.mark.long
def test_memory_that_is_no_process_is_refused_where_nothing_counts_it(arena: Arena, bare: Bubblewrap) -> None:
    async def work() -> list[str]:
        sandbox = await bare.start(IMAGE)
        if sandbox._warming is not None:  # type: ignore[attr-defined]
            await sandbox._warming  # type: ignore[attr-defined]
        await sandbox.put("loose.py", LOOSE.encode())
        said = [(await sandbox.run(f"{p} loose.py", 20)).output for p in ("python", bare.interpreter.executable)]
        async with sandbox.frozen():
            await asyncio.sleep(0)
        said.append((await sandbox.run("echo on", 5)).output)
        await sandbox.close()
        return said

    assert arena.do(work()) == ["done\n", "done\n", "on\n"]


@pytest.mark.long
def test_every_kind_of_work_is_graded_where_no_group_can_be_written(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an ordinary user: what is refused to agents there must not be what grading itself needs."""
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Groups(None, None, 1))
    handed_in = {
        "prisonersDilemma": HONEST,
        "titanic": "(echo PassengerId,Survived; sed '1d; s/,.*/,0/' data/test.csv) > submission.csv",
        "3SATTime": "echo '# the same' >> solver.py",
    }
    with Episodes(arena) as episodes:
        for family, command in handed_in.items():
            played = episodes.play(family, command, "submit")
            assert played.metrics["scored"] == 1, (family, episodes.seen(played))


@pytest.mark.long
def test_time_of_a_child_that_is_gone_is_not_free_where_no_group_counts_it(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Groups(None, None, 1))
    copied = "cp solver.py starter.py"
    with Episodes(arena) as episodes:
        honest = episodes.score("3SATTime", f"{copied}; echo >> solver.py", "submit")
        hidden = episodes.score("3SATTime", copied, write("solver.py", IGNORE + HIDDEN_TIME), "submit")
    assert hidden > 0.7 * honest
    assert honest < 3.0  # about the starter's 2 s: what the host needs to look is not the agent's


def test_what_has_no_limit_is_said(arena: Arena, bare: Bubblewrap) -> None:
    said = bare.protections()
    for kind in ("memory", "cpu", *(["processes"] if os.geteuid() == 0 else [])):
        assert said[kind].startswith("weaker: no limit on"), kind
    assert "weaker" in said["collusion"]


def test_where_groups_can_be_written_such_memory_is_there_and_counted(arena: Arena) -> None:
    if "weaker" in arena.backend.protections()["memory"]:
        pytest.skip(arena.backend.protections()["memory"])
    fill = "import os\nfd = os.memfd_create('x')\nfor _ in range(400): os.write(fd, bytes(1 << 20))\nprint('all of it')"
    assert "all of it" not in arena.python(fill)


# --- what must go on working ----------------------------------------------------------------------------------------

TOOLS = {
    "git": "git init -q r && cd r && git config user.email a@b && git config user.name a && echo x > f && git add f "
    "&& git commit -qm m && git log --oneline | wc -l && git status --short && git gc -q",
    "make": "printf 'all:\\n\\t@echo made\\n' > Makefile && make -j2",
    "tar": "tar czf a.tgz a.txt && tar tzf a.tgz",
    "sqlite": "python -c 'import sqlite3; c = sqlite3.connect(\"d\"); c.execute(\"create table t(x)\"); c.commit()'",
    "subprocess": "python -c 'import subprocess; print(subprocess.run([\"true\"]).returncode)'",
    "pool": "python -c 'import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1]))'",
    "threads": "python -c 'import concurrent.futures as c\nwith c.ThreadPoolExecutor() as p: print(*p.map(abs, [-1]))'",
    "asyncio": "python -c 'import asyncio; asyncio.run(asyncio.create_subprocess_shell(\"true\"))'",
    "shared": "python -c 'from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=9); "
    "m.close(); m.unlink()'",
    "numpy": "python -c 'import numpy as n; print(n.linalg.svd(n.eye(3))[1])'",
    "pandas": "python -c 'import pandas as p; p.DataFrame({\"a\": [1]}).to_csv(\"x.csv\"); p.read_csv(\"x.csv\")'",
    "sklearn": "python -c 'from sklearn.ensemble import RandomForestClassifier as R; "
    "R(4, n_jobs=2).fit([[0], [1]], [0, 1])'",
    "torch": "python -c 'import torch; print(torch.ones(2).sum())'",
    "pip": "python -m pip --version",
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(everything: Arena) -> Iterator[Bubblewrap]:
    backend = make_backend("bubblewrap", syscalls="strict")
    assert isinstance(backend, Bubblewrap)
    yield backend
    everything.do(backend.close())


@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("syscalls", ["usual", "strict"])
def test_ordinary_tools_work(
    arena: Arena, strict: Bubblewrap, monkeypatch: pytest.MonkeyPatch, syscalls: str, tool: str
) -> None:
    if syscalls == "strict":
        monkeypatch.setattr(arena, "backend", strict)
    image = replace(IMAGE, limits=replace(LIMITS, memory_mb=2048, open_files=1024, file_mb=512, cpu_s=120))
    if tool in ("git", "make", "tar") and shutil.which(tool) is None:
        pytest.skip(f"this machine has no {tool}")
    result = arena.attack(TOOLS[tool], timeout=50, image=image)
    if "No module named" in result.output:
        pytest.skip(result.output.strip().splitlines()[-1])
    assert result.exit_code == 0, result.output


UNKNOWN = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
arm = os.uname().machine == "aarch64"
for number in (264 if arm else 303, 239 if arm else 279, 600):  # name_to_handle_at, move_pages, none yet
    print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())"""


@pytest.mark.long
def test_a_call_that_nobody_is_known_to_use_does_not_exist(
    arena: Arena, strict: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "backend", strict)
    for cold in (False, True):
        assert arena.python(UNKNOWN, cold=cold).split() == ["-1", str(errno.ENOSYS)] * 3
    assert "known to be used" in strict.protections()["system calls"]


def test_a_filter_that_is_none_is_an_error_with_a_fix() -> None:
    for name, syscalls in (("bubblewrap", "lax"), ("container", "strict")):
        with pytest.raises(AirError):
            make_backend(name, syscalls=syscalls)
