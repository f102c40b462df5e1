"""One arena for all attacks: worlds of a real bubblewrap, episodes of the real environment, one event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arena import Arena, Episodes


@pytest.fixture(scope="session")
def everything() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


@pytest.fixture
def arena(everything: Arena) -> Iterator[Arena]:
    """After each attack the next world must be as it always was, and as quick."""
    yield everything
    everything.check_unharmed()


@pytest.fixture(scope="session")
def all_episodes(everything: Arena) -> Iterator[Episodes]:
    with Episodes(everything) as episodes:
        yield episodes


@pytest.fixture
def episodes(all_episodes: Episodes) -> Iterator[Episodes]:
    """After each attack an honest episode must score what it always scored."""
    yield all_episodes
    all_episodes.check_unharmed()
