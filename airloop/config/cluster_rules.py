"""What [cluster] excludes, each with its reason and its correction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airloop.config.conflict import Conflict

if TYPE_CHECKING:
    from airloop.config.schema import RunConfig

NODES, GPUS = "cluster.nodes", "cluster.gpus_per_node"


def cluster_conflicts(config: RunConfig) -> Iterator[Conflict]:
    nodes, gpus = config.cluster.nodes, config.cluster.gpus_per_node
    yield from _gpus(config)
    processes = config.trainer.processes
    if gpus is None and processes is not None and processes % nodes:
        yield Conflict(
            ("trainer.processes", NODES),
            f"trainer.processes = {processes} cannot be shared evenly by cluster.nodes = {nodes}",
            {"trainer.processes": -(-processes // nodes) * nodes},
        )
    if nodes > 1 and config.inference.backend == "vllm":
        yield Conflict(
            (NODES, "inference.backend"),
            'several machines with backend = "vllm" are not in this version: there, each process samples for itself',
            {"inference.backend": "embedded"},
        )


def _gpus(config: RunConfig) -> Iterator[Conflict]:
    nodes, gpus, on_cpu = config.cluster.nodes, config.cluster.gpus_per_node, config.model.device == "cpu"
    for key in ("trainer_gpu_ids", "inference_gpu_ids"):
        if (named := getattr(config, key)) and (nodes > 1 or gpus is not None):
            yield Conflict(
                (key, GPUS),
                f"{key} = {named} are GPUs of one machine, and [cluster] counts those of each: leave {key} out",
                {key: None, GPUS: gpus or len(named)},
            )
            return
    if gpus is not None and on_cpu:
        yield Conflict(
            (GPUS, "model.device"), f'gpus_per_node = {gpus} has no effect with device = "cpu"', {GPUS: None}
        )
    if gpus is None and nodes > 1 and not on_cpu:
        yield Conflict(
            (NODES, GPUS),
            f"cluster.nodes = {nodes}, and how many GPUs are used on each of them is not said; on machines without "
            'any, model.device = "cpu"',
            {GPUS: 1},
        )
