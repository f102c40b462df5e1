"""From logits to tokens. The log-prob returned is always that of the temperature-scaled, untruncated
softmax: what the trainer can recompute. Truncation (top-k, top-p, min-p) changes only which token is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from airloop.engine.base import Sampling

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) fixed by seed and position alone (splitmix64): batching cannot change a draw."""
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def sample(logits: Tensor, settings: Sequence[Sampling], positions: Sequence[int]) -> tuple[list[int], list[float]]:
    """One token for each row of logits [rows, vocabulary], and its log-prob."""
    device = logits.device
    heat = np.array([s.temperature if s.temperature > 0 else 1.0 for s in settings], dtype=np.float32)
    scaled = logits.float() / torch.from_numpy(heat).to(device)[:, None]
    logprobs = scaled - scaled.logsumexp(-1, keepdim=True)  # torch's log_softmax adds up in a row: 3e-5 off on ARM
    drawn = logprobs
    if any(s.truncates for s in settings):
        drawn = torch.stack([_truncate(row, s) for row, s in zip(logprobs, settings, strict=True)])
    draws = np.array([uniform(s.seed, p) for s, p in zip(settings, positions, strict=True)])
    mass = drawn.exp().cumsum(-1, dtype=torch.float64)
    wanted = torch.from_numpy(draws).to(device) * mass[:, -1]
    token = torch.searchsorted(mass, wanted[:, None], right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    greedy = np.array([s.temperature == 0 for s in settings])
    if greedy.any():
        token = torch.where(torch.from_numpy(greedy).to(device), logprobs.argmax(-1), token)
    chosen = logprobs.gather(1, token[:, None])[:, 0]
    return token.tolist(), chosen.tolist()


def _truncate(logprobs: Tensor, s: Sampling) -> Tensor:
    """Log-probs [vocabulary] with what top-k, top-p and min-p leave out at -inf. The likeliest always stays."""
    ranked, order = logprobs.sort(descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if s.top_k:
        keep[s.top_k :] = False
    if s.top_p < 1:
        before = ranked.exp().cumsum(0) - ranked.exp()
        keep &= before < s.top_p
    if s.min_p > 0:
        keep &= ranked >= ranked[0] + torch.log(torch.tensor(s.min_p))
    keep[0] = True
    out = torch.full_like(logprobs, float("-inf"))
    out[order[keep]] = ranked[keep]
    return out
