"""Ranks on several machines: a Launcher for nodes, whose agents start the ranks and pass on their events."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.cluster.agent import END_S, as_dict, versions
from airloop.cluster.listening import listen
from airloop.cluster.node import Node, NodeLost, Nodes
from airloop.cluster.samplers import SamplerNode, SamplerNodes, share_out, too_few_gpus
from airloop.errors import AirError
from airloop.events import Say
from airloop.launch.base import OnOutput, RankSpec

if TYPE_CHECKING:
    from airloop.runs.run import Run

# Calls that are under way when all is over: a node that does not answer is not waited for longer.
CLOSE_S = 5.0
# Nodes that are called at the same time.
AT_ONCE = 32
RANKS_FOLDER = ".ranks-"  # prefix of a folder in the run's while it is trained, for heartbeats
NEVER_RUN = (
    "note: several machines: this was tried with gloo between processes of one machine that Ray took for two. Real "
    "networks, NCCL between machines and Ray with GPUs were never run (docs/cluster.md)."
)


ONLY_SAMPLE = (
    "note: machines that only sample: this was tried with vLLM's build for CPUs on the learners' own machine; vLLM on "
    "GPUs, and a real network between it and them, were not tried."
)


class RemoteRank:
    """Implements Handle, of a rank on a node. Its events and its end arrive by `handle_event`."""

    def __init__(self, node: Node, rank: int, on_output: OnOutput, numbers: itertools.count[int]) -> None:
        self.pid = 0  # once it is started, of the process on that host
        self.host = node.name
        self._node, self._rank, self._on_output, self._numbers = node, rank, on_output, numbers
        self._code: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        self._ended.wait()  # this ends: its node answers or is lost
        assert self._code is not None
        return self._code

    def send_signal(self, signal: int) -> None:
        if self._code is None:
            try:
                self._node.call("signal", next(self._numbers), self._rank, int(signal))
            except NodeLost:  # the thread that listens to the node reports it
                return

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def handle_event(self, kind: str, text: str) -> None:
        if kind == "exit":
            self._end(int(text))
        else:
            self._on_output("event" if kind == "event" else "line", text)

    def lose(self, error: AirError) -> None:
        """Its node was lost: reported as its own error, and as its end."""
        if self._code is None:
            self._on_output("event", json.dumps(["error", error.problem, error.fix, False]))
            self._end(1)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()


class ClusterLauncher:
    """Implements Launcher."""

    # Ray needs a few failed checks to know that a node is lost; other ranks see their connections break at once.
    settle_s = 60.0

    def __init__(self, nodes: Nodes, say: Say) -> None:
        self._cluster, self._say = nodes, say
        self._nodes: list[Node] = []  # that train
        self._sampler_nodes: SamplerNodes | None = None
        self._ranks: dict[int, RemoteRank] = {}
        self._ranks_per_node = 1
        self._numbers = itertools.count()  # of signals
        self._listening: dict[int, threading.Thread] = {}  # by node
        self._closed = False
        self._folder: Path | None = None  # for heartbeats
        self._run: Path | None = None

    def rank_specs(self, run: Run, resuming: bool) -> list[RankSpec]:
        self._say(NEVER_RUN)
        if run.config.sampler_nodes:
            self._say(ONLY_SAMPLE)
        config, self._ranks_per_node, self._run = run.config, run.config.ranks_per_node, run.path
        joined = self._cluster.join(config.cluster.nodes, len(config.gpus), resuming)
        learners, samplers = share_out(config, len(joined))
        if len(joined) < config.cluster.nodes:
            roles = f" ({learners} to train, {samplers} to sample)" if samplers else ""
            self._say(
                f"note: {len(joined)} of {config.cluster.nodes} nodes are there{roles}: the run goes on with what is "
                "left"
            )
        self._nodes = joined[:learners]
        facts = self._call_all("facts", self._cluster.head, of=joined)
        check_versions({node.name: found["versions"] for node, found in zip(joined, facts, strict=True)})
        self._check_folder(run.path)
        self._call_all("prepare", "cuda" if config.gpus else "cpu")
        for old in run.path.glob(f"{RANKS_FOLDER}*"):  # of a session that was killed; the run is ours alone
            shutil.rmtree(old, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=RANKS_FOLDER, dir=run.path))
        host = facts[0]["address"]
        environment: dict[str, str] = {}
        if samplers:
            found = [SamplerNode(*both) for both in zip(joined[learners:], facts[learners:], strict=True)]
            self._sampler_nodes = SamplerNodes(run, found, self._folder, host, self._say)
            environment = self._sampler_nodes.start()
        ((port,),) = self._call_all("free_ports", host, 1, of=self._nodes[:1])
        rank_specs = [self._spec(run, rank, facts, f"{host}:{port}", resuming) for rank in range(self._size)]
        return [replace(spec, environment=environment) for spec in rank_specs]

    @property
    def _size(self) -> int:
        return len(self._nodes) * self._ranks_per_node

    def _spec(self, run: Run, rank: int, facts: Sequence[Mapping[str, Any]], address: str, resuming: bool) -> RankSpec:
        node, place = divmod(rank, self._ranks_per_node)
        gpus = facts[node]["gpus"]
        if run.config.gpus and place >= len(gpus):
            raise too_few_gpus(self._nodes[node], len(gpus), self._ranks_per_node)
        return RankSpec(
            run=str(run.path),
            rank=rank,
            size=self._size,
            folder=str(self._folder),
            device="cuda" if run.config.gpus else "cpu",
            resuming=resuming,
            gpu=gpus[place] if run.config.gpus else "",
            here=self._ranks_per_node,
            interface=facts[node]["interface"],
            address=address,
        )

    def spawn(self, spec: RankSpec, on_output: OnOutput) -> RemoteRank:
        node_number = spec.rank // self._ranks_per_node
        rank = self._ranks[spec.rank] = RemoteRank(self._nodes[node_number], spec.rank, on_output, self._numbers)
        (rank.pid,) = self._call_all("start", as_dict(spec), of=[self._nodes[node_number]])
        if node_number not in self._listening:
            self._listening[node_number] = threading.Thread(
                target=self._listen, args=(node_number,), name=f"air-node-{node_number}", daemon=True
            )
            self._listening[node_number].start()
        return rank

    def close(self) -> None:
        self._closed = True
        if self._sampler_nodes is not None:
            self._sampler_nodes.close(END_S + CLOSE_S)
        until = time.monotonic() + CLOSE_S
        for thread in self._listening.values():  # all of them are about to end
            thread.join(max(0.0, until - time.monotonic()))
        self._cluster.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _call_all(self, method: str, *given: Any, of: Sequence[Node] | None = None) -> list[Any]:
        """Calls the same method of several nodes, at the same time."""

        def call(node: Node) -> Any:
            try:
                return node.call(method, *given)
            except NodeLost as lost:
                raise self._lost(node, lost) from lost

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(call, self._nodes if of is None else of))

    def _check_folder(self, path: Path) -> None:
        """Every node sees what this one writes there: episodes and checkpoints go through it."""
        token = path / f".shared-{secrets.token_hex(8)}"
        token.write_text(token.name, encoding="utf-8")
        try:
            seen = self._call_all("read", str(token))
        finally:
            token.unlink()
        failed = [node.name for node, text in zip(self._nodes, seen, strict=True) if text != token.name]
        if failed:
            names = ", ".join(failed)
            raise AirError(
                f"{path} is not the same directory on every node: {names} cannot read what this one writes.",
                "let output_dir be on a file system that all nodes share, under the same path.",
            )

    def _listen(self, node_number: int) -> None:
        node = self._nodes[node_number]
        try:
            listen(node, lambda: self._closed, lambda rank, kind, text: self._ranks[int(rank)].handle_event(kind, text))
        except Exception as error:  # NodeLost, or whatever else: its ranks must not be waited for in vain
            for rank in self._ranks_of(node_number):
                self._ranks[rank].lose(self._lost(node, error))

    def _ranks_of(self, node_number: int) -> list[int]:
        ranks = [*self._ranks]  # a copy: others may be started meanwhile
        return [rank for rank in ranks if rank // self._ranks_per_node == node_number]

    def _lost(self, node: Node, why: Exception) -> AirError:
        return AirError(
            f"The node {node.name} of {len(self._nodes)} was lost: {why}. The others were ended.",
            f"go on with `air train --resume {self._run}`, on that many nodes or on those that are left: what was "
            "sampled is kept.",
        )


def check_versions(found: Mapping[str, Mapping[str, str]]) -> None:
    """`found`: by node, what is installed there. As here, or not at all."""
    ours = versions()
    for node, theirs in found.items():
        if other := [name for name in ours if theirs.get(name) != ours[name]]:
            listed = ", ".join(f"{name} {theirs.get(name, 'missing')} (here {ours[name]})" for name in other)
            raise AirError(
                f"The node {node} has {listed}.",
                "install the same on every node, or start Ray there from the environment that `air` is in here.",
            )


def environment() -> dict[str, str | None]:
    """What is to be on every node as it is here: Ray sets it to 1 in all that it starts."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
