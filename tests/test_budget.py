"""A budget of minutes: planned, said, kept, and never more than was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.busy import busy_processes, wait_starved
from support.tiny_runs import CONFIG, WARMSTART
from support.warm_process import Process

from airloop import budget as budgets
from airloop.assemble import assemble
from airloop.budget import Budget, changes_of, fit
from airloop.config import Refused, load_config, with_changes
from airloop.costs import Amounts, Costs, EpisodeSize, Overhead, costs_of, size_of_demonstrations
from airloop.forkserver import ForkServer
from airloop.launch import local
from airloop.runs.run import Run
from airloop.speed import Speed, measure_speed
from airloop.training import start
from airloop.watch.display.display import Display

GROUP = 4
asked_amounts = st.builds(
    Amounts,
    warmstart_steps=st.integers(0, 60),
    steps=st.integers(1, 1000),
    batch_size=st.integers(1, 16).map(lambda groups: groups * GROUP),
    num_examples=st.integers(1, 400),
)
seconds = st.floats(0.001, 30)
overheads = st.builds(Overhead, seconds, seconds, seconds, seconds, st.floats(1, 100))
some_costs = st.builds(
    Costs, seconds, seconds, seconds, seconds, seconds, st.integers(0, 20), st.booleans(), overheads, overheads
)


@given(asked_amounts, some_costs, st.floats(1, 1e5))
def test_a_plan_fits_its_time_or_is_the_least_that_can_be(asked: Amounts, costs: Costs, left: float) -> None:
    chosen = fit(asked, costs, left, GROUP)
    least = Amounts(
        -(-asked.warmstart_steps // 2),
        min(3, asked.steps),
        min(2 * GROUP, asked.batch_size),
        min(12, asked.num_examples),
    )
    assert costs.total(chosen) <= left or chosen == least
    assert all(0 <= mine <= theirs for mine, theirs in zip(astuple(chosen), astuple(asked), strict=True))
    assert chosen.steps >= 1 and chosen.num_examples >= 1 and chosen.batch_size % GROUP == 0
    assert (chosen.warmstart_steps > 0) == (asked.warmstart_steps > 0)
    if costs.total(asked) <= left:
        assert chosen == asked


@given(asked_amounts, some_costs, st.floats(10, 1e5), st.floats(1, 3))
def test_more_time_never_gives_a_smaller_run(asked: Amounts, costs: Costs, left: float, factor: float) -> None:
    less = fit(asked, costs, left, GROUP)
    assert fit(asked, costs, left * factor, GROUP).num_examples >= less.num_examples


def test_what_matters_least_shrinks_first() -> None:
    asked, costs = Amounts(20, 12, 32, 36), Costs(10, 0.5, 0.5, 1.0)
    whole = costs.total(asked)
    assert fit(asked, costs, whole - 10, GROUP) == Amounts(20, 12, 32, 31)  # held-out tasks first
    assert fit(asked, costs, whole - 100, GROUP) == Amounts(20, 9, 32, 24)
    assert fit(asked, costs, whole - 200, GROUP).warmstart_steps < 20
    # a run without a number of steps has as many as fit, beside all the rest
    filled = fit(Amounts(20, 1000, 32, 36), costs, whole + 64, GROUP)
    assert filled == Amounts(20, 14, 32, 36)


def test_the_number_of_steps_follows_the_clock_and_leaves_room_for_the_last_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now[0])
    budget = Budget(minutes=10, spent_s=60, asked=100)
    now[0] = 30
    budget.evaluated(30, 24)
    budget.begin_steps()
    for _ in range(3):
        now[0] += 20
        budget.step_ended(replayed=False)
    # 540 s at the start, 90 gone; 30 for the evaluation, 8 for the ending, a quarter of a step: 407 s for steps of 20 s
    assert budget.steps_in_all(3) == 3 + 20
    now[0] = 500
    assert budget.steps_in_all(23) == 23
    assert budget.steps_in_all(1) == 3  # late as it is: fewer show nothing
    recalled = Budget(minutes=10, spent_s=560, asked=5)
    recalled.recall(json.loads(json.dumps(budget.facts())))
    assert recalled.asked == 100 and recalled.steps_in_all(23) == 23


def test_what_was_measured_while_others_used_the_machine_is_put_right_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen on two cores: prompts were measured at a fifth of their speed, half of the episodes were planned, and the
    run ended after 17 of 22 minutes."""
    now = [0.0]
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now[0])
    planned = {"max_steps": 8, "orchestrator.batch_size": 16, "orchestrator.eval.num_examples": 24}
    config = with_changes(load_config([]), planned)
    budget = Budget(minutes=20, spent_s=0, asked=12)
    budget._planned = Amounts(20, 12, 32, 36), Costs(15.0, episode=4.0, trained_episode=0.5, evaluated_task=5.0)
    assert budget.plan_steps(config) == {}  # nothing is known yet
    now[0] = 500.0
    budget.evaluated(24.0, 24)  # a second a task, in place of five
    assert budget.plan_steps(config) == {"max_steps": 12, "orchestrator.batch_size": 32}
    budget.evaluated(240.0, 24)  # and if it is slower than was measured
    slower = budget.plan_steps(config)
    assert slower["max_steps"] < 8 or slower["orchestrator.batch_size"] < 16
    assert Budget(minutes=20, spent_s=0, asked=12).plan_steps(config) == {}  # one that goes on keeps its own


def test_a_session_that_goes_on_before_the_first_step_has_the_plan_of_the_one_that_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now[0])
    config = load_config(["--warmstart.steps", "20"])
    budget = Budget(minutes=20, spent_s=0, asked=12)
    costs = Costs(15.0, 4.0, 0.5, 5.0, 8.0, 3, False, Overhead(1.0, 2.0, 3.0, 0.1, 8.0))
    budget._planned = Amounts(20, 12, 32, 36), costs
    now[0] = 100.0
    slower = budget.plan_again(config, [25.0] * 4)
    facts = json.loads(json.dumps(budget.facts(), allow_nan=False))  # as status.json holds them
    assert slower["warmstart.steps"] < 20
    resumed = Budget(minutes=20, spent_s=100, asked=3)
    resumed.recall(facts)
    assert resumed._planned == budget._planned and resumed.plan_again(config, [25.0] * 4) == slower
    for session in (budget, resumed):
        session.evaluated(24.0, 24)
    assert resumed.plan_steps(config) == budget.plan_steps(config) != {}
    resumed.settle()  # from here on the clock counts: whoever goes on later keeps what there is
    third = Budget(minutes=20, spent_s=100, asked=3)
    third.recall(resumed.facts())
    assert third.plan_steps(config) == {} == third.plan_again(config, [25.0] * 4)


def test_steps_that_are_read_back_after_a_restart_say_nothing_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(budgets.time, "monotonic", lambda: now[0])
    budget = Budget(minutes=10, spent_s=0, asked=12)
    now[0] = 0.1
    budget.step_ended(replayed=True)
    assert budget.steps_in_all(1) == 12


def test_minutes_go_with_a_number_of_steps_or_without_and_not_with_determinism() -> None:
    assert load_config(["--minutes", "3"]).max_steps == 1000
    assert load_config(["--minutes", "3", "--max_steps", "7"]).max_steps == 7
    assert load_config([]).budget.minutes is None
    with pytest.raises(Refused, match=r"follows from the clock(.|\n)*--deterministic false"):
        load_config(["--minutes", "3", "--deterministic", "true"])


def tiny(directory: Path, minutes: float, extra: str = WARMSTART) -> Any:
    text = CONFIG.replace("OUT", str(directory / "outputs")).replace("TRAIN", "lora").replace("max_steps = 2", "")
    (directory / "c.toml").write_text(text + extra + f"[budget]\nminutes = {minutes}\n")
    return load_config(["@", str(directory / "c.toml")])


def test_measuring_leaves_everything_as_it_was_and_finds_what_a_pass_takes(tmp_path: Path) -> None:
    async def work() -> tuple[Speed, bool]:
        parts = assemble(tiny(tmp_path, 1), lambda _: None)
        try:
            before = [p.detach().clone() for _, p in parts.policy.trainable()]
            random_state = torch.get_rng_state()
            speed = await measure_speed(parts)
            same = all(torch.equal(a, b) for a, (_, b) in zip(before, parts.policy.trainable(), strict=True))
            clean = all(p.grad is None for _, p in parts.policy.trainable())
            return speed, same and clean and torch.equal(random_state, torch.get_rng_state())
        finally:
            await parts.close()

    speed, same = asyncio.run(work())
    assert same and min(speed.prompt, speed.decode, speed.train) > 10


def test_costs_follow_from_speed_and_size() -> None:
    config = load_config(["--warmstart.batch_size", "4", "--orchestrator.rollouts_per_example", "8"])
    speed, size = Speed(prompt=100, decode=10, train=50), EpisodeSize(prompt=80, sampled=20, shown=10)
    costs = costs_of(config, speed, size, demonstration_tokens=25, proofs=False)
    assert costs.warmstart_step == pytest.approx(4 * 25 / 50)
    assert costs.episode == pytest.approx(20 / 10 + (10 + 10) / 100)
    assert costs.trained_episode == pytest.approx((10 + 20 + 10) / 50)
    assert costs.evaluated_task == pytest.approx(20 / 10 + 90 / 100)
    assert costs_of(config, speed, size, 25, proofs=True).fixed > costs.fixed
    assert costs_of(config, speed, size, 25, proofs=False, ranks=2).episode == costs.episode / 2
    often = replace(costs, interval=3)
    assert often.evaluations(Amounts(0, 10, 8, 4)) == 5
    assert often.total(Amounts(0, 10, 8, 4)) == costs.total(Amounts(0, 10, 8, 4)) + 3 * 4 * costs.evaluated_task


@pytest.mark.long
def test_a_run_is_planned_said_kept_and_resumed_within_its_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model has steps of a tenth of a second: hundreds fit, and the clock ends the run, not the plan."""
    said: list[str] = []
    display = Display(quiet=True)
    display.say = said.append  # type: ignore[method-assign]
    spare: list[float] = []  # seconds, after each step, beside what the last evaluation was forecast to take
    step_ended = Budget.step_ended

    def noted(self: Budget, replayed: bool) -> None:
        step_ended(self, replayed)
        spare.append(self.left_s - self._evaluation_s)

    monkeypatch.setattr(Budget, "step_ended", noted)
    began = time.monotonic()
    run = start(tiny(tmp_path, 0.35), display, skip_proofs=True).run
    took = time.monotonic() - began
    steps = len(run.metrics("train"))
    late = any("late" in line or "instead of" in line for line in said)  # where others have the cores, it is said
    planned = [int(count) for line in said for count in re.findall(r"(\d+)(?: of \d+)? steps of", line)]
    assert steps > 3 or (steps == 3 and (late or planned[-1:] == [3])), said  # never fewer, and no more if it is busy
    # What stalls after the last step, when nothing can be left out any more, is not the budget's.
    assert took < 0.35 * 60 * 1.25 or spare[steps - 1] >= 0 or late, (said, took, spare)
    assert Run.open(run.path).config.max_steps == steps  # the config says what was done
    assert any(line.startswith("budget: 0.35 min") and "tokens a second" in line for line in said)
    assert any(re.search(r"supervised start of (6|[345] of 6) steps", line) for line in said)  # fewer if it is busy
    assert {m["name"] for m in run.metrics("eval")} >= {"before", "after"}
    assert size_of_demonstrations(run.finished(0).values()).sampled > 0  # type: ignore[arg-type]
    # its time is spent: going on adds no step, and takes none away, though all since the last checkpoint are replayed
    for checkpoint in (run.path / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    facts = run.status()["budget"]
    again = start(run.config, Display(quiet=True), resume=run.path).run
    assert len(again.metrics("train")) == steps == again.config.max_steps
    assert again.status()["budget"]["evaluation_s"] == facts["evaluation_s"]  # found on disk, it took no time


BESIDE = {"orchestrator.max_staleness": 1, "trainer.loss.importance_mode": "mask"}


@pytest.mark.long
def test_sampling_beside_training_keeps_to_its_minutes_too(tmp_path: Path) -> None:
    config = with_changes(tiny(tmp_path, 0.3), BESIDE)
    run = start(config, Display(quiet=True), skip_proofs=True).run
    steps = len(run.metrics("train"))
    assert run.status()["status"] == "completed" and steps >= 3
    assert Run.open(run.path).config.max_steps == steps
    assert {m["name"] for m in run.metrics("eval")} >= {"before", "after"}
    again = start(run.config, Display(quiet=True), resume=run.path).run  # its time is spent
    assert len(again.metrics("train")) == steps == again.config.max_steps


@pytest.mark.long
def test_sampling_beside_training_goes_on_when_there_is_time_for_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups of the steps that were planned are there: whoever samples waited for the end, and must begin again."""
    monkeypatch.setattr(Budget, "plan_steps", lambda self, config: {"max_steps": 2, "orchestrator.batch_size": 8})
    monkeypatch.setattr(Budget, "steps_in_all", lambda self, finished: min(6, finished + 1))
    run = start(with_changes(tiny(tmp_path, 5), BESIDE), Display(quiet=True), skip_proofs=True).run
    assert [line["step"] for line in run.metrics("train")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.long
def test_two_ranks_keep_to_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", ForkServer)  # a launcher's own, which imports all that ranks need
    config = with_changes(tiny(tmp_path, 0.3), {"trainer.processes": 2})
    run = start(config, Display(quiet=True), skip_proofs=True).run
    steps = len(run.metrics("train"))
    assert run.status()["status"] == "completed" and steps >= 3
    assert Run.open(run.path).config.max_steps == steps and Run.open(run.path).config.trainer.processes == 2


def test_a_run_that_was_killed_before_it_had_a_plan_has_all_of_its_time_again(tmp_path: Path) -> None:
    run = Run.create(tiny(tmp_path, 10), "arith", since=time.time() - 500)
    assert Budget.of(run).left_s < 110  # type: ignore[union-attr]
    run.close()
    run.lock()
    assert Budget.of(run).left_s > 590  # type: ignore[union-attr]
    run.note(budget={"asked": 12, "steps_s": [], "evaluation_s": 0.0})
    assert Budget.of(run).left_s < 110  # type: ignore[union-attr]
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.alone])])
def test_a_run_with_a_budget_ends_well_beside_eight_busy_processes(tmp_path: Path, real: bool) -> None:
    """It may be late, since the least that can show anything may not fit; it may not fail."""
    tiny(tmp_path, 0.25)
    process = Process(["train", "--skip-proofs", "@", tmp_path / "c.toml"])
    with busy_processes(8) if real else contextlib.nullcontext():
        assert (process.wait() if real else wait_starved(process)) == 0
    (path,) = (tmp_path / "outputs").glob("exp*")
    run = Run.open(path)
    assert run.status()["status"] == "completed"
    assert len(run.metrics("train")) >= 3 and {m["name"] for m in run.metrics("eval")} >= {"before", "after"}


# `arith` pays by chance: whatever a model of random weights has learned, the doctor sees rewards that differ.
TRAINS = """
import pytest
from support.probe_cases import chance, graded
from airloop import cli, training

graded(pytest.MonkeyPatch(), lambda text: {"correct": chance(text)})
training._plot = lambda *_: "left out"  # a tenth of this test's time
cli.main()
"""


@pytest.mark.slow
def test_the_doctor_and_a_run_of_two_minutes_end_well_beside_eight_busy_processes(tmp_path: Path) -> None:
    """What the first command of a newcomer does, on a machine that leaves it a quarter of a core: five seconds of a
    processor, which are imitated load only, since others are tested beside it. Real load is `make soak`'s."""
    tiny(tmp_path, 2, WARMSTART)
    less = ["--max_steps", 3, "--orchestrator.eval.num_examples", 2, "--orchestrator.eval.interval", 0]
    process = Process(["train", "@", tmp_path / "c.toml", *less], stderr=True, code=TRAINS)
    code = wait_starved(process)
    assert process.stderr
    with process.stderr:
        said = process.stderr.read()
    assert code == 0, said
    (path,) = (tmp_path / "outputs").glob("exp*")
    run, report = Run.open(path), json.loads((path / "doctor.json").read_text())
    told = [f"{c['name']}: {f['seen']}" for c in report["checks"] for f in c["findings"] if f["verdict"] != "pass"]
    assert run.status()["proofs"] == "passed" and report["checks"] and not told, told
    assert all(check["findings"] for check in report["checks"])  # nothing was left out for want of time
    assert run.status()["status"] == "completed" and "budget: 2 min" in said
    assert len(run.metrics("train")) == 3 and {m["name"] for m in run.metrics("eval")} == {"before", "after"}


def test_a_supervised_start_that_was_shortened_is_found_again(tmp_path: Path) -> None:
    from airloop.warmstart import find_warmstart, warmstart, warmstart_directory

    config = tiny(tmp_path, 5)

    async def shorter(parts: Any, rows: Any) -> dict[str, Any]:
        return {"warmstart.steps": 3}

    made, changes = asyncio.run(warmstart(config, Display(quiet=True), shorter))
    assert changes == {"warmstart.steps": 3} and made != warmstart_directory(config)
    assert json.loads((made / "done.json").read_text())["steps"] == 3
    assert find_warmstart(config) == (made, changes)
    assert find_warmstart(with_changes(config, {"budget.minutes": 4.0})) == (made, changes)
    assert find_warmstart(with_changes(config, {"budget.minutes": 60.0})) is None  # it was cut for fewer minutes
    assert find_warmstart(with_changes(config, {"budget.minutes": None})) is None


def test_the_supervised_start_follows_the_pace_that_it_has(tmp_path: Path) -> None:
    """A machine that has slowed down since it was measured makes fewer steps of everything; a quicker one more."""
    config = tiny(tmp_path, 10)
    asked = Amounts(20, 12, 32, 36)
    costs = Costs(15.0, 2.0, 1.0, 3.0)

    def after(*seconds: float) -> dict[str, Any]:
        budget = Budget(10, sum(seconds), 12)
        budget._planned = asked, costs
        return budget.plan_again(config, seconds)

    chosen = fit(asked, costs, 600 * 0.92, config.orchestrator.rollouts_per_example)
    assert Budget(10, 0.0, 12).plan_again(config, [15.0] * 5) == {}  # nothing was planned
    assert after(90.0) == {}  # the first step says little
    assert after(15.0, 15.0, 16.0) == changes_of(config, chosen)
    slower = after(*[60.0] * 4)
    assert 10 <= slower["warmstart.steps"] <= chosen.warmstart_steps and slower["max_steps"] < chosen.steps
    quicker = after(*[2.0] * 4)
    assert quicker["warmstart.steps"] == 20 and quicker["max_steps"] > chosen.steps
    assert after(*[600.0] * 14)["warmstart.steps"] == 14  # what is made is made
    # Slow for a while and then as forecast: the time that was lost is gone all the same.
    lost = after(15.0, *[60.0] * 4, *[15.0] * 4)
    assert lost["max_steps"] < chosen.steps and lost["warmstart.steps"] >= 9


def test_a_supervised_start_that_becomes_shorter_while_it_is_made_is_named_by_what_it_is(tmp_path: Path) -> None:
    from airloop.warmstart import find_warmstart, warmstart, warmstart_directory

    config = tiny(tmp_path, 5)

    async def plan(parts: Any, rows: Any) -> dict[str, Any]:
        return {"warmstart.steps": 5}

    def again(config: Any, seconds: Any) -> dict[str, Any]:
        return {"warmstart.steps": 3} if len(seconds) > 1 else {}

    made, changes = asyncio.run(warmstart(config, Display(quiet=True), plan, again))
    assert changes == {"warmstart.steps": 3} and json.loads((made / "done.json").read_text())["steps"] == 3
    assert made == warmstart_directory(with_changes(config, changes)) and find_warmstart(config) == (made, changes)
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 3
