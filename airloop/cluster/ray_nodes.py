"""Nodes of a Ray cluster: one agent on each, as an actor in a placement group that puts no two on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airloop.cluster.agent import NodeAgent
from airloop.cluster.launcher import ClusterLauncher, environment
from airloop.cluster.node import Node, NodeLost
from airloop.errors import AirError
from airloop.events import Say

# Machines are started one after the other: so long the last of them is waited for.
JOIN_S = 20.0
# To take up a connection.
ANSWER_S = 10.0
# What is free is given within moments; what another job holds is not waited for.
PLACE_S = 20.0
# An agent that cannot be reached for so long is lost, whatever Ray reports; Ray itself gives a node up after 15 s
# if it is dead and within a minute if it is frozen.
LOST_S = 90.0
# The longest call starts a process that imports torch, from a file system that may be slow.
CALL_S = 600.0
THREADS = 4  # of an agent: one call waits for news while others are made


def ray_launcher(say: Say) -> ClusterLauncher:
    return ClusterLauncher(RayNodes(), say)


class RayNode:
    """Implements Node."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self._actor = name, actor

    def call(self, method: str, *given: Any) -> Any:
        until = time.monotonic() + LOST_S
        while True:
            if not ray.is_initialized():  # a call would start a cluster of its own
                raise NodeLost("the run has been ended")
            try:
                return ray.get(getattr(self._actor, method).remote(*given), timeout=CALL_S)
            except ActorUnavailableError as error:  # for a moment, or for good: Ray does not know yet
                if time.monotonic() > until:
                    raise NodeLost(f"it could not be reached for {LOST_S:.0f} s") from error
                time.sleep(1.0)
            except GetTimeoutError as error:
                raise NodeLost(f"it has not answered for {CALL_S:.0f} s") from error
            except RayTaskError as error:
                raise NodeLost(_first_line(error.cause or error)) from error
            except RayActorError as error:
                raise NodeLost(_reason(error)) from error


class RayNodes:
    """Implements Nodes. Made where a cluster runs: `ray start`, or `ray symmetric-run` around the command."""

    def __init__(self) -> None:
        self._group: PlacementGroup | None = None
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR", configure_logging=True)
        except (ConnectionError, RuntimeError, RayError, ValueError) as error:
            raise _no_cluster(_first_line(error)) from error
        finally:
            for number, handler in handlers.items():  # Ray would end us at once, where a run has something to save
                signal.signal(number, handler)
        self.head = ray.get_runtime_context().gcs_address.rpartition(":")[0]

    def join(self, count: int, gpus: int, fewer: bool) -> list[Node]:
        needs = {"CPU": 1.0, **({"GPU": float(gpus)} if gpus else {})}
        until = time.monotonic() + JOIN_S
        while len(found := _able(needs)) < count and time.monotonic() < until:
            time.sleep(0.5)
        if len(found) < count and not (fewer and found):
            raise _too_few(count, needs)
        count = min(count, len(found))
        self._group = placement_group([needs] * count, strategy="STRICT_SPREAD")
        if not self._group.wait(PLACE_S):
            raise AirError(
                f"Ray has {len(found)} nodes with {_listed(needs)} each, but not {count} where that is free.",
                "`ray status` says what holds it: wait for it, or stop it.",
            )
        return self._agents(count, needs)

    def _agents(self, count: int, needs: dict[str, float]) -> list[Node]:
        group, kind = self._group, ray.remote(NodeAgent)
        actors = [
            kind.options(
                num_cpus=needs["CPU"],
                num_gpus=needs.get("GPU", 0.0),
                max_concurrency=THREADS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote(environment(), os.getcwd())
            for index in range(count)
        ]
        places = ray.util.placement_group_table(group)["bundles_to_node_id"]
        here, known = ray.get_runtime_context().get_node_id(), {node["NodeID"]: node for node in ray.nodes()}
        order = sorted(range(count), key=lambda index: (places[index] != here, index))
        return [RayNode(_name(known[places[index]]), actors[index]) for index in order]

    def close(self) -> None:
        with contextlib.suppress(RayError):
            if self._group is not None:
                remove_placement_group(self._group)  # and with it the agents, and what they have started
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Ray itself would wait for minutes. An address of another form is its own to read."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), ANSWER_S).close()
        except OSError as error:
            raise _no_cluster(f"nobody answers at RAY_ADDRESS = {address} ({error})") from error


def _no_cluster(why: str) -> AirError:
    return AirError(
        f"No Ray cluster could be joined from here: {why}.",
        "start one: `ray start --head` here and `ray start --address HERE:6379` on the other machines; under Slurm, "
        "`srun ray symmetric-run` starts it around the command (docs/cluster.md).",
    )


def _able(needs: dict[str, float]) -> list[dict[str, Any]]:
    """Nodes that have so much, whether it is free or not."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in nodes if all(node["Resources"].get(key, 0.0) >= value for key, value in needs.items())]


def _too_few(count: int, needs: dict[str, float]) -> AirError:
    alive = [node for node in ray.nodes() if node["Alive"]]
    has = "; ".join(f"{_name(node)}: {_listed(node['Resources'])}" for node in alive)
    return AirError(
        f"The run wants {count} nodes with {_listed(needs)} each, and after {JOIN_S:.0f} s Ray has {len(_able(needs))} "
        f"such nodes ({has}).",
        "start Ray on the others, or let cluster.nodes and cluster.gpus_per_node be what there is.",
    )


def _listed(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU") if name in resources)


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _reason(error: RayActorError) -> str:
    """Ray's many lines, as one that says what happened to the agent."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "node" in line and ("died" in line or "dead" in line)), None)
    return (found or (lines[-1] if lines else type(error).__name__)).rstrip(".")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
