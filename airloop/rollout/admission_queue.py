"""Which groups may be begun, and which of them an update takes: the bookkeeping of sampling beside training.

Groups are numbered as they are admitted and trained in that order, so that a long episode is waited for, and never
passed by for a short one. A group is admitted only if, by whichever step it will be trained at the latest, the policy
is at most `staleness` versions ahead of the one that it begins with: nothing is ever thrown away for its age.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airloop.rollout.collected import Collected


@dataclass
class Admitted:
    """A group, from its admission until it is trained or dropped."""

    number: int
    version: int  # of the policy when it was admitted: no token of it is older
    ended: Collected | None = None  # None while its episodes are under way

    @property
    def dropped(self) -> bool:
        """It has ended, and there is nothing in it to train on: its place is another's."""
        return self.ended is not None and not self.ended.groups


class AdmissionQueue:
    """`groups` are those of one update. It takes them in their order until it has as many, or has looked at `most`."""

    def __init__(self, groups: int, most: int, staleness: int, version: int = 0, first: int = 0) -> None:
        """`version` counts the updates so far, `first` the groups that they took."""
        self.groups, self.most, self.staleness = groups, most, staleness
        self.version = version
        self.next = first
        self.pending: list[Admitted] = []
        self._taken = False  # an update is being made: the version is about to change
        self._updates: int | None = None  # that the pending groups fill; None when it is to be counted anew

    def admit(self, steps: int) -> Admitted | None:
        """The next group, or None where it may not be begun yet."""
        return self.admit_again(self.next, self.version) if self.may_admit(steps) else None

    def may_admit(self, steps: int) -> bool:
        """Not where it would become too old, nor where it would be trained after the last of the `steps`."""
        latest = self._latest()
        return latest - self.version <= self.staleness and latest < steps

    @property
    def at_bound(self) -> bool:
        """Nothing may be begun until an update is made, whoever is free."""
        return self._latest() - self.version > self.staleness

    def admit_again(self, number: int, version: int) -> Admitted:
        """As it was admitted before, by a run that was killed."""
        admitted = Admitted(number, version)
        self.pending.append(admitted)
        self._updates = None
        self.next = max(self.next, number + 1)
        return admitted

    def end(self, admitted: Admitted, ended: Collected) -> None:
        admitted.ended = ended
        if admitted.dropped:
            self._updates = None

    @property
    def ready(self) -> bool:
        return self._whole() is not None

    def take(self) -> list[Admitted]:
        """The groups of the next update, dropped ones among them."""
        count = self._whole()
        assert count is not None and not self._taken
        taken, self.pending, self._taken = self.pending[:count], self.pending[count:], True
        self._updates = None
        return taken

    def trained(self) -> None:
        self.version += 1
        self._taken = False

    def refused(self) -> None:
        """What was taken is not trained, and the version stays: the next update takes what comes after."""
        self._taken = False

    def _whole(self) -> int | None:
        """How many of the first groups make an update; None while one of them is under way."""
        for count, (group, full) in enumerate(self._cut(), 1):
            if group.ended is None:
                return None
            if full:
                return count
        return None

    def _latest(self) -> int:
        """The step by which a group that is admitted now is trained at the latest. That is when all that are under way
        are kept: one that is dropped makes its step take more groups, and all others come sooner."""
        if self._updates is None:
            self._updates = sum(full for _, full in self._cut())
        return self.version + self._taken + self._updates

    def _cut(self) -> Iterator[tuple[Admitted, bool]]:
        """Each group that is pending, and whether it is the last of its update."""
        kept = looked_at = 0
        for group in self.pending:
            kept, looked_at = kept + (not group.dropped), looked_at + 1
            full = kept == self.groups or looked_at == self.most
            if full:
                kept = looked_at = 0
            yield group, full
