"""G12 and G13: a step is sampled, updated, accepted. One whose update must not count has a way out, and so has one that
nothing can be learned from."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from support.talk_env import Talk, talking
from support.watched_runs import run_watched

from airloop.assemble import Components
from airloop.errors import AirError
from airloop.files import read_lines, write_json
from airloop.learn.advantages import Batch, TurnWeights, assign_advantages, token_advantages
from airloop.runs.run import Run, read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.seeds import episode_seed
from airloop.step import MOST_REFUSALS
from airloop.types import Branch, Group, Task, Trajectory
from airloop.watch.alarms.monitor import Halted
from airloop.watch.display.summary import summary

FRESH = {
    "warmstart.steps": "0",
    "orchestrator.batch_size": "8",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "3",
    "orchestrator.eval.num_examples": "1",
    "orchestrator.retries": "0",
    "trainer.loss.scale_rewards": "false",
    "trainer.optim.lr": "1e-3",
    "ckpt.interval": "1",
    "ckpt.keep_last": "9",
    "max_steps": "3",
}
TOO_MUCH = 1e39  # finite for Python, not for a float of 32 bits: the gradient that it leads to is not


def seeds_of(step: int, refusals: int) -> set[int]:
    return {episode_seed(0, step, "arith", f"t{i}", s, refusals) for i in range(8) for s in range(4)}


def poisoned(*attempts: tuple[int, int]) -> Callable[[Components], Any]:
    """An environment that pays far too much in these attempts at these steps."""
    bad = set[int]().union(*(seeds_of(step, refusals) for step, refusals in attempts))

    def score(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
        return {"won": float(seed % 2) * (TOO_MUCH if seed in bad else 1.0)}, {}

    return talking(Talk(score))


def steps_of(run: Run) -> list[int]:
    return [m["step"] for m in run.metrics("train")]


def test_G12_a_step_whose_gradient_is_not_finite_is_set_aside_and_sampled_anew(tmp_path: Path) -> None:
    states: list[tuple[int, list[torch.Tensor], Any]] = []

    def tamper(parts: Components) -> None:
        poisoned((1, 0))(parts)
        update = parts.learner.update

        def seen(*given: Any) -> Any:
            weights = [w.detach().clone() for w in parts.learner.optimiser.weights]
            adam = [{k: v.clone() for k, v in entry.items()} for entry in parts.learner.optimiser.adam.state.values()]
            states.append((parts.policy.version, weights, adam))
            return update(*given)

        parts.learner.update = seen  # type: ignore[method-assign]

    run, witness, error = run_watched(tmp_path, tamper, **FRESH)
    assert error is None and steps_of(run) == [0, 1, 2]
    (alarm,) = witness.of("step_refused")
    assert (alarm.id, alarm.severity, alarm.step) == ("G12", "note", 1) and "gradient's norm is" in alarm.seen
    assert f"step 2 is set aside in {run.path / 'trajectories' / 'refused_0001_1'}" in alarm.fix
    # Neither weights nor the optimiser's state nor the version had moved when it was tried again.
    assert [version for version, _, _ in states] == [0, 1, 1, 2]
    (_, weights, adam), (_, again, adam_again) = states[1], states[2]
    assert all(map(torch.equal, weights, again)) and len(adam) == len(adam_again) > 0
    assert all(torch.equal(a[k], b[k]) for a, b in zip(adam, adam_again, strict=True) for k in a)
    # Kept for who wants to look, counted nowhere.
    aside = read_trajectories(run.path / "trajectories" / "refused_0001_1")
    anew = run.finished(1).values()
    assert len(aside) == len(anew) == 8 and {t.task.id for t in aside} == {t.task.id for t in anew}
    assert {t.seed for t in aside} <= seeds_of(1, 0) and {t.seed for t in anew} <= seeds_of(1, 1)
    assert max(m["reward"] for m in run.metrics("train")) <= 1
    (line,) = read_lines(run.path / "refused.jsonl")
    assert (line["step"], line["attempt"]) == (1, 1) and "gradient's norm" in line["why"]
    assert "refused and sampled anew: step 2 (" in summary(run, [], [])


def test_G12_a_step_that_fails_again_and_again_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    run, witness, error = run_watched(tmp_path, poisoned((1, 0), (1, 1), (1, 2), (1, 3)), **FRESH)
    assert isinstance(error, AirError) and steps_of(run) == [0] and MOST_REFUSALS == 3
    assert "step 2 could not be made for 3 times in a row, each time with other episodes" in error.problem
    assert "lower trainer.optim.lr" in error.fix and str(run.path / "config.toml") in error.fix
    assert len(witness.of("step_refused")) == 2 and run.refusals(1) == 3
    # Going on without a change tries once more, and then ends: no endless loop.
    _, witness, error = run_watched(tmp_path, poisoned((1, 3)), resume=run.path)
    assert isinstance(error, AirError) and "for 4 times in a row" in error.problem and run.refusals(1) == 4
    _, _, error = run_watched(tmp_path, poisoned(), resume=run.path)
    assert error is None and steps_of(run) == [0, 1, 2]


def test_G12_after_a_stop_the_step_is_sampled_anew_and_the_run_goes_on(tmp_path: Path) -> None:
    """As it was: the same episodes, the same update, the same alarm, for ever."""

    def tamper(parts: Components) -> None:
        poisoned()(parts)
        publish = parts.engine.publish

        async def forgets_the_second(version: int) -> None:
            if version != 2:
                await publish(version)

        parts.engine.publish = forgets_the_second  # type: ignore[method-assign]

    run, witness, error = run_watched(tmp_path, tamper, **FRESH)
    assert isinstance(error, Halted) and error.alarm.id == "F2" and steps_of(run) == [0]
    assert "refused_0001_1 and is sampled anew, with other seeds" in error.fix and "in a row" not in error.fix
    _, _, error = run_watched(tmp_path, tamper, resume=run.path)
    assert isinstance(error, Halted) and "refused 2 times in a row" in error.fix
    _, witness, error = run_watched(tmp_path, poisoned(), resume=run.path)
    assert error is None and steps_of(run) == [0, 1, 2] and not witness.of("engine_serves_another_policy")
    assert {t.seed for t in run.finished(1).values()} <= seeds_of(1, 2)
    # What training made of it is there too, under a name that no curve reads; and the alarm is over with its step.
    made = read_lines(run.path / "tokens" / "refused_0001_1.jsonl")
    assert len(made) == 8 and {line["fate"] for line in made} == {"refused"} and any(line["logprobs"] for line in made)
    events = [(line["event"], line["step"]) for line in run.alarms() if line["id"] == "F2"]
    assert events == [("raised", 1), ("cleared", 1)] * 2


def test_G12_what_an_earlier_version_left_of_a_poisoned_step_has_a_way_out_too(tmp_path: Path) -> None:
    """It called a step recorded before it looked at it; such a step is repeated, refused, and sampled anew."""
    run, _, error = run_watched(tmp_path, poisoned(), **FRESH, **{"orchestrator.eval.interval": "1"})
    assert error is None
    for path in run.path.glob("trajectories/step_0001/*.json"):
        (one,) = [t for t in read_trajectories(path.parent) if t.id == path.stem]
        write_json(path, to_json(replace(one, reward=one.reward * TOO_MUCH)))
    for step in (2, 3):
        shutil.rmtree(run.path / "checkpoints" / f"step_{step}")
    assert run.recorded(1)
    _, witness, error = run_watched(tmp_path, poisoned(), resume=run.path)
    assert error is None and steps_of(run) == [0, 1, 2] and run.refusals(1) == 1
    assert len(witness.of("step_refused")) == 1
    # What had been sampled after it came from a policy that is no more.
    assert len([*run.path.glob("trajectories/aside_0002_0/*.json")]) == len(run.finished(2)) == 8
    aside = {f"aside_{name}_0" for name in ("step_0002", "step_0003", "after")}
    assert {path.name for path in run.path.glob("evaluations/aside_*")} == aside


def test_G12_a_later_pass_that_fails_ends_the_run_as_the_weights_have_moved(tmp_path: Path) -> None:
    def tamper(parts: Components) -> None:
        """The first pass leads to where the second has no gradient: weights that are no numbers any more."""
        poisoned()(parts)
        step = parts.learner.optimiser.step

        def wild(lr: float) -> dict[str, float]:
            found = step(lr)
            if parts.policy.version == 1:
                with torch.no_grad():
                    parts.learner.optimiser.weights[0].fill_(float("nan"))
            return found

        parts.learner.optimiser.step = wild  # type: ignore[method-assign]

    run, witness, error = run_watched(tmp_path, tamper, **{**FRESH, "trainer.loss.passes": "2"})
    assert isinstance(error, AirError) and "a later pass over the batch of step 2" in error.problem
    assert not witness.of("step_refused") and run.refusals(1) == 1 and steps_of(run) == [0]
    _, _, error = run_watched(tmp_path, poisoned(), resume=run.path)
    assert error is None and steps_of(run) == [0, 1, 2]


# --- G13 --------------------------------------------------------------------------------------------------------------


LOSSES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
few = st.sampled_from([0.0, 0.1, 1.0])


def episode(name: str, reward: float, turns: list[float], tokens: int) -> Trajectory:
    """One branch with a reply to each turn, or none at all."""
    count = len(turns) * tokens
    places = tuple(turn for turn in range(len(turns)) for _ in range(tokens))
    branch = Branch((0,) * (count + 1), (False, *(True,) * count), (0.0,) * (count + 1), (-1, *places))
    task = Task("e", "t", "train")
    earned = tuple({"said": value} for value in turns)
    whole = reward + sum(turns)
    return Trajectory(name, task, 0, 0, (), (branch,) if count else (), "done", {}, earned, {}, whole, 0.0, 0.0)


@st.composite
def batches(draw: st.DrawFn) -> list[Group]:
    """From no group at all to several, some of one member, some that all scored alike, some without a token."""
    found = []
    for g in range(draw(st.integers(0, 3))):
        alike = draw(st.booleans())
        first = draw(few)
        members = [
            episode(
                f"{g}-{i}",
                first if alike else draw(few),
                [0.0] * 2 if alike else draw(st.lists(few, min_size=0, max_size=3)),
                draw(st.integers(0, 2)),
            )
            for i in range(draw(st.integers(1, 4)))
        ]
        found.append(Group(members[0].task, 0, tuple(members)))
    return found


CREDIT: tuple[Any, ...] = (None, {"e": TurnWeights({"said": 1.0}, {})})  # of a trajectory, of a turn
KINDS = [*itertools.product(LOSSES, ("group", "batch"), CREDIT)]


@given(groups=batches(), scale=st.booleans(), keep=st.booleans())
def test_G13_whatever_is_left_of_a_step_has_advantages(groups: list[Group], scale: bool, keep: bool) -> None:
    """Every loss (rloo leaves one out), scale and credit: a number for each trajectory, and 0 where all are alike."""
    for loss, scale_by, credit in KINDS:  # of the same groups: to make them up takes longer than all of these
        note(f"{loss}, scaled by {scale_by}, credit {credit}")
        batch = assign_advantages(
            groups,
            loss=loss,
            scale_rewards=scale,
            token_constant=8,
            keep_zero=keep,
            scale_by=scale_by,
            turn_weights=credit,
        )
        check_advantages(batch, groups)
        if not any(g.has_signal for g in groups) and credit is None and not keep:
            assert batch.rows == ()


def check_advantages(batch: Batch, groups: list[Group]) -> None:
    everyone = [t for g in groups for t in g.trajectories]
    assert set(batch.advantages) == {t.id for t in everyone} and batch.trajectories == len(everyone)
    assert all(math.isfinite(a) for a in batch.advantages.values())
    assert all(math.isfinite(row.weight) and all(map(math.isfinite, token_advantages(row))) for row in batch.rows)
    for group in groups:
        if (
            len(group.trajectories) == 1
            or len({(t.reward, t.turn_rewards) for t in map(plain, group.trajectories)}) == 1
        ):
            assert all(batch.advantages[t.id] == 0 for t in group.trajectories)


def plain(trajectory: Trajectory) -> Any:
    return replace(trajectory, turn_rewards=tuple(tuple(sorted(turn.items())) for turn in trajectory.turn_rewards))


@pytest.mark.parametrize("lost", [False, True], ids=["all filtered", "all lost"])
@pytest.mark.parametrize("credit", ["trajectory", "turn"])
def test_G13_a_step_that_has_no_group_left_is_recorded_and_the_run_goes_on(
    tmp_path: Path, lost: bool, credit: str
) -> None:
    second = seeds_of(1, 0)
    talk = Talk(
        lambda number, seed: ({"won": 1.0 if seed in second else float(seed % 2)}, {}),
        fails=lambda seed: lost and seed in second,
    )
    changes = {
        **FRESH,
        "trainer.loss.scale_rewards": "true",
        "trainer.loss.scale_by": "batch",
        "trainer.loss.credit": credit,
        "orchestrator.buffer.online_difficulty_filtering": "true",
        "max_steps": "4",
    }
    run, witness, error = run_watched(tmp_path, talking(talk), **changes)
    assert error is None and steps_of(run) == [0, 1, 2, 3]
    line = run.metrics("train")[1]
    assert line["learner"]["loss"] == 0 and line["learner"]["grad_norm"] == 0 and line["learner"]["tokens_trained"] == 0
    assert line["rollout"]["groups"] == 0 and line["ledger"]["groups"] == {
        "sampled": 0 if lost else 2,
        "silent": 0 if lost else 2,
    }
    said = [text for text in witness.said if "no group was left to train on" in text]
    assert len(said) == 1 and ("infrastructure" in said[0]) == lost and ("scored the same" in said[0]) != lost
    # Killed after it, it is repeated as it was.
    for step in (2, 3, 4):
        shutil.rmtree(run.path / "checkpoints" / f"step_{step}")
    before = [(m["step"], m["rewards"]) for m in run.metrics("train")]
    _, _, error = run_watched(tmp_path, talking(talk), resume=run.path)
    assert error is None and [(m["step"], m["rewards"]) for m in run.metrics("train")] == before


BESIDE = {"orchestrator.max_staleness": "2", "trainer.loss.importance_mode": "mask"}


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_G12_beside_training_the_next_groups_take_the_place_of_a_refused_step(
    tmp_path: Path, deterministic: str
) -> None:
    settings = {**FRESH, **BESIDE, "deterministic": deterministic}
    run, witness, error = run_watched(tmp_path, poisoned((1, 0)), **settings)
    assert error is None and steps_of(run) == [0, 1, 2] and len(witness.of("step_refused")) == 1
    lines = [line for line in read_lines(run.path / "stream.jsonl") if "admitted" not in line]
    assert [line.get("trained") or line["refused"] for line in lines] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [line["step"] for line in lines] == [0, 1, 1, 2] and "refused" in lines[1]
    assert len(read_trajectories(run.path / "trajectories" / "refused_0001_1")) == 8
    assert {place[0] for place in run.finished(1)} == {4, 5} and {place[0] for place in run.finished(2)} == {6, 7}
    assert max(m["reward"] for m in run.metrics("train")) <= 1


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_what_a_refused_policy_has_sampled_beside_is_not_trained(tmp_path: Path, deterministic: str) -> None:
    """An alarm stops the run after the update of step 3; resumed, nothing of that policy is left."""

    def mislabelled(parts: Components) -> None:
        poisoned()(parts)
        publish = parts.engine.publish

        async def late(version: int) -> None:
            await publish(version)
            if version == 3:
                parts.engine._scheduler.version = 1  # type: ignore[attr-defined]

        parts.engine.publish = late  # type: ignore[method-assign]

    settings = {**FRESH, **BESIDE, "deterministic": deterministic, "max_steps": "6"}
    run, _, error = run_watched(tmp_path, mislabelled, **settings)
    assert isinstance(error, Halted) and error.alarm.name == "engine_serves_another_policy"
    (refused,) = [line for line in read_lines(run.path / "stream.jsonl") if "refused" in line]
    assert refused["step"] == 2
    run, _, error = run_watched(tmp_path, poisoned(), resume=run.path)
    assert error is None and steps_of(run) == [*range(6)]
    trained = [n for line in read_lines(run.path / "stream.jsonl") for n in line.get("trained", [])]
    assert sorted(trained) == [n for n in range(14) if n not in refused["refused"]]
    for step in range(6):
        for t in run.finished(step).values():
            assert all(step - 2 <= turn.sampled.version <= step for turn in t.turns if turn.sampled is not None)
