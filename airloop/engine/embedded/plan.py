"""Attention over pages, for one step of a mixed batch.

Sequences that decode one token are done together: every page is one row of a batched attention that
also returns its log-sum-exp, and a sequence's answer is the weighted mean of its pages' answers
(split-KV). A page read by several sequences is read once for all of them. The pages of the pool are
used where they lie; only the small queries are gathered. Sequences with more new tokens (prompts,
tool results) are done one by one with an ordinary causal attention over their gathered pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from airloop.engine.embedded.pages import KeyValues

# A page with more readers than this is taken in several rows: it bounds the padding of the others.
MAX_READERS = 8
# Below this share of useful pages, gathering them costs less than running over the whole used range.
WORTH_GATHERING = 0.4


@dataclass(frozen=True)
class Chunk:
    """One sequence's part of a step: its new tokens, where they start, and the pages of its whole path."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


@dataclass(frozen=True)
class PageRows:
    """A batched attention over pages: row i reads `pages[i]` (all pages in order if None) for its readers."""

    pages: Tensor | None
    count: int
    width: int  # R
    readers: Tensor  # [rows × R]: which decoding sequence asks
    mask: Tensor  # [rows, 1, 1, page_size]: 0 or -inf


class StepPlan:
    """Implements policy.ForwardPlan. Decoding sequences come first in the flat order, then the others."""

    def __init__(self, kv: KeyValues, decode: Sequence[Chunk], prefill: Sequence[Chunk], dtype: torch.dtype) -> None:
        device = kv.data.device
        chunks = [*decode, *prefill]
        size = kv.page_size
        flat = [t for c in chunks for t in c.tokens]
        places = [c.start + i for c in chunks for i in range(len(c.tokens))]
        cells = [
            c.pages[(c.start + i) // size] * size + (c.start + i) % size for c in chunks for i in range(len(c.tokens))
        ]
        self.tokens, self.positions, self._cells = _tensor([flat, places, cells], device).unbind(0)
        self._kv = kv
        self._decode = len(decode)
        self._rows: list[PageRows] = []
        if decode:
            self._rows, self._merge, self._hole = _decode_rows(decode, kv, dtype)
        self._prefill = [_Prefill(c, size, device, dtype) for c in prefill]
        # index of each sequence's last token
        self.last = _tensor(np.cumsum([len(c.tokens) for c in chunks]) - 1, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self._kv.write(layer, self._cells, key, value)
        keys, values = self._kv.layers[layer]
        parts = []
        if self._decode:
            parts.append(self._attend_decode(query[: self._decode], keys, values, scale))
        at = self._decode
        for chunk in self._prefill:
            parts.append(chunk.attend(query[at : at + chunk.length], keys, values, scale))
            at += chunk.length
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_decode(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        batch, heads, dim = query.shape
        kv_heads = keys.shape[2]
        per_kv = heads // kv_heads
        outs, sums = [], []
        for rows in self._rows:
            k = keys[: rows.count] if rows.pages is None else keys[rows.pages]
            v = values[: rows.count] if rows.pages is None else values[rows.pages]
            readers = rows.width
            q = query[rows.readers].view(rows.count, readers, kv_heads, per_kv, dim)
            q = q.transpose(1, 2).reshape(rows.count, kv_heads, readers * per_kv, dim)
            out, lse = attend_pages(q, k.transpose(1, 2), v.transpose(1, 2), rows.mask, scale)
            shape = (rows.count, kv_heads, readers, per_kv)
            outs.append(out.view(*shape, dim).transpose(1, 2).reshape(-1, heads, dim))
            sums.append(lse.reshape(shape).transpose(1, 2).reshape(-1, heads))
        out, lse = (outs[0], sums[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(sums))
        flat = self._merge  # [batch × most pages of a sequence]
        if len(flat) == batch:  # a page each: nothing to weigh
            return out[flat].view(batch, heads, dim).to(query.dtype)
        weight = lse[flat].view(batch, -1, heads).masked_fill(self._hole, float("-inf")).softmax(1)
        parts = out[flat].view(batch, -1, heads, dim)
        return torch.einsum("bph,bphd->bhd", weight, parts.float()).to(query.dtype)


def attend_pages(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp, [rows, kv heads, queries, d] and [rows, kv heads, queries]."""
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale + mask.float()
    lse = scores.logsumexp(-1)
    return torch.matmul((scores - lse[..., None]).exp(), value.float()), lse


def _decode_rows(decode: Sequence[Chunk], kv: KeyValues, dtype: torch.dtype) -> tuple[list[PageRows], Tensor, Tensor]:
    """The rows to run and, per sequence, which (row, reader) answers to merge."""
    size, device = kv.page_size, kv.data.device
    readers: dict[int, list[int]] = {}
    filled: dict[int, int] = {}
    for i, chunk in enumerate(decode):
        length = chunk.start + 1
        used = -(-length // size)
        for j, page in enumerate(chunk.pages[:used]):
            readers.setdefault(page, []).append(i)
            filled[page] = min(size, length - j * size)
    single = {p: r for p, r in readers.items() if len(r) == 1}
    shared = [
        (p, r[i : i + MAX_READERS]) for p, r in readers.items() if len(r) > 1 for i in range(0, len(r), MAX_READERS)
    ]
    rows: list[PageRows] = []
    answers: list[list[int]] = [[] for _ in decode]
    offset = 0
    if single:
        span = max(single) + 1
        whole = len(single) >= WORTH_GATHERING * span
        order = list(range(span)) if whole else sorted(single)
        for row, page in enumerate(order):
            if page in single:
                answers[single[page][0]].append(row)
        rows.append(_rows([(p, single.get(p, [0])) for p in order], 1, filled, kv, dtype, whole))
        offset = len(order)
    if shared:
        width = max(len(r) for _, r in shared)
        for row, (_, r) in enumerate(shared):
            for k, i in enumerate(r):
                answers[i].append(offset + row * width + k)
        rows.append(_rows(shared, width, filled, kv, dtype, False))
    most = max(len(a) for a in answers)
    merge = _tensor([row for a in answers for row in a + [0] * (most - len(a))], device)
    hole = _tensor([[False] * len(a) + [True] * (most - len(a)) for a in answers], device)
    return rows, merge, hole[..., None]


def _rows(
    pages: Sequence[tuple[int, list[int]]],
    width: int,
    filled: dict[int, int],
    kv: KeyValues,
    dtype: torch.dtype,
    whole: bool,
) -> PageRows:
    device, size = kv.data.device, kv.page_size
    readers = _tensor([i for _, r in pages for i in r + [0] * (width - len(r))], device)
    lengths = np.array([filled.get(p, size) for p, _ in pages])
    beyond = np.where(np.arange(size) >= lengths[:, None], np.float32("-inf"), np.float32(0))
    index = None if whole else _tensor([p for p, _ in pages], device)
    return PageRows(index, len(pages), width, readers, _tensor(beyond, device).to(dtype)[:, None, None])


def _tensor(values: Sequence[object] | np.ndarray, device: torch.device) -> Tensor:
    """By numpy, which reads lists several times as fast as torch does."""
    return torch.from_numpy(np.asarray(values)).to(device)


class _Prefill:
    """Causal attention of a chunk over everything before it and itself."""

    def __init__(self, chunk: Chunk, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.length = len(chunk.tokens)
        self.total = chunk.start + self.length
        self.pages = _tensor(chunk.pages[: -(-self.total // page_size)], device)
        self._start, self._dtype = chunk.start, dtype
        self._mask: Tensor | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        n, heads, dim = query.shape
        kv_heads = keys.shape[2]
        per_kv = heads // kv_heads
        k = keys[self.pages].flatten(0, 1)[: self.total].transpose(0, 1)
        v = values[self.pages].flatten(0, 1)[: self.total].transpose(0, 1)
        # Heads that share a key/value head become further query rows: no key is repeated in memory.
        q = query.view(n, kv_heads, per_kv, dim).permute(1, 2, 0, 3).reshape(kv_heads, per_kv * n, dim)
        mask = self._mask_of(per_kv, query.device)
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0]
        return out.view(kv_heads, per_kv, n, dim).permute(2, 0, 1, 3).reshape(n, heads, dim)

    def _mask_of(self, per_kv: int, device: torch.device) -> Tensor:
        """The same for all layers, in numbers: of one that is true or false each layer would make those anew."""
        if self._mask is None:
            places = torch.arange(self._start, self.total, device=device)
            unseen = torch.arange(self.total, device=device)[None] > places[:, None]
            numbers = torch.zeros(unseen.shape, dtype=self._dtype, device=device)
            self._mask = numbers.masked_fill_(unseen, float("-inf")).repeat(per_kv, 1)[None, None]
        return self._mask
