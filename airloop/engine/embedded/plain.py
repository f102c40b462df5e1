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
        self._down: Weights = module.lora_A[ADAPTER]._parameters if self.adapter else {}
        self._second: Weights = module.lora_B[ADAPTER]._parameters if self.adapter else {}
        self.up: Tensor | None = None  # of this pass: the adapter's second matrix, scaled

    @property
    def second(self) -> Tensor | None:
        """The adapter's second matrix as it is trained; None while there is none to add."""
        adapter = self.adapter
        return None if adapter is None or adapter.disable_adapters or adapter.merged else self._second["weight"]

    def __call__(self, x: Tensor) -> Tensor:
        base = self._base
        result = linear(x, base["weight"], base["bias"])  # type: ignore[arg-type]
        if self.up is None:
            return result
        low = linear(x, self._down["weight"].to(x.dtype))  # type: ignore[union-attr]
        return result + linear(low, self.up)


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
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._blocks.eps)
        return weights["weight"] * wide.to(x.dtype)  # type: ignore[operator]

    def _scale_adapters(self, dtype: torch.dtype) -> None:
        """All at once; whether an adapter counts may change from pass to pass."""
        for part in self._linears:
            part.up = part.second
        found = [part for part in self._linears if part.up is not None]
        if found:
            scales = [float(part.adapter.scaling[ADAPTER]) for part in found]  # type: ignore[union-attr]
            scaled = torch._foreach_mul([part.up for part in found], scales)  # type: ignore[misc]
            for part, up in zip(found, scaled, strict=True):
                part.up = up.to(dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def plain_forward(policy: Policy) -> PlainForward | None:
    """None where the modules must be called: on another device than a CPU, of an architecture that we do not know, of
    weights that are in shards, or because the user says so (trainer.model.impl = "hf")."""
    blocks = known_blocks(policy) if policy.device.type == "cpu" and policy.hold is None else None
    return None if blocks is None else PlainForward(blocks)
