"""The contract of a sink, and what its file tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airloop.section import Section

if TYPE_CHECKING:
    from airloop.types import Alarm


class Sink(Protocol):
    """A place for metrics besides metrics.jsonl. It is called from a thread of its own: it may take its time, and what
    it raises is said once and stops nothing."""

    name: str
    url: str | None  # where a person can look at it, once it is open

    def open(self) -> str:
        """Returns what a person should know about it."""
        ...

    def step(self, flat: dict[str, float], step: int) -> None:
        """Metrics of an accepted step, by the names of docs/metrics.md."""
        ...

    def evaluated(self, flat: dict[str, float], step: int) -> None:
        """Metrics of an evaluation, likewise."""
        ...

    def alarm(self, alarm: Alarm) -> None: ...

    def close(self) -> None:
        """The run is over: write or send what is left."""
        ...


@dataclass(frozen=True)
class Logged:
    """What a sink knows of the run that it logs."""

    path: Path
    name: str
    goal: str | None
    first_step: int  # above 0: it is resumed
    config: dict[str, Any]
    toml: str
    status: Callable[[], dict[str, Any]]  # what is noted of the run in status.json
    note: Callable[..., None]  # adds to it, by keywords


class MissingSetting(NamedTuple):
    """What a sink needs and this machine has not: how to get it, or what the section is to say instead."""

    seen: str
    fix: str
    instead: Mapping[str, Any]


def nothing_missing(settings: Any) -> MissingSetting | None:
    return None


@dataclass(frozen=True)
class SinkSpec:
    name: str  # of its section
    title: str  # as its makers write it
    section: type[Section]
    make: Callable[[Any, Logged], Sink]  # from its section and the run
    package: str | None = None  # that it needs, and the extra that installs it
    missing: Callable[[Any], MissingSetting | None] = nothing_missing  # asked before a run, such as for a key
