"""Decides what the next forward pass computes: who joins, who decodes, how much of which prompt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from air.engine.base import Generation, Sampling
from air.engine.embedded.pages import KeyValues, Node, PageTree
from air.engine.embedded.plan import Chunk
from air.prefix import common_prefix


@dataclass(eq=False)
class Request:
    """A sequence being sampled. Keys and values exist for the first `computed` of its tokens."""

    prompt_length: int
    tokens: list[int]  # prompt, then what was sampled
    limit: int  # of new tokens
    sampling: Sampling
    order: str
    future: asyncio.Future[Generation]
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    version: int = 0  # of the policy when it was started, not when it was asked for
    logprobs: list[float] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    claim: int = 0  # pages it may still take
    computed: int = 0
    cached: int = 0
    step_tokens: int = 0  # of the forward pass under way
    cancelled: bool = False

    @property
    def sampled(self) -> int:
        return len(self.tokens) - self.prompt_length


class Scheduler:
    """First come, first served; every running sequence gets a token each step; what remains of the token
    budget computes prompts. A request whose prefix another is computing just now waits for it instead of
    computing it a second time."""

    def __init__(self, tree: PageTree, kv: KeyValues, max_batch: int, step_tokens: int) -> None:
        self.tree = tree
        self.kv = kv
        self.max_batch = max_batch
        self.step_tokens = step_tokens
        self.version = 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def next_step(self) -> tuple[list[Request], list[Request]]:
        """(decoding, prefilling); pages for every token of the step are in the requests' paths."""
        self._drop_cancelled()
        self._admit()
        budget = self.step_tokens
        decode: list[Request] = []
        prefill: list[Request] = []
        for request in self.running:
            missing = len(request.tokens) - request.computed
            request.step_tokens = min(missing, max(budget, 0)) if missing > 1 else 1
            budget -= request.step_tokens
            if request.step_tokens:
                self._ensure_pages(request)
                (decode if missing == 1 else prefill).append(request)
        return decode, prefill

    def chunk(self, request: Request) -> Chunk:
        end = request.computed + request.step_tokens
        return Chunk(request.tokens[request.computed : end], request.computed, [n.page for n in request.path])

    def advance(self, request: Request) -> bool:
        """The step's keys and values are written. True when the next token can be sampled."""
        size = self.tree.page_size
        for i in range(request.computed, request.computed + request.step_tokens):
            request.path[i // size].tokens.append(request.tokens[i])
        request.computed += request.step_tokens
        return request.computed == len(request.tokens)

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        self.tree.release(request.path, request.claim)
        request.path, request.claim = [], 0

    def _drop_cancelled(self) -> None:
        self.waiting = [r for r in self.waiting if not r.cancelled]
        for request in [r for r in self.running if r.cancelled]:
            self.finish(request)

    def _admit(self) -> None:
        left: list[Request] = []
        blocked = False  # nobody overtakes a request that waits for memory: it would starve
        for request in self.waiting:
            if blocked or len(self.running) >= self.max_batch:
                left.append(request)
                continue
            path, part, length = self.tree.match(request.tokens[:-1])
            have = len(path) * self.tree.page_size + length
            if self._being_computed(request.tokens, have):
                left.append(request)
            elif not self._start(request, path, part, length):
                left.append(request)
                blocked = True
        self.waiting = left

    def _being_computed(self, tokens: Sequence[int], have: int) -> bool:
        worth = have + self.tree.page_size
        return any(r.computed < r.prompt_length and common_prefix(r.tokens, tokens) >= worth for r in self.running)

    def _start(self, request: Request, path: list[Node], part: Node | None, length: int) -> bool:
        tree = self.tree
        # An idle page that ends exactly where we go on is continued in place; otherwise its start is copied.
        take_over = part is not None and part.users == 0 and not part.children and length == len(part.tokens)
        kept = [*path, part] if take_over and part is not None else path
        total = -(-(request.prompt_length + request.limit) // tree.page_size)
        need = total - len(kept)
        if tree.available - sum(n.users == 0 for n in kept) < need:
            return False
        tree.pin(kept)
        tree.claim(need)
        request.path, request.claim = list(kept), need
        if part is not None and not take_over:
            node = self._grow(request)
            self.kv.copy_page(part.page, node.page)
            node.tokens = request.tokens[len(path) * tree.page_size :][:length]
        request.computed = request.cached = len(path) * tree.page_size + length
        request.started = time.perf_counter()
        request.version = self.version
        self.running.append(request)
        return True

    def _ensure_pages(self, request: Request) -> None:
        need = -(-(request.computed + request.step_tokens) // self.tree.page_size)
        while len(request.path) < need:
            self._grow(request)

    def _grow(self, request: Request) -> Node:
        request.claim -= 1
        return self.tree.grow(request.path)
