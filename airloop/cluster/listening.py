"""Polling a node for the events of its ranks and servers, as long as it answers."""

from __future__ import annotations

from collections.abc import Callable

from airloop.cluster.node import Node

# An agent without events answers after this time: a call that is never answered would look like a lost node.
EVENTS_WAIT_S = 1.0
OnEvent = Callable[[int | str, str, str], None]  # a rank's number or a server's address, kind (event, line, exit), text


def listen(node: Node, ended: Callable[[], bool], handle_event: OnEvent) -> None:
    """Until `ended`, which is asked every second. NodeLost where the node is."""
    seen = 0
    while not ended():
        for number, who, kind, text in node.call("events", seen, EVENTS_WAIT_S):
            seen = number
            handle_event(who, kind, text)
