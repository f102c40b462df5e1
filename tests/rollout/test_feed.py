"""Admission by a bound: nothing becomes too old, nothing is passed by, lost or trained twice, whatever ends when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airloop.rollout.collected import Collected
from airloop.rollout.feed import Admitted, Feed
from airloop.types import Group, Task

GROUP = Group(Task("stub", "1", "train"), 0, ())
KEPT, DROPPED = Collected((GROUP,), (), {}), Collected((), (), {})
STEPS = 40


class Feeding(RuleBasedStateMachine):
    """Groups end in any order and are kept or dropped; updates are made or refused, whenever they can be."""

    @initialize(groups=st.integers(1, 4), more=st.integers(0, 4), staleness=st.integers(0, 4), filtering=st.booleans())
    def begin(self, groups: int, more: int, staleness: int, filtering: bool) -> None:
        self.feed = Feed(groups, groups + more if filtering else groups, staleness)
        self.under_way: list[Admitted] = []
        self.taken: list[Admitted] = []
        self.training = False
        self.updates = 0

    @rule()
    def admit(self) -> None:
        if (admitted := self.feed.admit(STEPS)) is not None:
            assert admitted.version == self.updates
            self.under_way.append(admitted)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 10**6), kept=st.booleans())
    def end(self, which: int, kept: bool) -> None:
        self.feed.end(self.under_way.pop(which % len(self.under_way)), KEPT if kept else DROPPED)

    @precondition(lambda self: self.feed.ready and not self.training)
    @rule()
    def take(self) -> None:
        found = self.feed.take()
        kept = [group for group in found if not group.dropped]
        assert len(kept) == self.feed.groups or len(found) == self.feed.most
        assert len(kept) <= self.feed.groups and len(found) <= self.feed.most
        assert all(self.updates - group.version <= self.feed.staleness for group in found)  # the bound
        self.taken += found
        assert [group.number for group in self.taken] == list(range(len(self.taken)))  # in order: none lost, none twice
        self.training = True

    @precondition(lambda self: self.training)
    @rule(refused=st.integers(0, 9))
    def update(self, refused: int) -> None:
        self.training = False
        if refused == 0:
            self.feed.refused()
        else:
            self.feed.trained()
            self.updates += 1

    @invariant()
    def never_stuck(self) -> None:
        """With nothing under way and no update to be made, there is a group to admit, or the run is at its end."""
        if hasattr(self, "feed") and not self.under_way and not self.feed.ready and not self.training:
            assert self.feed.may_admit(STEPS) or self.updates >= STEPS

    @invariant()
    def places(self) -> None:
        if hasattr(self, "feed"):
            alive = sum(not group.dropped for group in self.feed.pending) + self.training * self.feed.groups
            assert alive <= (self.feed.staleness + 1) * self.feed.groups


TestFeeding = Feeding.TestCase
TestFeeding.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def full(feed: Feed) -> list[Admitted]:
    return [*iter(lambda: feed.admit(STEPS), None)]


def test_a_dropped_group_gives_its_place_back() -> None:
    feed = Feed(groups=2, most=4, staleness=1)
    first = full(feed)
    assert [group.number for group in first] == [0, 1, 2, 3]
    feed.end(first[2], DROPPED)
    assert [group.number for group in full(feed)] == [4]
    for group in (first[0], first[1]):
        feed.end(group, KEPT)
    assert [group.number for group in feed.take()] == [0, 1]
    assert not full(feed)  # the update is still to come
    feed.trained()
    assert [(group.number, group.version) for group in full(feed)] == [(5, 1), (6, 1)]


def test_an_update_is_made_of_few_where_most_were_dropped() -> None:
    """As with oversampling_factor in the loop: so many are sampled, and no more."""
    feed = Feed(groups=2, most=3, staleness=0)
    admitted = full(feed)
    for group in admitted:
        feed.end(group, DROPPED)
    third = full(feed)
    assert [group.number for group in third] == [2] and not feed.ready
    feed.end(third[0], DROPPED)
    assert len(feed.take()) == 3
    feed.trained()
    assert [group.number for group in full(feed)] == [3, 4]


def test_nothing_is_sampled_that_would_be_trained_after_the_last_step() -> None:
    feed = Feed(groups=3, most=3, staleness=4)
    admitted = [*iter(lambda: feed.admit(2), None)]
    assert [group.number for group in admitted] == [0, 1, 2, 3, 4, 5]
