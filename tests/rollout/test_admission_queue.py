"""Admission by a bound: nothing becomes too old, nothing is passed by, lost or trained twice, whatever ends when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airloop.rollout.admission_queue import AdmissionQueue, Admitted
from airloop.rollout.collected import Collected
from airloop.types import Group, Task

GROUP = Group(Task("stub", "1", "train"), 0, ())
KEPT, DROPPED = Collected((GROUP,), (), {}), Collected((), (), {})
STEPS = 40


class Admitting(RuleBasedStateMachine):
    """Groups end in any order and are kept or dropped; updates are made or refused, whenever they can be."""

    @initialize(groups=st.integers(1, 4), more=st.integers(0, 4), staleness=st.integers(0, 4), filtering=st.booleans())
    def begin(self, groups: int, more: int, staleness: int, filtering: bool) -> None:
        self.queue = AdmissionQueue(groups, groups + more if filtering else groups, staleness)
        self.under_way: list[Admitted] = []
        self.taken: list[Admitted] = []
        self.training = False
        self.updates = 0

    @rule()
    def admit(self) -> None:
        if (admitted := self.queue.admit(STEPS)) is not None:
            assert admitted.version == self.updates
            self.under_way.append(admitted)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 10**6), kept=st.booleans())
    def end(self, which: int, kept: bool) -> None:
        self.queue.end(self.under_way.pop(which % len(self.under_way)), KEPT if kept else DROPPED)

    @precondition(lambda self: self.queue.ready and not self.training)
    @rule()
    def take(self) -> None:
        found = self.queue.take()
        kept = [group for group in found if not group.dropped]
        assert len(kept) == self.queue.groups or len(found) == self.queue.most
        assert len(kept) <= self.queue.groups and len(found) <= self.queue.most
        assert all(self.updates - group.version <= self.queue.staleness for group in found)  # the bound
        self.taken += found
        assert [group.number for group in self.taken] == list(range(len(self.taken)))  # in order: none lost, none twice
        self.training = True

    @precondition(lambda self: self.training)
    @rule(refused=st.integers(0, 9))
    def update(self, refused: int) -> None:
        self.training = False
        if refused == 0:
            self.queue.refused()
        else:
            self.queue.trained()
            self.updates += 1

    @invariant()
    def never_stuck(self) -> None:
        """With nothing under way and no update to be made, there is a group to admit, or the run is at its end."""
        if hasattr(self, "queue") and not self.under_way and not self.queue.ready and not self.training:
            assert self.queue.may_admit(STEPS) or self.updates >= STEPS

    @invariant()
    def places(self) -> None:
        if hasattr(self, "queue"):
            alive = sum(not group.dropped for group in self.queue.pending) + self.training * self.queue.groups
            assert alive <= (self.queue.staleness + 1) * self.queue.groups


TestAdmitting = Admitting.TestCase
TestAdmitting.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def full(queue: AdmissionQueue) -> list[Admitted]:
    return [*iter(lambda: queue.admit(STEPS), None)]


def test_a_dropped_group_gives_its_place_back() -> None:
    queue = AdmissionQueue(groups=2, most=4, staleness=1)
    first = full(queue)
    assert [group.number for group in first] == [0, 1, 2, 3]
    queue.end(first[2], DROPPED)
    assert [group.number for group in full(queue)] == [4]
    for group in (first[0], first[1]):
        queue.end(group, KEPT)
    assert [group.number for group in queue.take()] == [0, 1]
    assert not full(queue)  # the update is still to come
    queue.trained()
    assert [(group.number, group.version) for group in full(queue)] == [(5, 1), (6, 1)]


def test_an_update_is_made_of_few_where_most_were_dropped() -> None:
    """As with oversampling_factor in the loop: so many are sampled, and no more."""
    queue = AdmissionQueue(groups=2, most=3, staleness=0)
    admitted = full(queue)
    for group in admitted:
        queue.end(group, DROPPED)
    third = full(queue)
    assert [group.number for group in third] == [2] and not queue.ready
    queue.end(third[0], DROPPED)
    assert len(queue.take()) == 3
    queue.trained()
    assert [group.number for group in full(queue)] == [3, 4]


def test_nothing_is_sampled_that_would_be_trained_after_the_last_step() -> None:
    queue = AdmissionQueue(groups=3, most=3, staleness=4)
    admitted = [*iter(lambda: queue.admit(2), None)]
    assert [group.number for group in admitted] == [0, 1, 2, 3, 4, 5]
