"""Silence on healthy runs means something: shown such a run with one thing gone wrong, each watch speaks."""

from __future__ import annotations

import asyncio
import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.watched_runs import Witness
from test_alarms import Books

from airloop.ranks import Ranks
from airloop.types import Alarm
from airloop.watch.alarms.monitor import Alarms, rules

RUNS = {path.stem: path for path in sorted((Path(__file__).parent / "healthy").glob("*.jsonl"))}
Line = dict[str, Any]
# From this step on it goes wrong: trends have their beginning by then.
FROM = 8


def recorded(name: str) -> list[Line]:
    return [json.loads(line) for line in RUNS[name].read_text().splitlines()]


def raised(lines: list[Line], name: str) -> list[Alarm]:
    """What the watch of this name says of a run with these lines."""
    witness = Witness()
    alarms = Alarms(Books(), witness, [rule for rule in rules() if rule.name == name])  # type: ignore[arg-type]

    async def work() -> None:
        for line in lines:
            alarms.tell(await alarms.look(line, Ranks()))

    asyncio.run(work())
    return witness.alarms


def set_in(section: str, **values: float) -> Callable[[Line, int], None]:
    def change(line: Line, step: int) -> None:
        if values.keys() <= line[section].keys():  # what was not measured in this run cannot go wrong in it
            line[section].update(values)

    return change


def tools_take_all(line: Line, step: int) -> None:
    if "tool" in line["times"]:
        line["times"] |= {"tool": 100.0, "sampling": line["times"]["sampling"] + 100.0}


def learner_waits(line: Line, step: int) -> None:
    line["times"] |= {"sampling": 100.0, "training": 10.0, "sync": 0.0, "held": 1.0}


def context_ends_all(line: Line, step: int) -> None:
    line["rollout"]["ended_context_full"] = line["rollout"]["episodes"]


def groups_are_silent(line: Line, step: int) -> None:
    line["groups_without_signal"] = line["rollout"]["groups"]
    if "ledger" in line:
        line["ledger"]["groups"]["silent"] = line["ledger"]["groups"]["sampled"]


def parts_cancel(line: Line, step: int) -> None:
    if "ledger" in line:
        line["ledger"]["variance"]["sum"] = 0.0


def stands_still(section: str, name: str, factor: float) -> Callable[[Line, int], None]:
    """The value runs away from where it was, and no reward is gained by it."""

    def change(line: Line, step: int) -> None:
        if name in line[section]:  # not measured in a step that trained nothing
            line[section][name] = factor * line[section][name]
        line["rewards"], line["reward"] = [-9.0] * len(line["rewards"]), -9.0

    return change


def memory_fills(line: Line, step: int) -> None:
    if "memory" in line:
        line["memory"] = {"used": 1000.0 + 50 * step, "available": 400.0}
        line["plan"] |= {"max_steps": 1000}


def another_version(line: Line, step: int) -> None:
    if "versions" in line:
        line["versions"] |= {"served": line["versions"]["policy"] - 1}
        line["worst"] = {}  # of which the recording has no text


def kl_grows(line: Line, step: int) -> None:
    if "kl" in line["learner"]:
        line["learner"]["kl"] = 50.0
        line["worst"] = {}


def gap_grows(line: Line, step: int) -> None:
    line["learner"]["logprob_gap_mean"] = 0.05
    line["worst"] = {}


def policy_moves(line: Line, step: int) -> None:
    """Sampling goes on beside training, and old tokens are hardly the policy's any more."""
    line["ages"] = {
        "0": {"tokens": 100.0, "gap": 0.001, "cut": 0.0, "ess": 1.0},
        "4": {"tokens": 100.0, "gap": 0.8, "cut": 0.5, "ess": 0.05},
    }
    line["worst"] = {}


def attempts_fail(line: Line, step: int) -> None:
    line["rollout"] |= {"infra_errors": line["rollout"]["episodes"], "lost": line["rollout"]["episodes"]}


def only_form_is_paid(line: Line, step: int) -> None:
    """As the step would be written today, of a run in which nobody succeeds any more and form pays."""
    if line.get("rewards"):
        line["successes"] = [0.0] * len(line["rewards"])
        line["success"] = 0.0


def nobody_succeeds(line: Line, step: int) -> None:
    """And nothing is paid."""
    only_form_is_paid(line, step)
    line["rewards"] = [0.0] * len(line["rewards"])


def nothing_is_done(line: Line, step: int) -> None:
    if "success" in line:
        line |= {"success": 0.0, "one_answer": {"share": 1.0, "tasks": 8, "text": "submit"}}


def as_written_today(line: Line) -> None:
    """Recorded runs are older than success: half of their episodes succeed, in groups of four."""
    count = len(line["rewards"])
    if count >= 8 and count % 4 == 0:
        line |= {"success_name": "correct", "success": 0.5, "successes": [0.0, 1.0] * (count // 2)}
        line["group_sizes"] = [4] * (count // 4)
        line["metrics"].setdefault("idle", 0.0)
        line["metrics"].setdefault("crashed", 0.0)
        line["one_answer"] = {"share": 0.0, "tasks": 0, "text": ""}


# What goes wrong, and whether from the first step on.
WRONG: dict[str, tuple[Callable[[Line, int], None], bool]] = {
    "cut_by_context": (context_ends_all, False),
    "updates_too_small": (set_in("learner", update_ratio=1e-9), False),
    "replies_run_to_the_limit": (set_in("metrics", length_stops=1.0), False),
    "memory_grows": (memory_fills, False),
    "time_goes_elsewhere": (tools_take_all, False),
    "one_side_waits_for_the_other": (learner_waits, False),
    "too_good_to_be_true": (set_in("metrics", too_good=1.0), False),
    "no_signal_yet": (groups_are_silent, True),
    "never_any_signal": (groups_are_silent, True),
    "groups_without_signal": (groups_are_silent, False),
    "components_cancel": (parts_cancel, False),
    "update_replaces_weights": (set_in("learner", update_ratio=1.2), False),
    "policy_gets_worse": (nobody_succeeds, False),
    "entropy_collapses": (stands_still("learner", "entropy", 0.001), False),
    "lengths_drift": (stands_still("metrics", "sampled_tokens", 10.0), False),
    "success_falls_reward_does_not": (only_form_is_paid, False),
    "as_good_as_doing_nothing": (nothing_is_done, False),
    "engine_serves_another_policy": (another_version, False),
    "kl_explodes": (kl_grows, False),
    "weights_do_not_change": (set_in("learner", weights_changed=0.0), False),
    "logprob_gap_grows": (gap_grows, False),
    "policy_drifts": (policy_moves, False),
    "rollouts_fail": (attempts_fail, False),
    "all_rollouts_fail": (attempts_fail, False),
    "programs_crash": (set_in("metrics", crashed=0.95), False),
}


def test_every_healthy_run_has_a_ledger() -> None:
    lines = {name: recorded(name) for name in RUNS}
    whole = [name for name, found in lines.items() if all("ledger" in line and "plan" in line for line in found)]
    assert len(whole) == len(RUNS) >= 17
    for name in whole:
        for line in lines[name]:
            ledger = line["ledger"]
            columns = ("trained", "zero_advantage", "filtered", "infra_error", "stale", "truncated")
            assert sum(ledger[column] for column in columns) == ledger["tokens"]


@pytest.mark.parametrize("run", RUNS)
def test_watches_on_success_say_nothing_of_a_healthy_run(run: str) -> None:
    """As it would be written today: its rewards rise, and success with them, as often as an episode is above the
    first step's middle one."""
    lines = copy.deepcopy(recorded(run))
    middle = statistics.median(lines[0]["rewards"]) if lines[0]["rewards"] else 0.0
    for line in lines:
        as_written_today(line)
        if "successes" in line:
            line["successes"] = [float(reward > middle) for reward in line["rewards"]]
            line["success"] = statistics.fmean(line["successes"])
            line["plan"]["success"] = {"tune": "correct"}
    for name in (
        "success_falls_reward_does_not",
        "policy_gets_worse",
        "as_good_as_doing_nothing",
        "lengths_drift",
        "entropy_collapses",
    ):
        assert raised(lines, name) == []


def test_every_watch_is_tried() -> None:
    assert set(WRONG) == {rule.name for rule in rules()}


@pytest.mark.parametrize("name", WRONG)
def test_each_watch_speaks_where_something_goes_wrong_in_a_healthy_run(name: str) -> None:
    change, from_the_start = WRONG[name]
    found = {}
    for run in RUNS:
        lines = copy.deepcopy(recorded(run))
        for step, line in enumerate(lines):
            as_written_today(line)
            if from_the_start or step >= FROM:
                change(line, step)
        found[run] = raised(lines, name)
    told = [alarms[0] for alarms in found.values() if alarms]
    assert told and all(alarm.name == name and alarm.seen and alarm.why and alarm.fix for alarm in told)
    assert all(alarm.step >= (0 if from_the_start else FROM) for alarm in told), "not before it went wrong"
