"""Attacks that write: outside the sandbox, on the system, on the host through what a helper leaves open."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.attack_arena import IMAGE, LIMITS, Arena

from airloop.sandbox.base import Image

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have root's number")


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/evil",
        "/usr/lib/evil.so",
        "/etc/passwd",
        "/etc/ld.so.preload",
        "/opt/air/bin/python",
        "/opt/air/run/python.sock.evil",
        "/evil",
        "/dev/evil",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/lease-break-time",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/kernel/uevent_helper",
    ],
)
def test_nothing_outside_can_be_written(arena: Arena, path: str) -> None:
    """Opened only: what is written to some of these ends the machine."""
    assert arena.attack(f"exec 7>>{path}").exit_code != 0


CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *args):
    if libc.syscall(number, *args) >= 0:
        print("worked:", name)
call("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
call("remount", 165, b"none", b"/usr", 0, 32 | 4096, 0)
call("umount2", 166, b"/usr/share", 2)
call("pivot_root", 155, b"/tmp", b"/tmp")
call("chroot", 161, b"/tmp")
call("unshare user", 272, 0x10000000)
call("unshare mount", 272, 0x20000)
call("clone into a user namespace", 56, 0x10000000 | 17, 0, 0, 0, 0)
call("clone3", 435, 0, 0)
call("setns", 308, os.open("/proc/self/ns/user", os.O_RDONLY), 0)
call("ptrace", 101, 16, 1, 0, 0)
call("process_vm_readv", 310, 1, 0, 0, 0, 0, 0)
call("pidfd_getfd", 438, os.pidfd_open(1), 0, 0)
call("bpf", 321, 0, 0, 0)
call("perf_event_open", 298, 0, 0, -1, -1, 0)
call("io_uring_setup", 425, 1, 0)
call("userfaultfd", 323, 1)
call("keyctl", 250, 0, -3, 1)
call("open_tree", 428, -100, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
call("open_by_handle_at", 304, 3, 0, 0)
call("init_module", 175, 0, 0, b"")
call("reboot", 169, 0xFEE1DEAD, 672274793, 0, 0)
call("sethostname", 170, b"evil", 4)
call("settimeofday", 164, 0, 0)
call("mknod a disk", 133, b"/tmp/disk", 0o60600, (253 << 8) | 0)
call("setuid to root", 105, 0)
call("the x32 table's mount", 0x40000000 + 165, b"none", b"/tmp", b"tmpfs", 0, 0)
print("done")
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls are x86-64's")
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_no_call_for_escapes_works(arena: Arena, cold: bool) -> None:
    assert arena.python(CALLS, cold=cold) == "done\n"


def test_a_setuid_program_gives_no_rights(arena: Arena) -> None:
    out = arena.attack(
        "cp /bin/bash ~/b; chmod 6755 ~/b; ~/b -pc 'id -u; grep -E \"CapEff|NoNewPrivs\" /proc/self/status'"
    )
    assert out.output.split() == ["1000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]


@pytest.mark.bubblewrap
@ROOT
def test_the_interpreters_file_cannot_be_changed_through_proc(arena: Arena) -> None:
    """What a forked python was started from is a sealed copy in memory, and not the host's file."""
    real = os.path.realpath(sys.executable)
    before = os.stat(real)
    out = arena.python("import os\nos.chmod('/proc/self/exe', 0o700)\nprint(os.stat('/proc/self/exe').st_ino)")
    after = os.stat(real)
    assert (after.st_mode, after.st_ctime_ns) == (before.st_mode, before.st_ctime_ns)
    assert str(before.st_ino) not in out


HOLD = """python -c 'import time; time.sleep(20)' &
sleep 0.5
for p in /proc/[0-9]*; do case $(readlink $p/exe) in *memfd:python*) exec 7<$p/exe;; esac; done
kill %1; readlink /proc/$$/fd/7"""


@pytest.mark.bubblewrap
@ROOT
@pytest.mark.slow
def test_the_interpreter_cannot_be_replaced_once_no_one_runs_it(arena: Arena) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # /tmp is covered inside
        replace_interpreter(arena, Path(place))


def replace_interpreter(arena: Arena, tmp_path: Path) -> None:
    """With a python of its own for agents, as args.python gives. An agent can end the door itself: see the doors."""
    from airloop.sandbox.bubblewrap.backend import Bubblewrap
    from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox

    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", tmp_path / "venv"], check=True)
    victim = tmp_path / "venv" / "bin" / "python"
    for other in victim.parent.glob("python3*"):
        other.unlink()
    before = victim.read_bytes()

    async def work() -> str:
        backend = Bubblewrap(python=str(victim))
        sandbox = await backend.start(IMAGE)
        assert isinstance(sandbox, BubblewrapSandbox) and sandbox._warming is not None
        await sandbox._warming
        said = (await sandbox.run(HOLD, 15)).output
        backend._doors.pop("python").close()
        backend._doors.pop("files").close()  # it runs the same program
        said += (await sandbox.run("cat > /proc/$$/fd/7 <<< evil", 5)).output
        sandbox._warming = None
        await sandbox.close()
        await backend.close()
        return said

    said = arena.do(work())
    print(said)
    assert victim.read_bytes() == before, said


@ROOT
def test_no_lease_can_be_taken_on_shared_files(arena: Arena, tmp_path: Path) -> None:
    shared = tmp_path / "data.csv"
    shared.write_text("1,2,3\n")
    image = Image(binds=((str(shared), "/home/agent/workspace/data.csv"),), limits=LIMITS)
    hold = "import fcntl, os, signal, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
    hold += "try: fcntl.fcntl(os.open('data.csv', os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
    hold += "finally: open('tried', 'w').close()\ntime.sleep(60)"

    async def work() -> float:
        attacker, victim = await arena.sandbox(image), await arena.sandbox(image)
        await attacker.put("hold.py", hold.encode())
        await attacker.run("python hold.py & until [ -e tried ]; do sleep 0.05; done", 20)
        read = await victim.run("cat data.csv", 30)
        await attacker.close()
        await victim.close()
        return read.seconds

    assert arena.do(work()) < 10  # a lease is broken after 45 s


def test_only_the_places_with_a_size_can_be_written(arena: Arena) -> None:
    find = "find / -xdev -type d -writable 2>/dev/null; awk '$3 == \"tmpfs\" && $4 ~ /^rw/ {print $2}' /proc/mounts"
    found = {line for line in arena.attack(find).output.splitlines() if os.path.basename(line)}
    allowed = ("/home/agent", "/tmp", "/dev/shm", *(("/run", "/var/tmp") if arena.container else ()))
    assert not {f for f in found if not f.startswith(allowed) and f not in ("/home", "/opt", "/root", "/etc", "/dev")
                and arena_writable(arena, f)}  # fmt: skip


def arena_writable(arena: Arena, path: str) -> bool:
    return arena.attack(f"touch {path}/.t").exit_code == 0


@pytest.mark.long
def test_deleting_everything_harms_nobody_else(arena: Arena) -> None:
    arena.attack("rm -rf --no-preserve-root / 2>/dev/null; rm -rf ~ /tmp/* /dev/shm/*", timeout=20)


def test_replacing_tools_and_libraries_reaches_nobody_else(arena: Arena) -> None:
    site = "$(/usr/bin/env python -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))')"
    arena.attack(
        f"S={site}; for f in sitecustomize usercustomize numpy evil; do echo 'print(666)' > $S/$f.py; done; echo 'import os' > $S/x.pth",
        "mkdir -p ~/.local/lib/python3.11/site-packages ~/.config; echo 'print(666)' > ~/.local/lib/python3.11/site-packages/usercustomize.py",
        "cp ~/.local/lib/python3.11/site-packages/usercustomize.py numpy.py; echo 'echo 666' > ~/.bashrc; cp ~/.bashrc ~/.profile",
    )
