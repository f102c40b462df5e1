"""What stops a command: Ctrl-C, and as well `kill` or a cluster that is about to take its machine back.

All of them end a run the same way: an update that has begun is finished, everything is saved. For the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_stopped_by = signal.SIGINT
_phase = "what has begun"  # as the display last said it
_finishing: list[str] = []  # updates that are finished, whoever wants to stop
_at_once = 0  # parts that leave nothing half done, inside one another


def install_handlers() -> None:
    """For a command that somebody starts: `kill` is Ctrl-C, unless whoever starts it has other plans for it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def install_launcher_handlers() -> None:
    """For a process that a command of ours has started: Ctrl-C is the command's way to say stop, whatever the one who
    started that had ignored or, as Ray's threads do, put off; a `kill` that reaches all of them is the command's to
    answer."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _nothing)  # not SIG_IGN, which the agents' commands would inherit


def note_phase(text: str) -> None:
    """What the command is at, for whoever stops it."""
    global _phase
    _phase = text


@contextlib.contextmanager
def finishing(what: str) -> Iterator[None]:
    """Around what is finished once it has begun, although it may give the loop its turn."""
    _finishing.append(what)
    try:
        yield
    finally:
        _finishing.remove(what)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Around what holds the interpreter for long and leaves nothing half done, such as loading a model: a first Ctrl-C
    ends it there, and not once it has come to its end."""
    global _at_once
    _at_once += 1
    try:
        yield
    finally:
        _at_once -= 1


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, for a command that may have been started with Ctrl-C ignored: a script's background job.

    asyncio turns the first Ctrl-C into a cancellation, so that what holds the interpreter comes to its end; what that
    is is said at once, and `at_once` is excepted. Where Ctrl-C is ignored it does not, and neither would it for our
    `kill`.
    """
    if asyncio._get_running_loop() is not None:
        return _beside(main)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN or signal.getsignal(signal.SIGTERM) is not _stop:
        return asyncio.run(_answered(main))
    try:
        return asyncio.run(_cancelled_by_kill(main))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _beside(main: Coroutine[Any, Any, T]) -> T:
    """In a notebook a loop is running already, and a thread has one at most: ours runs in another. An interrupt, which
    reaches the notebook's, is passed on as the cancellation that it is elsewhere."""
    task: Future[asyncio.Task[Any]] = Future()

    async def work() -> T:
        running = asyncio.current_task()
        assert running is not None
        task.set_result(running)
        return await main

    with ThreadPoolExecutor(1, "air") as pool:
        done = pool.submit(asyncio.run, work())
        try:
            return done.result()
        except KeyboardInterrupt:
            running = task.result()
            running.get_loop().call_soon_threadsafe(running.cancel)
            with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
                done.result()
            raise


async def _answered(main: Coroutine[Any, Any, T]) -> T:
    """With the handler that asyncio has just put in place, behind ours."""
    loop, cancels = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    if not callable(cancels) or cancels is signal.default_int_handler:  # whoever started us has other plans
        return await main
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            _answer(loop)
        cancels(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        return await main
    finally:
        signal.signal(signal.SIGINT, cancels)


def _answer(loop: asyncio.AbstractEventLoop) -> None:
    """To the first Ctrl-C. Written past the display, which may be in the middle of a line."""
    if _at_once and not _finishing:
        raise KeyboardInterrupt
    if _finishing or asyncio.current_task(loop) is not None:  # else all wait for something, and stop now
        what = _finishing[-1] if _finishing else _phase
        with contextlib.suppress(OSError):
            os.write(2, f"\nstopping: {what} is finished first; Ctrl-C again ends it at once\n".encode())


async def _cancelled_by_kill(main: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop(number: int, frame: FrameType | None) -> None:
        global _stopped_by
        _stopped_by = signal.SIGTERM
        signal.signal(signal.SIGTERM, _stop)  # the next one does not wait
        _answer(loop)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # or a loop that waits would not look

    signal.signal(signal.SIGTERM, stop)
    try:
        return await main
    finally:
        signal.signal(signal.SIGTERM, _stop)


def raise_again(returned: object) -> None:
    """What a command returned: newer versions of typer take Ctrl-C for themselves, and return 130 in place of it."""
    if returned == 128 + signal.SIGINT:
        raise KeyboardInterrupt


def exit_code() -> int:
    """Of a command that was stopped, as a shell would say it."""
    return 128 + _stopped_by


def default_signals() -> list[str]:
    """What to put in front of a command so that it can be interrupted although we may not be: else all that a script's
    background job starts ignores Ctrl-C, an agent's shell and what it runs included."""
    return _with_env() if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else []


@functools.cache
def _with_env() -> list[str]:
    line = ["env", "--default-signal=INT"]
    try:
        subprocess.run([*line, "true"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # not GNU's: what ignores the interrupt is killed, and it goes on
        return []
    return line


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopped_by
    _stopped_by = signal.SIGTERM
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
