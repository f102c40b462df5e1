"""Decides what the next forward pass computes: who joins, who decodes, how much of which prompt."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from airloop.engine.base import Generation, Sampling, TokenCallback
from airloop.engine.embedded.pages import KeyValues, Node, PageTree


@dataclass(eq=False)
class Request:
    """A sequence being sampled. Work on the device is asked for before the last answers are read: `computed` and
    `drawn` count what was asked for, `tokens` and `logprobs` hold what is known."""

    prompt_length: int
    tokens: list[int]  # prompt, then what was sampled
    limit: int  # of new tokens
    sampling: Sampling
    order: str
    future: asyncio.Future[Generation]
    on_tokens: TokenCallback | None = None
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    version: int = 0  # of the policy when it was started, not when it was asked for
    logprobs: list[float] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    claim: int = 0  # pages it may still take
    slot: int = -1
    computed: int = 0  # tokens whose keys and values exist, or will when the device gets there
    drawn: int = 0
    cached: int = 0
    behind: Request | None = None  # it waits for this one, which computes the same prompt
    cancelled: bool = False
    done: bool = False

    @property
    def sampled(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Work:
    """A request's part of a step: keys and values for `count` tokens from `start` on; then perhaps a draw."""

    request: Request
    start: int
    count: int
    draws: bool


@dataclass(frozen=True)
class EngineStep:
    """What the device does next. Decoding requests compute one token each, `repeat` times over, drawing each time."""

    decode: list[Work]
    prefill: list[Work]
    repeat: int
    started: list[Request]  # since the last step
    pages: list[tuple[int, int, int]]  # since the last step: slot, which page of it, page

    @property
    def draws(self) -> list[Work]:
        return [*self.decode, *(w for w in self.prefill if w.draws)]


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
        self.draining = 0  # who wants no request to begin
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._slots = list(range(max_batch))  # a heap
        self._started: list[Request] = []
        self._pages: list[tuple[int, int, int]] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def next_step(self, repeat: int = 1) -> EngineStep | None:
        """The next step, with pages for all its tokens; None when everything asked for is on its way. `repeat`: how
        often to decode, if no prompt is to be computed."""
        self.drop_cancelled()
        if not self.draining:
            self._admit()
        budget = self.step_tokens
        decode: list[Request] = []
        prefill: list[Work] = []
        for request in self.running:
            missing = request.prompt_length + request.drawn - request.computed
            if request.drawn >= request.limit:
                continue
            if missing == 1:
                decode.append(request)
                budget -= 1
            elif budget > 0:
                count = min(missing, budget)
                budget -= count
                prefill.append(self._compute(request, count))
        repeat = 1 if prefill else repeat
        step = EngineStep([self._decode(r, repeat) for r in decode], prefill, repeat, self._started, self._pages)
        if not decode and not prefill:
            return None
        self._started, self._pages = [], []
        return step

    def answered(self, work: Work, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """What was drawn is known: the pages say so from now on."""
        request = work.request
        request.tokens.extend(tokens)
        request.logprobs.extend(logprobs)
        if work.count == 1:  # a prompt's tokens were known when they were asked for
            self._spell(request, work.start, work.start + len(tokens))

    def finish(self, request: Request) -> None:
        """Its pages and its slot may be reused at once: the device does things in the order they were asked for."""
        self.running.remove(request)
        request.done = True
        self.tree.release(request.path, request.claim)
        heapq.heappush(self._slots, request.slot)
        request.path, request.claim = [], 0

    def _compute(self, request: Request, count: int) -> Work:
        start = request.computed
        self._ensure_pages(request, start + count)
        request.computed += count
        self._spell(request, start, start + count)
        draws = request.computed == request.prompt_length
        request.drawn += draws
        return Work(request, start, count, draws)

    def _decode(self, request: Request, repeat: int) -> Work:
        start = request.computed
        # The last token's keys are never needed; the device stays at that place when it runs past it.
        request.computed = min(start + repeat, request.prompt_length + request.limit - 1)
        request.drawn = min(request.drawn + repeat, request.limit)
        self._ensure_pages(request, min(start + repeat, request.prompt_length + request.limit))
        return Work(request, start, 1, True)

    def _spell(self, request: Request, start: int, end: int) -> None:
        """Write the tokens of these places into the pages' nodes."""
        size = self.tree.page_size
        while start < end:
            stop = min(end, (start // size + 1) * size)
            request.path[start // size].tokens.extend(request.tokens[start:stop])
            start = stop

    def give_up(self) -> list[Request]:
        """After a failed step: what its pages hold is unknown, so nothing of it may be found again. Returns whom it
        concerns."""
        lost = [*self.running, *self.waiting]
        for request in list(self.running):
            self.finish(request)
        self.waiting, self._started, self._pages = [], [], []
        self.tree.clear()
        return lost

    def drop_cancelled(self) -> None:
        self.waiting = [r for r in self.waiting if not r.cancelled]
        for request in [r for r in self.running if r.cancelled]:
            self.finish(request)

    def _admit(self) -> None:
        left: list[Request] = []
        blocked = False  # nobody overtakes a request that waits for memory: it would starve
        for request in self.waiting:
            first = request.behind
            waits = first is not None and not first.done and first.computed < first.prompt_length
            if waits or blocked or len(self.running) >= self.max_batch:
                left.append(request)
                continue
            path, part, length = self.tree.match(request.tokens[:-1])
            have = len(path) * self.tree.page_size + length
            request.behind = self._computing(request.tokens, have)
            if request.behind is not None:
                left.append(request)
            elif not self._start(request, path, part, length):
                left.append(request)
                blocked = True
        self.waiting = left

    def _computing(self, tokens: Sequence[int], have: int) -> Request | None:
        """Who computes, just now, at least a page more of these tokens than we have."""
        worth = have + self.tree.page_size
        if worth > len(tokens):
            return None
        wanted, last = tokens[:worth], tokens[worth - 1]  # of hundreds that run, few have this token at that place
        for r in self.running:
            near = r.computed < r.prompt_length and len(r.tokens) >= worth and r.tokens[worth - 1] == last
            if near and r.tokens[:worth] == wanted:
                return r
        return None

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
        request.slot = heapq.heappop(self._slots)
        self._pages.extend((request.slot, i, node.page) for i, node in enumerate(kept))
        if part is not None and not take_over:
            node = self._grow(request)
            self.kv.copy_page(part.page, node.page)
            node.tokens = request.tokens[len(path) * tree.page_size :][:length]
        request.computed = request.cached = len(path) * tree.page_size + length
        request.started = time.perf_counter()
        request.version = self.version
        self.running.append(request)
        self._started.append(request)
        return True

    def _ensure_pages(self, request: Request, tokens: int) -> None:
        need = -(-tokens // self.tree.page_size)
        while len(request.path) < need:
            self._grow(request)

    def _grow(self, request: Request) -> Node:
        request.claim -= 1
        node = self.tree.grow(request.path)
        self._pages.append((request.slot, len(request.path) - 1, node.page))
        return node
