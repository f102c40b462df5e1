"""Attention over a tree of segments by flash kernels.

A segment's tokens see all of its ancestors and, causally, themselves. That is a sum of few *parts*, each one varlen
call: the *own* parts (every segment over itself, causally) and, level by level, *cross* parts (all descendants of a
segment over that segment, unmasked). Their answers are merged by log-sum-exp, and in the backward pass every part gets
the merged answer and log-sum-exp, with which its share of the gradient is exact.

A deep tree (the turns of a branching trajectory) would need a call per level over nearly all tokens. So its levels are
cut into bands: within a band, a call reads a gathered copy of the ancestors' keys; below it, one call merges all of the
band at once. Where to cut follows from counting the tokens that are moved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from airloop.learn import block_ops

# Gathered keys of one call: a copy of them, and their gradient in every query head, exist for a moment.
GATHERED_TOKENS = 65_536
# What one more call costs, in tokens moved: its launches take about as long as moving this many.
CALL_TOKENS = 2_000

Rows = slice | Tensor


@dataclass(frozen=True)
class Node:
    """A stretch of the flat order. Its descendants lie behind it, up to `last`."""

    start: int
    end: int
    last: int
    place: int  # tokens in front of it in its sequence
    path: tuple[int, ...]  # ancestors, root first

    @property
    def pairs(self) -> int:
        """Of its queries and a key that they see."""
        length = self.end - self.start
        return length * self.place + length * (length + 1) // 2


@dataclass(frozen=True)
class Part:
    """One varlen call: sequence i of the queries sees sequence i of the keys."""

    queries: Rows
    keys: Rows
    query_starts: Tensor  # [sequences + 1], int32
    key_starts: Tensor
    most_queries: int
    most_keys: int
    causal: bool  # aligned at the end: the last query sees every key


class Kernel(Protocol):
    """Attention of one part. Log-sum-exps are [heads, queries], in float32 or wider."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[Tensor, Tensor]: ...

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, part: Part, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; `out` and `lse` may be those of a softmax over more keys than the part's."""
        ...


class Tree:
    """How the tokens of one micro-batch see each other, ready for every layer. `bands` are the levels at which a
    band begins, 0 first; by default the cheapest."""

    def __init__(self, nodes: Sequence[Node], device: torch.device, bands: Sequence[int] | None = None) -> None:
        bands = _bands(nodes) if bands is None else bands
        self.own = _own_parts(nodes, bands, device)
        self.cross = _cross_parts(nodes, bands, device)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        kernel: Kernel,
        kept: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """q [T, heads, d], k and v [T, kv_heads, d] -> [T, heads, d]. `kept` is what `forward` gave for the same
        inputs: then nothing is computed but the gradient."""
        return _TreeAttention.apply(q, k, v, scale, self, kernel, kept)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, kernel: Kernel) -> tuple[Tensor, Tensor]:
        """The answer and its log-sum-exp [heads, T]."""

        def answer(p: Part) -> tuple[Tensor, Tensor]:
            return kernel.forward(take(q, p.queries), take(k, p.keys), take(v, p.keys), p, scale)

        outs, sums = zip(*(answer(p) for p in self.own), strict=True)
        out, lse = (outs[0], sums[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(sums, 1))
        if not self.cross:
            return out, lse
        total = out.to(lse.dtype)
        for p in self.cross:
            merge_(total, lse, *answer(p), p.queries)
        return total.to(out.dtype), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, kernel: Kernel
    ) -> tuple[Tensor, Tensor, Tensor]:
        def gradients(p: Part) -> tuple[Tensor, Tensor, Tensor]:
            d, query, answer = (take(x, p.queries) for x in (dout, q, out))
            sums = lse[:, p.queries].contiguous() if isinstance(p.queries, slice) else lse.index_select(1, p.queries)
            return kernel.backward(d, query, take(k, p.keys), take(v, p.keys), answer, sums, p, scale)

        if len(self.own) == 1 and not self.cross and isinstance(self.own[0].keys, slice):
            return gradients(self.own[0])
        # Several parts add up in float32: a prompt's keys collect the gradients of all that follows.
        totals = tuple(torch.zeros(x.shape, dtype=lse.dtype, device=x.device) for x in (q, k, v))
        for p in (*self.own, *self.cross):
            for total, gradient, rows in zip(totals, gradients(p), (p.queries, p.keys, p.keys), strict=True):
                add_(total, rows, gradient)
        dq, dk, dv = (total.to(x.dtype) for total, x in zip(totals, (q, k, v), strict=True))
        return dq, dk, dv


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        tree: Tree,
        kernel: Kernel,
        kept: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        out, lse = tree.forward(q, k, v, scale, kernel) if kept is None else (kept[0].view_as(kept[0]), kept[1])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.tree, ctx.kernel = scale, tree, kernel
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = ctx.tree.backward(gradients[0].contiguous(), q, k, v, out, lse, ctx.scale, ctx.kernel)
        return dq, dk, dv, None, None, None, None


def take(x: Tensor, rows: Rows) -> Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def add_(x: Tensor, rows: Rows, values: Tensor) -> None:
    """Rows may name a row of x more than once."""
    if isinstance(rows, slice):
        x[rows] += values
    else:
        x.index_add_(0, rows, values.to(x.dtype))


def merge_(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor, rows: Rows) -> None:
    """Two softmax averages over different keys become the one over all of them, in place, in lse's precision."""
    if block_ops.fused(out):
        from airloop.learn.kernels.merge import merge_rows_

        return merge_rows_(out, lse, more, more_lse, rows)
    place: Any = torch.arange(len(out), device=out.device)[rows] if isinstance(rows, slice) else rows
    old = lse.index_select(1, place)
    new = torch.logaddexp(old, more_lse)
    kept, added = ((part - new).exp().T[..., None] for part in (old, more_lse))
    out[place] = out[place] * kept + more.to(out.dtype) * added
    lse[:, place] = new


# --- layout


def nodes_of(starts: Sequence[int], lengths: Sequence[int], ancestors: Sequence[tuple[int, ...]]) -> list[Node]:
    """Segments in depth-first order as nodes. An only child continues its parent: attention need not part them."""
    children = [0] * len(starts)
    for path in ancestors:
        if path:
            children[path[-1]] += 1
    index: list[int] = []  # of each segment, its node
    spans: list[list[int]] = []
    paths: list[tuple[int, ...]] = []
    for start, length, path in zip(starts, lengths, ancestors, strict=True):
        if path and children[path[-1]] == 1:
            index.append(index[path[-1]])
            spans[index[-1]][1] = start + length
        else:
            index.append(len(spans))
            spans.append([start, start + length, 0])
            paths.append(tuple(dict.fromkeys(index[s] for s in path)))
        for node in (*paths[index[-1]], index[-1]):
            spans[node][2] = start + length
    nodes: list[Node] = []
    for (start, end, last), path in zip(spans, paths, strict=True):
        place = nodes[path[-1]].place + nodes[path[-1]].end - nodes[path[-1]].start if path else 0
        nodes.append(Node(start, end, last, place, path))
    return nodes


def _bands(nodes: Sequence[Node]) -> list[int]:
    """The cheapest cuts, found from the deepest level up: cost[a] is that of the levels from a on, if a band begins
    there."""
    levels = 1 + max(len(n.path) for n in nodes)
    copied, crossed = _moved(nodes, levels)
    cost, following = [0.0] * (levels + 1), [levels] * levels
    for a in reversed(range(levels)):
        within, best = 0.0, float("inf")
        for b in range(a + 1, levels + 1):  # the band is a, …, b - 1
            within += copied[a][b - 1]
            calls = max(1, math.ceil(within / GATHERED_TOKENS)) if b > a + 1 else 1
            total = within + calls * CALL_TOKENS + (crossed[a][b - 1] + CALL_TOKENS if b < levels else 0) + cost[b]
            if total < best:
                best, following[a] = total, b
        cost[a] = best
    found = [0]
    while following[found[-1]] < levels:
        found.append(following[found[-1]])
    return found


def _moved(nodes: Sequence[Node], levels: int) -> tuple[list[list[int]], list[list[int]]]:
    """By a band's first level and a node's level, in tokens: what gathering for the nodes of that level copies, and
    what a cross part of the band moves if that level is its last."""
    copied, crossed = ([[0] * levels for _ in range(levels)] for _ in range(2))
    for node in nodes:
        level = len(node.path)
        for a, ancestor in enumerate((*(nodes[i] for i in node.path), node)):
            ahead = node.place - ancestor.place
            copied[a][level] += ahead
            if node.last > node.end:
                crossed[a][level] += node.last - node.end + (ahead + node.end - node.start if ahead else 0)
    return copied, crossed


def _own_parts(nodes: Sequence[Node], bands: Sequence[int], device: torch.device) -> list[Part]:
    parts: list[Part] = []
    chosen: list[tuple[Node, list[Node]]] = []
    gathered = 0
    for node in nodes:
        first = max(band for band in bands if band <= len(node.path))
        seen = [*(nodes[a] for a in node.path[first:]), node]
        extra = sum(n.end - n.start for n in seen)
        if chosen and gathered + extra > GATHERED_TOKENS and any(len(s) > 1 for _, s in chosen):
            parts.append(_part([[n] for n, _ in chosen], [s for _, s in chosen], True, device))
            chosen, gathered = [], 0
        chosen.append((node, seen))
        gathered += extra
    parts.append(_part([[n] for n, _ in chosen], [s for _, s in chosen], True, device))
    return parts


def _cross_parts(nodes: Sequence[Node], bands: Sequence[int], device: torch.device) -> list[Part]:
    parts = []
    for first, after in itertools.pairwise(bands):
        parents = [n for n in nodes if len(n.path) == after - 1 and n.last > n.end]
        if parents:
            below = [[Node(n.end, n.last, n.last, 0, ())] for n in parents]
            parts.append(_part(below, [[*(nodes[a] for a in n.path[first:]), n] for n in parents], False, device))
    return parts


def _part(queries: list[list[Node]], keys: list[list[Node]], causal: bool, device: torch.device) -> Part:
    query_lengths, key_lengths = ([sum(n.end - n.start for n in s) for s in side] for side in (queries, keys))
    starts = np.concatenate([[0], np.cumsum(query_lengths), [0], np.cumsum(key_lengths)]).astype(np.int32)
    both = to_device(starts, device)
    return Part(
        _rows([n for s in queries for n in s], device),
        _rows([n for s in keys for n in s], device),
        both[: len(queries) + 1],
        both[len(queries) + 1 :],
        # one query would make the kernel fold heads into rows, with another layout of its log-sum-exp
        max(2, *query_lengths),
        max(key_lengths),
        causal,
    )


def _rows(nodes: Sequence[Node], device: torch.device) -> Rows:
    if all(one.end == two.start for one, two in itertools.pairwise(nodes)):
        return slice(nodes[0].start, nodes[-1].end)
    return to_device(np.concatenate([np.arange(n.start, n.end, dtype=np.int32) for n in nodes]), device)


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Without waiting for the device: from pinned memory, in stream order."""
    found = torch.from_numpy(values)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)
