"""Sizes that sampling and training work in. A plan reckons with them without importing what uses them: torch takes
seconds."""

from __future__ import annotations

# Tokens per step of the engine: enough to keep the matrix units busy, little enough that decoding goes on.
STEP_TOKENS = {"cpu": 1024, "cuda": 8192}
# On a GPU a step of our own forward pass through a narrow model ends before the next one is asked for, so it takes
# more: up to four times as many tokens, in the memory that a model of this width needs for STEP_TOKENS.
NARROW = 2048
# Weights that the optimiser moves in one stretch, unless a single parameter has more.
STRETCH = 1 << 26
# On a GPU a chunk of logits must have some thousand rows, or its products wait for memory: 2,048 rows of 152K in bf16
# are 0.6 GB.
CUDA_ROWS = 2048
CUDA_CHUNK_BYTES = 640 << 20
# A block's attention is kept for the backward pass when it costs more than this share of the block's matrix products.
RECOMPUTE_RATIO = 0.1
# Up to so many tokens an MLP is computed at once; beyond, in parts of about so many, large enough for its products.
MLP_WHOLE = 16384
MLP_PART = 8192


def mlp_part(tokens: int) -> int:
    """How many of a micro-batch's tokens go through an MLP at once: all, or equal parts."""
    return tokens if tokens <= MLP_WHOLE else -(-tokens // -(-tokens // MLP_PART))


def step_tokens(device: str, width: int, own: bool) -> int:
    """The most tokens of one step of a model whose hidden states have this width, by our `own` forward pass or not:
    plain attention has a mask that grows with the square."""
    tokens = STEP_TOKENS.get(device, STEP_TOKENS["cpu"])
    return tokens * max(1, min(4, NARROW // width)) if device == "cuda" and own else tokens


def graph_sizes(most: int) -> list[int]:
    """Batch sizes worth a CUDA graph of their own: padding never doubles a batch, and costs little in a large one."""
    found = [n for n in (1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64) if n < most]
    step = 16
    n = 64 + step
    while n < most:
        found.append(n)
        n += step if n < 256 else 64
    return [*found, most]
