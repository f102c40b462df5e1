"""What [cluster] excludes, each with its reason and its correction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airloop.config.conflict import Conflict
from airloop.config.launchers import LAUNCHERS

if TYPE_CHECKING:
    from airloop.config.schema import RolesConfig, RunConfig

NODES, GPUS, ROLES = "cluster.nodes", "cluster.gpus_per_node", "cluster.roles"
BACKEND, ADAPTERS, URLS = "inference.backend", "inference.vllm.adapters", "inference.vllm.urls"


def cluster_conflicts(config: RunConfig) -> Iterator[Conflict]:
    nodes, gpus = config.cluster.nodes, config.cluster.gpus_per_node
    yield from _gpus(config)
    yield from _launcher(config)
    processes, learners = config.trainer.processes, config.learner_nodes
    if gpus is None and processes is not None and processes % learners:
        named = "cluster.roles.learner" if config.cluster.roles else NODES
        yield Conflict(
            ("trainer.processes", named),
            f"trainer.processes = {processes} cannot be shared evenly by {named} = {learners}",
            {"trainer.processes": -(-processes // learners) * learners},
        )
    if config.cluster.roles is not None:
        yield from _roles(config, config.cluster.roles)
    elif nodes > 1 and config.inference.backend == "vllm":
        yield Conflict(
            (NODES, BACKEND),
            f'cluster.nodes = {nodes} with backend = "vllm" does not say which machines train and which have servers: '
            "name how many of each; or let each process sample for itself, by the embedded backend",
            {f"{ROLES}.learner": 1, f"{ROLES}.sampler": nodes - 1},
        )


def _launcher(config: RunConfig) -> Iterator[Conflict]:
    name, nodes = config.cluster.launcher, config.cluster.nodes
    if name is not None and LAUNCHERS[name].several != (nodes > 1):
        suits = "several machines" if LAUNCHERS[name].several else "one machine"
        yield Conflict(
            ("cluster.launcher", NODES),
            f'cluster.launcher = "{name}" is for {suits}, and cluster.nodes = {nodes}',
            {"cluster.launcher": None},
        )


def _roles(config: RunConfig, roles: RolesConfig) -> Iterator[Conflict]:
    nodes, told = config.cluster.nodes, config.inference.vllm
    without = {"learner": "trains", "sampler": "samples: where all are to do both, leave roles out"}
    for role, does in without.items():
        if getattr(roles, role) == 0:
            yield Conflict(
                (f"{ROLES}.learner", f"{ROLES}.sampler"),
                f"cluster.roles has no {role}, and one machine at least {does}",
                {f"{ROLES}.{role}": max(1, nodes - roles.learner - roles.sampler)},
            )
            return
    if (together := roles.learner + roles.sampler) != nodes:
        yield Conflict(
            (f"{ROLES}.learner", f"{ROLES}.sampler", NODES),
            f"cluster.roles has learner = {roles.learner} and sampler = {roles.sampler}, {together} machines together, "
            f"and cluster.nodes = {nodes}",
            {NODES: together},
        )
    if config.inference.backend != "vllm":
        yield Conflict(
            (ROLES, BACKEND),
            "cluster.roles puts samplers on machines of their own, and the embedded backend samples on the trainer's "
            "own weights: such machines need servers of vLLM",
            {BACKEND: "vllm"},
        )
        return
    if told.urls:
        yield Conflict(
            (ROLES, URLS),
            "cluster.roles starts servers on machines of the cluster, and inference.vllm.urls names others that run "
            "already: leave one of them out",
            {},
        )
    elif told.adapters != "http":
        yield Conflict(
            (ROLES, ADAPTERS),
            "cluster.roles has servers on machines that need not see what the learner writes: they pull adapters",
            {ADAPTERS: "http"},
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
