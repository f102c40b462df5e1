"""Log-probs of given tokens without ever holding [tokens × vocabulary] logits: computed by chunks of tokens.

A frozen head that is one matrix gets its gradient on the way: d log p / d hidden is known up to the upstream gradient
of that token, one number, so the backward pass is a multiplication. Any other head is computed again, chunk by chunk,
in a backward pass written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from airloop.learn import block_ops
from airloop.limits import CUDA_CHUNK_BYTES, CUDA_ROWS

# Memory of one chunk's float32 logits. About three such tensors live at once in the backward pass.
CHUNK_BYTES = 64 << 20
Head = Callable[[Tensor], Tensor]


def frozen_head(head: Head, model: Any) -> Tensor | None:
    """The matrix that `head` multiplies with, if that is all it does and the matrix is not trained."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or layer.bias is not None or layer.weight.requires_grad:
        return None
    with torch.no_grad():
        probe = torch.linspace(-1, 1, layer.in_features, device=layer.weight.device).to(layer.weight.dtype)[None]
        return layer.weight.detach() if torch.equal(head(probe), linear(probe, layer.weight)) else None


def token_logprobs(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, vocabulary: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """hidden [N, width], targets [N] -> log-probs [N] (differentiable) and entropies [N] (not).

    `weight` is what `frozen_head` found.
    """
    rows = _rows(hidden, vocabulary, weight is not None)
    gradient = torch.is_grad_enabled() and hidden.requires_grad
    parts = [
        _TokenLogprobs.apply(h, target, head, temperature)
        if weight is None
        else _FrozenHead.apply(h, target, weight, temperature, gradient)
        for h, target in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _rows(hidden: Tensor, vocabulary: int, frozen: bool) -> int:
    if not hidden.is_cuda:
        return max(1, CHUNK_BYTES // (4 * vocabulary))
    size = hidden.element_size() if frozen else 4
    return max(1, min(CUDA_ROWS, CUDA_CHUNK_BYTES // (size * vocabulary)))


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Tensor, weight: Tensor, temperature: float, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logits = linear(hidden, weight)
        if block_ops.fused(hidden) and logits.dtype != torch.float64:
            from airloop.learn.kernels.softmax import read_rows_

            logprobs, entropy = read_rows_(logits, targets, temperature, gradient)
            d = logits
        else:
            logprobs, entropy, d = _read_rows(logits, targets, temperature, gradient)
        if gradient:
            ctx.save_for_backward(d.to(weight.dtype) @ weight)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d,) = ctx.saved_tensors
        return (d * gradients[0][:, None]).to(d.dtype), None, None, None, None


def _read_rows(logits: Tensor, targets: Tensor, temperature: float, gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What airloop/learn/kernels/softmax.py computes, in plain torch."""
    scaled = _scaled(logits, temperature)
    total = scaled.logsumexp(-1)
    chosen = scaled.gather(1, targets[:, None])[:, 0]
    share = (scaled - total[:, None]).exp_()
    entropy = total - torch.einsum("nv,nv->n", share, scaled)
    if gradient:
        share.neg_().scatter_add_(1, targets[:, None], torch.ones_like(share[:, :1])).div_(temperature)
    return chosen - total, entropy, share


class _TokenLogprobs(torch.autograd.Function):
    """The head may have trainable weights of its own (full fine-tuning, tied embeddings): its backward is
    autograd's, only that of the softmax is ours."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
        logits = _scaled(head(hidden), temperature)
        total = logits.logsumexp(-1)
        chosen = logits.gather(1, targets[:, None])[:, 0]
        entropy = total - torch.einsum("nv,nv->n", (logits - total[:, None]).exp_(), logits)
        ctx.save_for_backward(hidden, targets, total)
        ctx.head, ctx.temperature = head, temperature
        ctx.mark_non_differentiable(entropy)
        return chosen - total, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        gradient = gradients[0]
        hidden, targets, total = ctx.saved_tensors
        with torch.enable_grad():
            leaf = hidden.detach().requires_grad_()
            logits = _scaled(ctx.head(leaf), ctx.temperature)
        # d log p(target) / d logits = onehot(target) - softmax
        wanted = (logits.detach() - total[:, None]).exp_().mul_(-gradient[:, None])
        wanted.scatter_add_(1, targets[:, None], gradient[:, None].to(wanted.dtype))
        torch.autograd.backward(logits, wanted)  # also into the head's own weights, where they are trained
        return leaf.grad, None, None, None


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature
