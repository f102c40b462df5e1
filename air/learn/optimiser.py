"""AdamW on fp32 masters of what is trained, on one rank or several, on the device or in the CPU's memory.

`weights` are what this rank keeps of each trained parameter: all of it, or its shard (air/learn/parallel.py). A master
is the weight itself where that is in fp32 and stays on its device, and a copy of it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from air.errors import AirError
from air.learn.parallel import Shards, local_gradient
from air.policy import Policy
from air.world import World


class Optimiser:
    """Every rank holds the same masters, or its own shards of them, and clips by the norm of the whole gradient."""

    def __init__(
        self,
        policy: Policy,
        world: World,
        shards: Shards | None,
        *,
        betas: tuple[float, float],
        weight_decay: float,
        max_norm: float,
        offload: bool,
    ) -> None:
        self._world = world
        self._shards = shards
        self._max_norm = max_norm
        named = shards.named if shards else policy.trainable()
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.weights: list[Tensor] = shards.local if shards else [*self.parameters]
        self._served_type = shards.served_type if shards else None
        # bf16 cannot hold steps of a usual size (F5), so the optimiser works on fp32 masters where needed.
        self.masters = [_master(w, offload) for w in self.weights]
        self.adam = torch.optim.AdamW(self.masters, betas=betas, weight_decay=weight_decay)

    def step(self, lr: float) -> dict[str, float]:
        """Clip the batch's gradient and follow it. Every rank calls it, and all come to the same weights."""
        self._take_gradients()
        gradients = [m.grad for m in self.masters if m.grad is not None]
        norm = self._over_shards(torch.nn.utils.get_total_norm(gradients).item())
        if not math.isfinite(norm):
            raise AirError(
                f"The gradient's norm is {norm}: this update was not made, the weights are as the last one left them.",
                "lower trainer.optim.lr, or trainer.loss.passes if it is above 1; the step's episodes are saved.",
            )
        torch.nn.utils.clip_grads_with_norm_(self.masters, self._max_norm, torch.tensor(norm))
        before = [m.detach().clone() for m in self.masters]
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        moved = self._over_shards(_length([m.detach() - b for m, b in zip(self.masters, before, strict=True)]))
        size = self._over_shards(_length(before))
        changed = self._share_changed(before)
        assign(self.weights, self.masters)
        return {"grad_norm": norm, "update_ratio": moved / max(size, 1e-12), "weights_changed": changed, "lr": lr}

    def _share_changed(self, before: Sequence[Tensor]) -> float:
        """Of the weights as the model has them, in their own type, those that the step has changed."""
        changed = total = 0
        with torch.no_grad():
            for weight, master, old in zip(self.weights, self.masters, before, strict=True):
                was = old if weight is master else weight
                changed += int((master.to(was.device, was.dtype) != was).sum())
                total += was.numel()
        if self._shards:
            counts = self._world.gather_now((changed, total), "how many weights have changed")
            changed, total = (sum(column) for column in zip(*counts, strict=True))
        return changed / max(total, 1)

    def state(self) -> dict[str, Any]:
        """Whole tensors, the same for any number of ranks. Every rank must call it; the first one's counts.

        Masters are in it where the weights' own files do not hold them in full.
        """
        saved = self.adam.state_dict()
        masters: list[Tensor | None] = [m.detach() for _, m in self._finer_masters()]
        if self._shards:
            join = self._shards.join
            saved["state"] = {
                i: {k: join(i, v) if v.shape == self.masters[i].shape else v for k, v in entry.items()}
                for i, entry in saved["state"].items()
            }
            masters = [join(i, m.detach()) for i, m in self._finer_masters()]
        return {"optimiser": saved, "masters": masters}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """After set_weights: what the weights' files did not hold."""
        saved, cut = dict(state["optimiser"]), (self._shards.cut if self._shards else lambda whole: whole)
        saved["state"] = {
            i: {k: cut(v) if v.dim() else v for k, v in entry.items()} for i, entry in saved["state"].items()
        }
        self.adam.load_state_dict(saved)
        assign(self.masters, self.weights)
        for (_, master), whole in zip(self._finer_masters(), state["masters"], strict=True):
            master.data.copy_(cut(whole))
        assign(self.weights, self.masters)

    def set_weights(self, tensors: Mapping[str, Tensor]) -> None:
        for name, weight in zip(self.names, self.weights, strict=True):
            whole = tensors[name]
            weight.data.copy_(self._shards.cut(whole) if self._shards else whole)
        assign(self.masters, self.weights)

    def whole_weights(self) -> dict[str, Tensor]:
        """Of shards: every trained parameter in the type it is served in, on the first rank."""
        assert self._shards is not None
        found = {name: self._shards.join(i, self.weights[i]) for i, name in enumerate(self.names)}
        return {name: whole.to(self._served_type) for name, whole in found.items() if whole is not None}

    def _take_gradients(self) -> None:
        """From the parameters to the masters, summed over ranks. (FSDP2 has summed those of shards.)"""
        if self._world.size > 1 and self._shards is None:
            for parameter in self.parameters:
                if parameter.grad is None:  # this rank had no rows
                    parameter.grad = torch.zeros_like(parameter)
            self._world.add([p.grad for p in self.parameters if p.grad is not None], "the sum of the gradients")
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                gradient = local_gradient(parameter)
                master.grad = None if gradient is None else gradient.to(master.device, torch.float32)
                parameter.grad = None

    def _over_shards(self, length: float) -> float:
        """The length of a vector of which each rank has computed its shard's."""
        if self._shards is None:
            return length
        return math.sqrt(math.fsum(x * x for x in self._world.gather_now(length, "the length of the gradient")))

    def _finer_masters(self) -> list[tuple[int, Tensor]]:
        """Masters that hold more than the weights' files will: those of bf16 weights."""
        types = [self._served_type or w.dtype for w in self.weights]
        return [(i, m) for i, (m, t) in enumerate(zip(self.masters, types, strict=True)) if t != torch.float32]


def _master(weight: Tensor, offload: bool) -> Tensor:
    if weight.dtype == torch.float32 and not offload:
        return weight.requires_grad_()
    copy = weight.detach().to("cpu" if offload else weight.device, torch.float32)
    return (copy.clone() if copy.data_ptr() == weight.data_ptr() else copy).requires_grad_()


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum((t**2).sum().item() for t in tensors))


def assign(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            if target is not value:
                target.data.copy_(value)
