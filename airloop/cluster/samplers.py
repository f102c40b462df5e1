"""Nodes that sample: vLLM servers on each, which learners find by the status file. A lost node is reported, and the run
goes on with the others."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from airloop.cluster.listening import listen
from airloop.cluster.node import Node, NodeLost
from airloop.cluster.supervised_server import ServerSpec
from airloop.config import Config
from airloop.config.schema import VllmConfig
from airloop.engine.vllm.plugin.adapters import KEY
from airloop.engine.vllm.remote_servers import API_KEY, STATUS_FILE_VARIABLE, ServerStatus, ServerStatusFile
from airloop.errors import AirError
from airloop.events import Say
from airloop.runs.run import Run
from airloop.text.keys import note_keys, without_keys

LOGS = "servers"  # in the run's directory: what each of them prints


@dataclass(frozen=True)
class SamplerNode:
    """A node, and the facts that its agent reports."""

    node: Node
    facts: Mapping[str, Any]


class SamplerNodes:
    def __init__(self, run: Run, nodes: Sequence[SamplerNode], folder: Path, host: str, say: Say) -> None:
        """`folder`: one that all learners see. `host`: the first learner's address, which samplers reach it by."""
        self._run, self._nodes, self._say = run, nodes, say
        vllm = run.config.inference.vllm
        named = vllm.adapters_host != VllmConfig.model_fields["adapters_host"].default
        self._host = vllm.adapters_host if named else host
        self._status_file = ServerStatusFile(folder / "servers.json")
        self._key, self._adapters_key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        note_keys(self._key, self._adapters_key)
        self._lock = threading.Lock()  # of the statuses: every node has a thread
        self._statuses: dict[str, ServerStatus] = {}  # by address
        self._listening: list[threading.Thread] = []
        self._closed = threading.Event()

    def start(self) -> dict[str, str]:
        """What ranks need in their environment to find the servers, which come up while those load the model."""
        (self._run.path / LOGS).mkdir(exist_ok=True)
        nodes = [sampler for sampler in self._nodes if self._begin(sampler)]
        if not nodes:
            raise AirError(
                "Every sampler node was lost before the run had begun.",
                "`ray status` says what is there: start them again.",
            )
        self._post()
        for sampler in nodes:
            thread = threading.Thread(target=self._follow, args=(sampler.node,), daemon=True, name="air-sampler")
            self._listening.append(thread)
            thread.start()
        return {
            STATUS_FILE_VARIABLE: str(self._status_file.path),
            KEY: self._adapters_key,
            API_KEY: self._key,
        }

    def close(self, wait_s: float) -> None:
        """Nodes that do not answer are not waited for any longer: servers end with their agents, too."""
        self._closed.set()
        closing = [threading.Thread(target=self._close, args=(one.node,), daemon=True) for one in self._nodes]
        for thread in closing:
            thread.start()
        until = time.monotonic() + wait_s
        for thread in (*closing, *self._listening):
            thread.join(max(0.0, until - time.monotonic()))

    def _close(self, node: Node) -> None:
        with contextlib.suppress(NodeLost):
            node.call("close")

    def _begin(self, sampler: SamplerNode) -> bool:
        """Whether a node was told which servers to start. The run goes on without one that is lost already."""
        try:
            rank_specs = self._orders(sampler)
            for number, spec in enumerate(rank_specs, len(self._statuses)):
                log = self._run.path / LOGS / f"{number}.log"
                sampler.node.call("serve", asdict(replace(spec, number=number)))
                self._statuses[spec.url] = ServerStatus(spec.url, sampler.node.name, str(log))
        except NodeLost as lost:
            self._statuses = {url: one for url, one in self._statuses.items() if one.node != sampler.node.name}
            self._say(f"note: the sampler node {sampler.node.name} was lost before the run had begun: {lost}")
            return False
        return True

    def _orders(self, sampler: SamplerNode) -> list[ServerSpec]:
        config, gpus = self._run.config, sampler.facts["gpus"]
        if len(gpus) < len(config.gpus):
            raise too_few_gpus(sampler.node, len(gpus), len(config.gpus))
        host = sampler.facts["address"]
        places = gpus[: len(config.gpus)] if config.gpus else [None]
        ports = sampler.node.call("free_ports", host, len(places))
        return [
            ServerSpec(
                config=config.model_dump(mode="json", exclude_none=True),
                dtype=config.dtype_apart,
                number=0,
                host=host,
                port=port,
                gpu=gpu,
                key=self._key,
                adapters_key=self._adapters_key,
            )
            for gpu, port in zip(places, ports, strict=True)
        ]

    def _follow(self, node: Node) -> None:
        try:
            listen(node, lambda: self._closed.is_set() or self._replace(node), self._handle_event)
        except Exception as error:  # NodeLost, or whatever else: its servers must not be waited for in vain
            if not self._closed.is_set():
                self._lose(node, str(error))

    def _replace(self, node: Node) -> bool:
        """Ends servers that the first rank wants to be replaced, because they do not answer as they should. False:
        polling goes on."""
        for number, one in enumerate([*self._statuses.values()]):
            if one.node == node.name and (request := self._status_file.take_end_request(number)) is not None:
                node.call("replace_server", one.url, asdict(request))
        return False

    def _handle_event(self, url: int | str, kind: str, text: str) -> None:
        status = self._statuses[str(url)]
        if kind == "line":
            # A full disk is reported by whatever must not be lost; it is no loss of a node.
            log = Path(status.log)
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{without_keys(text)}\n")
        elif kind == "exit":
            self._end([status], f"it ended with exit code {text}, after {status.starts} starts")
        else:
            name, *values = json.loads(text)
            if name == "failed":
                self._end([status], values[0])
                return
            self._change([replace(status, starts=values[0], code=values[1])])
            self._say(f"note: the server at {url} ended with exit code {values[1]}: its node has started it again")

    def _lose(self, node: Node, why: str) -> None:
        there = [one for one in self._statuses.values() if one.node == node.name and not one.gone]
        if there:
            self._end([replace(one, with_node=True) for one in there], f"its node was lost: {why}")

    def _end(self, servers: Sequence[ServerStatus], why: str) -> None:
        self._change([replace(one, gone=why) for one in servers])
        left = [one for one in self._statuses.values() if not one.gone]
        where = ", ".join(one.url for one in servers)
        rest = f"{len(left)} of {len(self._statuses)} servers go on" if left else "no server is left"
        self._say(f"note: the sampler node {servers[0].node} has lost {where}: {why}; {rest}")

    def _change(self, servers: Sequence[ServerStatus]) -> None:
        with self._lock, contextlib.suppress(AirError, OSError):  # a full disk, as above
            self._statuses |= {one.url: one for one in servers}
            self._post()

    def _post(self) -> None:
        self._status_file.write(self._host, [*self._statuses.values()])


def share_out(config: Config, found: int) -> tuple[int, int]:
    """How many of the nodes that are there train, and how many sample. Where there are fewer than there should be,
    samplers are given up first, and one of each is needed."""
    roles = config.cluster.roles
    if roles is None:
        return found, 0
    if found < 2:
        raise AirError(
            f"cluster.roles wants {roles.learner} learners and {roles.sampler} samplers, and one node is there.",
            "start Ray on another: one that trains and one that samples are the least.",
        )
    learners = min(roles.learner, found - 1)
    return learners, min(roles.sampler, found - learners)


def too_few_gpus(node: Node, found: int, wanted: int) -> AirError:
    return AirError(
        f"The node {node.name} shows {found} GPUs to what Ray starts there, not {wanted}.",
        "look at CUDA_VISIBLE_DEVICES where Ray was started on that node, and at `ray status`.",
    )
