"""The contract of a launcher: it starts ranks and passes on their events and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from airloop.runs.run import Run

# Called for each line of a rank's output: "event", JSON as the methods of Watcher, or "line", any other printed line.
OnOutput = Callable[[Literal["event", "line"], str], None]


@dataclass(frozen=True)
class RankSpec:
    """The parameters that a rank is started with (airloop/rank.py reads them)."""

    run: str
    rank: int
    size: int
    folder: str  # that all ranks reach: for heartbeats and, on one machine, the store by which they find each other
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
    session: int = 0  # of the run: a rank that comes back after another has begun writes nothing (runs/fence.py)
    events: int = 3  # the file descriptor that it writes its events to


class Handle(Protocol):
    """A rank that was started; as subprocess.Popen has it. One that is on another machine has its name, as `host`."""

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

    def rank_specs(self, run: Run, resuming: bool) -> list[RankSpec]:
        """One for each rank: decides where the run is trained. AirError where that is not possible."""
        ...

    def spawn(self, spec: RankSpec, on_output: OnOutput) -> Handle:
        """Start a rank. `on_output` is called from threads of the launcher, in order for each kind of line."""
        ...

    def close(self) -> None:
        """When all ranks have ended, or none was started. A rank that still runs ends by itself, without its
        launcher."""
        ...
