"""The frozen base of an adapter in shards while training: each rank keeps a part of every block, and has one block
whole at a time, with the next one on its way. The adapter is whole on every rank, and so is what is in no block:
embeddings, last norm and head are needed throughout.

Gathered weights are the same to the last bit, so an update is that of replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from airloop.learn.parallel import Root, Shards, blocks_of
from airloop.ranks import Ranks, collective

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, UnshardHandle

    from airloop.policy import Policy


class BaseShards:
    """FSDP2 around each block of a policy with an adapter. Whole when made, and outside of updates: ranks sample, and
    look at log-probs, at their own pace.

    transformers' layers gather through FSDP's hooks; our own pass, which calls no modules, asks `hold`.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = init_device_mesh(policy.device.type, (ranks.size,))
        model: Any = policy.model
        blocks = blocks_of(model)
        adapter = {p for p in model.parameters() if p.requires_grad}
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=adapter)
        sharded = {p for block in blocks for p in block.parameters()} - adapter
        root = Root(model)
        rest = {p for p in root.parameters() if p not in sharded}
        fully_shard(root, mesh=mesh, reshard_after_forward=False, ignored_params=rest)
        policy.decoder = root
        policy.hold = self.hold
        self._cuda = policy.device.type == "cuda"
        self._units: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
        for unit, earlier in zip(self._units, (self._units[0], *self._units), strict=False):
            # By itself FSDP goes by the passes since the last backward, which are not the same on every rank.
            unit.set_modules_to_backward_prefetch([earlier])
        self._whole = False
        self._here: dict[int, UnshardHandle | None] = {}  # blocks that are whole (None) or on their way
        self.gather()

    def hold(self, index: int, ahead: int) -> None:
        """For our own pass: block `index` is whole, the one `ahead` (1, or backwards -1) of it on its way, and no other
        takes memory. Every rank makes the same passes, so all ask for the same blocks in the same order."""
        if self._whole:
            return
        with collective("a block of the base"):
            for other in [i for i in self._here if i != index]:
                self._drop(other)
            if index not in self._here:
                self._here[index] = self._units[index].unshard(async_op=True)
            if handle := self._here[index]:
                handle.wait()
                self._here[index] = None
            if 0 <= index + ahead < len(self._units):
                self._here[index + ahead] = self._units[index + ahead].unshard(async_op=True)

    def _drop(self, index: int) -> None:
        if handle := self._here.pop(index):
            handle.wait()
        self._units[index].reshard()

    def scatter(self) -> None:
        """For an update."""
        self._whole = False
        for unit in self._units:
            _forget_passes(unit)
            unit.reshard()
            unit.set_reshard_after_forward(True, recurse=False)

    def gather(self) -> None:
        """For sampling: whole on every rank; forward passes leave them so."""
        if self._whole:
            return
        with collective("the base, whole"):
            for index in list(self._here):
                self._drop(index)
            for unit in self._units:
                unit.set_reshard_after_forward(False, recurse=False)
                unit.unshard()
        self._whole = True
        if self._cuda:
            torch.cuda.synchronize()  # the engine reads them from a thread and a stream of its own


def _forget_passes(unit: Any) -> None:
    """FSDP notes every block of every forward pass, sampling's too, until a backward pass of its own: ours is none."""
    state = unit._get_fsdp_state()
    if hasattr(state._comm_ctx, "post_forward_order"):  # there has been one
        state._comm_ctx.post_forward_order.clear()
    if group := state._fsdp_param_group:
        group._post_forward_indices.clear()


def shard(policy: Policy, ranks: Ranks, base: bool = False) -> Shards | BaseShards | None:
    """What several ranks spread while training: in full fine-tuning everything; of an adapter's model the base, if
    that is asked for."""
    if ranks.size == 1:
        return None
    if policy.peft is None:
        return Shards(policy, ranks)
    return BaseShards(policy, ranks) if base else None
