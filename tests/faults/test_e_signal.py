"""What the probe's episodes say of rewards, lengths and time: E1, E2, E4, E9, and A6, D6, D19, G9 of FAILURES.md."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examined import TINY, silent, trouble
from support.probe_cases import ARITH, TUNE, ask, case_of, chance, graded, ids_of

from airloop.config import load_config
from airloop.doctor.case import NotJudged
from airloop.doctor.examine import examine
from airloop.doctor.probe import EPISODES, ROUNDS, before_warmstart, stuck_share
from airloop.doctor.report import exit_code
from airloop.envs.arith import ArithSession
from airloop.errors import AirError, InfraError
from airloop.types import Action, Group, Observation

# --- E1, E2, E9 -----------------------------------------------------------------------------------------


def test_E1_a_model_that_never_earns_anything_is_refused() -> None:
    """Random weights do not add: every episode gets 0."""
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and finding.ids == ("E1", "E2")
    assert finding.seen == "12 of 12 groups have equal rewards; 48 of 48 episodes got 0"
    assert "all are zero" in finding.why and finding.why.endswith("Never anything but 0: correct.")
    assert "easier" in finding.fix


@pytest.mark.slow
def test_E1_names_actions_that_cannot_be_read_as_the_cause() -> None:
    with case_of(TUNE) as case:
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and "none of the 192 actions could be read (B4)" in finding.why


def test_E2_rewards_that_differ_between_tasks_only_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all episodes rewards vary; within each group they do not, and only that counts."""
    graded(monkeypatch, lambda text: {"correct": 0.0})

    async def finish(self: ArithSession) -> Any:
        return SimpleNamespace(rewards={"correct": self.task.payload["a"] / 10}, metrics={})

    monkeypatch.setattr(ArithSession, "finish", finish)
    with case_of(ARITH) as case:
        assert len({t.reward for t in case.probe.trajectories}) > 2
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and "E2" in finding.ids
    assert "Every part of the reward is constant" in finding.why or "Never anything" in finding.why


def test_E2_filtering_that_leaves_out_what_credit_by_turn_could_use_is_told() -> None:
    by_turn = ["--trainer.loss.credit", "turn"]
    ids, finding = trouble([*TINY, *by_turn, "--orchestrator.buffer.online_difficulty_filtering", "true"], "E2")
    assert ids == ("E2",) and finding.verdict == "warn" and "online_difficulty_filtering" in finding.seen
    assert "those whose turns differ" in finding.why
    assert finding.lines == {"orchestrator.buffer.online_difficulty_filtering": False}
    assert silent([*TINY, *by_turn], "E2")


def test_E9_a_tier_that_nearly_everybody_reaches_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": 1.0 if chance(text) > 0.07 else 0.0})
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
        assert case.probe.started == EPISODES * ROUNDS  # looked at again, as it hardly differed
    assert finding.verdict == "warn" and finding.ids == ("E9", "E2")
    assert "episodes got 1" in finding.seen and "the same reward" in finding.why
    assert finding.lines["orchestrator.buffer.online_difficulty_filtering"] is True


def test_E1_E2_E9_are_silent_where_rewards_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
        assert finding.verdict == "pass" and finding.seen.startswith("0 of 4 groups have equal rewards")
        assert case.probe.started == EPISODES


def test_E1_is_not_judged_before_a_supervised_start(tmp_path: Path) -> None:
    with case_of(ARITH, warmstart__steps="3") as case:
        for name in ("rewards_differ", "parts_fire", "parts_add_up", "replies_end"):
            with pytest.raises(NotJudged, match="a supervised start comes first"):
                ask(case, name)
        told = [result for result in examine(case, ("probe",)) if result.verdict == "not judged"]
        (result,) = told  # said once; the others refer to it
        assert exit_code(told) == 0 and "a supervised start comes first" in result.findings[0].seen
    config = load_config(["--warmstart.steps", "3"])
    assert before_warmstart(config)
    (tmp_path / "model").mkdir()
    (tmp_path / "done.json").write_text("{}")
    made = config.model.model_copy(update={"name": str(tmp_path / "model")})
    assert not before_warmstart(config.model_copy(update={"model": made}))


rewards = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8), min_size=1, max_size=4)


@given(rewards)
def test_E9_the_commonest_rewards_share(groups: list[list[float]]) -> None:
    made: list[Any] = [SimpleNamespace(rewards=own) for own in groups]
    share = stuck_share(made)
    assert share == pytest.approx(sum(max(own.count(r) for r in own) / len(own) for own in groups) / len(groups))
    silent = [not Group.has_signal.fget(SimpleNamespace(rewards=own)) for own in groups]  # type: ignore[attr-defined]
    assert (share == 1) == all(silent)


# --- E4 -------------------------------------------------------------------------------------------------


def test_E4_parts_that_cancel_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(
        monkeypatch,
        lambda text: {"correct": chance(text), "brief": 0.01 * len(text) - chance(text)},
        {"correct": 1.0, "brief": 1.0},
    )
    with case_of(ARITH) as case:
        (finding,) = ask(case, "parts_add_up")
    assert finding.verdict == "warn" and ids_of("parts_add_up", finding) == ("E4",)
    assert "variance within groups, weighted: brief" in finding.seen and "work against each other" in finding.why
    assert [*finding.lines.values()] == [0.25]


def test_E4_parts_that_cancel_altogether_are_named_by_E1(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text), "brief": -chance(text)}, {"correct": 1.0, "brief": 1.0})
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and "(brief, correct), but their weighted sum does not (E4)" in finding.why


def test_E4_is_silent_where_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text), "brief": -len(text)}, {"correct": 1.0, "brief": 0.1})
    with case_of(ARITH) as case:
        assert ask(case, "parts_add_up")[0].verdict == "pass"


# --- D19 ------------------------------------------------------------------------------------------------


def test_D19_a_component_that_never_fires_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text), "bonus": 0.0}, {"correct": 1.0, "bonus": 1.0})
    with case_of(ARITH) as case:
        (finding,) = ask(case, "parts_fire")
    assert finding.verdict == "warn" and ids_of("parts_fire", finding) == ("D19",)
    assert finding.seen == "bonus: 0 in all of 16 episodes" and "oracle" in finding.fix


def test_D19_a_penalty_that_nobody_earns_is_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text), "idle": 0.0}, {"correct": 1.0, "idle": 1.0})
    monkeypatch.setattr("airloop.envs.arith.ArithEnv.penalties", ("idle",))
    with case_of(ARITH) as case:
        assert [f.verdict for f in ask(case, "parts_fire")] == ["pass"]


def test_D19_an_ending_that_is_not_handled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def finished(text: str) -> bool:
        return chance(text) > 0.5

    graded(monkeypatch, lambda text: {"correct": chance(text)} if finished(text) else {}, done=finished)
    # (Of success itself the first episode that lacks it is a defect.)
    monkeypatch.setattr("airloop.envs.arith.ArithEnv.success", None)
    with case_of(ARITH) as case:
        assert {t.ending for t in case.probe.trajectories} == {"done", "max_turns"}
        (finding,) = ask(case, "parts_fire")
    assert finding.verdict == "warn"
    assert "correct is given to episodes that end by done, and never to those that end by max_turns" in finding.seen
    assert "finish()" in finding.fix


def test_D19_is_silent_where_every_component_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)}, done=lambda text: chance(text) > 0.5)
    with case_of(ARITH) as case:
        assert [f.verdict for f in ask(case, "parts_fire")] == ["pass"]


# --- A6 -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("context", "verdict"), [("1500", "pass"), ("680", "warn"), ("540", "fail")])
def test_A6_the_transcripts_length_is_projected_to_the_last_turn(context: str, verdict: str) -> None:
    with case_of(TUNE, seq_len=context) as case:
        (finding,) = ask(case, "context_holds_episode")
        assert finding.verdict == verdict and f"tokens at turn 4, in a context of {context}" in finding.seen
        if verdict == "pass":
            return
        endings = [t.ending for t in case.probe.trajectories]
    assert "context_full" in endings and "episodes will be cut at about turn" in finding.why
    room = str(finding.lines["seq_len"])
    with case_of(TUNE, seq_len=room) as case:
        assert ask(case, "context_holds_episode")[0].verdict == "pass"
        assert "context_full" not in [t.ending for t in case.probe.trajectories]


# --- D6 -------------------------------------------------------------------------------------------------


def test_D6_tools_that_take_nearly_all_of_a_turn_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(self: ArithSession, action: Action) -> Observation:
        await asyncio.sleep(6.0)  # beside a model that takes milliseconds, on however busy a machine
        self.correct = chance(action.text)
        return Observation("", done=True)

    monkeypatch.setattr(ArithSession, "act", slow)
    with case_of(ARITH, orchestrator__sampling__max_tokens="2") as case:
        (finding,) = ask(case, "time_per_turn")
    assert finding.verdict == "warn" and ids_of("time_per_turn", finding) == ("D6",)
    took = re.search(r"tool ([\d.]+) s", finding.seen)
    assert took and float(took[1]) >= 6.0, finding.seen  # a busy machine wakes it later
    assert "of a turn is the tool's" in finding.why
    assert finding.lines == {"orchestrator.max_concurrent": 128}


def test_D6_is_silent_where_the_model_takes_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    with case_of(ARITH, max_steps="5") as case:
        (finding,) = ask(case, "time_per_turn")
    assert finding.verdict == "pass" and "all 5 with 2 evaluations" in finding.seen and "136 episodes" in finding.seen


# --- G9 -------------------------------------------------------------------------------------------------


def test_G9_episodes_that_the_machinery_spoils_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    original, calls = ArithSession.act, iter(range(1000))

    async def flaky(self: ArithSession, action: Action) -> Observation:
        if next(calls) % 4 == 0:
            raise InfraError("worker 7 is gone: Traceback: no attribute '__name__'")
        return await original(self, action)

    monkeypatch.setattr(ArithSession, "act", flaky)
    with case_of(ARITH) as case:
        (finding,) = ask(case, "episodes_end")
    assert finding.verdict == "warn" and ids_of("episodes_end", finding) == ("G9",)
    assert "attempts at an episode failed" in finding.seen and "worker 7 is gone" in finding.why
    assert "no attribute '__name__'" in finding.detail


def test_G9_a_probe_that_loses_every_episode_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dead(self: ArithSession, action: Action) -> Observation:
        raise InfraError("no sandbox to be had")

    monkeypatch.setattr(ArithSession, "act", dead)
    with case_of(ARITH, orchestrator__retries="0") as case, pytest.raises(AirError) as error:
        ask(case, "episodes_end")
    assert "None of the probe's 20 episodes could be scored" in str(error.value)
    assert "no sandbox to be had" in str(error.value)


def test_G9_is_silent_where_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    with case_of(ARITH) as case:
        (finding,) = ask(case, "episodes_end")
    assert finding.verdict == "pass" and finding.seen.startswith("16 episodes in") and "16 done" in finding.seen
