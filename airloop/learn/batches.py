"""Packing: many token sequences in one forward pass, every shared prefix computed once.

The rows of a micro-batch are laid out as a tree of segments. A segment sees its ancestors and, causally,
itself; so the prompt of a group, the turns of a branching trajectory, even a first command that several
episodes happen to share, are computed and differentiated once. The loss does not notice: it reads, per
row, the hidden state in front of each trained token.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from airloop.learn.part_kernels import flash_kernel
from airloop.learn.tree_attention import Tree, nodes_of, to_device
from airloop.text.prefix import common_prefix

# A shorter common stretch is cheaper to compute twice than to split segments for.
WORTH_SHARING = 16


@dataclass(frozen=True)
class Row:
    """One token sequence to train on. `weight` is what a trained token's loss counts in the batch's sum."""

    key: str  # which trajectory and branch
    tokens: tuple[int, ...]
    train: tuple[bool, ...]
    logprobs: tuple[float, ...]  # the sampler's
    advantage: float
    weight: float

    @property
    def trained_logprobs(self) -> list[float]:
        """The sampler's, of the trained tokens."""
        return [lp for lp, train in zip(self.logprobs, self.train, strict=True) if train]


@dataclass
class Segment:
    start: int  # in the flat order
    tokens: Sequence[int]
    place: int  # of its first token in the sequence
    ancestors: tuple[int, ...]  # indices of segments, root first


@dataclass
class MicroBatch:
    rows: list[Row]
    segments: list[Segment] = field(default_factory=list)
    paths: dict[int, tuple[int, ...]] = field(default_factory=dict)  # row -> its segments

    @property
    def computed_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.segments)

    @property
    def row_tokens(self) -> int:
        return sum(len(r.tokens) for r in self.rows)


class PackedPlan:
    """Implements policy.ForwardPlan for a micro-batch, and says which hidden state predicts which trained token.

    What the layers share is made once: on CUDA the layout for the flash kernels, elsewhere a mask per segment.
    """

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self._device = device
        self._segments = batch.segments
        self._lengths = [len(s.tokens) for s in batch.segments]
        starts = [s.start for s in batch.segments]
        nodes = nodes_of(starts, self._lengths, [s.ancestors for s in batch.segments])
        self._tree = Tree(nodes, device) if device.type == "cuda" else None
        self._masks = [] if device.type == "cuda" else [self._mask(s, device) for s in batch.segments]
        self._float_masks: dict[tuple[int, int], Tensor] = {}
        places = np.repeat([s.place - s.start for s in batch.segments], self._lengths)
        sources, targets, owners = _trained(batch)
        self.rows: list[int] = owners.tolist()  # of each trained token, its row
        self.counts: list[int] = np.bincount(owners, minlength=len(batch.rows)).tolist()  # of each row's trained tokens
        pieces = [
            np.fromiter((t for s in batch.segments for t in s.tokens), np.int64, batch.computed_tokens),
            np.arange(batch.computed_tokens) + places,
            sources,
            targets,
        ]
        sizes = [len(piece) for piece in pieces]
        self.tokens, self.positions, self.sources, self.targets = to_device(np.concatenate(pieces), device).split(sizes)
        self.pairs = sum(node.pairs for node in nodes)  # of a query and a key that it sees

    def _mask(self, segment: Segment, device: torch.device) -> Tensor:
        n = len(segment.tokens)
        places = torch.arange(segment.place, segment.place + n, device=device)
        return torch.arange(segment.place + n, device=device)[None] <= places[:, None]

    def _float_mask(self, segment: int, repeat: int, dtype: torch.dtype) -> Tensor:
        """Made at the first layer, used by all: torch would turn a boolean mask into this one at every call."""
        key = (segment, repeat)
        if not self._masks:  # on CUDA, for a type or a head size that the flash kernels do not take
            self._masks = [self._mask(s, self._device) for s in self._segments]
        if key not in self._float_masks:
            mask = self._masks[segment].repeat(repeat, 1)
            self._float_masks[key] = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))[None, None]
        return self._float_masks[key]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return self.attention(query, key, value, scale)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, kept: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """As `attend`, which is the same in every layer. `kept` is what `keep` gave for the same inputs."""
        kernel = flash_kernel(query, key.shape[1])
        if kernel is None or self._tree is None:
            return self._masked(query, key, value, scale)
        return self._tree.attend(query, key, value, scale, kernel, kept)

    def keep(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
        """The answer and what its gradient needs, or None where that is not to be had."""
        kernel = flash_kernel(query, key.shape[1])
        return None if kernel is None or self._tree is None else self._tree.forward(query, key, value, scale, kernel)

    def _masked(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        heads, dim = query.shape[1:]
        kv_heads = key.shape[1]
        per_kv = heads // kv_heads
        # split, not slices: its backward is one concatenation instead of a full-sized zero tensor per piece
        queries, keys, values = (x.split(self._lengths) for x in (query, key, value))
        outs = []
        for i, segment in enumerate(self._segments):
            n = self._lengths[i]
            path = (*segment.ancestors, i)
            k = torch.cat([keys[s] for s in path]).transpose(0, 1)
            v = torch.cat([values[s] for s in path]).transpose(0, 1)
            q = queries[i].view(n, kv_heads, per_kv, dim).permute(1, 2, 0, 3).reshape(kv_heads, per_kv * n, dim)
            mask = self._float_mask(i, per_kv, query.dtype)
            out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0]
            outs.append(out.view(kv_heads, per_kv, n, dim).permute(2, 0, 1, 3).reshape(n, heads, dim))
        return torch.cat(outs)


def _trained(batch: MicroBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each trained token, by rows: the flat place of the token before it, its id, its row."""
    sources, targets, owners = [], [], []
    for r, row in enumerate(batch.rows):
        pieces = [batch.segments[s] for s in batch.paths[r]]
        flat = np.concatenate([np.arange(p.start, p.start + len(p.tokens)) for p in pieces])
        trained = np.flatnonzero(np.fromiter(row.train, bool, len(row.train)))
        sources.append(flat[trained - 1])
        targets.append(np.fromiter(row.tokens, np.int64, len(row.tokens))[trained])
        owners.append(np.full(len(trained), r))
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(owners)


def micro_batches(rows: Sequence[Row], token_budget: int) -> Iterator[MicroBatch]:
    """Rows in an order that brings shared prefixes together, cut when the computed tokens exceed the budget.

    A single row longer than the budget still goes, alone: sequences are never cut.
    """
    ordered = sorted((r for r in rows if any(r.train)), key=lambda r: r.tokens)
    chosen: list[Row] = []
    cost = 0
    for row in ordered:
        shared = max((common_prefix(row.tokens, c.tokens) for c in chosen[-1:]), default=0)
        extra = len(row.tokens) - (shared if shared >= WORTH_SHARING else 0)
        if chosen and cost + extra > token_budget:
            yield _tree(chosen)
            chosen, cost, extra = [], 0, len(row.tokens)
        chosen.append(row)
        cost += extra
    if chosen:
        yield _tree(chosen)


def sample_rows(rows: Sequence[Row], tokens: float) -> list[Row]:
    """Some of them, about so many tokens and one row at least: as if drawn, but the same in a run that repeats this
    one."""
    chosen: list[Row] = []
    left = tokens
    for row in sorted((r for r in rows if any(r.train)), key=lambda r: zlib.crc32(np.asarray(r.tokens).tobytes())):
        if chosen and left < len(row.tokens):
            break
        chosen.append(row)
        left -= len(row.tokens)
    return chosen


def _tree(rows: list[Row]) -> MicroBatch:
    batch = MicroBatch(rows)
    _grow(batch, list(range(len(rows))), 0, ())
    return batch


def _grow(batch: MicroBatch, members: list[int], place: int, path: tuple[int, ...]) -> None:
    """Lay out what the member rows (sorted, equal up to `place`) have beyond it, below the segments of `path`."""
    done = [m for m in members if len(batch.rows[m].tokens) == place]
    for m in done:
        batch.paths[m] = path
    members = [m for m in members if len(batch.rows[m].tokens) > place]
    while members:
        first = batch.rows[members[0]].tokens
        cluster, common = [members[0]], len(first)
        for m in members[1:]:
            shared = common_prefix(first[place:], batch.rows[m].tokens[place:]) + place
            if shared - place < WORTH_SHARING:
                break
            cluster.append(m)
            common = min(common, shared)
        members = members[len(cluster) :]
        start = batch.segments[-1].start + len(batch.segments[-1].tokens) if batch.segments else 0
        batch.segments.append(Segment(start, first[place:common], place, path))
        _grow(batch, cluster, common, (*path, len(batch.segments) - 1))
