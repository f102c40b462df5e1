"""The ledger: every sampled token is in one column, whatever happened to its episode; and what it says of a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.learn.advantages import TurnWeights, assign_advantages
from airloop.learn.batches import Row
from airloop.learn.losses.sequence_mask import SequenceMask
from airloop.rollout.collected import Collected, Dropped
from airloop.types import Branch, Group, Message, Sampled, Task, Trajectory, Turn
from airloop.watch.metrics.ledger import COLUMNS, Ledger, Terms, account, one_line, token_fates

SAY = Message(role="assistant", content="x")
WEIGHTS = {"arith": TurnWeights({"won": 1.0, "step": 0.5}, {"step": "mean"})}


def trajectory(
    id: str,
    *,
    reward: float = 0.0,
    turns: tuple[int, ...] = (2,),
    forked: bool = False,
    ending: Any = "done",
    seconds: float = 1.0,
    cut: int = 0,
    step_reward: float = 0.0,
    task: str = "a",
) -> Trajectory:
    """`turns`: sampled tokens of each. `forked`: a branch for each. `cut`: tokens of the last that are in no branch."""
    kept = [*turns[:-1], max(0, turns[-1] - cut)] if turns else []
    spans = list(enumerate(kept))
    parts = [[span] for span in spans] if forked else [spans]
    branches = tuple(_branch(part) for part in parts if part)
    return Trajectory(
        id,
        Task("arith", task, "train", family=task),
        0,
        0,
        tuple(Turn((), SAY, Sampled((1,) * n, (-1.0,) * n, "stop", 0), (), ()) for n in turns),
        branches,
        ending,
        {"won": reward - 0.5 * step_reward},
        tuple({"step": step_reward} for _ in turns),
        {},
        reward,
        0.0,
        seconds,
        error="the disk is on fire" if ending == "infra_error" else "",
    )


def _branch(spans: list[tuple[int, int]]) -> Branch:
    train = [flag for _, n in spans for flag in [False, *[True] * n]]
    turns = [t for turn, n in spans for t in [-1, *[turn] * n]]
    return Branch((1,) * len(train), tuple(train), tuple(-1.0 if t else 0.0 for t in train), tuple(turns))


def ledger(
    groups: list[list[Trajectory]],
    dropped: list[Dropped] | None = None,
    spoilt: list[Trajectory] | None = None,
    terms: Terms | None = None,
    by_turn: bool = False,
    now: float = -1.0,
    abandoned: int = 0,
) -> tuple[Ledger, Collected, Any]:
    """With the real advantages; the trainer's log-prob of every token is `now`, the sampler's -1."""
    kept = tuple(Group(members[0].task, 0, tuple(members)) for members in groups)
    terms = terms or Terms()
    batch = assign_advantages(
        kept,
        loss="grpo",
        scale_rewards=False,
        token_constant=10,
        keep_zero=terms.kl,
        turn_weights=WEIGHTS if by_turn else None,
    )
    logprobs = {row.key: np.full(sum(row.train), now, np.float32) for row in batch.rows if any(row.train)}
    collected = Collected(kept, tuple(dropped or ()), {"abandoned_tokens": abandoned}, tuple(spoilt or ()))
    return account(collected, batch, logprobs, terms, WEIGHTS), collected, batch


members = st.lists(
    st.builds(
        dict,
        reward=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        turns=st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple),
        forked=st.booleans(),
        ending=st.sampled_from(["done", "max_turns", "context_full", "deadline"]),
        seconds=st.floats(0.1, 100),
        cut=st.integers(0, 2),
        step_reward=st.sampled_from([0.0, 0.5]),
        task=st.sampled_from(["a", "b"]),
    ),
    min_size=2,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    kept=st.lists(members, max_size=3),
    silent=st.lists(members, max_size=2),
    few=st.lists(members, max_size=1),
    spoilt=st.lists(members, max_size=1),
    kl=st.booleans(),
    mask=st.booleans(),
    by_turn=st.booleans(),
    now=st.sampled_from([-1.0, -0.1, -9.0]),
    abandoned=st.integers(0, 5),
)
def test_every_sampled_token_is_in_exactly_one_column(
    kept: Any, silent: Any, few: Any, spoilt: Any, kl: bool, mask: bool, by_turn: bool, now: float, abandoned: int
) -> None:
    names = iter(range(10_000))

    def made(groups: Any, **changes: Any) -> list[list[Trajectory]]:
        return [[trajectory(f"t{next(names)}", **{**m, **changes}) for m in group] for group in groups]

    groups = made(kept)
    dropped = [Dropped(Group(g[0].task, 0, tuple(g)), "no_signal") for g in made(silent, reward=0.0)]
    dropped += [Dropped(Group(g[0].task, 0, tuple(g[:1])), "infra_error") for g in made(few)]
    lost = [t for g in made(spoilt, ending="infra_error") for t in g]
    terms = Terms(kl, (0.5, 2.0) if mask else None)
    found, _, batch = ledger(groups, dropped, lost, terms, by_turn, now, abandoned)
    everyone = [t for g in groups for t in g] + [t for d in dropped for t in d.group.trajectories] + lost
    sampled = sum(len(turn.sampled.token_ids) for t in everyone for turn in t.turns if turn.sampled)
    row = found.metrics
    assert row["tokens"] == sampled + abandoned == sum(row[name] for name in COLUMNS)
    assert min(row[name] for name in COLUMNS) >= 0
    for table in ("by_task", "by_ending", "by_duration"):
        for name in ("tokens", *COLUMNS):
            missing = abandoned if name in ("tokens", "truncated") else 0
            assert sum(part[name] for part in row[table].values()) == row[name] - missing
        assert sum(part["episodes"] for part in row[table].values()) == len(everyone)
    assert sum(sum(counts.values()) for counts in found.episodes.values()) == sampled
    in_loss = sum(sum(r.train) for r in batch.rows)
    assert row["trained"] + row["stale"] <= in_loss
    if mask and now != -1.0:
        assert row["trained"] == 0 and row["stale"] == in_loss
    if not by_turn and not mask:
        assert row["trained"] == in_loss
    assert row["filtered"] == sum(
        t.sampled_tokens for d in dropped if d.reason == "no_signal" for t in d.group.trajectories
    )


def test_credited_by_turn_a_turn_without_advantage_is_not_trained() -> None:
    """The first turn of both earned the same from there on; the second did not."""
    one = trajectory("one", turns=(3, 2), reward=1.0)
    two = trajectory("two", turns=(3, 2), reward=0.0)
    assert ledger([[one, two]], by_turn=True)[0].metrics["trained"] == 10
    same = [trajectory(name, turns=(3,), reward=1.0) for name in ("three", "four")]
    found = ledger([same], by_turn=True)[0].metrics
    assert (found["trained"], found["zero_advantage"]) == (0, 6)


def test_E2_the_share_of_groups_without_signal() -> None:
    alike = [trajectory(f"s{i}", reward=1.0) for i in range(2)]
    other = [trajectory("x", reward=0.0), trajectory("y", reward=1.0)]
    assert ledger([alike, other])[0].metrics["groups"] == {"sampled": 2, "silent": 1}


def test_E4_components_that_cancel_show_in_the_variances() -> None:
    """won + 0.5·step is 1 in both, though each of the two varies."""
    pair = [trajectory("a", reward=1.0, step_reward=2.0), trajectory("b", reward=1.0, step_reward=0.0)]
    variance = ledger([pair])[0].metrics["variance"]
    assert variance["sum"] == 0.0
    assert variance["components"] == pytest.approx({"won": 0.25, "step": 0.25})
    healthy = [trajectory("c", reward=1.0), trajectory("d", reward=0.0)]
    variance = ledger([healthy])[0].metrics["variance"]
    assert variance["sum"] == variance["components"]["won"] == 0.25 and variance["components"]["step"] == 0.0


def test_E8_what_is_lost_among_the_slow_shows_by_duration() -> None:
    fast = [trajectory(f"f{i}", reward=float(i % 2), seconds=1.0 + i) for i in range(6)]
    slow = [trajectory(f"s{i}", ending="infra_error", seconds=60.0 + i) for i in range(2)]
    found = ledger([fast], spoilt=slow)[0].metrics["by_duration"]
    assert [found[name]["infra_error"] for name in ("fastest", "fast", "slow", "slowest")] == [0, 0, 0, 4]
    assert found["slowest"]["up_to_s"] == 61.0 and found["fastest"]["trained"] == 4


def test_the_bias_of_filtering_is_told() -> None:
    kept = [trajectory("k0", reward=1.0, task="hard"), trajectory("k1", reward=0.0, task="hard")]
    easy = tuple(trajectory(f"e{i}", reward=1.0, task="easy") for i in range(2))
    found = ledger([kept], [Dropped(Group(easy[0].task, 0, easy), "no_signal")])[0].metrics
    assert found["filter"] == {
        "groups": 1,
        "tasks": {"easy": 1},
        "ids": ["easy"],
        "reward_all": 0.75,
        "reward_kept": 0.5,
        "reward_dropped": 1.0,
    }
    line = one_line(found)
    assert "8 sampled, 4 trained; lost: 4 filtered" in line
    assert "filter left out easy 1: mean reward 0.750 over all, 0.500 over what is trained" in line


def test_nothing_lost_is_no_line() -> None:
    found = ledger([[trajectory("k0", reward=1.0), trajectory("k1")]])[0].metrics
    assert one_line(found) == "" and found["filter"] == {} and not math.isnan(found["variance"]["sum"])


def test_a_token_outside_of_the_mask_or_without_a_number_is_stale() -> None:
    row, logs = Row.of_reply("t#0", [1], [1] * 5), np.log([0.49, 0.51, 1.99, 2.01, math.nan])
    assert token_fates(row, logs, False, Terms(mask=(0.5, 2.0))) == {"stale": 3, "trained": 2, "zero_advantage": 0}
    assert token_fates(row, logs + 1e6, False, Terms(mask=(0.0, 1e9)))["stale"] == 5  # beyond what a float can be
    assert token_fates(row, logs, True, Terms())["stale"] == token_fates(row, logs, False, Terms())["trained"] == 5
    still = Row.of_reply("t#0", [1], [1] * 5, advantage=0.0)
    assert token_fates(still, logs, False, Terms())["zero_advantage"] == 5
    assert token_fates(still, logs, False, Terms(kl=True))["trained"] == 5


@pytest.mark.parametrize("forked", [False, True])
def test_a_trajectory_that_a_mask_of_sequences_left_out_is_stale_with_all_its_branches(forked: bool) -> None:
    """One branch of it is as it was sampled: the mean over both is what counts."""
    members = [trajectory("t0", reward=1.0, turns=(2, 3), forked=forked), trajectory("t1", turns=(2,))]
    group = Group(members[0].task, 0, tuple(members))
    batch = assign_advantages([group], loss="grpo", scale_rewards=False, token_constant=10)
    values = {"t0#0": [-1.0] * 2 + ([] if forked else [-3.0] * 3), "t0#1": [-3.0] * 3, "t1#0": [-1.0, -1.0]}
    moved = {key: np.array(own, np.float32) for key, own in values.items()}
    for mask in (SequenceMask((0.5, 2.0), (0.0, 9.0)), SequenceMask((0.0, 9.0), (0.2, 9.0))):
        found = account(Collected((group,), (), {}, ()), batch, moved, Terms(sequences=mask), WEIGHTS).metrics
        assert (found["stale"], found["trained"]) == (5, 2)
    wide = Terms(sequences=SequenceMask((0.2, 2.0), (0.1, 9.0)))
    assert account(Collected((group,), (), {}, ()), batch, moved, wide, WEIGHTS).metrics["stale"] == 0
