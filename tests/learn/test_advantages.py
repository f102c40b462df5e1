"""Rewards become advantages and weights: by trajectory, by turn, with a price for length."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airloop.errors import AirError
from airloop.learn.advantages import (
    EPSILON,
    CreditedRow,
    TurnWeights,
    assign_advantages,
    group_advantages,
    token_advantages,
    turn_returns,
)
from airloop.learn.overlong import Overlong, shape_overlong
from airloop.types import Branch, Group, Message, Sampled, Task, Trajectory, Turn

TYPES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")


def trajectory(name: str, reward: float, lengths: list[int]) -> Trajectory:
    branches = tuple(
        Branch((0,) * (n + 2), (False, False, *(True,) * n), (0.0,) * (n + 2), (-1, -1, *(i,) * n))
        for i, n in enumerate(lengths)
    )
    return Trajectory(name, Task("e", "t", "train"), 0, 0, (), branches, "done", {}, (), {}, reward, 0.0, 0.0)


def group(*members: Trajectory) -> Group:
    return Group(members[0].task, 0, members)


def test_grpo_averages_over_each_trajectory_and_dr_grpo_over_a_constant() -> None:
    pair = group(trajectory("a", 1.0, [4]), trajectory("b", 0.0, [8]))
    grpo = assign_advantages([pair], loss="grpo", scale_rewards=False, token_constant=100)
    assert {r.key: (r.advantage, r.weight) for r in grpo.rows} == {"a#0": (0.5, 1 / 8), "b#0": (-0.5, 1 / 16)}
    dr = assign_advantages([pair], loss="dr_grpo", scale_rewards=False, token_constant=100)
    assert {r.weight for r in dr.rows} == {1 / 200}


def test_dapo_and_cispo_average_over_all_tokens_and_rloo_sums_them() -> None:
    """Tokens of trajectories that are left out count too: they are part of the batch."""
    groups = [
        group(trajectory("a", 1.0, [4]), trajectory("b", 0.0, [8])),
        group(trajectory("c", 1.0, [3]), trajectory("d", 1.0, [5])),
    ]
    for loss, weight in (("dapo", 1 / 20), ("cispo", 1 / 20), ("rloo", 1 / 4)):
        batch = assign_advantages(groups, loss=loss, scale_rewards=False, token_constant=100)
        assert {r.key: r.weight for r in batch.rows} == {"a#0": weight, "b#0": weight}


def test_branching_and_interleaved_give_the_same_loss_weights() -> None:
    """Ten sampled tokens weigh the same whether they are one sequence or three."""
    other = trajectory("b", 0.0, [5])
    whole = group(trajectory("a", 1.0, [10]), other)
    split = group(trajectory("a", 1.0, [3, 3, 4]), other)
    for loss in TYPES:
        sums = []
        for members in (whole, split):
            batch = assign_advantages([members], loss=loss, scale_rewards=True, token_constant=64)
            sums.append(sum(r.advantage * r.weight * sum(r.train) for r in batch.rows if r.key.startswith("a")))
        assert sums[0] == pytest.approx(sums[1], rel=1e-12)


def test_a_trajectory_without_advantage_has_no_row_but_counts_in_the_mean() -> None:
    members = group(*(trajectory(n, r, [4]) for n, r in [("a", 1.0), ("b", 0.0), ("c", 0.5)]))
    batch = assign_advantages([members], loss="grpo", scale_rewards=True, token_constant=1)
    assert {r.key for r in batch.rows} == {"a#0", "b#0"} and batch.advantages["c"] == 0.0
    assert batch.rows[0].weight == 1 / 12
    kept = assign_advantages([members], loss="grpo", scale_rewards=True, token_constant=1, keep_zero=True)
    assert len(kept.rows) == 3


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order(rewards: list[float], scale: bool) -> None:
    advantages = group_advantages(rewards, scale)
    assert sum(advantages) == pytest.approx(0, abs=1e-6 * max(1, max(map(abs, rewards))) * len(rewards))
    order = sorted(range(len(rewards)), key=rewards.__getitem__)
    ranked = [advantages[i] for i in order]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(ranked))


def test_scaled_advantages_are_trls() -> None:
    """TRL divides by the unbiased standard deviation plus 1e-4."""
    rewards = [0.0, 1.0, 1.0, 0.25]
    tensor = torch.tensor(rewards, dtype=torch.float64)
    wanted = (tensor - tensor.mean()) / (tensor.std() + 1e-4)
    assert group_advantages(rewards, True) == pytest.approx(wanted.tolist(), abs=1e-12)


def test_rewards_scaled_by_the_batch_keep_the_groups_apart_in_size() -> None:
    """A group with small differences stays small; scaled by itself it would count as much as any other."""
    groups = [
        group(trajectory("a", 1.0, [4]), trajectory("b", 0.0, [4])),
        group(trajectory("c", 0.51, [4]), trajectory("d", 0.5, [4])),
    ]
    found = assign_advantages(groups, loss="grpo", scale_rewards=True, token_constant=1, scale_by="batch").advantages
    spread = statistics.stdev([1.0, 0.0, 0.51, 0.5]) + EPSILON
    assert found == pytest.approx({"a": 0.5 / spread, "b": -0.5 / spread, "c": 0.005 / spread, "d": -0.005 / spread})


# --- credit by turn ---------------------------------------------------------------------------------------------------

WEIGHTS = {"e": TurnWeights({"step": 1.0, "tool": 0.5}, {"tool": "mean"})}


def player(name: str, whole: float, steps: list[float], tokens: int = 3, interleaved: bool = True) -> Trajectory:
    """An episode that earned `steps` turn by turn, and `whole` at its end."""
    pieces = [[turn] * tokens for turn in range(len(steps))]
    turns = [list(itertools.chain(*pieces))] if interleaved else pieces
    branches = tuple(
        Branch((0,) * (len(t) + 2), (False, False, *(True,) * len(t)), (0.0,) * (len(t) + 2), (-1, -1, *t))
        for t in turns
    )
    earned = tuple({"step": s} for s in steps)
    return replace(trajectory(name, whole + sum(steps), []), branches=branches, turn_rewards=earned)


def credits(batch_rows: list[CreditedRow], name: str) -> list[float]:
    return [a for row in batch_rows if row.key.startswith(name) for a in token_advantages(row)]


def test_a_turns_return_is_what_follows_it_and_the_episodes_own_reward() -> None:
    t = replace(
        player("a", 2.0, [1.0, 0.0, 4.0]),
        turn_rewards=({"step": 1.0, "tool": 6.0}, {}, {"step": 4.0}),
        reward=2.0 + 5.0 + 0.5 * 6.0 / 3,
    )
    assert turn_returns(t, WEIGHTS["e"]) == pytest.approx([8.0, 6.0, 6.0, 2.0])


def test_a_turns_advantage_is_its_return_less_the_groups_from_that_turn_on() -> None:
    """One that has ended earns no more: in the third turn "b" counts with what its whole episode earned."""
    pair = group(player("a", 1.0, [0.0, 0.5, 0.25]), player("b", 0.0, [0.5]))
    batch = assign_advantages([pair], loss="grpo", scale_rewards=False, token_constant=1, turn_weights=WEIGHTS)
    returns = {"a": [1.75, 1.75, 1.25], "b": [0.5, 0.0, 0.0]}
    means = [(x + y) / 2 for x, y in zip(*returns.values(), strict=True)]
    wanted = [r - m for r, m in zip(returns["a"], means, strict=True)]
    assert credits(batch.rows, "a") == pytest.approx([w for w in wanted for _ in range(3)])
    assert credits(batch.rows, "b") == pytest.approx([0.5 - means[0]] * 3)
    assert batch.advantages["a"] == pytest.approx(statistics.fmean(wanted))
    assert {r.weight for r in batch.rows} == {1 / (2 * 9), 1 / (2 * 3)}
    out = assign_advantages([pair], loss="rloo", scale_rewards=False, token_constant=1, turn_weights=WEIGHTS)
    others = [x - y for x, y in zip(*returns.values(), strict=True)]
    assert credits(out.rows, "a") == pytest.approx([o for o in others for _ in range(3)])


def test_turns_can_differ_where_episodes_do_not() -> None:
    """Equal totals earned in different turns: no trajectory is better, but the late turn of one is."""
    pair = group(player("a", 0.0, [1.0, 0.0]), player("b", 0.0, [0.0, 1.0]))
    whole = assign_advantages([pair], loss="grpo", scale_rewards=True, token_constant=1)
    assert not whole.rows
    batch = assign_advantages([pair], loss="grpo", scale_rewards=True, token_constant=1, turn_weights=WEIGHTS)
    first, second = credits(batch.rows, "b")[0], credits(batch.rows, "b")[-1]
    assert first == 0 and 0.9 < second < 1.1  # by the spread of both turns together, not by that of a column of zeros


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.booleans(), st.sampled_from(["group", "batch"]))
def test_without_turn_rewards_credit_by_turn_is_credit_by_trajectory(
    rewards: list[float], scale: bool, by: str
) -> None:
    members = group(*(player(f"m{i}", r, [0.0] * (1 + i % 3)) for i, r in enumerate(rewards)))
    for loss in TYPES:
        found = [
            assign_advantages(
                [members], loss=loss, scale_rewards=scale, token_constant=9, keep_zero=True, scale_by=by, turn_weights=w
            )
            for w in (None, WEIGHTS)
        ]
        assert found[0].advantages == pytest.approx(found[1].advantages, abs=1e-6, rel=1e-6)
        for one, two in zip(found[0].rows, found[1].rows, strict=True):
            assert list(token_advantages(two)) == pytest.approx(list(token_advantages(one)), abs=1e-6, rel=1e-6)
            assert one.weight == two.weight


def test_turns_are_credited_the_same_interleaved_and_branching() -> None:
    found = []
    for interleaved in (True, False):
        pair = group(
            player("a", 1.0, [0.0, 0.5, 0.25], interleaved=interleaved),
            player("b", 0.0, [0.5, 0.0], interleaved=interleaved),
        )
        batch = assign_advantages([pair], loss="grpo", scale_rewards=True, token_constant=1, turn_weights=WEIGHTS)
        found.append([x for row in batch.rows for a in token_advantages(row) for x in (a, row.weight)])
    assert found[0] == pytest.approx(found[1])


# --- the price of length ----------------------------------------------------------------------------------------------


def spoke(replies: list[int], stop: str = "stop", ending: str = "done") -> Trajectory:
    turns = tuple(
        Turn((), Message(role="assistant", content=""), Sampled((0,) * n, (0.0,) * n, stop, 0), (), ())  # type: ignore[arg-type]
        for n in replies
    )
    return replace(trajectory("a", 1.0, [sum(replies)]), turns=turns, ending=ending)


@pytest.mark.parametrize(("tokens", "reward"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (120, -1)])
def test_the_penalty_for_length_is_dapos(tokens: int, reward: float) -> None:
    """-((L_max - L_cache) - |y|) / L_cache between L_max - L_cache and L_max; here 100 and 20."""
    assert Overlong("reply", 100, 0.2, 1.0).reward(spoke([3, tokens, 1])) == pytest.approx(reward)
    assert Overlong("reply", 100, 0.2, 0.5).reward(spoke([tokens])) == pytest.approx(reward / 2)
    # the branch has two tokens more, of the prompt
    assert Overlong("episode", 102, 20 / 102, 1.0).reward(spoke([tokens])) == pytest.approx(reward)


def test_what_was_cut_off_counts_as_the_limit() -> None:
    assert Overlong("reply", 100, 0.2, 1.0).reward(spoke([40], stop="length")) == -1
    assert Overlong("episode", 100, 0.2, 1.0).reward(spoke([40], ending="context_full")) == -1
    assert Overlong("episode", 100, 0.2, 1.0).reward(spoke([40], ending="max_turns")) == 0


def test_shaped_groups_have_the_penalty_as_a_component_of_the_reward() -> None:
    pair = group(spoke([90]), replace(spoke([10]), id="b", reward=0.0))
    (shaped,) = shape_overlong([pair], Overlong("reply", 100, 0.2, 1.0))
    assert [t.rewards for t in shaped.trajectories] == [{"overlong": pytest.approx(-0.5)}, {"overlong": 0.0}]
    assert shaped.rewards == pytest.approx([0.5, 0.0]) and pair.rewards == [1.0, 0.0]
    with pytest.raises(AirError, match="component 'overlong' of its own"):
        shape_overlong([shaped], Overlong("reply", 100, 0.2, 1.0))


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_that_is_wrong_or_right_throughout_is_not_trained_on_length_alone(reward: float) -> None:
    """A model of 0.5B that was wrong in most groups so unlearned to think, in three steps (docs/recipes.md)."""
    alike = group(replace(spoke([100]), reward=reward), replace(spoke([3]), id="b", reward=reward))
    (shaped,) = shape_overlong([alike], Overlong("reply", 100, 0.2, 1.0))
    assert shaped.rewards == [reward, reward] and not shaped.has_signal
    assert [t.rewards for t in shaped.trajectories] == [{"overlong": 0.0}] * 2
