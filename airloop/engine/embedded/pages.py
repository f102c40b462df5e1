"""Key/value memory in pages, and the tree that finds prefixes already computed.

Every page in use is a node of a tree: the path from the root to a node spells the tokens whose keys and
values the pages hold. A sequence is a path. Full pages are shared by reference; of a page that is not
full, or that matches only in part, a new sequence takes a copy of the matching part. So a prompt is
computed once for a whole group, and an episode's next turn continues from its last.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from airloop.engine.embedded.lent_memory import LentMemory
from airloop.text.prefix import common_prefix

ALIGNED = 64  # bytes: torch's own on the CPU


class Node:
    """One page and the tokens in it. `users` counts the running sequences whose path goes through it."""

    __slots__ = ("children", "epoch", "page", "parent", "tokens", "used", "users")

    def __init__(self, page: int, parent: Node | None, epoch: int) -> None:
        self.page = page
        self.parent = parent
        self.epoch = epoch
        self.tokens: list[int] = []
        self.children: list[Node] = []
        self.users = 0
        self.used = 0


class PageTree:
    """Allocates pages, finds shared prefixes, evicts what has not been used for longest.

    Counts pages, never touches tensors, so that it can be tested by itself. `available` is what a new
    sequence may claim: free pages and pages of idle prefixes, less what running sequences still have a
    right to. A sequence claims its worst case when it starts, so no sequence is ever thrown out half-way.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages = pages
        self.page_size = page_size
        self.free = list(range(pages))  # a heap: low pages first keeps the used range short
        self.epoch = 0
        self.claimed = 0
        self.idle = 0  # nodes of this epoch without users
        self._clock = 0
        self._root = Node(-1, None, 0)

    @property
    def available(self) -> int:
        return len(self.free) + self.idle - self.claimed

    def match(self, tokens: Sequence[int]) -> tuple[list[Node], Node | None, int]:
        """Full pages that spell a prefix of `tokens`, then a page that continues it for a further n < page_size."""
        path: list[Node] = []
        node, at = self._root, 0
        while True:
            best, length = None, 0
            page = tokens[at : at + self.page_size]
            for child in node.children:
                if length == len(page):
                    break
                # Whoever matches further than the best so far has this token, too: of hundreds that is quickly said.
                if length < len(child.tokens) and child.tokens[length] == page[length]:
                    n = common_prefix(child.tokens, page)
                    if n > length:
                        best, length = child, n
            if best is None or length < self.page_size:
                return path, best, length
            path.append(best)
            node, at = best, at + length

    def pin(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.users == 0 and node.epoch == self.epoch:
                self.idle -= 1
            node.users += 1

    def claim(self, pages: int) -> None:
        self.claimed += pages

    def grow(self, path: list[Node]) -> Node:
        """Append a page to a running sequence's path, out of its claim."""
        epoch = path[0].epoch if path else self.epoch
        parent = path[-1] if path else self._root
        node = Node(self._take(), parent, epoch)
        node.users = 1
        self.claimed -= 1
        if epoch == self.epoch:
            parent.children.append(node)
        path.append(node)
        return node

    def release(self, path: list[Node], unused_claim: int) -> None:
        """End a sequence: its pages stay as idle prefixes, unless their epoch is over."""
        self.claimed -= unused_claim
        self._clock += 1
        for node in reversed(path):
            node.users -= 1
            node.used = self._clock
            if node.users == 0:
                if node.epoch != self.epoch:
                    heapq.heappush(self.free, node.page)
                elif not node.tokens:  # cancelled before anything was computed
                    self._drop(node)
                else:
                    self.idle += 1

    def clear(self) -> None:
        """A new policy version: nothing cached is valid any more. Running sequences keep their pages."""
        stack = list(self._root.children)
        while stack:
            node = stack.pop()
            stack.extend(node.children)
            node.children = []
            if node.users == 0:
                heapq.heappush(self.free, node.page)
        self.idle = 0
        self.epoch += 1
        self._root = Node(-1, None, self.epoch)

    def _take(self) -> int:
        if not self.free:
            self._evict()
        return heapq.heappop(self.free)

    def _evict(self) -> None:
        leaves: list[Node] = []
        stack = list(self._root.children)
        while stack:
            node = stack.pop()
            stack.extend(node.children)
            if node.users == 0 and not node.children:
                leaves.append(node)
        if not leaves:
            raise RuntimeError("the page tree promised a page it does not have")
        # A tenth at a time: one walk of the tree then serves many allocations.
        for node in heapq.nsmallest(max(1, len(leaves) // 10), leaves, key=lambda n: n.used):
            self.idle -= 1
            self._drop(node)

    def _drop(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children.remove(node)
        heapq.heappush(self.free, node.page)


class KeyValues:
    """The tensors behind the pages: [layer, key or value, page, cell, kv head, d]. One page more than asked for, the
    last, belongs to nobody: what only fills up a batch writes there."""

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        lent: bool = False,
    ) -> None:
        shape = (layers, 2, pages + 1, page_size, heads, dim)
        self.page_size = page_size
        self._memory: LentMemory | None = None
        if lent and device.type == "cuda":
            self._memory = LentMemory(math.prod(shape) * dtype.itemsize, device)
            self.data = self._memory.tensor(shape, dtype).zero_()
        else:
            # Zeros, not empty: masked cells are multiplied by a zero weight, and 0 × NaN would be NaN.
            self.data = _zeros(shape, dtype) if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [(pair[0], pair[1]) for pair in self.data]  # keys and values; by cell, whatever the page:
        self._cells = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.layers]

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    @property
    def lent(self) -> bool:
        return self._memory is not None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()

    def release(self) -> None:
        """Give the memory back, if it was made to be. Nothing may touch `data` until it is reserved again."""
        if self._memory is not None:
            self._memory.give_back()

    def reserve(self) -> None:
        """Take it again, empty, at the same address."""
        if self._memory is not None and not self._memory.taken:
            self._memory.take()
            self.data.zero_()

    def copy_page(self, source: int, target: int) -> None:
        self.data[:, :, target] = self.data[:, :, source]

    def write(self, layer: int, cells: Tensor, key: Tensor, value: Tensor) -> None:
        keys, values = self._cells[layer]
        keys.index_copy_(0, cells, key)
        values.index_copy_(0, cells, value)


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros that the system hands out page by page, when they are first used: most of this memory never is, and to
    write zeros into gigabytes takes seconds. At an address as torch's own have it."""
    size = math.prod(shape) * dtype.itemsize
    held = np.zeros(size + ALIGNED, np.uint8)
    first = -held.ctypes.data % ALIGNED
    return torch.from_numpy(held[first : first + size]).view(dtype).view(shape)
