"""DAPO's overlong shaping: a penalty that sets in before a length limit and is whole at the limit.

Without it, an episode that was cut off scores like one that was wrong, however good it was: noise. With it,
length near the limit has a price of its own, so that the policy learns to end in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airloop.errors import AirError
from airloop.types import Group, Trajectory

COMPONENT = "overlong"


@dataclass(frozen=True)
class Overlong:
    """`limit` tokens are the most that a reply, or an episode, can have; the penalty grows over its last `share`."""

    measure: Literal["reply", "episode"]
    limit: int
    share: float
    penalty: float

    def reward(self, trajectory: Trajectory) -> float:
        """0 up to (1 - share) · limit, then falling in a straight line to -penalty at the limit."""
        free = (1 - self.share) * self.limit
        return -self.penalty * min(1.0, max(0.0, (self.length(trajectory) - free) / (self.limit - free)))

    def length(self, trajectory: Trajectory) -> int:
        """Tokens of the longest reply, or of the longest sequence that the model had before it. What was cut off
        or found no more room counts as the limit."""
        if self.measure == "episode":
            full = trajectory.ending == "context_full"
            return self.limit if full else max((len(b.tokens) for b in trajectory.branches), default=0)
        replies = [turn.sampled for turn in trajectory.turns if turn.sampled is not None]
        return max((self.limit if r.stop == "length" else len(r.token_ids) for r in replies), default=0)


def shape_overlong(groups: Sequence[Group], overlong: Overlong) -> tuple[Group, ...]:
    """The groups with the reward component "overlong" in every trajectory, added to its reward where the task's own
    rewards differ. A group that is wrong, or right, throughout would otherwise be trained on length alone: a model of
    0.5B, wrong in most groups, so learned within three steps to answer in three tokens, without a thought."""
    return tuple(
        replace(g, trajectories=tuple(_shaped(t, overlong, counts=g.has_signal) for t in g.trajectories))
        for g in groups
    )


def _shaped(trajectory: Trajectory, overlong: Overlong, counts: bool) -> Trajectory:
    if COMPONENT in trajectory.rewards or any(COMPONENT in turn for turn in trajectory.turn_rewards):
        raise AirError(
            f"Environment {trajectory.task.env!r} has a reward component {COMPONENT!r} of its own, and "
            "trainer.loss.overlong adds one of that name.",
            'set trainer.loss.overlong = "off", or give the environment\'s component another name.',
        )
    reward = overlong.reward(trajectory) if counts else 0.0
    return replace(trajectory, rewards={**trajectory.rewards, COMPONENT: reward}, reward=trajectory.reward + reward)
