"""Success comes first: which metric it is, where it is kept, and that what is chosen is chosen by it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.tiny_runs import tiny_run, write_config

from airloop.config import load_config
from airloop.envs.arith import ArithArgs, ArithEnv, ArithSession
from airloop.envs.base import Environment, find_environment
from airloop.errors import AirError
from airloop.eval.compare import compare_named, format_comparison
from airloop.eval.evaluate import EvalOptions, evaluate, format_report
from airloop.files import read_lines
from airloop.plugins import plugins
from airloop.rewards import record_rewards, recorded_rewards, with_run_rewards
from airloop.rollout.episode import EpisodeDefect, run_episode
from airloop.runs.run import Run
from airloop.step import best_step
from airloop.success import in_order, name_of, step_success, success_in
from airloop.training import start
from airloop.types import Score, Task, Trajectory
from airloop.watch.display.display import Display
from airloop.watch.display.summary import summary


class Measured(ArithSession):
    metrics: ClassVar[dict[str, float]] = {}

    async def finish(self) -> Score:
        return Score({"correct": self.correct}, self.metrics)


class MeasuredEnv(ArithEnv):
    def open(self, task: Task, seed: int) -> Measured:
        return Measured(task)


def played(env: Environment, agent: str = "oracle") -> Trajectory:
    task = env.tasks("train")[0]
    return asyncio.run(run_episode(env, task, env.scripted(agent, task, 0), id="x", seed=0))


def test_every_shipped_environment_names_a_metric_that_every_episode_has() -> None:
    """Those that need a sandbox or fits are played elsewhere, and would be defects there without it."""
    kinds = {name: find_environment(name)() for name in plugins("envs") if not find_problem(name)}
    for name in ("prompts", "verifiers"):  # whose success is one of the functions that they are given
        del kinds[name]
    assert {"arith", "gsm8k", "gsm8k-calculator", "tune"} <= kinds.keys()
    assert all(kind.success for kind in kinds.values()), {name: kind.success for name, kind in kinds.items()}
    for name in ("arith", "gsm8k", "gsm8k-calculator"):
        for agent, worth in (("oracle", 1.0), ("noop", 0.0), ("cheat", 0.0)):
            episode = played(kinds[name](kinds[name].Args()), agent)
            assert episode.metrics["success"] == episode.metrics["correct"] == worth


def find_problem(name: str) -> str:
    try:
        find_environment(name)
    except AirError as error:
        return error.problem
    return ""


@pytest.mark.parametrize(
    ("name", "metrics", "problem"),
    [
        ("won", {"lost": 1.0}, "its success is 'won', but the score has no such metric (it has: correct, lost)"),
        ("won", {"won": 3.0}, "its success, the metric 'won', is 3.0"),
        ("won", {"won": float("nan")}, "its success, the metric 'won', is nan"),
        ("won", {"won": 1.0, "success": 0.5}, "it measures 'success' and says that its success is 'won'"),
    ],
)
def test_a_score_without_the_promised_metric_is_a_defect(
    name: str, metrics: dict[str, float], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeasuredEnv, "success", name)
    monkeypatch.setattr(Measured, "metrics", metrics)
    with pytest.raises(EpisodeDefect) as caught:
        played(MeasuredEnv())
    assert problem in caught.value.problem and "MeasuredEnv" in caught.value.fix


def test_a_component_of_the_reward_may_be_the_metric_and_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(MeasuredEnv()).metrics["success"] == 1.0  # "correct" is a component, and no metric here
    monkeypatch.setattr(MeasuredEnv, "success", None)
    assert "success" not in played(MeasuredEnv()).metrics


def test_names_and_order() -> None:
    assert name_of([ArithEnv(), ArithEnv(ArithArgs(max_number=3))]) == "correct" and name_of([]) is None
    assert success_in({"success": 0.5, "correct": 0.5}, "correct") == ("correct", 0.5)
    assert success_in({"success": 0.5}) == ("success", 0.5)
    assert success_in({"f1": 0.2, "improved": 0.1}) == ("improved", 0.1)  # an older directory
    assert success_in({"reward": 1.0}) is None and step_success({"success": None, "metrics": {}}) is None
    assert in_order(["turns", "reward", "correct", "success"], "correct") == ["correct", "reward", "turns"]
    assert in_order(["turns", "reward", "success"]) == ["success", "reward", "turns"]
    assert in_order(["turns", "reward", "success"], "a component") == ["success", "reward", "turns"]
    assert in_order(["turns", "reward"]) == ["reward", "turns"]


def line(step: int, success: float | None, reward: float, **more: Any) -> dict[str, Any]:
    found = {"kind": "eval", "step": step, "name": f"step_{step:04d}", "split": "eval", "episodes": 8, "lost": 0}
    own = {"success_name": "correct", "success": {"mean": success}} if success is not None else {}
    return {**found, **own, "reward": {"mean": reward}, **more}


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ([line(1, 0.2, 0.9), line(2, 0.3, 0.5)], 2),  # by success
        ([line(1, 0.3, 0.5), line(2, 0.3, 0.6)], 2),  # of equals by the reward
        ([line(1, 0.9, 0.9, too_good={"mean": 0.1}), line(2, 0.3, 0.6)], 2),
        ([line(1, None, 0.9), line(2, None, 0.5)], 1),  # where there is none, as ever
        ([line(1, None, 0.9, improved={"mean": 0.1}), line(2, None, 0.5, improved={"mean": 0.2})], 2),  # an older run
    ],
)
def test_the_best_checkpoint_is_the_one_with_the_most_success(
    lines: list[dict[str, Any]], best: int, tmp_path: Path
) -> None:
    run = Run(tmp_path, Run.open(tiny_run()).config)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert best_step(run) == best


def test_lines_of_metrics_have_success_before_the_reward() -> None:
    run = Run.open(tiny_run())
    for one in run.metrics("train"):
        names = list(one)
        assert names.index("success") < names.index("reward") and one["success_name"] == "correct"
        assert one["success"] == one["metrics"]["correct"] == pytest.approx(sum(one["successes"]) / len(one["rewards"]))
        assert sum(one["group_sizes"]) == len(one["rewards"]) and "success" not in one["metrics"]
        assert one["ledger"]["paid"] == {"correct": one["reward"]}
        assert one["plan"]["rewards"] == {"arith": {"correct": 1.0}}
    for one in run.metrics("eval"):
        assert one["success"] == one["correct"] and one["success_name"] == "correct"
    assert all(t.metrics["success"] == t.metrics["correct"] for t in run.evaluation("after"))


def test_the_summary_begins_with_success() -> None:
    run = Run.open(tiny_run())
    text = summary(run, run.evaluation("before"), run.evaluation("after"))
    assert text.index("correct while training") < text.index("reward while training") and "correct by step:" in text
    held_out = text[text.index("held-out tasks") :]
    assert held_out.index("  correct ") < held_out.index("  reward ")


def test_a_comparison_begins_with_success_also_against_an_older_evaluation(tmp_path: Path) -> None:
    run = tiny_run()
    comparison = compare_named([str(run)])
    assert list(comparison.overall)[:2] == ["correct", "reward"] and "success" not in comparison.overall
    assert comparison.first == "correct" and comparison.notes == []
    text = format_comparison(comparison)
    assert re.search(r"paired \[95 %\]\ncorrect .*\nreward ", text)


def test_an_evaluation_shows_success_first(tmp_path: Path) -> None:
    config = str(tiny_run() / "config.toml")
    options = EvalOptions("scripted:oracle", n=4, out=tmp_path / "e")
    report = evaluate(["@", config], options, Display(quiet=True))
    assert report["success_name"] == "correct" and list(report["means"])[:2] == ["success", "reward"]
    rows = [row.split()[0] for row in format_report(report).splitlines()[2:5]]
    assert rows == ["correct", "reward", "invalid_actions"]


def test_a_resumed_run_is_paid_as_it_was_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment's default has become since; and an old run that does not say is not guessed at."""
    text = write_config(tmp_path).read_text()
    (tmp_path / "config.toml").write_text(text.replace("max_steps = 2", "max_steps = 1"))
    run = start(load_config(["@", str(tmp_path / "config.toml")]), Display(quiet=True), skip_proofs=True).run
    assert run.status()["rewards"] == {"arith": {"correct": 1.0}}
    run.change({"max_steps": 2})
    run.set_status("stopped", "interrupted")
    monkeypatch.setattr(ArithEnv, "reward_weights", {"correct": 0.5, "brief": 1.0})
    again = start(run.config, Display(quiet=True), resume=run.path, skip_proofs=True).run
    assert again.metrics("train")[-1]["plan"]["rewards"] == {"arith": {"correct": 1.0}}
    again.change({"max_steps": 3})
    again.note(rewards=None)
    assert recorded_rewards(again) == {"arith": {"correct": 1.0}}  # its steps say so
    assert with_run_rewards(again.config, again).orchestrator.env[0].rewards == {"correct": 1.0}
    lines = read_lines(again.path / "metrics.jsonl")
    for line in lines:
        line.pop("plan", None)  # as before they did
    (again.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again.set_status("stopped", "interrupted")
    with pytest.raises(AirError, match="have the reward components correct; by default they would now have brief"):
        start(again.config, Display(quiet=True), resume=again.path, skip_proofs=True)


def test_rewards_of_single_turns_are_components_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tune pays `tool` turn by turn: an older run of it goes on where its default is today's."""
    run = Run.open(shutil.copytree(tiny_run(), tmp_path / "run"))
    run.note(rewards=None)
    lines = [{**line, "turn_components": {"tool": 0.5}} for line in run.metrics("train")]
    for line in lines:
        line.pop("plan", None)
    monkeypatch.setattr(Run, "metrics", lambda self, kind=None: lines)
    envs = {"arith": ArithEnv(ArithArgs())}
    with pytest.raises(AirError, match="components correct, tool; by default they would now have correct"):
        record_rewards(run, envs)
    monkeypatch.setattr(ArithEnv, "reward_weights", {"correct": 1.0, "tool": 1.0})  # as if it were tune
    record_rewards(run, envs)
