"""The page tree and the scheduler under random arrivals, cancellations, forks and memory pressure."""

from __future__ import annotations

import asyncio

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from air.engine.base import Sampling
from air.engine.embedded.pages import KeyValues, Node, PageTree
from air.engine.embedded.scheduler import Request, Scheduler

PAGES, SIZE = 12, 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=18)  # few symbols: prefixes collide often


class Machine(RuleBasedStateMachine):
    """A model-free engine: the "keys" of a token are the tokens up to it, so a wrong page is seen at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        tree = PageTree(PAGES, SIZE)
        kv = KeyValues(1, PAGES, SIZE, 1, 1, torch.float64, torch.device("cpu"))
        self.scheduler = Scheduler(tree, kv, max_batch=4, step_tokens=7)

    def teardown(self) -> None:
        self.loop.close()

    @rule(tokens=TOKENS, limit=st.integers(1, 12))
    def arrive(self, tokens: list[int], limit: int) -> None:
        request = Request(len(tokens), list(tokens), limit, Sampling(limit), "", self.loop.create_future())
        self.scheduler.add(request)

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.scheduler.running)).cancelled = True

    @rule()
    def publish(self) -> None:
        self.scheduler.tree.clear()

    @precondition(lambda self: self.scheduler.busy)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        scheduler = self.scheduler
        decode, prefill = scheduler.next_step()
        assert decode or prefill or not scheduler.running
        for request in decode + prefill:
            chunk = scheduler.chunk(request)
            slots = [
                chunk.pages[(chunk.start + i) // SIZE] * SIZE + (chunk.start + i) % SIZE
                for i in range(len(chunk.tokens))
            ]
            keys = [self.key(request, chunk.start + i) for i in range(len(chunk.tokens))]
            values = torch.tensor(keys, dtype=torch.float64)[:, None, None]
            scheduler.kv.write(0, torch.tensor(slots), values, values)
        for request in decode + prefill:
            ready = scheduler.advance(request)
            self.check(request)
            if ready:
                request.tokens.append(data.draw(st.integers(0, 2)))
                if request.sampled >= request.limit:
                    scheduler.finish(request)

    def key(self, request: Request, place: int) -> float:
        return float(hash((request.path[0].epoch, *request.tokens[: place + 1])) % 1_000_003)

    def check(self, request: Request) -> None:
        """Every page of the path holds exactly what this sequence would have computed itself."""
        for place in range(request.computed):
            page = request.path[place // SIZE].page
            assert self.scheduler.kv.data[0, 0, page, place % SIZE].item() == self.key(request, place)

    @invariant()
    def no_page_is_lost_or_shared_wrongly(self) -> None:
        tree, running = self.scheduler.tree, self.scheduler.running
        nodes: dict[int, Node] = {}
        stack = list(tree._root.children)
        idle = 0
        while stack:
            node = stack.pop()
            stack.extend(node.children)
            assert node.page not in nodes
            nodes[node.page] = node
            idle += node.users == 0
        for request in running:
            for node in request.path:
                assert nodes.setdefault(node.page, node) is node
        users: dict[int, int] = {}
        for request in running:
            for node in request.path:
                users[node.page] = users.get(node.page, 0) + 1
        assert all(node.users == users.get(page, 0) for page, node in nodes.items())
        assert sorted([*tree.free, *nodes]) == list(range(PAGES))
        assert idle == tree.idle
        assert tree.claimed == sum(r.claim for r in running)
        assert tree.available >= 0


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
