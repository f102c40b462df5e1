"""The contract of a launcher: it starts a rank somewhere and hands over what that rank tells and prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

# Of a rank's output: "event", a line of JSON in the words of a Watcher, or "line", whatever it or a library printed.
Tell = Callable[[Literal["event", "line"], str], None]


@dataclass(frozen=True)
class Order:
    """What a rank is started with (airloop/rank.py reads it)."""

    run: str
    rank: int
    size: int
    store: str  # the file by which the ranks find each other
    device: str  # cuda or cpu
    resuming: bool
    gpu: str = ""  # for CUDA_VISIBLE_DEVICES
    events: int = 3  # the file descriptor that it writes what it has to tell to


class Handle(Protocol):
    """A rank that was started; as subprocess.Popen has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it runs."""
        ...

    def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None: ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    def spawn(self, order: Order, tell: Tell) -> Handle:
        """Start a rank. `tell` is called from threads of the launcher's own, in the order of each kind."""
        ...

    def close(self) -> None:
        """When all ranks have ended. A rank that still runs ends by itself: nobody is there to be told."""
        ...
