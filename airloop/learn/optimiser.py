"""AdamW on fp32 masters of what is trained, on one rank or several, on the device or in the CPU's memory.

`weights` are what this rank keeps of each trained parameter: all of it, or its shard (airloop/learn/parallel.py).
A master is the weight itself where that is in fp32 and stays on its device, and a copy of it otherwise.

A step goes through the masters in stretches: gradients in fp32, the weights as they were, and whatever else a step
needs besides are never there for more than one stretch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from airloop.errors import AirError
from airloop.learn.parallel import Shards, local_gradient
from airloop.limits import STRETCH
from airloop.ranks import Ranks

if TYPE_CHECKING:
    from airloop.policy import Policy

# Weights that are counted or added up at once, with eight bytes for each: a sum of booleans is one of whole numbers,
# and a long sum in float32 is off by percents on the CPU.
PIECE = 1 << 22


class NotFinite(AirError):
    """A gradient that nobody can follow: the step was not made, and weights and optimiser are as they were."""

    moved = False  # whether an earlier pass over the same batch has moved them


class Optimiser:
    """Every rank holds the same masters, or its own shards of them, and clips by the norm of the whole gradient."""

    def __init__(
        self,
        policy: Policy,
        ranks: Ranks,
        shards: Shards | None,
        *,
        betas: tuple[float, float],
        weight_decay: float,
        max_norm: float,
        offload: bool,
    ) -> None:
        self._ranks = ranks
        self._shards = shards
        self._max_norm = max_norm
        named = shards.named if shards else policy.trainable()
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.weights: list[Tensor] = shards.local if shards else [*self.parameters]
        self._served_type = shards.served_type if shards else None
        # bf16 cannot hold steps of a usual size (F5), so the optimiser works on fp32 masters where needed.
        self.masters = [_master(w, offload) for w in self.weights]
        if shards is None:  # FSDP2 sees to it by itself
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                _add_up_widely(parameter, master.device)
        self._stretches = list(_stretches(self.weights))
        # One launch for many small adapters instead of several for each, and no host memory is read.
        self._fused = all(m.is_cuda for m in self.masters)
        self.adam = torch.optim.AdamW(self.masters, betas=betas, weight_decay=weight_decay, fused=self._fused)

    def step(self, lr: float) -> dict[str, float]:
        """Clip the batch's gradient and follow it. Every rank calls it, and all come to the same weights."""
        gradients = self._whole_gradients()
        norm = self._over_shards(_norm([g for g in gradients if g is not None]))
        if not math.isfinite(norm):
            raise NotFinite(
                f"The gradient's norm is {norm}: this update was not made, the weights are as the last one left them.",
                "lower trainer.optim.lr, or trainer.loss.passes if it is above 1; the step's episodes are saved.",
            )
        for group in self.adam.param_groups:
            group["lr"] = lr
        with torch.no_grad():
            found = torch.stack([self._follow(part, gradients, norm) for part in self._stretches])
        moved, size, changed = (column.tolist() for column in found.unbind(1))
        ratio = self._over_shards(math.hypot(*moved)) / max(self._over_shards(math.hypot(*size)), 1e-12)
        return {"grad_norm": norm, "update_ratio": ratio, "weights_changed": self._share(sum(changed)), "lr": lr}

    def _follow(self, part: slice, gradients: list[Tensor | None], norm: float) -> Tensor:
        """Move one stretch of the masters. On their device: how far, how large they were, how many weights of the
        model, in its own type, are others now."""
        masters, weights = self.masters[part], self.weights[part]
        for i, master in enumerate(masters, part.start):
            gradient, gradients[i] = gradients[i], None
            master.grad = None if gradient is None else gradient.to(master)
        torch.nn.utils.clip_grads_with_norm_(masters, self._max_norm, torch.tensor(norm))
        before = _flat(masters)
        self.adam.step()  # passes over masters without a gradient: those of the other stretches
        for master in masters:
            master.grad = None
        after = _flat(masters)
        changed = _differing(after, before, weights[0].dtype)
        assign(weights, masters)
        size = _length(before)
        return torch.stack([x.double() for x in (_length(before.sub_(after)), size, changed)])

    def _share(self, changed: float) -> float:
        total: float = sum(w.numel() for w in self.weights)
        if self._shards:
            counts = self._ranks.all_gather_now((changed, total), "how many weights have changed")
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
        saved["param_groups"] = [{**group, "fused": self._fused} for group in saved["param_groups"]]
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

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Of shards: every trained parameter in the type it is served in, on the first rank. None where the model has
        them whole."""
        if self._shards is None:
            return None
        found = {name: self._shards.join(i, self.weights[i]) for i, name in enumerate(self.names)}
        return {name: whole.to(self._served_type) for name, whole in found.items() if whole is not None}

    def take_gradients(self) -> list[Tensor | None]:
        """What this rank's backward passes have added up since the last time."""
        return [_take_gradient(p) for p in self.parameters]

    def _whole_gradients(self) -> list[Tensor | None]:
        """Summed over ranks. (FSDP2 has summed those of shards.)"""
        taken = self.take_gradients()
        if self._ranks.size == 1 or self._shards is not None:
            return taken
        # a rank that had no rows has none
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, taken, strict=True)]
        self._ranks.all_reduce(whole, "the sum of the gradients")
        return [*whole]

    def _over_shards(self, length: float) -> float:
        """The length of a vector of which each rank has computed its shard's."""
        if self._shards is None:
            return length
        return math.sqrt(math.fsum(x * x for x in self._ranks.all_gather_now(length, "the length of the gradient")))

    def _finer_masters(self) -> list[tuple[int, Tensor]]:
        """Masters that hold more than the weights' files will: those of bf16 weights."""
        types = [self._served_type or w.dtype for w in self.weights]
        return [(i, m) for i, (m, t) in enumerate(zip(self.masters, types, strict=True)) if t != torch.float32]


def _add_up_widely(parameter: Any, device: torch.device) -> None:
    """Gradients in few bits are added up in fp32, where the master is. A parameter's own gradient is in its type, and
    whatever is added to it is rounded to that: over 128 micro-batches, or chunks of a trained head, by more than a
    percent in bf16."""
    if parameter.dtype not in (torch.bfloat16, torch.float16) or hasattr(parameter, "gradient_sum"):
        return  # or another learner of this policy has seen to it

    def add(parameter: Any) -> None:
        gradient, parameter.grad = parameter.grad, None
        if parameter.gradient_sum is None:
            parameter.gradient_sum = gradient.to(device, torch.float32)
        else:
            parameter.gradient_sum.add_(gradient.to(device))

    parameter.gradient_sum = None
    parameter.register_post_accumulate_grad_hook(add)


def _take_gradient(parameter: Any) -> Tensor | None:
    """This rank's part of it, which the parameter keeps no more."""
    found = local_gradient(parameter)
    parameter.grad = None
    if getattr(parameter, "gradient_sum", None) is None:
        return found
    found, parameter.gradient_sum = parameter.gradient_sum, None
    return found


def _master(weight: Tensor, offload: bool) -> Tensor:
    if weight.dtype == torch.float32 and not offload:
        return weight.requires_grad_()
    copy = weight.detach().to("cpu" if offload else weight.device, torch.float32)
    return (copy.clone() if copy.data_ptr() == weight.data_ptr() else copy).requires_grad_()


def _stretches(weights: Sequence[Tensor]) -> Iterator[slice]:
    """Neighbours of one type, as many as fit into a stretch."""
    start = size = 0
    for i, weight in enumerate(weights):
        if i > start and (size + weight.numel() > STRETCH or weight.dtype != weights[start].dtype):
            yield slice(start, i)
            start, size = i, 0
        size += weight.numel()
    yield slice(start, len(weights))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of all of them, so that one launch measures all."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _length(flat: Tensor) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(p, dtype=torch.float64) for p in flat.split(PIECE)]).norm()


def _differing(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """How many of them differ in this type."""
    parts = zip(a.split(PIECE), b.split(PIECE), strict=True)
    return torch.stack([(x.to(kind) != y.to(kind)).sum() for x, y in parts]).sum()


def _norm(tensors: Sequence[Tensor]) -> float:
    """Added up in float32 at least."""
    if not tensors:
        return 0.0
    kind = functools.reduce(torch.promote_types, {t.dtype for t in tensors}, torch.float32)
    return torch.stack(torch._foreach_norm(list(tensors), 2, kind)).norm().item()


def assign(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            if target is not value:
                target.data.copy_(value)
