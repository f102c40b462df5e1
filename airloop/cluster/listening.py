"""Listening to a node: what its ranks and servers tell, as long as it answers."""

from __future__ import annotations

from collections.abc import Callable

from airloop.cluster.node import Node

# An agent that has nothing to tell says so after this long: a call that is never answered cannot be told from a loss.
NEWS_S = 1.0
Hear = Callable[[int | str, str, str], None]  # a rank's number or a server's address, kind (event, line, exit), text


def listen(node: Node, ended: Callable[[], bool], hear: Hear) -> None:
    """Until `ended`, which is asked every second. NodeLost where the node is."""
    seen = 0
    while not ended():
        for number, who, kind, text in node.call("news", seen, NEWS_S):
            seen = number
            hear(who, kind, text)
