"""The page tree and the scheduler under random arrivals, cancellations, forks and memory pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airloop.engine.base import Sampling
from airloop.engine.embedded.pages import KeyValues, Node, PageTree
from airloop.engine.embedded.scheduler import EngineStep, Request, Scheduler

PAGES, SIZE = 12, 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=18)  # few symbols: prefixes collide often


class Device:
    """Does what it is asked in order, and knows what it drew before the host does. The "keys" of a token are the
    tokens up to it, so a wrong page is seen at once."""

    def __init__(self, kv: KeyValues) -> None:
        self.kv = kv
        self.histories: dict[int, list[int]] = {}
        self.caps: dict[int, int] = {}
        self.tables: dict[tuple[int, int], int] = {}

    def run(self, step: EngineStep, draw: Callable[[], int]) -> list[list[int]]:
        for r in step.started:
            self.histories[r.slot] = r.tokens[: r.prompt_length]
            self.caps[r.slot] = r.prompt_length + r.limit - 1
        self.tables.update({(slot, place): page for slot, place, page in step.pages})
        for work in step.prefill:
            for place in range(work.start, work.start + work.count):
                self.compute(work.request, place)
        drawn = []
        for work in step.draws:
            slot, tokens = work.request.slot, []
            for _ in range(step.repeat):
                if work.count == 1:
                    self.compute(work.request, min(len(self.histories[slot]) - 1, self.caps[slot]))
                tokens.append(draw())
                self.histories[slot].append(tokens[-1])
            drawn.append(tokens)
        return drawn

    def compute(self, request: Request, place: int) -> None:
        page = self.tables[request.slot, place // SIZE]
        history = self.histories[request.slot]
        self.kv.data[0, 0, page, place % SIZE] = key(request.path[0].epoch, history[: place + 1])


def key(epoch: int, tokens: list[int]) -> float:
    return float(hash((epoch, *tokens)) % 1_000_003)


class Machine(RuleBasedStateMachine):
    """The host asks for steps, up to two ahead of the answers it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        tree = PageTree(PAGES, SIZE)
        kv = KeyValues(1, PAGES, SIZE, 1, 1, torch.float64, torch.device("cpu"))
        self.scheduler = Scheduler(tree, kv, max_batch=4, step_tokens=7)
        self.device = Device(kv)
        self.under_way: list[tuple[EngineStep, list[list[int]]]] = []

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

    @precondition(lambda self: self.scheduler.busy and len(self.under_way) < 3)
    @rule(data=st.data(), repeat=st.integers(1, 4))
    def launch(self, data: st.DataObject, repeat: int) -> None:
        step = self.scheduler.next_step(repeat)
        assert step or self.under_way or not self.scheduler.running
        if step is not None:
            self.under_way.append((step, self.device.run(step, lambda: data.draw(st.integers(0, 2)))))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        step, drawn = self.under_way.pop(0)
        for work, tokens in zip(step.draws, drawn, strict=True):
            request = work.request
            if request.done or request.cancelled:
                continue
            count = min(len(tokens), request.limit - request.sampled)
            stopped = data.draw(st.integers(0, 5)) == 0
            count = data.draw(st.integers(1, count)) if stopped else count
            self.scheduler.answered(work, tokens[:count], [0.0] * count)
            self.check(request)
            if stopped or request.sampled >= request.limit:
                self.scheduler.finish(request)

    def check(self, request: Request) -> None:
        """Every page of the path holds exactly what this sequence would have computed itself."""
        epoch = request.path[0].epoch
        for place in range(sum(len(n.tokens) for n in request.path)):
            page = request.path[place // SIZE].page
            found = self.scheduler.kv.data[0, 0, page, place % SIZE].item()
            assert found == key(epoch, request.tokens[: place + 1])

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
