"""Several ranks, one update.

LoRA: every rank has the whole adapter; an update's rows are shared out and the adapter's gradients summed. The base is
whole on every rank too, or in shards during an update (base_shards.py). Full
fine-tuning: FSDP2 keeps weights, gradients and optimiser state in shards during an update. Sampling cannot use shards:
ranks sample different episodes, at their own pace, and a forward pass over shards is a conversation between all ranks.
So outside an update every rank holds the weights whole, in the model's own type: one full copy per rank while
sampling, and 1/n of it plus one block at a time while training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from airloop.errors import AirError
from airloop.learn.batches import MicroBatch, Row, micro_batches
from airloop.ranks import Ranks
from airloop.text.prefix import common_prefix

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from airloop.policy import Policy


def share_rows(rows: Sequence[Row], ranks: Ranks) -> list[Row]:
    """This rank's rows of a batch that every rank knows in full.

    All branches of a trajectory stay together. Trajectories are put in the order that brings shared prefixes
    together and cut where the tokens to compute come out even, so each cut costs one shared prefix at most.
    """
    if ranks.size == 1:
        return list(rows)
    trajectories: dict[str, list[Row]] = {}
    for row in rows:
        if any(row.train):
            trajectories.setdefault(row.key.rpartition("#")[0], []).append(row)
    ordered = sorted(trajectories.values(), key=lambda members: members[0].tokens)
    costs = _costs(ordered)
    total, before = sum(costs), 0.0
    share: list[Row] = []
    for members, cost in zip(ordered, costs, strict=True):
        # The rank in whose stretch of the total the trajectory's middle lies.
        if int((before + cost / 2) / total * ranks.size) == ranks.rank:
            share += members
        before += cost
    return share


def _costs(trajectories: Sequence[Sequence[Row]]) -> list[int]:
    """Tokens that each trajectory adds to the computation behind the one before it."""
    costs = []
    previous: tuple[int, ...] = ()
    for members in trajectories:
        cost = 0
        for row in members:
            cost += len(row.tokens) - common_prefix(previous, row.tokens)
            previous = row.tokens
        costs.append(max(1, cost))
    return costs


def idle_part(rows: Sequence[Row]) -> MicroBatch:
    """What a rank computes that has no micro-batch left while others do: over shards, all must take every pass.
    It is the batch's shortest row, counting nothing."""
    shortest = min((r for r in rows if any(r.train)), key=lambda r: len(r.tokens))
    return next(micro_batches([replace(shortest, key="idle#0", weight=0.0)], len(shortest.tokens)))


class Root(nn.Module):
    """What FSDP takes for the model: calling it runs the decoder, as the policy does, and its own parameters are all
    that is in no block: embeddings, last norm and head. The head is used after the call, so they stay gathered."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model.get_decoder()(**inputs)


class Shards:
    """FSDP2 around each block of a policy that is fully trained. Whole when made.

    `parameters` are this rank's shards, in fp32: the optimiser's truth. What the model computes with is gathered from
    them in the type the model was loaded in.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        self.ranks = ranks
        self.served_type = policy.dtype
        self._mesh = init_device_mesh(policy.device.type, (ranks.size,))
        # Gradients are summed in fp32, whatever the model computes in.
        types = MixedPrecisionPolicy(policy.dtype, torch.float32, cast_forward_inputs=False)
        model: Any = policy.model
        self._root = Root(model)
        for block in blocks_of(model):
            block.float()  # one block at a time: there is never a second whole copy
            fully_shard(block, mesh=self._mesh, mp_policy=types, reshard_after_forward=True)
        model.float()
        fully_shard(self._root, mesh=self._mesh, mp_policy=types, reshard_after_forward=False)
        self._units: list[FSDPModule] = [m for m in self._root.modules() if isinstance(m, FSDPModule)]
        for unit in self._units:
            # A row's weight is its share of the whole batch already: gradients add up, they are not averaged.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
        policy.decoder = self._root
        self.named: list[tuple[str, nn.Parameter]] = policy.trainable()
        self.gather()
        self.local = [cast(Any, p).to_local().detach() for _, p in self.named]

    def scatter(self) -> None:
        """For an update: each rank keeps its shards; a forward pass gathers one block at a time."""
        for unit in self._units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not self._root, recurse=False)

    def gather(self) -> None:
        """For sampling: every rank gets the shards' present values, whole; forward passes leave them so."""
        for unit in self._units:
            unit.reshard()
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        if self._mesh.device_type == "cuda":
            torch.cuda.synchronize()  # the engine reads them from a thread and a stream of its own

    def forget(self) -> None:
        """The shards were changed between two forward passes of an update: gather again what is gathered."""
        for unit in self._units:
            unit.reshard()

    def join(self, index: int, local: Tensor) -> Tensor | None:
        """The whole tensor whose shard on each rank is `local`, laid out as parameter `index`, in the CPU's memory
        of the first rank. Every rank must call it."""
        from torch.distributed.tensor import DTensor, Shard

        parameter = self.named[index][1]
        on_device = local.to(self._mesh.device_type)
        shape, stride = parameter.shape, parameter.stride()
        spread = DTensor.from_local(on_device, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        whole = spread.full_tensor()
        return whole.cpu() if self.ranks.first else None

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's shard of a whole tensor: FSDP2 splits the first dimension as torch.chunk does."""
        pieces = whole.chunk(self.ranks.size)
        return (pieces[self.ranks.rank] if self.ranks.rank < len(pieces) else whole[:0]).clone()


def blocks_of(model: Any) -> list[nn.Module]:
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise AirError(
            f"Models of type {model.config.model_type} do not list their blocks as `layers`, so they cannot be "
            "sharded over several GPUs.",
            'train an adapter (trainer.model.train = "lora") with trainer.model.shard = false, or use one GPU.',
        )
    return list(layers)


def local_gradient(parameter: Tensor) -> Tensor | None:
    """This rank's part of a parameter's gradient: all of it, unless FSDP2 has spread it."""
    gradient = parameter.grad
    return gradient.to_local() if gradient is not None and hasattr(gradient, "to_local") else gradient
