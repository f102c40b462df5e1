"""Groups pinned to one version: as long as an episode of a group is under way, the adapter that it was begun with is in
the store and on the servers; then it goes."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.engine_conformance import PROMPT, agrees, change
from support.vllm_served import broken, make_policy, served

from airloop.engine.base import Engine, Sampling
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm.adapters import KEPT_VERSIONS, AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.full import FullEngine
from airloop.engine.vllm.server import LOADED_ADAPTERS, VllmServer
from airloop.policy import Policy


@pytest.mark.slow
def test_H7_a_group_is_sampled_by_the_version_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While more versions are published than servers and store keep of themselves, and a server has lost them all."""
    monkeypatch.setattr(engines, "WATCH_S", 0.1)

    async def work(engine: VllmEngine, policy: Policy) -> None:
        with engine.pinned() as group:
            first = await group.generate(PROMPT, Sampling(3, seed=1), order="a-0")
            assert agrees(policy, PROMPT, first) and (group.version, engine.version) == (0, 0)
            longer = [*PROMPT, *first.token_ids, 7]
            wanted = await group.generate(longer, Sampling(3, seed=2), order="a-1")
            for version in range(1, KEPT_VERSIONS + 1):
                change(policy, version)
                await engine.publish(version)
            for lost in (False, True):
                await broken(engine.servers[0], forget=lost)  # as if started again: it gets what it is asked for
                again = await group.generate(longer, Sampling(3, seed=2), order="a-1")
                assert again.version == 0 and again.token_ids == wanted.token_ids
                assert again.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
            newest = await engine.generate(longer, Sampling(3, seed=3))
            assert newest.version == KEPT_VERSIONS and agrees(policy, longer, newest)
            with engine.pinned() as later:
                assert later.version == KEPT_VERSIONS
            assert len(engine._store.names) == KEPT_VERSIONS + 1
        assert len(engine._store.names) == KEPT_VERSIONS == len(list((tmp_path / "adapters").iterdir()))

    served(tmp_path, work)


@pytest.mark.slow
def test_where_the_adapter_is_gone_the_newest_is_taken_and_says_so(tmp_path: Path) -> None:
    async def work(engine: VllmEngine, policy: Policy) -> None:
        with engine.pinned() as group:
            change(policy, 1)
            await engine.publish(1)
            held = next(iter(engine._store._holds))
            for file in (tmp_path / "adapters" / held).iterdir():
                file.unlink()
            (tmp_path / "adapters" / held).rmdir()
            await broken(engine.servers[0], forget=True)
            reply = await group.generate(PROMPT, Sampling(4))
            assert reply.version == 1 and agrees(policy, PROMPT, reply)

    served(tmp_path, work)


def test_weights_that_are_replaced_in_place_have_only_the_newest(tmp_path: Path) -> None:
    engine = FullEngine(make_policy(), [], AdapterStore(tmp_path, ""), 64, 8)
    with engine.pinned() as group:
        assert group is engine


# --- whatever is begun, ended, published and lost -------------------------------------------------------------------


class Store(AdapterStore):
    """Real folders, of next to nothing."""

    def _write(self, policy: Any, folder: Path) -> None:
        folder.mkdir(parents=True)

    def _digest(self, folder: Path) -> str:
        return "0"


class Server(VllmServer):
    """What it is told to load and to unload."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", lost="")
        self.loaded: set[str] = set()

    async def _post(self, route: str, body: Mapping[str, Any]) -> bool:
        name = body["lora_name"]
        if route.endswith("unload_lora_adapter"):
            self.loaded.remove(name)
        else:
            assert Path(body["lora_path"]).is_dir() and name not in self.loaded
            self.loaded.add(name)
        return True


class Started(VllmEngine):
    async def start(self) -> None:
        return None


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name), "")
        self.servers = [Server(), Server()]
        policy: Any = SimpleNamespace(version=0)
        self.engine = Started(policy, self.servers, self.store, 64, 8)
        self.groups: list[tuple[ExitStack, str]] = []
        self.versions = 0
        self.publish(1)

    @rule(times=st.integers(1, KEPT_VERSIONS + 2))
    def publish(self, times: int) -> None:
        for _ in range(times):
            asyncio.run(self.engine.publish(self.versions))
            self.versions += 1

    @rule()
    def begin(self) -> None:
        stack = ExitStack()
        group: Engine = stack.enter_context(self.engine.pinned())
        assert group.version == self.versions - 1
        self.groups.append((stack, self.engine._name))

    @rule(which=st.integers(0, 5))
    def end(self, which: int) -> None:
        if self.groups:
            self.groups.pop(which % len(self.groups))[0].close()

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """A server comes back with nothing, gets the newest, and is asked by groups for theirs."""
        server = self.servers[which]
        server.loaded.clear()
        server.forget()
        asyncio.run(self.engine._load_adapter(server, self.engine._name))
        for _, name in self.groups:
            asyncio.run(self.engine._load_adapter(server, name))

    @invariant()
    def nothing_is_released_early(self) -> None:
        wanted = {name for _, name in self.groups} | {self.engine._name}
        for name in wanted:
            assert self.store.has(name) and name in self.store.names
            assert all(name in server.loaded and not server.lost for server in self.servers)

    @invariant()
    def nothing_leaks(self) -> None:
        held = Counter(name for _, name in self.groups)
        assert self.store._holds == held
        assert len(set(self.store.names) - held.keys()) <= KEPT_VERSIONS
        assert {path.name for path in self.store.root.iterdir()} == {*self.store.names}
        for server in self.servers:
            assert set(server._adapters) == server.loaded

    def teardown(self) -> None:
        while self.groups:
            self.end(0)
        self.publish(1)
        assert len(self.store.names) <= KEPT_VERSIONS and not self.store._holds
        assert all(len(server.loaded) <= LOADED_ADAPTERS for server in self.servers)
        self.folder.cleanup()


Groups.TestCase.settings = settings(max_examples=15, stateful_step_count=16)
TestGroups = pytest.mark.slow(Groups.TestCase)


def test_what_was_held_goes_with_the_last_group_that_held_it() -> None:
    state = Groups()
    for _ in range(2):
        state.begin()
    state.publish(KEPT_VERSIONS + 1)
    for names in (KEPT_VERSIONS + 1, KEPT_VERSIONS):
        state.end(0)
        state.nothing_is_released_early()
        state.nothing_leaks()
        assert len(state.store.names) == names
    state.teardown()
