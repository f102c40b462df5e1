"""The contract of a node: a machine of the run, with an agent on it that is called over the network."""

from __future__ import annotations

from typing import Any, Protocol


class NodeLost(Exception):
    """A node that will not answer any more, and why."""


class Node(Protocol):
    """One machine. `name` is what people call it."""

    name: str

    def call(self, method: str, *given: Any) -> Any:
        """What a method of its agent (agent.py) returns. NodeLost if it was lost; a call whose answer was lost is
        repeated, so an agent must accept the same call twice."""
        ...


class Nodes(Protocol):
    """All machines that may be used."""

    head: str  # the address by which every node reaches the one that the others have joined

    def join(self, count: int, gpus: int, fewer: bool) -> list[Node]:
        """So many nodes, each with so many GPUs, the one of this process first if it is among them. AirError where
        there are not so many; with `fewer`, those that there are."""
        ...

    def close(self) -> None: ...
