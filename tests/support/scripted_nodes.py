"""Nodes without a network: real agents in threads of this process, between which and the launcher things go wrong as
told."""

from __future__ import annotations

import os
from typing import Any

from airloop.cluster.agent import NodeAgent
from airloop.cluster.node import Node, NodeLost


class ScriptedNode:
    """Implements Node. `lost`: why it does not answer any more. `twice`: every answer is swallowed once, so that every
    call is made again. `says`: answers in place of its agent's, by method."""

    def __init__(self, name: str) -> None:
        self.name, self.agent = name, NodeAgent({}, os.getcwd())
        self.lost, self.twice = "", False
        self.says: dict[str, Any] = {}

    def call(self, method: str, *given: Any) -> Any:
        for _ in range(2 if self.twice else 1):
            if self.lost:
                raise NodeLost(self.lost)
            answer = getattr(self.agent, method)(*given)
        return self.says.get(method, answer)


class ScriptedNodes:
    """Implements Nodes."""

    head = "127.0.0.1"

    def __init__(self, count: int) -> None:
        self.nodes = [ScriptedNode(f"node{number}") for number in range(count)]

    def join(self, count: int, gpus: int, fewer: bool) -> list[Node]:
        assert fewer or count == len(self.nodes)
        return [*self.nodes]

    def close(self) -> None:
        for node in self.nodes:
            node.agent.close()
