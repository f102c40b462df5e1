"""The contract of a launcher: it starts a rank somewhere and hands over what that rank tells and prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from airloop.runs.run import Run

# Of a rank's output: "event", a line of JSON in the words of a Watcher, or "line", whatever it or a library printed.
Tell = Callable[[Literal["event", "line"], str], None]


@dataclass(frozen=True)
class Order:
    """What a rank is started with (airloop/rank.py reads it)."""

    run: str
    rank: int
    size: int
    folder: str  # that all ranks reach: for signs of life and, on one machine, the store by which they find each other
    device: str  # cuda or cpu
    resuming: bool
    gpu: str = ""  # for CUDA_VISIBLE_DEVICES
    here: int = 1  # ranks on its machine
    interface: str = "lo"  # of the network, by which it talks to the others; none: as their libraries choose
    address: str = ""  # host:port of the store, which the first rank keeps, where they are on several machines
    # For its environment only: a command can be read by everybody on its machine.
    environment: dict[str, str] = field(default_factory=dict)
    # Seconds of the run by now, and of those this session's: a rank's machine may have another time of day.
    spent: tuple[float, float] | None = None
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
    # A rank's end breaks the others' connections: how long it may take until that end itself is known here.
    settle_s: float

    def orders(self, run: Run, resuming: bool) -> list[Order]:
        """One for each rank: where the run is trained, and whether that is possible, is decided here. AirError."""
        ...

    def spawn(self, order: Order, tell: Tell) -> Handle:
        """Start a rank. `tell` is called from threads of the launcher's own, in the order of each kind."""
        ...

    def close(self) -> None:
        """When all ranks have ended, or none was started. A rank that still runs ends by itself: nobody is there to
        be told."""
        ...
