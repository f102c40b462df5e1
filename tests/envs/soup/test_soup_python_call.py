"""Sandbox.python, which run_python rests on: with the warm interpreter and, where there is none, through the shell."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from airloop.sandbox import processes
from airloop.sandbox.base import Result
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop_envs.soup.sandbox_pool import PACKAGES, PRELOAD, image

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

ECHO = "import sys\nprint(sys.stdin.read()[::-1])"


async def results(warm: bool, calls: list[tuple[str, bytes, float]]) -> list[Result]:
    backend = Bubblewrap("", PACKAGES, warm, PRELOAD)
    try:
        sandbox = await backend.start(image(256, 5))
        return [await sandbox.python(*asked) for asked in calls]
    finally:
        await backend.close()


@pytest.mark.parametrize("warm", [True, False])
def test_a_call_has_its_input_its_output_its_code_and_its_deadline(warm: bool) -> None:
    big = "é" * 200_000
    calls = [
        (ECHO, "añ\u0000b".encode(), 20.0),
        ("import sys\nprint(len(sys.stdin.read()))", big.encode(), 20.0),
        ("raise SystemExit(3)", b"", 20.0),
        ("import bs4, lxml.html, html5lib\nprint('ok')", b"", 30.0),
        ("print('begun', flush=True)\nimport time\ntime.sleep(60)", b"", 1.5 if warm else 5.0),
        ("print('after')", b"", 20.0),
    ]
    said = asyncio.run(results(warm, calls))
    assert said[0].output == "b\0ña\n"
    assert said[1].output == "200000\n"
    assert said[2].exit_code == 3
    assert said[3].output == "ok\n"
    assert said[4].timed_out and said[4].exit_code == 124 and said[4].output.startswith("begun")
    assert said[5].output == "after\n" and said[5].exit_code == 0


@pytest.mark.long
@pytest.mark.slow
def test_calls_in_many_sandboxes_at_once_do_not_mix() -> None:
    """The process that forks them has hundreds of files open then, with numbers of all sizes."""

    async def crowd() -> list[str]:
        backend = Bubblewrap("", PACKAGES, True, PRELOAD)
        try:
            sandboxes = [await backend.start(image(256, 5)) for _ in range(24)]
            asked = [sandbox.python(ECHO, f"{i:03d}".encode(), 30.0) for i, sandbox in enumerate(sandboxes)]
            return [result.output for result in await asyncio.gather(*asked)]
        finally:
            await backend.close()

    assert asyncio.run(crowd()) == [f"{i:03d}"[::-1] + "\n" for i in range(24)]


def test_a_sandbox_full_of_processes_is_its_agents_own() -> None:
    """It gets an error when it asks for more, and whoever was left running is no one else's burden."""
    fill = "import os, time\nfor _ in range(40):\n    if os.fork() == 0:\n        os.setsid(); time.sleep(30)"
    filled, after = asyncio.run(results(True, [(fill, b"", 10.0), ("print('room')", b"", 10.0)]))
    assert "BlockingIOError" in filled.output and filled.exit_code == 1
    assert after.output == "room\n" or after.exit_code != 0


def test_the_first_and_the_last_of_a_long_output_are_kept() -> None:
    (said,) = asyncio.run(results(True, [("print('first' + 'x' * 3_000_000 + 'last')", b"", 20.0)]))
    assert said.output.startswith("first") and said.output.endswith("last\n")
    assert said.cut_bytes == 3_000_010 - 400_000 and f"[… {said.cut_bytes} bytes left out …]" in said.output


def test_a_call_that_nobody_waits_for_any_more_ends() -> None:
    async def given_up() -> list[int]:
        backend = Bubblewrap("", PACKAGES, True, PRELOAD)
        try:
            sandbox = await backend.start(image(256, 60))
            await sandbox.python("print(1)", b"", 5.0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sandbox.python("while True: pass", b"", 50.0)
            for _ in range(50):
                await asyncio.sleep(0.1)
                busy = [p for p in processes.all_pids() if _parent_of(p) == backend.door("python").process.pid]
                if not busy:
                    break
            return busy
        finally:
            await backend.close()

    assert asyncio.run(given_up()) == []


def test_a_script_has_three_files_open_and_finds_no_frame_of_the_host() -> None:
    look = (
        "import os, sys\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:4])\n"
        "f, names = sys._getframe(), set()\nwhile f:\n    names |= set(f.f_locals); f = f.f_back\n"
        "print({'connection', 'header', 'rest', 'kept', 'host'} & names)\nprint(os.getpid() < 1000, os.getuid())"
    )
    (said,) = asyncio.run(results(True, [(look, b"x", 20.0)]))
    assert said.output.splitlines()[0] == "[0, 1, 2, 3]"  # 3 is the listing's own
    assert said.output.splitlines()[1:] == ["set()", f"True {1000}"]


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[1]) if pid != os.getpid() else 0
