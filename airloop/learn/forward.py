"""The training pass of the architectures that airloop/models/blocks.py knows: transformers' weights, our own pieces.

Same numbers as transformers' layers, with fewer passes over memory: residual sums inside the products where there is no
adapter, adapters of one input in one product, norms, rotations and gates in one kernel each. With checkpointing a block
keeps its input only, and its attention where that is dear to compute again; the last product of the block, which its
own backward does not need, is not computed again either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from airloop.learn.lora import ADAPTER, LoraLinear
from airloop.learn.pieces import Linears, gated, gradients_of, products, project, rms_norm, rotate
from airloop.limits import DEAR
from airloop.models.blocks import Block, Blocks, read_blocks

if TYPE_CHECKING:
    from airloop.learn.batches import PackedPlan
    from airloop.policy import Policy


def training_hidden(policy: Policy, plan: PackedPlan) -> Tensor:
    """Final hidden states [T, width], by our own pass where the architecture is known, else by transformers'."""
    blocks = known_blocks(policy)
    if blocks is None:
        return policy.hidden(plan)
    again = [bool(layer.gradient_checkpointing) for layer in policy.decoder.layers]  # type: ignore[union-attr]
    return hidden(blocks, plan, again)


def known_blocks(policy: Policy) -> Blocks | None:
    """What our own pass computes with; None where transformers' modules must compute themselves."""
    whole = policy.decoder is policy.model.get_decoder()  # else it is a wrapper that gathers shards, block by block
    blocks = read_blocks(policy.model) if policy.impl == "auto" and whole else None
    return blocks if blocks is not None and plain(blocks) else None


def plain(blocks: Blocks) -> bool:
    """Whether we know what every module computes: there is no adapter of another kind."""
    return all(_known(m) for block in blocks.layers for m in vars(block).values() if m is not None)


def _known(module: nn.Module) -> bool:
    if isinstance(module, LoraLinear):
        other = module.lora_bias.get(ADAPTER) or ADAPTER in module.lora_variant or module.merged  # a variant: DoRA, …
        return type(module.base_layer) is nn.Linear and list(module.lora_A) == [ADAPTER] and not other
    return type(module) is nn.Linear or "RMSNorm" in type(module).__name__


def hidden(blocks: Blocks, plan: PackedPlan, checkpointed: Sequence[bool]) -> Tensor:
    """Final hidden states [T, width] of a plan's tokens. `checkpointed` says of each block whether its activations
    are computed again in the backward pass."""
    x = blocks.embed(plan.tokens)
    run = _Run(blocks, plan, *blocks.angles(plan.positions))
    for layer, again in zip(_layers(blocks, x.dtype), checkpointed, strict=True):
        if again and torch.is_grad_enabled():
            x = _Checkpointed.apply(x, run, layer, *layer.trained())
        else:
            x = run.block(x, layer)
    return rms_norm(x, _weight(blocks.norm), blocks.eps)[1]


@dataclass(frozen=True)
class Layer:
    """One block's tensors, adapters in the activations' type."""

    before: Tensor
    qkv: Linears
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linears
    after: Tensor
    gate_up: Linears
    down: Linears

    def trained(self) -> list[Tensor]:
        linears = (self.qkv, self.o, self.gate_up, self.down)
        every = [self.before, self.q_norm, self.k_norm, self.after, *(t for part in linears for t in part.tensors())]
        return [t for t in every if t is not None and t.requires_grad]


@dataclass(frozen=True)
class _Run:
    """What the blocks of one pass share."""

    blocks: Blocks
    plan: PackedPlan
    cos: Tensor
    sin: Tensor

    def block(self, x: Tensor, layer: Layer) -> Tensor:
        residual, opened = self.body(x, layer)
        return project(opened, layer.down, residual)[0]

    def body(self, x: Tensor, layer: Layer, kept: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """All of a block but its last product: the residual stream behind attention, and that product's input."""
        x, q, k, v = self.queries(x, layer)
        out = self.plan.attention(q, k, v, self.blocks.scale, kept)
        return self.gates(x, out, layer)

    def queries(self, x: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        eps, dim = self.blocks.eps, self.blocks.dim
        x, normed = rms_norm(x, layer.before, eps)
        q, k, v = (part.view(len(x), -1, dim) for part in project(normed, layer.qkv))
        q = rotate(q, layer.q_norm, self.cos, self.sin, eps)
        return x, q, rotate(k, layer.k_norm, self.cos, self.sin, eps), v

    def gates(self, x: Tensor, out: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        (residual,) = project(out.reshape(len(x), -1), layer.o, x)
        residual, normed = rms_norm(residual, layer.after, self.blocks.eps)
        gate, up = project(normed, layer.gate_up)
        return residual, gated(gate, up)

    def keeps_attention(self, layer: Layer) -> bool:
        linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
        products = 2 * len(self.plan.tokens) * sum(w.numel() for part in linears for w in part.weights)
        return 4 * self.plan.pairs * self.blocks.heads * self.blocks.dim > DEAR * products


class _Checkpointed(torch.autograd.Function):
    """A block that keeps its input. Its trained tensors are arguments, so that their gradients are returned, and
    not added up by a backward pass inside the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: _Run, layer: Layer, *trained: Tensor) -> Tensor:
        stream, q, k, v = run.queries(x, layer)
        kept = run.plan.keep(q, k, v, run.blocks.scale) if run.keeps_attention(layer) else None
        out = run.plan.attention(q, k, v, run.blocks.scale) if kept is None else kept[0]
        residual, opened = run.gates(stream, out, layer)
        ctx.run, ctx.layer = run, layer
        ctx.save_for_backward(x, *(kept or ()))
        return products(opened, layer.down, residual)[0][0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *kept = ctx.saved_tensors
        layer, d = ctx.layer, gradients[0].contiguous()
        trained = layer.trained()
        with torch.enable_grad():
            x = x.detach().requires_grad_(ctx.needs_input_grad[0])  # not that of the first block of a frozen model
            residual, opened = ctx.run.body(x, layer, tuple(kept) or None)
        found = _last_product(d, opened.detach(), layer.down)
        dopened = found.pop(0)
        of_last = {id(t): g for t, g in zip(_flat(layer.down), found, strict=True) if t is not None}
        others = [t for t in trained if id(t) not in of_last]
        wanted = [x, *others] if x.requires_grad else others
        ends = [(t, g) for t, g in ((residual, d), (opened, dopened)) if t.requires_grad and wanted]
        inner = (
            torch.autograd.grad([t for t, _ in ends], wanted, [g for _, g in ends], allow_unused=True) if ends else ()
        )
        by_id = of_last | {id(t): g for t, g in zip(wanted, inner, strict=True)}
        return by_id.get(id(x)), None, None, *(by_id[id(t)] for t in trained)


def _flat(linears: Linears) -> list[Tensor | None]:
    return [*linears.weights, *linears.biases, linears.down, *linears.ups]


def _last_product(d: Tensor, opened: Tensor, down: Linears) -> list[Tensor | None]:
    small = None if down.down is None else torch.nn.functional.linear(opened, down.down)
    needs = [t is not None and t.requires_grad for t in _flat(down)]
    return gradients_of([d], opened, small, down, True, needs[:1], needs[1:])


# --- from modules to tensors


def _layers(blocks: Blocks, dtype: torch.dtype) -> Iterator[Layer]:
    """Adapters are cast once per pass, all together."""
    groups = [g for b in blocks.layers for g in ([b.q, b.k, b.v], [b.o], [b.gate, b.up], [b.down])]
    adapted = [m for group in groups for m in group if isinstance(m, LoraLinear) and not m.disable_adapters]
    weights = [m.lora_A[ADAPTER].weight for m in adapted] + [m.lora_B[ADAPTER].weight for m in adapted]
    scales = [1.0] * len(adapted) + [float(m.scaling[ADAPTER]) for m in adapted]
    cast = _Cast.apply(dtype, scales, *weights) if weights else ()
    adapters = {id(m): (cast[i], cast[len(adapted) + i]) for i, m in enumerate(adapted)}
    ready = iter([_linears(group, adapters) for group in groups])
    for block in blocks.layers:
        yield _layer(block, ready)


def _layer(block: Block, linears: Iterator[Linears]) -> Layer:
    q_norm, k_norm = (None if m is None else _weight(m) for m in (block.q_norm, block.k_norm))
    qkv, o, gate_up, down = (next(linears) for _ in range(4))
    return Layer(_weight(block.before), qkv, q_norm, k_norm, o, _weight(block.after), gate_up, down)


def _linears(modules: Sequence[nn.Module], adapters: dict[int, tuple[Tensor, Tensor]]) -> Linears:
    bases: list[Any] = [m.base_layer if isinstance(m, LoraLinear) else m for m in modules]
    pairs = [adapters.get(id(m)) for m in modules]
    downs = [pair[0] for pair in pairs if pair]
    stacked = torch.cat(downs) if len(downs) > 1 else (downs[0] if downs else None)
    ups = tuple(pair[1] if pair else None for pair in pairs)
    return Linears(tuple(b.weight for b in bases), tuple(b.bias for b in bases), stacked, ups)


def _weight(module: nn.Module) -> Tensor:
    return module.weight  # type: ignore[return-value]


class _Cast(torch.autograd.Function):
    """Many small matrices, scaled and in another type, in few launches."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, scales: list[float], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.scales, ctx.types = scales, [w.dtype for w in weights]
        outs = [torch.empty_like(w, dtype=dtype) for w in weights]
        torch._foreach_copy_(outs, torch._foreach_mul(list(weights), scales))
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wide = [torch.empty_like(g, dtype=dtype) for g, dtype in zip(gradients, ctx.types, strict=True)]
        torch._foreach_copy_(wide, list(gradients))
        torch._foreach_mul_(wide, ctx.scales)
        return None, None, *wide
