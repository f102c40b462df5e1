"""Every call of run_python sees the same: whatever a call tries to leave is gone in the next, by the filter of
system calls and, where there is none, by a fresh sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from typing import Any

import pytest
from support.soup_samples import RATING, sample_env

from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.bubblewrap.seccomp import (
    AARCH64,
    ALLOW,
    CLONE3,
    EPERM,
    JUMP_BITS,
    JUMP_EQUAL,
    LOAD,
    RETURN,
    X86_64,
)
from airloop.sandbox.pool import Pool
from airloop.types import Action
from airloop_envs.soup import quiet
from airloop_envs.soup.sandbox_pool import PACKAGES, SandboxPool, image

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

# All that a call can see of what another did. Times of files are those of a sandbox: only one that was set counts.
LOOK = """
import glob, json, os, stat
import bs4
seen = {"environment": dict(os.environ), "cwd": os.getcwd(), "bs4": hasattr(bs4, "left")}
mask = os.umask(0)
seen["umask"] = mask
for top in (os.path.expanduser("~"), "/tmp", "/dev/shm"):
    for folder, directories, files in os.walk(top):
        if "/lib/python" in folder:  # an interpreter may lie in /tmp
            directories.clear()
        about = os.lstat(folder)
        seen[folder] = [sorted(directories), sorted(files), stat.filemode(about.st_mode), about.st_mtime == 86400.0]
        for name in directories + files:
            path = os.path.join(folder, name)
            seen[path] = os.readlink(path) if os.path.islink(path) else ""
running = []
for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
    if pid != os.getpid():
        read = lambda name: open(f"/proc/{pid}/{name}").read()
        nice = read("stat").rpartition(")")[2].split()[16]
        running.append([read("comm"), read("cmdline"), read("limits"), read("oom_score_adj"), nice])
seen["running"] = running
for table in glob.glob("/proc/sysvipc/*"):
    seen[table] = open(table).read().splitlines()[1:]
print(json.dumps(seen, sort_keys=True))
"""
OTHERS = "import os\nfor pid in [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]:\n    "
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
LEFT = {
    "an empty file": "for place in ('left', '/tmp/left', '/dev/shm/left'): open(place, 'w')",
    "a file without a name": "import os; os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "a link": "import os\nfor place in ('left', '/tmp/left', '/dev/shm/left'): os.symlink('what was found', place)",
    "a directory": "import os\nfor place in ('left', '/tmp/left', '/dev/shm/left'): os.makedirs(place + '/what/was')",
    "a pipe": "import os; os.mkfifo('left')",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind('left')",
    "a directory's rights": "import os; os.chmod('.', 0o711)",
    "a directory's time": "import os; os.utime('.', (86400, 86400))",
    "the workspace removed": "import os; os.chdir('/'); os.rmdir(os.path.expanduser('~/workspace'))",
    "a package of its own": "import site, os; os.makedirs(site.getusersitepackages())",
    "a daemon": DAEMON,
    "a daemon by the shell": "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "a daemon by the warm python": f"import subprocess; subprocess.run(['python', '-c', {DAEMON!r}])",
    "the environment": "import os; os.environ['LEFT'] = '1'; os.chdir('/'); os.umask(0o77)",
    "a module changed": "import bs4; bs4.left = 1",
    "shared memory": "import ctypes; print(ctypes.CDLL(None).shmget(0x5EED, 4096, 0o1600))",
    "a message queue": "import ctypes; print(ctypes.CDLL(None).msgget(0x5EED, 0o1600))",
    "a semaphore": "import ctypes; print(ctypes.CDLL(None).semget(0x5EED, 1, 0o1600))",
    "another's limits": OTHERS + "import resource; resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))\n    "
    "resource.prlimit(pid, resource.RLIMIT_NOFILE, (77, 77))",
    "another's priority": OTHERS + "os.setpriority(os.PRIO_PROCESS, pid, 7)",
    "another's score": OTHERS + "open(f'/proc/{pid}/oom_score_adj', 'w').write('77')",
    "another killed": OTHERS + "os.kill(pid, 9)",
}  # fmt: skip


async def said_by(codes: list[str], **args: Any) -> tuple[list[str], int]:
    """What each code printed in one episode, and how many sandboxes that took."""
    env = sample_env(**args)
    try:
        async with env.open(env.named("rating"), 0) as session:
            acts = [session.act(Action("tool", name="run_python", arguments={"code": code})) for code in codes]
            said = [(await act).text for act in acts]
        counts = env.sandbox_pool().pool.counts
        return said, counts["warm"] + counts["cold"]
    finally:
        await env.close()


@pytest.mark.long
@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.parametrize("filtered", [True, False])
def test_what_a_call_leaves_is_gone_in_the_next(filtered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not filtered:
        monkeypatch.setattr(quiet, "program", lambda: None)
    codes = [LOOK, *(code for left in LEFT.values() for code in (left, LOOK))]
    said, sandboxes = asyncio.run(said_by(codes, max_output_chars=10_000))
    assert said[0].startswith('{"/') and said[0].endswith("}"), said[0]
    for name, seen in zip(LEFT, said[2::2], strict=True):
        assert seen == said[0], name
    assert sandboxes == 1 if filtered else sandboxes > len(codes)


@needs_bubblewrap
def test_a_call_can_make_no_file_and_no_process_and_is_told_so() -> None:
    codes = [LEFT[name] for name in ("an empty file", "a link", "a directory", "a daemon", "a daemon by the shell")]
    said, _ = asyncio.run(said_by(codes))
    assert [text.splitlines()[-1].partition(":")[0] for text in said] == ["PermissionError"] * len(codes)


HONEST = """
import asyncio, concurrent.futures, datetime, decimal, hashlib, io, locale, random, re, signal, sqlite3, tempfile, time
import threading, urllib.parse, uuid, zoneinfo
from bs4 import BeautifulSoup
import lxml.html
assert all(BeautifulSoup(HTML, parser).p.text == "4.8" for parser in ("html.parser", "lxml", "html5lib"))
assert lxml.html.fromstring(HTML).xpath("//p/text()") == ["4.8"] or lxml.html.fromstring(HTML).text == "4.8"
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(len, ["ab"] * 8)) == 16
async def two():
    return await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.to_thread(int, "2"))
assert asyncio.run(two()) == [1, 2]
assert sqlite3.connect(":memory:").execute("select 1 + 1").fetchone() == (2,)
assert datetime.datetime.now(zoneinfo.ZoneInfo("UTC")).year > 2000 and uuid.uuid4() and random.random() < 1
assert hashlib.sha256(b"x").hexdigest() and locale.getpreferredencoding() and open("/proc/self/stat").read()
signal.signal(signal.SIGALRM, lambda *_: print("rang"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.1)
print("ok")
"""


@needs_bubblewrap
def test_what_honest_code_does_goes_on_working() -> None:
    assert asyncio.run(said_by([HONEST]))[0] == ["rang\nok"]


@needs_bubblewrap
def test_through_the_shell_too_a_call_leaves_nothing() -> None:
    """As in a container, where there is no warm interpreter."""

    async def through_the_shell() -> list[str]:
        sandbox_pool = SandboxPool(Pool(Bubblewrap("", PACKAGES, warm_python=False), standby=1), image(512, 20), 2)
        try:
            codes = [HONEST, LEFT["a link"], LEFT["a daemon"], "import os; print(os.listdir('.'))"]
            return [(await sandbox_pool.run("me", RATING, RATING.pages["/"], code, 20)).output for code in codes]
        finally:
            await sandbox_pool.close()

    honest, link, daemon, listed = asyncio.run(through_the_shell())
    assert honest == "rang\nok\n" and listed == "[]\n"
    assert "PermissionError" in link and "PermissionError" in daemon


def test_the_filter_is_known_for_two_machines_and_names_no_call_twice() -> None:
    assert quiet.program("sparc64") is None
    for column, machine in enumerate(("x86_64", "aarch64"), 1):
        allowed, into = quiet.numbers(quiet.ALLOWED, column), quiet.numbers(quiet.LOOKED_INTO, column)
        assert len({*allowed.values(), *into.values()}) == len(allowed) + len(into)
        code = quiet.program(machine)
        assert code is not None and len(code) % 8 == 0 and len(code) // 8 < 4096  # the kernel's bound


def decided(code: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel would answer: the few instructions that the filter is made of, done by hand."""
    data = struct.pack("=iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", code))
    place = loaded = 0
    while True:
        kind, yes, no, value = program[place]
        place += 1
        if kind == LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif kind == RETURN:
            return int(value)
        else:
            holds = {JUMP_EQUAL: loaded == value, JUMP_BITS: bool(loaded & value)}[kind]
            place += yes if holds else no


@pytest.mark.parametrize(("machine", "audit", "column"), [("x86_64", X86_64, 1), ("aarch64", AARCH64, 2)])
def test_the_filter_lets_read_and_start_threads_and_refuses_what_lasts(machine: str, audit: int, column: int) -> None:
    code = quiet.program(machine)
    assert code is not None
    into = quiet.numbers(quiet.LOOKED_INTO, column)
    for number in quiet.numbers(quiet.ALLOWED, column).values():
        assert decided(code, audit, number) == ALLOW
    assert decided(code, audit, into["openat"], 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, 0o20000000):
        assert decided(code, audit, into["openat"], 0, 0, flag) == quiet.EACCES
        assert "open" not in into or decided(code, audit, into["open"], 0, flag) == quiet.EACCES
    assert decided(code, audit, into["clone"], 0x3D0F00) == ALLOW  # a thread, as glibc makes it
    assert decided(code, audit, into["clone"], 0x1200011) == EPERM  # a fork
    assert (
        decided(code, audit, into["fcntl"], 0, 1030) == ALLOW and decided(code, audit, into["fcntl"], 0, 1036) == EPERM
    )
    assert decided(code, audit, into["ioctl"], 0, 0x5401) == ALLOW
    assert decided(code, audit, into["ioctl"], 0, 0x40086602) == quiet.ENOTTY  # FS_IOC_SETFLAGS
    assert decided(code, audit, into["prlimit64"], 0) == ALLOW and decided(code, audit, into["prlimit64"], 7) == EPERM
    assert decided(code, audit, into["socket"], 1) == quiet.ENETUNREACH
    allowed = {*quiet.numbers(quiet.ALLOWED, column).values(), *into.values(), CLONE3}
    for number in {*range(600), *range(0x40000000, 0x40000200)} - allowed:
        assert decided(code, audit, number, 0x10000) == EPERM
    assert decided(code, audit ^ 1, 0) == EPERM  # another architecture's numbers
