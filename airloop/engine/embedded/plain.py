"""transformers' layers on a CPU without their modules: the same operations on the same weights, so the same bits.

A step of a small model takes a CPU less time than Python takes to get from module to module. Weights and adapters are
read where they lie, in every pass: nothing here has to be told that they have changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu

from airloop.learn.forward import known_blocks
from airloop.learn.lora import ADAPTER, LoraLinear
from airloop.models.blocks import Block, Blocks
from airloop.policy import ForwardPlan, Policy

Weights = dict[str, nn.Parameter | None]


class _Linear:
    """A linear layer, with or without an adapter."""

    def __init__(self, module: Any) -> None:
        self.adapter: LoraLinear | None = module if isinstance(module, LoraLinear) else None
        self._base: Weights = (module.base_layer if self.adapter else module)._parameters
        self._first: Weights = module.lora_A[ADAPTER]._parameters if self.adapter else {}
        self._second: Weights = module.lora_B[ADAPTER]._parameters if self.adapter else {}
        # Of this pass, in its type: the adapter's two matrices, of which the second is scaled.
        self.down: Tensor | None = None
        self.up: Tensor | None = None

    def read(self) -> bool:
        """The adapter's matrices as they are trained; whether there are any to add."""
        adapter = self.adapter
        counts = adapter is not None and not adapter.disable_adapters and not adapter.merged
        self.down, self.up = (self._first["weight"], self._second["weight"]) if counts else (None, None)
        return counts

    def __call__(self, x: Tensor) -> Tensor:
        base = self._base
        result = linear(x, base["weight"], base["bias"])  # type: ignore[arg-type]
        if self.down is None or self.up is None:
            return result
        return result + linear(linear(x, self.down), self.up)


class _Layer:
    def __init__(self, block: Block) -> None:
        self.before, self.after = block.before._parameters, block.after._parameters
        self.q_norm, self.k_norm = (m and m._parameters for m in (block.q_norm, block.k_norm))
        self.linears = [_Linear(m) for m in (block.q, block.k, block.v, block.o, block.gate, block.up, block.down)]
        self.q, self.k, self.v, self.o, self.gate, self.raised, self.down = self.linears


class PlainForward:
    """Final hidden states [T, width], as Policy.hidden has them."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._layers = [_Layer(block) for block in blocks.layers]
        self._linears = [part for layer in self._layers for part in layer.linears]

    def __call__(self, plan: ForwardPlan) -> Tensor:
        blocks = self._blocks
        x = embedding(plan.tokens, blocks.embed.weight)
        self._scale_adapters(x.dtype)
        angles = tuple(part[0, :, None] for part in blocks.rotary(x, plan.positions[None]))
        for index, layer in enumerate(self._layers):
            x = x + layer.o(self._attended(index, layer, x, plan, angles))
            inner = self._norm(x, layer.after)
            x = x + layer.down(silu(layer.gate(inner)) * layer.raised(inner))
        return self._norm(x, blocks.norm._parameters)

    def _attended(self, index: int, layer: _Layer, x: Tensor, plan: ForwardPlan, angles: tuple[Tensor, ...]) -> Tensor:
        blocks, inner = self._blocks, self._norm(x, layer.before)
        heads = (len(x), -1, blocks.dim)
        query, key, value = layer.q(inner).view(heads), layer.k(inner).view(heads), layer.v(inner).view(heads)
        if layer.q_norm and layer.k_norm:
            query, key = self._norm(query, layer.q_norm), self._norm(key, layer.k_norm)
        turned = _turn(torch.cat([query, key], 1), *angles)
        query, key = turned[:, : blocks.heads], turned[:, blocks.heads :]
        return plan.attend(index, query, key, value, blocks.scale).reshape(len(x), -1)

    def _norm(self, x: Tensor, weights: Weights) -> Tensor:
        narrow = x.dtype != torch.float32
        wide = x.to(torch.float32) if narrow else x
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._blocks.eps)
        return weights["weight"] * (wide.to(x.dtype) if narrow else wide)  # type: ignore[operator]

    def _scale_adapters(self, dtype: torch.dtype) -> None:
        """All at once; whether an adapter counts may change from pass to pass."""
        found = [part for part in self._linears if part.read()]
        if not found:
            return
        scales = [float(part.adapter.scaling[ADAPTER]) for part in found]  # type: ignore[union-attr]
        ups = torch._foreach_mul([part.up for part in found], scales)  # type: ignore[misc]
        for part, up in zip(found, ups, strict=True):
            part.up = up
            if up.dtype != dtype:
                part.down, part.up = part.down.to(dtype), up.to(dtype)  # type: ignore[union-attr]


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def plain_forward(policy: Policy) -> PlainForward | None:
    """None where the modules must be called: on another device than a CPU, of an architecture that we do not know, of
    weights that are in shards, or because the user says so (trainer.model.impl = "hf")."""
    blocks = known_blocks(policy) if policy.device.type == "cpu" and policy.hold is None else None
    return None if blocks is None else PlainForward(blocks)
