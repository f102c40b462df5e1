"""Reward without success: tiny models that learn, in a few steps, what the reward pays for instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.watched_runs import Witness, run_watched

from airloop.assemble import Components
from airloop.envs.arith import ArithArgs, ArithEnv, ArithSession
from airloop.runs.run import Run
from airloop.types import Action, Alarm, Observation, Score, Task
from airloop.watch.alarms.script_similarity import FILE
from airloop.watch.display.summary import summary

ARGS = ArithArgs(max_number=4, split_by="none")
STEPS = {"max_steps": "24", "orchestrator.eval.num_examples": "25"}
ABLE = {  # right most of the time after its supervised start
    "orchestrator.env.0.args": '{ max_number = 4, split_by = "none", demo_accuracy = 0.8 }',
    "orchestrator.batch_size": "64",
    "trainer.optim.lr": "1e-3",
}


class Listening(ArithSession):
    said = ""

    async def act(self, action: Action) -> Observation:
        self.said = action.text.strip()
        return await super().act(action)


class Shaped(Listening):
    """A bonus for small answers beside the right one: most sums are not small."""

    async def finish(self) -> Score:
        neat = float(self.said in ("0", "1", "2"))
        return Score({"correct": self.correct, "neat": neat}, {"correct": self.correct, "neat": neat})


class ShapedEnv(ArithEnv):
    reward_weights = {"correct": 1.0, "neat": 3.0}  # noqa: RUF012 - as environments have it

    def open(self, task: Task, seed: int) -> Shaped:
        return Shaped(task)


class Afraid(Listening):
    """Attempts cost, and none succeeds; to say nothing that is an answer costs nothing."""

    async def finish(self) -> Score:
        tried = float(bool(re.match(r"[1-9]", self.said)))
        return Score({"tried": -tried}, {"won": 0.0, "tried": tried})


class AfraidEnv(ArithEnv):
    success: ClassVar[str | None] = "won"
    reward_weights = {"tried": 1.0}  # noqa: RUF012 - as environments have it

    def open(self, task: Task, seed: int) -> Afraid:
        return Afraid(task)


def instead(env: ArithEnv) -> Callable[[Components], Any]:
    def tamper(parts: Components) -> None:
        parts.envs["arith"] = env

    return tamper


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Witness, Any]:
    return run_watched(tmp_path_factory.mktemp("shaped"), instead(ShapedEnv(ARGS)), **STEPS, **ABLE)


def the(witness: Witness, name: str) -> Alarm:
    found = witness.of(name)
    assert len(found) == 1, [alarm.name for alarm in witness.alarms]
    return found[0]


@pytest.mark.long
def test_E10_success_that_falls_while_the_reward_does_not_is_an_alarm_that_names_who_pays(
    shaped: tuple[Run, Witness, Any],
) -> None:
    run, witness, error = shaped
    alarm = the(witness, "success_falls_reward_does_not")
    assert error is None and (alarm.id, alarm.severity) == ("E10", "note")
    assert (
        re.search(r"correct fell from \d\d% \(steps 1 to \d+\) to \d+%", alarm.seen)
        and "the reward did not" in alarm.seen
    )
    assert "Another component pays for it: neat (" in alarm.why
    assert "in [[orchestrator.env]] rewards = { correct = 1.0 }; go on from a checkpoint" in alarm.fix
    steps = run.metrics("train")
    assert steps[0]["success_name"] == "correct" and steps[-1]["success"] < steps[0]["success"]
    assert steps[-1]["reward"] > steps[0]["reward"]


@pytest.mark.long
@pytest.mark.slow
def test_E10_the_end_of_the_run_says_it_too(shaped: tuple[Run, Witness, Any]) -> None:
    run = shaped[0]
    text = summary(run, run.evaluation("before"), run.evaluation("after"))
    lines = text.splitlines()
    held_out = [line for line in lines if line.startswith(("  correct", "  reward"))]
    assert [line.split()[0] for line in held_out] == ["correct", "reward"]
    said = next(line for line in lines if line.startswith("  !"))
    assert re.search(r"! the reward (rose|shows no difference), but correct fell \d+% → \d+%: neat pays for it", said)
    assert "    pay for correct: in [[orchestrator.env]] rewards = { correct = 1.0 }" in lines


@pytest.mark.long
def test_E11_a_policy_that_has_learned_to_do_nothing_is_compared_with_the_script_that_does(tmp_path: Path) -> None:
    run, witness, error = run_watched(tmp_path, instead(AfraidEnv(ARGS)), **STEPS)
    alarm = the(witness, "as_good_as_doing_nothing")
    assert error is None and (alarm.id, alarm.severity) == ("E11", "note")
    assert re.search(r"\d+ of 32 episodes end with the score of noop", alarm.seen), alarm.seen
    assert "won is 0%" in alarm.seen and "the reward went from -" in alarm.seen and "[warmstart]" in alarm.fix
    assert (run.path / FILE).is_file()
    likes = [line["like"]["noop"] for line in run.metrics("train") if "like" in line]
    assert likes and likes[-1]["last"] > 0.8 > likes[-1]["first"]
