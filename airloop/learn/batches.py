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
from typing import Self

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

    @classmethod
    def of_reply(
        cls,
        key: str,
        prompt: Sequence[int],
        reply: Sequence[int],
        logprobs: Sequence[float] | None = None,
        advantage: float = 1.0,
        weight: float = 1.0,
    ) -> Self:
        """A prompt and one reply, which is trained. `logprobs`: the reply's, where they are read."""
        n, own = len(prompt), len(reply)
        sampled = (0.0,) * own if logprobs is None else tuple(logprobs)
        return cls(key, (*prompt, *reply), (False,) * n + (True,) * own, (0.0,) * n + sampled, advantage, weight)

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
        self._masks = [] if device.type == "cuda" else self._make_masks()
        self._shapes: _Shapes | None = None
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

    def _make_masks(self) -> list[Tensor]:
        """Segments of one shape have the same one."""
        known = {_shape(s): s for s in self._segments}
        made = {shape: self._mask(segment, self._device) for shape, segment in known.items()}
        return [made[_shape(s)] for s in self._segments]

    def _float_mask(self, group: list[int], repeat: int, dtype: torch.dtype) -> Tensor:
        """Made at the first layer, used by all: torch would turn a boolean mask into this one at every call."""
        key = (group[0], repeat)
        if not self._masks:  # on CUDA, for a type or a head size that the flash kernels do not take
            self._masks = self._make_masks()
        if key not in self._float_masks:
            masks = {id(self._masks[i]): self._masks[i] for i in group}
            own = [*masks.values()] if len(masks) == 1 else [self._masks[i] for i in group]
            mask = torch.stack(own)[:, None].repeat(1, 1, repeat, 1)
            self._float_masks[key] = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))
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
        """One call for all segments of one shape: of a small model, calls take longer than what they compute."""
        shapes = self._shapes = self._shapes or _Shapes(self._segments, self._device)
        heads, dim = query.shape[1:]
        kv_heads = key.shape[1]
        per_kv = heads // kv_heads
        # split, not slices: its backward is one concatenation instead of a full-sized zero tensor per piece
        queries = query.index_select(0, shapes.own).split(shapes.owned)
        keys, values = (x.index_select(0, shapes.seen).split(shapes.saw) for x in (key, value))
        outs = []
        for group, q, k, v in zip(shapes.groups, queries, keys, values, strict=True):
            many = len(group)
            k, v = (x.view(many, -1, kv_heads, dim).transpose(1, 2) for x in (k, v))
            q = q.view(many, -1, kv_heads, per_kv, dim).permute(0, 2, 3, 1, 4).reshape(many, kv_heads, -1, dim)
            mask = self._float_mask(group, per_kv, query.dtype)
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            outs.append(out.view(many, kv_heads, per_kv, -1, dim).permute(0, 3, 1, 2, 4).reshape(-1, heads, dim))
        return torch.cat(outs).index_select(0, shapes.back)


def _shape(segment: Segment) -> tuple[int, int]:
    """Its queries and its keys: all that its mask depends on."""
    return len(segment.tokens), segment.place


class _Shapes:
    """The segments of a micro-batch by their shape, and where their queries and keys lie in the flat order."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        by_shape: dict[tuple[int, int], list[int]] = {}
        for i, segment in enumerate(segments):
            by_shape.setdefault(_shape(segment), []).append(i)
        self.groups = [*by_shape.values()]
        self.owned = [len(group) * n for (n, _), group in by_shape.items()]
        self.saw = [len(group) * (n + place) for (n, place), group in by_shape.items()]
        flat = [np.arange(s.start, s.start + len(s.tokens)) for s in segments]
        own = np.concatenate([flat[i] for group in self.groups for i in group])
        paths = [(*segments[i].ancestors, i) for group in self.groups for i in group]
        seen = np.concatenate([flat[i] for path in paths for i in path])
        sizes = [len(own), len(seen), len(own)]
        self.own, self.seen, self.back = to_device(np.concatenate([own, seen, np.argsort(own)]), device).split(sizes)


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
