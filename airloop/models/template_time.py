"""A chat template is a program that comes with a model: it gets some seconds of computing, and then it is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airloop.errors import AirError

PROBE_S = 0.7  # for a few words, the compiling included; a long template takes 0.05 s
RENDER_S = 10.0  # for a chat of millions of characters
EVERY_S = 0.05
IDLE_LOOKS = 100
# A template counts messages. Larger numbers, and powers, make one step of it last for ever: nothing can stop that.
LARGEST = 1_000_000


class _TooLongError(Exception):
    pass


@dataclass(eq=False)
class _Limit:
    thread: int
    clock: Callable[[], float]
    until: float


class _Watch:
    """One thread for all templates that are being rendered; it ends when there are none for a while."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.limits: set[_Limit] = set()
        self.thread: threading.Thread | None = None

    def add(self, limit: _Limit) -> None:
        with self.lock:
            self.limits.add(limit)
            if self.thread is None:
                self.thread = threading.Thread(target=self._look, daemon=True, name="template-time")
                self.thread.start()

    def remove(self, limit: _Limit) -> None:
        with self.lock:
            self.limits.discard(limit)

    def _look(self) -> None:
        idle = 0
        while idle < IDLE_LOOKS:
            time.sleep(EVERY_S)
            with self.lock:
                idle = 0 if self.limits else idle + 1
                for limit in [limit for limit in self.limits if limit.clock() > limit.until]:
                    self.limits.remove(limit)
                    thread, error = ctypes.c_ulong(limit.thread), ctypes.py_object(_TooLongError)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
                if idle == IDLE_LOOKS:
                    self.thread = None


_watch = _Watch()
# A process that is forked has neither the thread nor, perhaps, a free lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.__init__)  # type: ignore[misc]


@contextlib.contextmanager
def at_most(seconds: float, name: str) -> Iterator[None]:
    """Stops the Python code inside after so many seconds of this thread's processor time: those that it waited for
    others do not count."""
    clock = _clock()
    limit = _Limit(threading.get_ident(), clock, clock() + seconds)
    try:
        _watch.add(limit)
        try:
            yield
        finally:
            _watch.remove(limit)
    except _TooLongError:
        raise AirError(
            f"the chat template of {name} did not end within {seconds:g} s of computing",
            'give one that does: chat_template = "file.jinja" under [model]',
        ) from None


def _clock() -> Callable[[], float]:
    """Processor time of this thread, to be asked for in another; the time of day where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    own = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(own)


def refuse_long_steps(templates: Any, name: str) -> None:
    """Before a template is compiled, which computes what is constant in it."""
    import jinja2

    texts = templates.values() if isinstance(templates, Mapping) else [templates]
    for text in texts:
        try:
            tokens = [(kind, word) for _, kind, word in jinja2.Environment().lex(str(text))]
        except jinja2.TemplateSyntaxError:
            continue  # compiling it says so better
        for kind, word in tokens:
            if word == "**" if kind == "operator" else kind in ("integer", "float") and _number(word) > LARGEST:
                raise AirError(
                    f"the chat template of {name} computes with {word[:40]!r}, which could take for ever",
                    'give one without: chat_template = "file.jinja" under [model]',
                )


def _number(word: str) -> float:
    try:
        return float(word) if len(word) < 40 and not word.lower().startswith(("0x", "0b", "0o")) else int(word, 0)
    except (ValueError, OverflowError):  # more digits than Python turns into a number
        return float("inf")
