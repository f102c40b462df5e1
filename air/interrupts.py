"""What stops a command: Ctrl-C, and as well `kill` or a cluster that is about to take its machine back.

All of them end a run the same way, with everything saved. For the main thread, before anything else runs.
"""

from __future__ import annotations

import signal
from types import FrameType


def heed() -> None:
    """For a command that somebody starts.

    A script's background jobs are started with Ctrl-C ignored, and so would be all that they start: no command of an
    agent could be interrupted. We ignore it with a handler instead, which other programs do not inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _nothing)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def heed_launcher() -> None:
    """For a process that a command of ours has started: Ctrl-C is the command's way to say stop, whatever the one who
    started that had ignored; a `kill` that reaches all of them is the command's to answer."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is _nothing:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
