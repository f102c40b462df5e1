"""The memory plan of a run: `plan(config, shape, gpu_bytes)` says, per GPU, what each part takes at each of the
moments that can be the peak, how many tokens of keys and values there is room for, and whether they can stay while
training. A pure function: no GPU, no weights; `air plan` prints it and `air train` follows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from airloop.config import Config
from airloop.plan import memory
from airloop.plan.memory import Memory, Sizes, read_sizes
from airloop.plan.model_shape import find_shape, read_shape, shape_of
from airloop.plan.shape import Shape

__all__ = ["Memory", "MemoryPlan", "Shape", "find_shape", "plan", "read_shape", "shape_of"]


KV_SHARE = 0.5  # of the free memory, that holds keys and values unless a config says otherwise
MOMENTS = ("sampling", "log_probs", "backward", "update")


@dataclass(frozen=True)
class MemoryPlan:
    gpu_bytes: int
    gpus: int
    tokens: int  # of the largest micro-batch
    kv_tokens: int
    keep_kv: bool  # the key/value memory stays while training; else it is given back before and taken again after
    sampling: Memory
    log_probs: Memory
    backward: Memory
    update: Memory
    base_shards: bool  # an adapter's base is in shards while training
    outside: int  # CUDA context and graphs: on the GPU, but not in torch's figures

    @property
    def sampling_peak(self) -> int:
        return self.sampling.total

    @property
    def training_peak(self) -> int:
        return max(self.log_probs.total, self.backward.total, self.update.total)

    @property
    def peak(self) -> int:
        """What torch.cuda.max_memory_allocated will say."""
        return max(self.sampling_peak, self.training_peak)

    @property
    def available(self) -> int:
        """What torch can hand out before it must fail."""
        return int(self.gpu_bytes * (1 - memory.SLACK)) - self.outside

    @property
    def fits(self) -> bool:
        return self.peak <= self.available

    @property
    def moment(self) -> str:
        """When the peak is."""
        return max(MOMENTS, key=lambda name: getattr(self, name).total)

    @property
    def largest(self) -> tuple[str, int]:
        """The largest part at the peak."""
        parts = asdict(getattr(self, self.moment))
        return max(parts.items(), key=lambda part: part[1])

    def as_json(self) -> dict[str, Any]:
        name, size = self.largest
        return {
            **asdict(self),
            "sampling_peak": self.sampling_peak,
            "training_peak": self.training_peak,
            "peak": self.peak,
            "available": self.available,
            "fits": self.fits,
            "peak_at": self.moment,
            "largest": {"part": name, "bytes": size},
        }


def plan(config: Config, shape: Shape, gpu_bytes: int, ranks: int | None = None) -> MemoryPlan:
    """The plan of `config` for GPUs of `gpu_bytes` each. Every GPU has the same: replicas and shards are equal.
    `ranks`: how many processes there really are, by default as many as the config says.

    An adapter's base is in shards while training where that is asked for, or where a whole one on each GPU does not
    fit and shards need less."""
    count, model = ranks or config.ranks, config.trainer.model
    spread = model.train == "lora" and count > 1
    if spread and model.shard:
        return _plan(config, shape, gpu_bytes, count, base_shards=True)
    made = _plan(config, shape, gpu_bytes, count, base_shards=False)
    if not spread or model.shard is False or made.fits:
        return made
    return min(made, _plan(config, shape, gpu_bytes, count, base_shards=True), key=lambda plan: plan.peak)


def _plan(config: Config, shape: Shape, gpu_bytes: int, ranks: int, base_shards: bool) -> MemoryPlan:
    sizes = read_sizes(config, shape, ranks, base_shards)
    served = not config.inference.own_weights  # on other GPUs
    eager = served or base_shards or config.inference.model.enforce_eager
    graphs = 0 if eager else memory.graph_count(sizes.batch)
    outside = memory.outside(graphs)
    available = int(gpu_bytes * (1 - memory.SLACK)) - outside
    sampling = memory.sampling(sizes)
    if served:
        sampling = replace(sampling, activations=0, logits=0)
    training = (memory.log_probs(sizes), memory.backward(sizes), memory.update(sizes))
    kv_tokens = _kv_tokens(config, sizes, available - sampling.total)
    page = config.inference.page_size
    pages = 0 if served else -(-kv_tokens // page) + 1  # one page is nobody's: padding writes there
    kv = pages * page * shape.kv_values * sizes.item
    keep = max(moment.total for moment in training) + kv <= available
    log_probs, backward, update = (replace(moment, key_values=kv if keep else 0) for moment in training)
    sampling = replace(sampling, key_values=kv)
    moments = (sampling, log_probs, backward, update)
    return MemoryPlan(gpu_bytes, sizes.ranks, sizes.tokens, kv_tokens, keep, *moments, base_shards, outside)


def _kv_tokens(config: Config, sizes: Sizes, room: int) -> int:
    """What is asked for; else enough for every sequence at full length, within the share of what is free."""
    if not config.inference.own_weights:
        return 0  # its servers have GPUs of their own
    if config.inference.kv_tokens:
        return config.inference.kv_tokens
    share = int(max(0, room) * (config.inference.gpu_memory_utilization or KV_SHARE)) // (
        sizes.shape.kv_values * sizes.item
    )
    return max(config.seq_len, min(sizes.batch * config.seq_len, share))
