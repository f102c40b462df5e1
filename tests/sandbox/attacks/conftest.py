"""One arena for all attacks: worlds of a real bubblewrap, episodes of the real environment, one event loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from arena import Arena, Episodes


@pytest.fixture(scope="session")
def everything() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena
        arena.check_unharmed()


EVERY = 6  # of the attacks that differ in a parameter only, one in so many is looked at afterwards
uses = count(1)


def is_looked_at(request: pytest.FixtureRequest) -> bool:
    return not hasattr(request.node, "callspec") or next(uses) % EVERY == 0


@pytest.fixture
def arena(everything: Arena, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """After an attack the next world must be as it always was, and as quick."""
    yield everything
    if is_looked_at(request):
        everything.check_unharmed()


@pytest.fixture(scope="session")
def all_episodes(everything: Arena) -> Iterator[Episodes]:
    with Episodes(everything) as episodes:
        yield episodes
        episodes.check_unharmed()


@pytest.fixture
def episodes(all_episodes: Episodes, request: pytest.FixtureRequest) -> Iterator[Episodes]:
    """After an attack an honest episode must score what it always scored."""
    yield all_episodes
    if is_looked_at(request):
        all_episodes.check_unharmed()
