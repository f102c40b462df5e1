"""Signals reach those they are for, however the command was started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from airloop import assemble, interrupts
from airloop.config import load_config
from airloop.watch.display.display import Display

REPORT = "import signal; print([signal.getsignal(n).__class__.__name__ for n in (signal.SIGINT, signal.SIGTERM)])"
USUAL = "['builtin_function_or_method', 'Handlers']"  # KeyboardInterrupt, and SIG_DFL


def run_as_job(program: str, given: signal.Handlers) -> str:
    """The program, started with Ctrl-C ignored as a script's background job is, or not."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: signal.signal(signal.SIGINT, given),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.strip()


@pytest.mark.parametrize("install_handlers", ["install_handlers", "install_launcher_handlers"])
@pytest.mark.parametrize("given", [signal.SIG_DFL, signal.SIG_IGN])
def test_what_an_agent_starts_can_be_interrupted_whatever_we_ignore(
    install_handlers: str, given: signal.Handlers
) -> None:
    program = f"from airloop import interrupts; interrupts.{install_handlers}(); import subprocess, sys; "
    program += f"subprocess.run([*interrupts.default_signals(), sys.executable, '-c', {REPORT!r}])"
    assert run_as_job(program, given) == USUAL


UPDATE = """
import asyncio, os, signal, time
from airloop import interrupts
interrupts.install_handlers()

async def main():
    os.kill(os.getpid(), {number})
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # an update: it holds the interpreter
        pass
    print("update finished")
    try:
        await asyncio.sleep(30)
    finally:
        print("saved")

try:
    interrupts.run(main())
except KeyboardInterrupt:
    print("stopped with", interrupts.exit_code())
"""


@pytest.mark.parametrize(
    ("given", "number", "code"),
    [
        (signal.SIG_DFL, signal.SIGINT, 130),
        (signal.SIG_DFL, signal.SIGTERM, 143),
        (signal.SIG_IGN, signal.SIGTERM, 143),
    ],
)
def test_H12_an_update_that_has_begun_is_finished(given: signal.Handlers, number: signal.Signals, code: int) -> None:
    printed = run_as_job(UPDATE.format(number=int(number)), given)
    assert printed.splitlines() == ["update finished", "saved", f"stopped with {code}"]


SAVES_FOR_LONG = """
import asyncio, os, signal, time
from airloop import interrupts
interrupts.install_handlers()

async def main():
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.sleep(30)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

try:
    interrupts.run(main())
except KeyboardInterrupt:
    print("stopped with", interrupts.exit_code())
"""


def test_the_second_kill_does_not_wait() -> None:
    began = time.monotonic()
    assert run_as_job(SAVES_FOR_LONG, signal.SIG_IGN) == "stopped with 143"
    assert time.monotonic() - began < 20


WAITS = """
import time
from airloop import interrupts
interrupts.{install_handlers}()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(
    ("install_handlers", "given", "number", "stops"),
    [
        ("install_handlers", signal.SIG_DFL, signal.SIGINT, True),
        ("install_handlers", signal.SIG_DFL, signal.SIGTERM, True),
        ("install_handlers", signal.SIG_IGN, signal.SIGINT, False),
        ("install_handlers", signal.SIG_IGN, signal.SIGTERM, True),
        ("install_launcher_handlers", signal.SIG_IGN, signal.SIGINT, True),
        ("install_launcher_handlers", signal.SIG_DFL, signal.SIGTERM, False),
    ],
)
def test_who_is_stopped_by_what(
    install_handlers: str, given: signal.Handlers, number: signal.Signals, stops: bool
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(install_handlers=install_handlers)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, given),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        if stops:
            assert process.communicate(timeout=30)[0] == "stopped\n"
            assert process.returncode == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_where_a_loop_is_running_already_another_is_run_beside_it() -> None:
    """As in a notebook."""

    async def work() -> tuple[int, bool]:
        await asyncio.sleep(0)
        return 7, threading.current_thread() is threading.main_thread()

    async def notebook() -> tuple[int, bool]:
        return interrupts.run(work())

    assert asyncio.run(notebook()) == (7, False)


def test_an_interrupt_of_a_notebook_cancels_what_runs_beside_it() -> None:
    ended = []

    async def work() -> None:
        try:
            main = threading.main_thread().ident
            threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def notebook() -> None:
        # A kernel's own: in a loop of asyncio's, an interrupt would be told to its task instead.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            interrupts.run(work())
        finally:
            signal.signal(signal.SIGINT, before)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook())
    assert ended == [True]


def stopped_in(work: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """A command that is interrupted in the middle of what holds the interpreter: what it came to, and what it said."""
    came_to: list[str] = []

    async def main() -> None:
        try:
            work()
            came_to.append("worked")
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)  # what is to be closed is closed
            came_to.append("closed")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupts.run(main())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    return came_to, capfd.readouterr().err


def test_what_is_finished_first_is_said_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_phase", "what has begun")

    def phase() -> None:
        Display(quiet=True).phase("measuring this machine")
        signal.raise_signal(signal.SIGINT)
        os.write(2, b"still at it\n")

    came_to, said = stopped_in(phase, capfd)
    assert came_to == ["worked", "closed"]
    assert said == "\nstopping: measuring this machine is finished first; Ctrl-C again ends it at once\nstill at it\n"

    def update() -> None:
        with interrupts.at_once(), interrupts.finishing("the update"):
            signal.raise_signal(signal.SIGINT)

    came_to, said = stopped_in(update, capfd)
    assert came_to == ["worked", "closed"] and "stopping: the update is finished first" in said

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    came_to, said = stopped_in(twice, capfd)
    assert came_to == [] and said.count("stopping") == 1


def test_a_model_that_is_being_loaded_is_not_finished_first(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been: for minutes nothing answered a first Ctrl-C."""

    def load(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("goes on")

    monkeypatch.setattr(assemble, "_assemble", load)
    config = load_config(["arith"])
    came_to, said = stopped_in(lambda: assemble.assemble(config, print, envs={}) and None, capfd)
    assert came_to == ["closed"] and said == ""


def test_who_waits_is_stopped_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    def soon() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, signal.raise_signal, signal.SIGINT)

    came_to, said = stopped_in(soon, capfd)
    assert came_to == ["worked", "closed"] and said == ""
