"""Whole trajectories that are left out of the loss: decided over all their rows, in any micro-batches and ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_losses_learner import branched_rows, make_policy
from test_parallel import on_ranks

from airloop.learn.advantages import Batch, trajectory_of
from airloop.learn.base_shards import shard
from airloop.learn.batches import Row
from airloop.learn.learner import Learner, LearnerSettings
from airloop.learn.losses import LossSettings
from airloop.learn.losses.sequence_mask import MaskedBy, SequenceMask, sequence_mask
from airloop.ranks import Ranks

# Of each trajectory, by how many nats its rows' tokens are less probable by the sampler than by the trainer; of the
# second each row's sum. The second's mean is 0 over its rows, the third's is not; of the fourth one token is far off.
SHIFTS = {"t0": (0.0, 0.0, 0.0), "t1": (3.0, 0.0, -3.0), "t2": (0.5, 0.1, 0.5), "t3": (0.0, 0.0, 0.0)}
FAR = 2.5
GEO = LossSettings(geo_mask_low=0.8, geo_mask_high=1.25)
ANY = LossSettings(sequence_mask_low=0.15, sequence_mask_high=6.0)
LEFT_OUT = {GEO: {"t2"}, ANY: {"t3"}}


def moved_rows() -> list[Row]:
    """As of a policy that has moved since they were sampled."""
    rows = []
    for row in branched_rows(make_policy()):
        key, branch = trajectory_of(row), int(row.key[-1])
        trained = [i for i, train in enumerate(row.train) if train]
        shift = SHIFTS[key][branch]
        if key == "t1":
            shift /= len(trained)
        logprobs = [lp - shift if train else 0.0 for lp, train in zip(row.logprobs, row.train, strict=True)]
        if row.key == "t3#1":
            logprobs[trained[0]] -= FAR
            logprobs[trained[1]] += FAR
        rows.append(replace(row, logprobs=tuple(logprobs)))
    return rows


def update(rows: list[Row], given: LossSettings, loss: str = "grpo", budget: int = 10_000, passes: int = 1) -> Any:
    learner = Learner(
        make_policy(),
        LearnerSettings(lr=1e-4, max_norm=1e9, loss=loss, passes=passes, token_budget=budget, loss_settings=given),
    )
    return learner.update(Batch(tuple(rows), {}, 4)).metrics


@pytest.mark.parametrize("budget", [40, 10_000])
@pytest.mark.parametrize("given", LEFT_OUT, ids=["geo", "any token"])
def test_a_trajectory_is_left_out_with_all_its_rows_wherever_they_are_packed(given: LossSettings, budget: int) -> None:
    """An update without it is one in which it has no advantage; it counts in the mean all the same."""
    rows = moved_rows()
    found = update(rows, given, budget=budget, passes=2)
    without = [replace(r, advantage=0.0) if trajectory_of(r) in LEFT_OUT[given] else r for r in rows]
    wanted = update(without, LossSettings(), passes=2)
    assert [found[k] for k in ("loss", "grad_norm")] == pytest.approx(
        [wanted[k] for k in ("loss", "grad_norm")], rel=1e-4
    )
    assert found["grad_norm"] != pytest.approx(update(rows, LossSettings(), passes=2)["grad_norm"], rel=1e-2)
    tokens = {r.key: sum(r.train) for r in rows}
    share = sum(n for k, n in tokens.items() if k[:2] in LEFT_OUT[given]) / sum(tokens.values())
    by = "cut_geo" if given is GEO else "cut_sequence"
    assert found[by] == pytest.approx(share)
    assert found[{"cut_geo": "cut_sequence", "cut_sequence": "cut_geo"}[by]] == 0.0
    assert "cut_geo" not in wanted and found["cut"] >= share


def test_rows_that_are_only_looked_at_are_counted_too() -> None:
    rows = moved_rows()
    silent = tuple(replace(row, advantage=0.0, weight=0.0) for row in rows if trajectory_of(row) == "t2")
    learner = Learner(make_policy(), LearnerSettings(loss_settings=GEO, token_budget=40))
    batch = Batch(tuple(row for row in rows if trajectory_of(row) != "t2"), {}, 4, silent)
    assert 0 < learner.update(batch).metrics["cut_geo"] < 1


def shared_update(ranks: Ranks, rows: list[Row], budget: int, sharded: bool) -> dict[str, float]:
    policy = make_policy()
    shards = shard(policy, ranks) if sharded else None
    settings = LearnerSettings(lr=1e-4, max_norm=1e9, token_budget=budget, loss_settings=GEO)
    return Learner(policy, settings, ranks, shards).update(Batch(tuple(rows), {}, 4)).metrics


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_leave_out_the_same_trajectories_as_one(tmp_path: Path, sharded: bool) -> None:
    """Over shards they take as many forward passes, also where only one of them has a trajectory in several parts."""
    rows = moved_rows()
    rows = [r for r in rows if r.key[:2] != "t0" or r.key == "t0#0"] if sharded else rows
    wanted = update(rows, GEO)
    for found in on_ranks(2, tmp_path, shared_update, rows, 40, sharded):
        assert found["cut_geo"] == pytest.approx(wanted["cut_geo"]) and found["cut_geo"] > 0
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)


def test_the_bounds() -> None:
    assert sequence_mask({}) is None and sequence_mask(vars(LossSettings())) is None
    assert sequence_mask({"geo_mask_low": 0.0, "sequence_mask_low": 0.0, "geo_mask_high": None}) is None
    mask = sequence_mask({"geo_mask_low": 0.5, "sequence_mask_high": 4.0})
    assert mask == SequenceMask((0.5, math.inf), (0.0, 4.0))
    assert mask.cut([math.log(0.49)]) == MaskedBy(True, False) and mask.cut([]) == MaskedBy()
    assert mask.cut([math.log(0.3), math.log(0.9)]) == MaskedBy() and mask.cut([-9.0, math.log(4.1)]) == MaskedBy(
        True, True
    )
    assert mask.cut([0.0, math.log(3.9)]) == MaskedBy() and mask.cut([math.nan, 0.0]) == MaskedBy()
    assert mask.cut([math.inf, -math.inf]) == MaskedBy(False, True)
