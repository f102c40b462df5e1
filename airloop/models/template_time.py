"""A chat template is a program that comes with a model: it gets some seconds of computing, and then it is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airloop.errors import AirError

PROBE_S = 0.7  # for a few words, the compiling included; a long template takes 0.05 s
RENDER_S = 10.0  # for a chat of millions of characters
EVERY_S = 0.05
# A template counts messages. Larger numbers, and powers, make one step of it last for ever: nothing can stop that.
LARGEST = 1_000_000


class _TooLongError(Exception):
    pass


@contextlib.contextmanager
def at_most(seconds: float, name: str) -> Iterator[None]:
    """Stops the Python code inside after so many seconds of this thread's processor time: those that it waited for
    others do not count."""
    thread, clock = threading.get_ident(), _clock()
    until, lock, done = clock() + seconds, threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            with lock:
                if not done.is_set() and clock() > until:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLongError))
                    return

    threading.Thread(target=watch, daemon=True, name="template-time").start()
    try:
        try:
            yield
        finally:
            with lock:
                done.set()
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
