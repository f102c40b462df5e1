"""Which process made a container, and the removal of those whose maker is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.errors import InfraError
from airloop.sandbox import processes
from airloop.sandbox.container.docker_api import Engine, Refused

log = logging.getLogger(__name__)

LABEL = "airloop.sandbox"


def maker_labels() -> dict[str, str]:
    """Which process made a container; numbers of processes mean something on one machine and namespace only."""
    own = processes.look(os.getpid())
    return {
        LABEL: "world",
        f"{LABEL}.host": socket.gethostname(),
        f"{LABEL}.boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        f"{LABEL}.pids": str(processes.namespace_of(os.getpid())),
        f"{LABEL}.pid": str(os.getpid()),
        f"{LABEL}.started": str(own.started if own else 0),
    }


async def reap(engine: Engine) -> int:
    """Removes containers whose maker is gone. Returns how many there were."""
    filters = f'{{"label": ["{LABEL}=world"]}}'
    found: list[dict[str, Any]] = await engine.ask("GET", "/containers/json", all="true", filters=filters)
    left = [one["Id"] for one in found if maker_is_gone(one.get("Labels") or {}, maker_labels())]
    for container in left:
        with contextlib.suppress(InfraError):
            await remove(engine, container)
    if left:
        log.info("removed %d containers that an earlier run left", len(left))
    return len(left)


def maker_is_gone(labels: Mapping[str, str], own: Mapping[str, str]) -> bool:
    def same(what: str) -> bool:
        return labels.get(f"{LABEL}.{what}") == own[f"{LABEL}.{what}"]

    if not same("host"):
        return False  # a process we cannot see: not ours to judge
    if not same("boot"):
        return True
    if not same("pids"):
        return False
    try:
        maker = processes.look(int(labels.get(f"{LABEL}.pid", "0")))
    except (OSError, ValueError):
        return True
    return maker is None or str(maker.started) != labels.get(f"{LABEL}.started")


async def remove(engine: Engine, container: str) -> None:
    try:
        await engine.ask("DELETE", f"/containers/{container}", force="true", v="true")
    except Refused as refused:
        if refused.status not in (404, 409):  # gone, or being removed by somebody else
            raise
