"""The pieces of a transformer block for training: each keeps only what its backward needs, and computes gradients of
weights only where the weights are trained. On the CPU they are plain torch, rounding as transformers' own modules do;
on CUDA, one kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu


def fused(x: Tensor) -> bool:
    """Whether the kernels run, rather than plain torch."""
    return x.is_cuda


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x once more, for the residual stream, and x normed. Going on with this x lets one kernel add both gradients."""
    if fused(x):
        return _RmsNorm.apply(x, weight, eps)
    return x, _plain_norm(x, weight, eps)


def rotate(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """x [T, heads, dim], normed by head where there is a weight, turned by its position; cos and sin [T, dim]."""
    if fused(x):
        return _Rotate.apply(x, weight, cos, sin, eps)
    if weight is not None:
        x = _plain_norm(x, weight, eps)
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return x * cos[:, None].to(x.dtype) + turned * sin[:, None].to(x.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up"""
    return _Gated.apply(gate, up) if fused(gate) else silu(gate) * up


def _plain_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from airloop.learn.kernels.norm import norm_forward

        out, inverse = norm_forward(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.set_materialize_grads(False)
        return x.view_as(x), out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        from airloop.learn.kernels.norm import norm_backward

        along, d = gradients
        if d is None:
            return along, None, None
        x, weight, inverse = ctx.saved_tensors
        along = None if along is None else along.contiguous()
        return *norm_backward(d.contiguous(), along, x, weight, inverse, ctx.needs_input_grad[1]), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        from airloop.learn.kernels.rotary import rotary_forward

        ctx.eps, ctx.shape = eps, x.shape
        ctx.save_for_backward(None if weight is None else x, weight, cos, sin)  # turning back does not need x
        return rotary_forward(x, weight, cos, sin, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from airloop.learn.kernels.rotary import rotary_backward

        d = gradients[0].contiguous()
        x, weight, cos, sin = ctx.saved_tensors
        found = rotary_backward(d, d if x is None else x, weight, cos, sin, ctx.eps, ctx.needs_input_grad[1])
        return *found, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from airloop.learn.kernels.gated import gated_forward

        ctx.save_for_backward(gate, up)
        return gated_forward(gate, up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        from airloop.learn.kernels.gated import gated_backward

        return gated_backward(gradients[0].contiguous(), *ctx.saved_tensors)


@dataclass(frozen=True)
class Linears:
    """Linear layers of one input, with their adapters' A matrices stacked into one product."""

    weights: tuple[Tensor, ...]  # [out, in]
    biases: tuple[Tensor | None, ...]
    down: Tensor | None  # [sum of ranks, in], in the activations' type
    ups: tuple[Tensor | None, ...]  # [out, rank], scaled, in the activations' type; None: no adapter on this one

    @property
    def ranks(self) -> list[int]:
        return [0 if up is None else up.shape[1] for up in self.ups]

    def tensors(self) -> list[Tensor]:
        found = [*self.weights, *self.biases, self.down, *self.ups]
        return [t for t in found if t is not None]


def project(x: Tensor, linears: Linears, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """x [T, in] through each of the layers; with `residual`, that is added to the one there is."""
    n = len(linears.weights)
    return _Project.apply(x, residual, n, *linears.weights, *linears.biases, linears.down, *linears.ups)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, n: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        linears = _unpacked(n, tensors)
        outs, small = products(x, linears, residual)
        # Without an adapter or a trained weight the input itself is not needed again.
        ctx.save_for_backward(x if small is not None or any(ctx.needs_input_grad[3:]) else None, small, *tensors)
        ctx.n, ctx.has_residual = n, residual is not None
        return outs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, small, *tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad
        found = gradients_of(
            gradients, x, small, _unpacked(ctx.n, tensors), needs[0], needs[3 : 3 + ctx.n], needs[3 + ctx.n :]
        )
        return found[0], gradients[0] if ctx.has_residual else None, None, *found[1:]


def _unpacked(n: int, tensors: Sequence[Tensor | None]) -> Linears:
    return Linears(tuple(tensors[:n]), tuple(tensors[n : 2 * n]), tensors[2 * n], tuple(tensors[2 * n + 1 :]))  # type: ignore[arg-type]


def products(x: Tensor, linears: Linears, residual: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The layers' outputs, and x times the adapters' stacked A matrices."""
    small = None if linears.down is None else linear(x, linears.down)
    parts: Sequence[Tensor | None] = [None] * len(linears.ups) if small is None else small.split(linears.ranks, 1)
    outs = [
        _product(x, weight, bias, part, up, residual)
        for weight, bias, up, part in zip(linears.weights, linears.biases, linears.ups, parts, strict=True)
    ]
    return tuple(outs), small


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, part: Tensor | None, up: Tensor | None, residual: Tensor | None
) -> Tensor:
    if residual is not None and bias is None and up is None:
        return torch.addmm(residual, x, weight.t())
    out = linear(x, weight, bias)
    if up is not None and part is not None:
        out.addmm_(part, up.t())
    # The residual stream is far larger than what is added to it, so each sum with it costs bits: one, at the end. With
    # the adapter's as a second one bfloat16 log-probs were 1.1 to 1.3 times as far from float32's (bench/rounding.py).
    return out if residual is None else out.add_(residual)


def gradients_of(
    outs: Sequence[Tensor],
    x: Tensor | None,
    small: Tensor | None,
    linears: Linears,
    of_x: bool,
    of_weights: Sequence[bool],
    of_rest: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of x, the weights, the biases, the stacked A matrices and the B matrices, given those of the outputs.
    `of_rest` says which biases, A and B matrices need one."""
    n = len(linears.weights)
    dsmall = None
    dups: list[Tensor | None] = [None] * n
    if small is not None and linears.down is not None:
        dsmall = torch.empty_like(small)
        ranks = linears.ranks
        for i, (d, piece, into) in enumerate(zip(outs, small.split(ranks, 1), dsmall.split(ranks, 1), strict=True)):
            up = linears.ups[i]
            if up is not None:
                into.copy_(d @ up)
                dups[i] = d.t() @ piece if of_rest[n + 1 + i] else None
    dx = None
    if of_x:
        dx = outs[0] @ linears.weights[0]
        for d, weight in zip(outs[1:], linears.weights[1:], strict=True):
            dx.addmm_(d, weight)
        if dsmall is not None and linears.down is not None:
            dx.addmm_(dsmall, linears.down)
    dweights = [d.t() @ x if need and x is not None else None for d, need in zip(outs, of_weights, strict=True)]
    dbiases = [d.sum(0) if need else None for d, need in zip(outs, of_rest[:n], strict=True)]
    ddown = dsmall.t() @ x if dsmall is not None and x is not None and of_rest[n] else None
    return [dx, *dweights, *dbiases, ddown, *dups]
