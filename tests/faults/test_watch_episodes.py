"""Alarms about episodes, rewards and time: each failure is provoked in a real run of a tiny model, and the healthy run
says nothing. (Silence on longer, recorded runs: tests/watch/test_alarms.py.)"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.talk_env import Talk, talking
from support.watched_runs import Witness, run_watched

from airloop.assemble import Components
from airloop.runs.run import Run
from airloop.step import best_step
from airloop.types import Alarm
from airloop.watch.alarms.episode_rules import programs_crash, replies_run_to_the_limit
from airloop.watch.alarms.monitor import Halted, rules

FRESH = {  # random weights, four groups of four, nothing learned
    "warmstart.steps": "0",
    "orchestrator.batch_size": "16",
    "orchestrator.rollouts_per_example": "4",
    "orchestrator.sampling.max_tokens": "4",
    "orchestrator.retries": "0",
    "trainer.optim.lr": "1e-4",
}

CRASHING = """
def solve(task, client):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["word"]}])
    return 1 / 0
"""


def coin(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    return {"won": float(seed % 2)}, {}


def the(witness: Witness, name: str) -> Alarm:
    found = witness.of(name)
    assert len(found) == 1, [alarm.name for alarm in witness.alarms]
    return found[0]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Witness, Any]:
    return run_watched(tmp_path_factory.mktemp("healthy"), max_steps="6")


@pytest.mark.long
def test_a_healthy_run_raises_nothing(healthy: tuple[Run, Witness, Any]) -> None:
    run, witness, error = healthy
    assert error is None and witness.alarms == [] and run.alarms() == []
    assert not any("lost:" in line for line in witness.said)
    for metrics in run.metrics("train"):
        assert metrics["ledger"]["tokens"] == metrics["ledger"]["trained"] + metrics["ledger"]["zero_advantage"]


@pytest.mark.slow
def test_A6_episodes_that_fill_the_context_are_named_with_their_share(tmp_path: Path) -> None:
    talk = Talk(coin, turns=20, answer="a long answer to it " * 3)
    changes = {"seq_len": "160", "max_steps": "3"}
    run, witness, error = run_watched(tmp_path, talking(talk), **{**FRESH, **changes})
    alarm = the(witness, "cut_by_context")
    assert error is None and (alarm.id, alarm.severity, alarm.step) == ("A6", "note", 1)
    assert "16 of 16 episodes (100%) ended because the context was full after" in alarm.seen
    assert "raise seq_len" in alarm.fix
    assert [line["id"] for line in run.alarms() if line["name"] == "cut_by_context"] == ["A6"]


def test_B9_replies_that_never_stop_are_named(tmp_path: Path) -> None:
    _, witness, _ = run_watched(tmp_path, talking(Talk(coin)), **{**FRESH, "max_steps": "2"})
    alarm = the(witness, "replies_run_to_the_limit")
    assert alarm.id == "B9" and "% of the replies ended at orchestrator.sampling.max_tokens" in alarm.seen
    assert "stop token" in alarm.why and "air doctor --only B9" in alarm.fix


def test_B9_replies_that_have_grown_out_of_their_room_are_no_missing_stop_token() -> None:
    now, then = ({"step": step, "metrics": {"length_stops": share}} for step, share in ((9, 0.55), (0, 0.05)))
    sign = replies_run_to_the_limit(now, [then])
    assert sign is not None and "55% of the replies" in sign.seen and "in the first step it was 5%" in sign.seen
    assert "become longer" in sign.why and "stop token" not in sign.why
    assert "orchestrator.sampling.max_tokens" in sign.fix


def test_D6_slow_tools_are_named_and_not_the_model(tmp_path: Path) -> None:
    _, witness, _ = run_watched(tmp_path, talking(Talk(coin, tool_s=2.5)), **{**FRESH, "max_steps": "3"})
    alarm = the(witness, "time_goes_elsewhere")
    assert alarm.id == "D6" and "went to: tool" in alarm.seen and "Split: tool" in alarm.seen
    assert "the environment's answers to actions" in alarm.why and "orchestrator.workers_per_env" in alarm.fix


@pytest.mark.slow
def test_D17_scores_above_the_optimum_are_an_alarm_and_no_candidate_for_the_best(tmp_path: Path) -> None:
    def cheat(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
        return {"won": float(seed % 2)}, {"too_good": float(number == 0)}

    changes = {"max_steps": "2", "orchestrator.eval.interval": "1", "orchestrator.eval.num_examples": "8"}
    run, witness, _ = run_watched(tmp_path, talking(Talk(cheat, tasks=4)), **{**FRESH, **changes})
    alarm = the(witness, "too_good_to_be_true")
    assert alarm.id == "D17" and "4 of 16 episodes scored above what can be had" in alarm.seen
    assert "withheld" in alarm.why and "metrics.too_good" in alarm.fix
    assert [m["too_good"]["mean"] for m in run.metrics("eval") if m["name"] == "step_0001"] == [0.25]
    assert best_step(run) is None
    honest, _, _ = run_watched(tmp_path / "honest", talking(Talk(coin, tasks=4)), **{**FRESH, **changes})
    assert best_step(honest) in (1, 2)


def never(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    return {"won": 0.0}, {"validated": 0.0}


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Witness, Any]:
    return run_watched(tmp_path_factory.mktemp("silent"), talking(Talk(never)), **{**FRESH, "max_steps": "8"})


def test_E1_the_first_step_without_signal_says_why(silent: tuple[Run, Witness, Any]) -> None:
    alarm = the(silent[1], "no_signal_yet")
    assert (alarm.id, alarm.severity, alarm.step) == ("E1", "note", 0)
    assert "In all 4 groups every episode scored the same (mean reward 0; won 0)" in alarm.seen
    assert "No episode earned won." in alarm.why and "validated" in alarm.why
    assert "orchestrator.rollouts_per_example" in alarm.fix


@pytest.mark.slow
def test_E1_a_run_that_never_had_signal_is_paused_and_resumes_to_the_same_next_batch(
    silent: tuple[Run, Witness, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, witness, error = silent
    alarm = the(witness, "never_any_signal")
    assert isinstance(error, Halted) and (alarm.severity, alarm.step) == ("pause", 4)
    assert f"air train --resume {run.path}" in error.fix and (run.path / "checkpoints" / "step_5").is_dir()
    resumed, again, error = run_watched(run.path.parent, talking(Talk(never)), resume=run.path)
    assert error is None and again.of("never_any_signal") == []  # somebody has looked at it
    without = [rule for rule in rules() if rule.severity == "note"]
    monkeypatch.setattr("airloop.watch.alarms.monitor.rules", lambda: without)
    whole, _, _ = run_watched(tmp_path, talking(Talk(never)), **{**FRESH, "max_steps": "8"})
    for step in range(8):
        mine, theirs = (sorted(r.finished(step).items()) for r in (resumed, whole))
        assert [(p, t.task, t.seed, t.version, t.branches) for p, t in mine] == [
            (p, t.task, t.seed, t.version, t.branches) for p, t in theirs
        ]
        assert len(mine) == 16


@pytest.mark.slow
def test_E2_groups_without_signal_are_an_alarm_when_they_are_nearly_all(tmp_path: Path) -> None:
    def mostly_alike(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
        return {"won": float(seed % 2) if number == 0 else 1.0}, {}

    changes = {"max_steps": "6", "orchestrator.batch_size": "32"}
    _, witness, _ = run_watched(tmp_path, talking(Talk(mostly_alike)), **{**FRESH, **changes})
    alarm = the(witness, "groups_without_signal")
    assert (alarm.id, alarm.step) == ("E2", 4)
    assert "In 7 of 8 groups (88%)" in alarm.seen and "online_difficulty_filtering = true" in alarm.fix


def test_E4_components_that_cancel_are_named(tmp_path: Path) -> None:
    def cancel(number: int, seed: int) -> tuple[dict[str, float], dict[str, float]]:
        return {"quick": float(seed % 2), "careful": -float(seed % 2)}, {}

    talk = Talk(cancel, weights={"quick": 1.0, "careful": 1.0})
    run, witness, _ = run_watched(tmp_path, talking(talk), **{**FRESH, "max_steps": "3"})
    alarm = the(witness, "components_cancel")
    assert alarm.id == "E4" and "the reward's variance is 0, that of its components: careful 0." in alarm.seen
    assert run.metrics("train")[0]["ledger"]["variance"]["sum"] == 0


@pytest.mark.long
def test_E7_an_entropy_that_collapses_without_gain_is_an_alarm(tmp_path: Path) -> None:
    """Rewards that are chance, and a rate that follows them."""
    changes = {"max_steps": "16", "trainer.optim.lr": "0.1", "orchestrator.batch_size": "32"}
    _, witness, _ = run_watched(tmp_path, talking(Talk(coin)), **{**FRESH, **changes})
    alarm = the(witness, "entropy_collapses")
    assert alarm.id == "E7" and "Entropy per token fell from" in alarm.seen and "did not rise" in alarm.seen
    assert "trainer.loss.kl_beta" in alarm.fix


ROOM = {  # for replies of up to 24 tokens, and a rate that follows what is paid for
    "max_steps": "14",
    "trainer.optim.lr": "2e-2",
    "orchestrator.batch_size": "32",
    "orchestrator.rollouts_per_example": "8",
    "seq_len": "64",
    "orchestrator.sampling.max_tokens": "24",
}


class Rivals:
    """A judge who likes the shorter of two replies: it compares each with the last ones that it heard, so on average
    nobody ever gains."""

    def __init__(self) -> None:
        self.heard: deque[int] = deque(maxlen=64)

    def __call__(self, text: str) -> float:
        length = len(text)
        beaten = [1.0 if length < other else 0.5 if length == other else 0.0 for other in self.heard] or [0.5]
        self.heard.append(length)
        return statistics.fmean(beaten)


@pytest.mark.long
def test_E7_lengths_that_drift_without_gain_are_an_alarm(tmp_path: Path) -> None:
    """Each step rewards what is shorter than before: replies go from the limit to a few tokens, the reward nowhere."""
    talk = Talk(lambda number, seed: ({}, {}), {"said": 1.0}, hear=Rivals())
    run, witness, error = run_watched(tmp_path, talking(talk), **{**FRESH, **ROOM})
    alarm = the(witness, "lengths_drift")
    assert error is None and (alarm.id, alarm.severity) == ("E7", "note")
    lengths = [m["metrics"]["sampled_tokens"] for m in run.metrics("train")][: alarm.step + 1]
    first, last = statistics.fmean(lengths[:5]), statistics.fmean(lengths[-5:])
    assert last < first / 3
    assert f"Episodes went from {first:.0f} sampled tokens (first 5 steps) to {last:.0f} (last 5)" in alarm.seen
    assert "the reward did not rise (0." in alarm.seen and "learns length, not the task" in alarm.why
    assert 'trainer.loss.type = "dr_grpo"' in alarm.fix and "trainer.loss.overlong" in alarm.fix
    assert [line["id"] for line in run.alarms() if line["name"] == "lengths_drift"] == ["E7"]


@pytest.mark.slow
def test_E7_lengths_that_drift_while_the_reward_rises_are_none(tmp_path: Path) -> None:
    """The same fall of lengths, where short replies are worth more: that is learning."""
    talk = Talk(lambda number, seed: ({}, {}), {"said": 1.0}, hear=lambda text: 1 - len(text) / 24)
    run, witness, error = run_watched(tmp_path, talking(talk), **{**FRESH, **ROOM})
    lengths = [m["metrics"]["sampled_tokens"] for m in run.metrics("train")]
    assert error is None and statistics.fmean(lengths[-5:]) < statistics.fmean(lengths[:5]) / 3
    assert witness.of("lengths_drift") == []


def test_G9_failing_rollouts_are_an_alarm_with_the_first_error_and_its_place(tmp_path: Path) -> None:
    talk = Talk(coin, fails=lambda seed: seed % 3 == 0)
    run, witness, _ = run_watched(tmp_path, talking(talk), **{**FRESH, "max_steps": "2"})
    alarm = witness.of("rollouts_fail")[0]
    assert (alarm.id, alarm.severity) == ("G9", "note")
    assert "The first: the tool server refused the connection [at talk_env.py:" in alarm.seen
    assert " connect]" in alarm.seen and "infra_error" in alarm.fix
    ledger = run.metrics("train")[0]["ledger"]
    assert ledger["infra_error"] > 0 and any("infra error" in line for line in witness.said)
    assert witness.of("all_rollouts_fail") == []


def test_G9_when_all_rollouts_fail_the_run_is_paused(tmp_path: Path) -> None:
    talk = Talk(coin, fails=lambda seed: True)
    run, _, error = run_watched(tmp_path, talking(talk), **{**FRESH, "max_steps": "4"})
    assert isinstance(error, Halted) and error.alarm.name == "all_rollouts_fail" and error.alarm.step == 1
    assert len(list(run.path.glob("trajectories/*/*.json"))) == 32  # nothing is lost


def test_G9_agents_programs_that_crash_are_an_alarm_with_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(CRASHING)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"word": f"word{i}"}) + "\n" for i in range(40)))
    program = {
        "orchestrator.env.0.id": f"{tmp_path}/agent.py:solve",
        "orchestrator.env.0.args": f'{{ tasks = "{tmp_path}/tasks.jsonl" }}',
        "seq_len": "96",
    }
    _, witness, _ = run_watched(tmp_path / "runs", **{**FRESH, **program, "max_steps": "3"})
    alarm = the(witness, "programs_crash")
    assert (alarm.id, alarm.severity, alarm.step) == ("G9", "note", 2)
    assert "In 100% of the episodes" in alarm.seen and "ZeroDivisionError" in alarm.seen


def test_G9_programs_that_a_beginner_crashes_less_and_less_are_none() -> None:
    lines = [{"metrics": {"crashed": share}} for share in (0.85, 0.8, 0.7, 0.6, 0.55)]
    assert all(programs_crash(line, lines[:i]) is None for i, line in enumerate(lines))
    assert programs_crash({"metrics": {"crashed": 0.6}}, [{"metrics": {"crashed": 0.1}}]) is not None
    assert programs_crash({"metrics": {}}, []) is None


def test_tokens_of_replies_cut_off_by_the_deadline_are_in_the_ledger(tmp_path: Path) -> None:
    """The engine had sampled them, and no episode has them."""

    def slow(parts: Components) -> None:
        talking(Talk(coin))(parts)
        launch = parts.engine._runner.launch

        def late(step: Any) -> Any:
            time.sleep(0.05)
            return launch(step)

        parts.engine._runner.launch = late  # type: ignore[method-assign]

    changes = {
        "orchestrator.batch_size": "4",
        "seq_len": "500",
        "orchestrator.sampling.max_tokens": "400",
        "orchestrator.episode_timeout_s": "3",
        "orchestrator.eval.num_examples": "1",
        "max_steps": "1",
    }
    run, witness, _ = run_watched(tmp_path, slow, **{**FRESH, **changes})
    rollout, ledger = (run.metrics("train")[0][name] for name in ("rollout", "ledger"))
    assert rollout["ended_deadline"] > 0 and ledger["truncated"] == rollout["abandoned_tokens"] > 0
    assert ledger["tokens"] == ledger["truncated"] + ledger["trained"] + ledger["zero_advantage"]
    assert any(f"{ledger['truncated']} truncated" in line for line in witness.said)
