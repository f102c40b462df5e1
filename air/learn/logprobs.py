"""Log-probs of given tokens without ever holding [tokens × vocabulary] logits: computed by chunks of
tokens, and computed again, chunk by chunk, in the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Memory of one chunk's float32 logits. Several such tensors live at once inside the softmax's backward.
CHUNK_BYTES = 64 << 20


def token_logprobs(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, temperature: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """hidden [N, width], targets [N] -> log-probs [N] (differentiable) and entropies [N] (not)."""
    rows = max(1, CHUNK_BYTES // (4 * vocabulary))

    def chunk(h: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = (head(h).float() / temperature).log_softmax(-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, target[:, None])[:, 0], entropy

    parts = []
    for h, target in zip(hidden.split(rows), targets.split(rows), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(chunk, h, target, use_reentrant=False))
        else:
            parts.append(chunk(h, target))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
