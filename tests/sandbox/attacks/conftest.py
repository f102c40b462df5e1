"""One arena for all attacks: sandboxes of a real bubblewrap, episodes of the real environment, one event loop. In
`make soak` containers are attacked too, with all that is not of bubblewrap alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from support.attack_arena import Arena, Episodes


@pytest.fixture(scope="session", params=["bubblewrap", pytest.param("container", marks=pytest.mark.soak)])
def everything(request: pytest.FixtureRequest) -> Iterator[Arena]:
    image = request.getfixturevalue("container_image") if request.param == "container" else ""
    with Arena(image) as arena:
        yield arena
        arena.check_unharmed()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_left_out(item: pytest.Item) -> bool:
        played = getattr(item, "callspec", None)
        of_bubblewrap = item.get_closest_marker("bubblewrap") or "all_episodes" in getattr(item, "fixturenames", ())
        return bool(of_bubblewrap and played and played.params.get("everything") == "container")

    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


EVERY = 6  # of the attacks that differ in a parameter only, one in so many is looked at afterwards
uses = count(1)


def is_looked_at(request: pytest.FixtureRequest) -> bool:
    alike = set(request.node.callspec.params) - {"everything"} if hasattr(request.node, "callspec") else set()
    return not alike or next(uses) % EVERY == 0


@pytest.fixture
def arena(everything: Arena, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """After an attack the next sandbox must be as it always was, and as quick."""
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
