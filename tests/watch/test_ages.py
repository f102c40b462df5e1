"""Tokens by age: a fault of the engine and a policy that moves are told apart."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from support.watched_runs import freeze_engine, run_watched

from airloop.config import load_config
from airloop.learn.losses.sequence_mask import sequence_mask
from airloop.learn.report import Report
from airloop.rollout.collected import Collected, Dropped
from airloop.types import Branch, Group, Message, Sampled, Task, Trajectory, Turn
from airloop.watch.alarms.learner_rules import engine_serves_another_policy, logprob_gap_grows, policy_drifts
from airloop.watch.metrics.ages import age_facts, by_age
from airloop.watch.metrics.names import describe

BESIDE = {
    "orchestrator.max_staleness": "1",
    "trainer.loss.importance_mode": "mask",
    "orchestrator.eval.num_examples": "1",
}


def trajectory(versions: list[int], logprobs: list[float]) -> Trajectory:
    """A turn of one token for each version, in one branch, each after a token that was shown."""
    said = Message(role="assistant", content="x")
    turns = tuple(
        Turn((), said, Sampled((5,), (lp,), "stop", v), (), ()) for v, lp in zip(versions, logprobs, strict=True)
    )
    places = range(len(versions))
    branch = Branch(
        tuple(t for i in places for t in (9, 5)),
        tuple(t for i in places for t in (False, True)),
        tuple(t for i in places for t in (0.0, logprobs[i])),
        tuple(t for i in places for t in (-1, i)),
    )
    return Trajectory("a", Task("x", "1", "train"), 0, versions[0], turns, (branch,), "done", {}, (), {}, 1.0, 0.0, 0.0)


def test_each_token_has_the_age_of_the_policy_that_sampled_it() -> None:
    group = Group(Task("x", "1", "train"), 3, (trajectory([3, 3, 5], [-1.0, -2.0, -1.0]),))
    found = by_age([group], {"a#0": [-1.0 + math.log(4), -2.0, -1.0]}, 5, (0.5, 2.0))
    assert found["0"] == {"tokens": 1, "gap": 0.0, "cut": 0.0, "ess": 1.0}
    assert found["2"] == pytest.approx({"tokens": 2, "gap": math.log(4) / 2, "cut": 0.5, "ess": 25 / 34})
    assert all(describe(f"train/ages/{age}/{name}") for age, one in found.items() for name in one)


def test_a_mask_of_sequences_cuts_tokens_of_all_ages() -> None:
    group = Group(Task("x", "1", "train"), 3, (trajectory([3, 3, 5], [-1.0, -2.0, -1.0]),))
    now = {"a#0": [-1.0 + math.log(4), -2.0, -1.0]}
    for mask, cut in (({"geo_mask_high": 1.5}, 1.0), ({"sequence_mask_high": 3.0}, 1.0), ({"geo_mask_high": 1.7}, 0.0)):
        found = by_age([group], now, 5, (0.0, math.inf), sequence_mask(mask))
        assert [one["cut"] for one in found.values()] == [cut, cut]


def test_H7_episodes_of_several_versions_are_counted() -> None:
    groups = [Group(Task("x", "1", "train"), 3, (trajectory([3, 5], [-1.0] * 2), trajectory([3, 3], [-1.0] * 2)))]
    lost = Dropped(Group(Task("x", "1", "train"), 4, (trajectory([4, 5], [-1.0] * 2),)), "no_signal")
    config = load_config(["--orchestrator.max_staleness", "2", "--trainer.loss.geo_mask_high", "2"])
    served: Any = SimpleNamespace(version=6)
    parts: Any = SimpleNamespace(config=config, policy=served, engine=served)
    collected = Collected(tuple(groups), (lost,), {})
    assert age_facts(parts, collected, Report({}), 5)["versions"]["mixed"] == 2


def step(ages: dict[str, Any], **more: Any) -> dict[str, Any]:
    figures = {"tokens": 100, "gap": 0.0, "cut": 0.0, "ess": 1.0}
    versions = {"wanted": 3, "wanted_to": 7, "sampled_from": 3, "sampled_to": 7, "policy": 8, "served": 8}
    filled = {age: {**figures, **found} for age, found in ages.items()}
    return {"step": 7, "learner": {"logprob_gap_mean": 0.5}, "versions": versions, "ages": filled, **more}


def test_a_gap_that_grows_with_age_is_drift_and_one_at_age_0_a_fault() -> None:
    drift = step({"0": {"gap": 0.001}, "4": {"gap": 0.6, "cut": 0.3, "ess": 0.4}})
    assert engine_serves_another_policy(drift, []) is None and logprob_gap_grows(drift, [drift] * 9) is None
    sign = policy_drifts(drift, [])
    assert sign and "this is drift, not a fault" in sign.why and "4 updates old differ by 0.6" in sign.seen
    assert "max_staleness" in sign.fix and "age 0: gap 0.001" in sign.seen
    fault = step({"0": {"gap": 0.5}, "4": {"gap": 0.6, "cut": 0.3, "ess": 0.4}})
    found = engine_serves_another_policy(fault, [])
    assert found and "differ by 0.5 per token" in found.seen and policy_drifts(fault, []) is None


def test_where_no_token_is_new_the_probe_decides() -> None:
    healthy = {"engine": 0.001, "trainer": 0.001, "plain": 0.001, "most": 0.01}
    assert engine_serves_another_policy(step({"4": {"gap": 0.6}}, rounding=healthy), []) is None
    assert engine_serves_another_policy(step({"4": {"gap": 0.6}}, rounding={**healthy, "engine": 0.7}), [])


def test_a_token_that_is_older_than_the_bound_is_told_of() -> None:
    late = step({"0": {}})
    late["versions"]["sampled_from"] = 2
    sign = engine_serves_another_policy(late, [])
    assert sign and "sampled from version 2 to 7, not 3 to 7" in sign.seen


@pytest.mark.long
def test_an_update_that_does_not_reach_the_engine_stops_a_run_beside_it(tmp_path: Any) -> None:
    """The engine goes on with the first weights under new versions: the gap is there at age 0."""

    _, witness, error = run_watched(tmp_path, freeze_engine, max_steps="6", **{**BESIDE, "trainer.optim.lr": "1e-2"})
    (alarm,) = witness.of("engine_serves_another_policy")
    assert error is not None and alarm.severity == "stop" and "per token on average" in alarm.seen
    assert not witness.of("policy_drifts")
