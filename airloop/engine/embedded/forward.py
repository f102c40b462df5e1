"""Our own forward pass for sampling: the policy's weights where they lie, few and large products.

The projections that read the same input are laid side by side in memory, and transformers' modules get views of that
memory: one product computes all of them, and there is still one copy of the weights, the trainer's. Behind the rows
of a frozen weight lie those of its adapter's first matrix, so that this product too costs no extra pass; the second
matrix is one small product more. `refresh` brings the adapter's rows up to date after an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from airloop.engine.embedded import ops
from airloop.learn.lora import ADAPTER, LoraLinear
from airloop.models.blocks import Blocks

# The adapter's rows are padded to a multiple of this: products of odd widths are slow.
ALIGN = 16


class Attention(Protocol):
    """How the tokens of one pass see each other: writes their keys and values, answers their queries."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T]

    def attend(self, layer: int, qkv: Tensor, norms: tuple[Tensor, Tensor] | None) -> Tensor:
        """[T, ≥ (heads + 2 kv_heads) d] -> [T, heads d]"""
        ...


@dataclass(frozen=True)
class Adapter:
    """The two matrices as they are trained, and where this pass has its copies of them."""

    down: Tensor
    up: Tensor
    scale: float
    down_copy: Tensor
    up_copy: Tensor  # transposed and scaled


@dataclass
class Product:
    """Several linear layers of one input, as one: weight [rows + adapter rows, in]."""

    members: Sequence[nn.Module]
    rows: int
    weight: Tensor
    bias: Tensor | None
    up: Tensor | None = None  # [adapter rows, rows]: the second matrices, on a diagonal of blocks
    adapters: list[Adapter] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, rows] as a view that may have a longer stride."""
        out = linear(x, self.weight, self.bias)
        if self.up is None:
            return out
        result = out[:, : self.rows]
        ops.add_product(result, out[:, self.rows :], self.up)
        return result


def _base(module: nn.Module) -> nn.Linear:
    return module.base_layer if isinstance(module, LoraLinear) else module  # type: ignore[return-value]


def fuse(members: Sequence[nn.Module]) -> Product:
    """Lays the members' weights side by side; their modules keep working, on views."""
    bases = [_base(m) for m in members]
    adapters = [m for m in members if isinstance(m, LoraLinear)]
    rank = sum(m.r[ADAPTER] for m in adapters)
    padded = -(-rank // ALIGN) * ALIGN
    rows = sum(b.weight.shape[0] for b in bases)
    first = bases[0].weight
    weight = first.new_zeros(rows + padded, first.shape[1])
    has_bias = any(b.bias is not None for b in bases)
    bias = first.new_zeros(rows + padded) if has_bias else None
    up = first.new_zeros(padded, rows) if adapters else None
    product = Product(members, rows, weight, bias, up)
    at, low = 0, rows
    for member, base in zip(members, bases, strict=True):
        n = base.weight.shape[0]
        weight[at : at + n].copy_(base.weight.data)
        base.weight.data = weight[at : at + n]
        if base.bias is not None and bias is not None:
            bias[at : at + n].copy_(base.bias.data)
            base.bias.data = bias[at : at + n]
        if isinstance(member, LoraLinear):
            a, b = member.lora_A[ADAPTER].weight, member.lora_B[ADAPTER].weight
            r = member.r[ADAPTER]
            assert up is not None
            there = up[low - rows : low - rows + r, at : at + n]
            product.adapters.append(Adapter(a, b, member.scaling[ADAPTER], weight[low : low + r], there))
            low += r
        at += n
    return product


class Forward:
    """Hidden states of a pass's tokens, for the architectures of airloop/models/blocks.py."""

    @torch.no_grad()
    def __init__(self, blocks: Blocks, context: int) -> None:
        self.blocks = blocks
        self._products = [
            (fuse((b.q, b.k, b.v)), fuse((b.o,)), fuse((b.gate, b.up)), fuse((b.down,))) for b in blocks.layers
        ]
        self._norms = [
            None if b.q_norm is None or b.k_norm is None else (b.q_norm.weight, b.k_norm.weight) for b in blocks.layers
        ]
        device = blocks.embed.weight.device
        half = blocks.dim // 2
        cos, sin = blocks.angles(torch.arange(context, device=device))
        self.angles = (cos[:, :half].contiguous(), sin[:, :half].contiguous())
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """After an update of the adapter: its rows beside the frozen weights are copied anew, all together."""
        found = [a for products in self._products for product in products for a in product.adapters]
        if found:
            torch._foreach_copy_([a.down_copy for a in found], [a.down for a in found])
            scaled = torch._foreach_mul([a.up for a in found], [a.scale for a in found])
            torch._foreach_copy_([a.up_copy for a in found], [up.t() for up in scaled])

    @torch.no_grad()
    def __call__(self, plan: Attention) -> Tensor:
        blocks = self.blocks
        eps = blocks.eps
        residual = embedding(plan.tokens, blocks.embed.weight)
        add: Tensor | None = None
        for i, (block, (qkv, o, both, down)) in enumerate(zip(blocks.layers, self._products, strict=True)):
            residual, x = ops.add_norm(residual, add, block.before.weight, eps)  # type: ignore[arg-type]
            attended = plan.attend(i, qkv(x), self._norms[i])  # type: ignore[arg-type]
            residual, x = ops.add_norm(residual, o(attended), block.after.weight, eps)  # type: ignore[arg-type]
            add = down(ops.gated(both(x), both.rows // 2))
        return ops.add_norm(residual, add, blocks.norm.weight, eps)[1]  # type: ignore[arg-type]
