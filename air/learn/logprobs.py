"""Log-probs of given tokens without ever holding [tokens × vocabulary] logits: computed by chunks of
tokens, and computed again, chunk by chunk, in a backward pass written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Memory of one chunk's float32 logits. About three such tensors live at once in the backward pass.
CHUNK_BYTES = 64 << 20
Head = Callable[[Tensor], Tensor]


def token_logprobs(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """hidden [N, width], targets [N] -> log-probs [N] (differentiable) and entropies [N] (not)."""
    rows = max(1, CHUNK_BYTES // (4 * vocabulary))
    parts = [
        _TokenLogprobs.apply(h, target, head, temperature)
        for h, target in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _TokenLogprobs(torch.autograd.Function):
    """The head may have trainable weights of its own (full fine-tuning, tied embeddings): its backward is
    autograd's, only that of the softmax is ours."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
        logits = _scaled(head, hidden, temperature)
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
            logits = _scaled(ctx.head, leaf, ctx.temperature)
        # d log p(target) / d logits = onehot(target) - softmax
        wanted = (logits.detach() - total[:, None]).exp_().mul_(-gradient[:, None])
        wanted.scatter_add_(1, targets[:, None], gradient[:, None].to(wanted.dtype))
        torch.autograd.backward(logits, wanted)  # also into the head's own weights, where they are trained
        return leaf.grad, None, None, None


def _scaled(head: Head, hidden: Tensor, temperature: float) -> Tensor:
    logits = head(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature
