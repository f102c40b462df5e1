"""What a server of vLLM has room for on its GPU. Never measured on one: vLLM says itself, when it starts, how many
tokens of keys and values it has found room for."""

from __future__ import annotations

from dataclasses import dataclass

from airloop.config import Config
from airloop.config.vllm_rules import MEMORY, SERVED
from airloop.plan.shape import Shape

# A pass over as many tokens as vLLM takes at once, CUDA's context and graphs.
WORKSPACE = 2 << 30


@dataclass(frozen=True)
class ServerPlan:
    """Bytes of one server's GPU."""

    gpus: int
    nodes: int  # that do nothing else; 0: they are on the machine that trains
    share: int  # of the GPU, that it takes
    weights: int
    adapters: int
    kv_tokens: int
    context: int

    @property
    def fits(self) -> bool:
        """One episode, at least."""
        return self.kv_tokens >= self.context


def plan_servers(config: Config, shape: Shape, gpu_bytes: int) -> ServerPlan | None:
    """Of the servers that a run starts, each on a GPU of `gpu_bytes`; None where it starts none."""
    gpus = len(config.inference_gpu_ids or []) or config.sampler_nodes * len(config.gpus)
    if config.inference.backend != "vllm" or not gpus:
        return None
    item = 4 if config.model.dtype == "float32" else 2
    lora = config.trainer.model.lora
    adapter = shape.adapter(lora.rank, lora.target_modules, lora.last_layers) * item
    share = int(gpu_bytes * (config.inference.gpu_memory_utilization or MEMORY))
    weights, adapters = shape.parameters * item, adapter * (SERVED + config.orchestrator.max_staleness)
    room = max(0, share - weights - adapters - WORKSPACE)
    tokens = room // (shape.kv_values * item)
    return ServerPlan(gpus, config.sampler_nodes, share, weights, adapters, tokens, config.seq_len)
