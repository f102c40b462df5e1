"""What stops a command: Ctrl-C, and as well `kill` or a cluster that is about to take its machine back.

All of them end a run the same way: an update that has begun is finished, everything is saved. For the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import subprocess
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_stopped_by = signal.SIGINT


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


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, for a command that may have been started with Ctrl-C ignored: a script's background job.

    asyncio turns the first Ctrl-C into a cancellation, so that what holds the interpreter comes to its end. Where
    Ctrl-C is ignored it does not, and neither would it for our `kill`.
    """
    if asyncio._get_running_loop() is not None:
        return _beside(main)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN or signal.getsignal(signal.SIGTERM) is not _stop:
        return asyncio.run(main)
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


async def _cancelled_by_kill(main: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        global _stopped_by
        _stopped_by = signal.SIGTERM
        task.cancel()
        again()

    def again() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _stop)  # the next one does not wait

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await main
    finally:
        again()


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
