"""The training pass of the architectures that airloop/models/blocks.py knows: transformers' weights, our own pieces.

Same numbers as transformers' layers, with fewer passes over memory: residual sums inside the products where there is no
adapter, adapters of one input in one product, norms, rotations and gates in one kernel each. With checkpointing a block
keeps its input only, and its attention where that is dear to compute again; the last product of the block, which its
own backward does not need, is not computed again either, and the MLP's (mlp.py) is over before attention's begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from airloop.learn.block_ops import Linears, project, rms_norm, rotate
from airloop.learn.lora import ADAPTER, LoraLinear
from airloop.learn.mlp import Mlp, mlp_backward, mlp_forward, run_mlp
from airloop.limits import RECOMPUTE_RATIO
from airloop.models.blocks import Block, Blocks, read_blocks

if TYPE_CHECKING:
    from airloop.learn.batches import PackedPlan
    from airloop.policy import Policy


def training_hidden(policy: Policy, plan: PackedPlan) -> Tensor:
    """Final hidden states [T, width], by our own pass where the architecture is known, else by transformers'."""
    blocks = known_blocks(policy)
    if blocks is None:
        return policy.hidden(plan)
    decoder: Any = policy.model.get_decoder()
    return hidden(blocks, plan, [bool(layer.gradient_checkpointing) for layer in decoder.layers], policy.hold)


def known_blocks(policy: Policy) -> Blocks | None:
    """What our own pass computes with; None where transformers' modules must compute themselves."""
    # Shards of what is trained are gathered, block by block, by a wrapper that its modules must be called through.
    wrapped = policy.decoder is not policy.model.get_decoder() and policy.hold is None
    blocks = read_blocks(policy.model) if policy.impl == "auto" and not wrapped else None
    return blocks if blocks is not None and plain(blocks) else None


def plain(blocks: Blocks) -> bool:
    """Whether we know what every module computes: there is no adapter of another kind."""
    return all(_known(m) for block in blocks.layers for m in vars(block).values() if m is not None)


def _known(module: nn.Module) -> bool:
    if isinstance(module, LoraLinear):
        other = module.lora_bias.get(ADAPTER) or ADAPTER in module.lora_variant or module.merged  # a variant: DoRA, …
        return type(module.base_layer) is nn.Linear and list(module.lora_A) == [ADAPTER] and not other
    return type(module) is nn.Linear or "RMSNorm" in type(module).__name__


Hold = Callable[[int, int], None]


def hidden(blocks: Blocks, plan: PackedPlan, checkpointed: Sequence[bool], hold: Hold | None = None) -> Tensor:
    """Final hidden states [T, width] of a plan's tokens. `checkpointed` says of each block whether its activations
    are computed again in the backward pass; `hold` is asked for every block that is about to be computed with."""
    x = blocks.embed(plan.tokens)
    run = _Run(blocks, plan, *blocks.angles(plan.positions))
    for i, (layer, again) in enumerate(zip(_layers(blocks, x.dtype, hold), checkpointed, strict=True)):
        if again and torch.is_grad_enabled():
            x = _Checkpointed.apply(x, run, layer, *layer.trained())
        else:
            x = run.block(x, layer)
        if hold and x.requires_grad:
            x = _Held.apply(x, hold, i)
    return rms_norm(x, _weight(blocks.norm), blocks.eps)[1]


@dataclass(frozen=True)
class Layer:
    """One block's tensors, adapters in the activations' type."""

    before: Tensor
    qkv: Linears
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linears
    mlp: Mlp

    def attention(self) -> list[Tensor]:
        """What is trained of the first half."""
        every = [self.before, self.q_norm, self.k_norm, *self.qkv.tensors(), *self.o.tensors()]
        return [t for t in every if t is not None and t.requires_grad]

    def trained(self) -> list[Tensor]:
        return [*self.attention(), *self.mlp.trained()]


@dataclass(frozen=True)
class _Run:
    """What the blocks of one pass share."""

    blocks: Blocks
    plan: PackedPlan
    cos: Tensor
    sin: Tensor

    def block(self, x: Tensor, layer: Layer) -> Tensor:
        return run_mlp(self.attended(x, layer), layer.mlp)

    def attended(self, x: Tensor, layer: Layer, kept: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The first half of a block: the residual stream behind attention."""
        x, q, k, v = self.queries(x, layer)
        return self.joined(x, self.plan.attention(q, k, v, self.blocks.scale, kept), layer)

    def queries(self, x: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        eps, dim = self.blocks.eps, self.blocks.dim
        x, normed = rms_norm(x, layer.before, eps)
        q, k, v = (part.view(len(x), -1, dim) for part in project(normed, layer.qkv))
        q = rotate(q, layer.q_norm, self.cos, self.sin, eps)
        return x, q, rotate(k, layer.k_norm, self.cos, self.sin, eps), v

    def joined(self, x: Tensor, out: Tensor, layer: Layer) -> Tensor:
        return project(out.reshape(len(x), -1), layer.o, x)[0]

    def keeps_attention(self, layer: Layer) -> bool:
        linears = (layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down)
        products = 2 * len(self.plan.tokens) * sum(w.numel() for part in linears for w in part.weights)
        return 4 * self.plan.pairs * self.blocks.heads * self.blocks.dim > RECOMPUTE_RATIO * products


class _Held(torch.autograd.Function):
    """Behind a block: its backward pass begins here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hold: Hold, index: int) -> Tensor:
        ctx.hold, ctx.index = hold, index
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.hold(ctx.index, -1)
        return gradients[0], None, None


class _Checkpointed(torch.autograd.Function):
    """A block that keeps its input. Its trained tensors are arguments, so that their gradients are returned, and
    not added up by a backward pass inside the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: _Run, layer: Layer, *trained: Tensor) -> Tensor:
        stream, q, k, v = run.queries(x, layer)
        kept = run.plan.keep(q, k, v, run.blocks.scale) if run.keeps_attention(layer) else None
        out = run.plan.attention(q, k, v, run.blocks.scale) if kept is None else kept[0]
        ctx.run, ctx.layer = run, layer
        ctx.save_for_backward(x, *(kept or ()))
        return mlp_forward(run.joined(stream, out, layer), layer.mlp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *kept = ctx.saved_tensors
        layer, attention = ctx.layer, ctx.layer.attention()
        with torch.enable_grad():
            x = x.detach().requires_grad_(ctx.needs_input_grad[0])  # not that of the first block of a frozen model
            stream = ctx.run.attended(x, layer, tuple(kept) or None)
        d, of_mlp = mlp_backward(gradients[0].contiguous(), stream.detach(), layer.mlp, stream.requires_grad)
        wanted = [x, *attention] if x.requires_grad else attention
        found = torch.autograd.grad(stream, wanted, d, allow_unused=True) if wanted else ()
        dx = found[0] if x.requires_grad else None
        return dx, None, None, *found[len(found) - len(attention) :], *of_mlp


# --- from modules to tensors


def _layers(blocks: Blocks, dtype: torch.dtype, hold: Hold | None) -> Iterator[Layer]:
    """Adapters are cast once per pass, all together; a block's own weights may be there only while it is at work."""
    linears = [m for block in blocks.layers for group in _groups(block) for m in group]
    adapted = [m for m in linears if isinstance(m, LoraLinear) and not m.disable_adapters]
    weights = [m.lora_A[ADAPTER].weight for m in adapted] + [m.lora_B[ADAPTER].weight for m in adapted]
    scales = [1.0] * len(adapted) + [float(m.scaling[ADAPTER]) for m in adapted]
    cast = _Cast.apply(dtype, scales, *weights) if weights else ()
    adapters = {id(m): (cast[i], cast[len(adapted) + i]) for i, m in enumerate(adapted)}
    for i, block in enumerate(blocks.layers):
        if hold:
            hold(i, 1)
        yield _layer(block, [_linears(group, adapters) for group in _groups(block)], blocks.eps)


def _groups(block: Block) -> list[list[nn.Module]]:
    """Linear layers by their input."""
    return [[block.q, block.k, block.v], [block.o], [block.gate, block.up], [block.down]]


def _layer(block: Block, linears: Sequence[Linears], eps: float) -> Layer:
    q_norm, k_norm = (None if m is None else _weight(m) for m in (block.q_norm, block.k_norm))
    qkv, o, gate_up, down = linears
    return Layer(_weight(block.before), qkv, q_norm, k_norm, o, Mlp(_weight(block.after), gate_up, down, eps))


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
