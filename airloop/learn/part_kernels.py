"""What computes one part of tree attention: torch's FlashAttention on CUDA, plain matrix products anywhere.

The plain one is the definition, in any precision: the flash kernels are held against it before they are first used.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from airloop.learn.tree_attention import Kernel, Node, Part, Tree, nodes_of

HEAD_SIZE = 256  # the largest that FlashAttention-2 has
# Largest difference to float32 in the first check, in units of the largest value: bf16 keeps 8 bits.
CLOSE = 0.03


class TorchKernel:
    """Sequence by sequence, with the whole matrix of scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[Tensor, Tensor]:
        outs, sums = [], []
        for rows, keys in _sequences(part):
            scores = _scores(q[rows], k[keys], part.causal, scale)
            lse = scores.logsumexp(-1)
            outs.append(
                torch.einsum("hqk,khd->qhd", (scores - lse[..., None]).exp(), _spread(v[keys], q).to(lse.dtype))
            )
            sums.append(lse)
        return torch.cat(outs).to(q.dtype), torch.cat(sums, 1)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, part: Part, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for rows, keys in _sequences(part):
            share = (_scores(q[rows], k[keys], part.causal, scale) - lse[:, rows, None]).exp()
            d = dout[rows].to(lse.dtype)
            dshare = torch.einsum("qhd,khd->hqk", d, _spread(v[keys], q).to(lse.dtype))
            mean = (d * out[rows]).sum(-1).T[..., None]
            dscores = share * (dshare - mean) * scale
            dq[rows] = torch.einsum("hqk,khd->qhd", dscores, _spread(k[keys], q).to(lse.dtype)).to(q.dtype)
            dk[keys] = _gather(torch.einsum("hqk,qhd->khd", dscores, q[rows].to(lse.dtype)), k).to(k.dtype)
            dv[keys] = _gather(torch.einsum("hqk,qhd->khd", share, d), v).to(v.dtype)
        return dq, dk, dv


class FlashKernel:
    """FlashAttention-2 as torch ships it. `expand` repeats the key/value heads where a build wants as many as
    there are query heads."""

    def __init__(self, expand: bool = False) -> None:
        self._expand = expand

    def forward(self, q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[Tensor, Tensor]:
        k, v = (_spread(k, q), _spread(v, q)) if self._expand else (k, v)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, *_arguments(part), 0.0, part.causal, False, scale=scale
        )
        if lse.shape != (q.shape[1], q.shape[0]):
            raise RuntimeError(f"flash attention's log-sum-exp has the shape {tuple(lse.shape)}")
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, part: Part, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = (_spread(k, q), _spread(v, q)) if self._expand else (k, v)
        state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is none of
        unused = torch.empty(0, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            dout, q, *wide, out, lse, *_arguments(part), 0.0, part.causal, state, unused, scale=scale
        )
        return (dq, _gather(dk, k), _gather(dv, v)) if self._expand else (dq, dk, dv)


def flash_kernel(q: Tensor, kv_heads: int) -> FlashKernel | None:
    """For queries like these, or None: then masks and torch's own choice of kernel must do."""
    half = q.dtype in (torch.bfloat16, torch.float16)
    if not (q.is_cuda and half and q.shape[2] <= HEAD_SIZE and q.shape[2] % 8 == 0):
        return None
    return _checked(q.device, q.dtype, q.shape[1], kv_heads, q.shape[2])


@functools.cache
def _checked(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> FlashKernel | None:
    """Once per shape, a small tree with every kind of part, forward and backward, against float32."""
    generator = torch.Generator(device).manual_seed(0)
    nodes = nodes_of(*_PROBE)
    for expand in (False, True):
        try:
            if close(FlashKernel(expand), nodes, (heads, kv_heads, dim), dtype, generator):
                return FlashKernel(expand)
        except RuntimeError:
            continue
    warnings.warn(
        f"torch's flash attention does not give the right answer here ({heads} heads over {kv_heads} of size {dim}, "
        f"{dtype}): training uses masks instead and is slower.",
        stacklevel=3,
    )
    return None


# Two roots, branches of one level, a deeper one: starts, lengths, ancestors.
_LENGTHS = [70, 33, 20, 9, 5, 40, 64, 31, 1, 17]
_PROBE = (
    [sum(_LENGTHS[:i]) for i in range(len(_LENGTHS))],
    _LENGTHS,
    [(), (0,), (0, 1), (0, 1), (0, 1, 3), (0, 1, 3), (0,), (), (7,), (7,)],
)


def close(
    kernel: Kernel, nodes: list[Node], shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> bool:
    """Whether a kernel agrees with the plain one on a tree of random numbers, in answers and gradients."""
    heads, kv_heads, dim = shape
    device, tokens = generator.device, nodes[-1].end
    made = [torch.randn(tokens, n, dim, generator=generator, device=device) for n in (heads, kv_heads, kv_heads, heads)]
    found: list[list[Tensor]] = [[], []]
    for bands in ([0], [0, 1, 2, 3], [0, 2]):  # with all ancestors gathered, with none, with some
        tree = Tree(nodes, device, bands)
        for answers, chosen, kind in zip(found, (kernel, TorchKernel()), (dtype, torch.float32), strict=True):
            q, k, v, d = (x.to(dtype).to(kind) for x in made)
            out, lse = tree.forward(q, k, v, dim**-0.5, chosen)
            answers += [out, lse, *tree.backward(d, q, k, v, out, lse, dim**-0.5, chosen)]
    return all(_near(a.float(), b) for a, b in zip(*found, strict=True))


def _near(found: Tensor, wanted: Tensor) -> bool:
    return bool(((found - wanted).abs().max() <= CLOSE * wanted.abs().max()).item())


def _arguments(part: Part) -> tuple[Any, ...]:
    return part.query_starts, part.key_starts, part.most_queries, part.most_keys


def _sequences(part: Part) -> list[tuple[slice, slice]]:
    q, k = part.query_starts.tolist(), part.key_starts.tolist()
    return [(slice(q[i], q[i + 1]), slice(k[i], k[i + 1])) for i in range(len(q) - 1)]


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), _spread(k, q).to(wide)) * scale
    if not causal:
        return scores
    seen = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
    return scores.masked_fill(~seen, float("-inf"))


def _spread(x: Tensor, q: Tensor) -> Tensor:
    """Key/value heads repeated for the query heads that share them."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _gather(gradient: Tensor, x: Tensor) -> Tensor:
    """The reverse of _spread, for gradients."""
    return gradient.view(len(gradient), x.shape[1], -1, x.shape[2]).sum(2)
