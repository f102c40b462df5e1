"""air tasks audit: honest scripts above dishonest ones, by every reward that an environment can pay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airloop.commands.init import STARTER
from airloop.envs.base import Environment, load_environment
from airloop.envs.gsm8k.env import Gsm8kEnv
from airloop.errors import AirError
from airloop.eval.audit import Audit, audit, full_distance, make_weightings
from airloop.eval.audit_report import as_json, format_audit
from airloop.eval.gaming_policies import GAMING_POLICIES, made_up
from airloop.eval.tasks import parse_weights
from airloop.learn.advantages import group_advantages
from airloop.types import Agent, Score, Task, Trajectory
from airloop.watch.display.display import Display

MINE = f"{STARTER / 'my_env.py'}:MyEnv"


def audited(env: Environment, per_kind: int = 8, given: Mapping[str, float] | None = None) -> Audit:
    return audit(env, per_kind, given, Display(quiet=True))


def verdicts(found: Audit, weighting: str, honest: str = "") -> set[str]:
    return {c.verdict for c in found.comparisons if c.weighting == weighting and honest in ("", c.honest)}


class Bonus(Gsm8kEnv):
    """Word problems that pay a tenth for the form, as they once did."""

    name: ClassVar[str] = "gsm8k"
    reward_weights: Mapping[str, float] = {"correct": 1.0, "form": 0.1}

    @property
    def components(self) -> tuple[str, ...]:
        return ("correct", "form")

    def weigh(self, weights: Mapping[str, float]) -> None:
        self.reward_weights = dict(weights)

    def open(self, task: Task, seed: int) -> Any:
        session = super().open(task, seed)
        finish = session.finish

        async def paid() -> Score:
            score = await finish()
            rewards = {"correct": score.metrics["correct"], "form": float(session.formed)}  # type: ignore[attr-defined]
            return Score(rewards, score.metrics)

        session.finish = paid  # type: ignore[method-assign]
        return session


class Correct(Bonus):
    """The same, and the form is worth nothing."""

    reward_weights: Mapping[str, float] = {"correct": 1.0, "form": 0.0}

    @property
    def components(self) -> tuple[str, ...]:
        return ("correct",)


# --- what is found ------------------------------------------------------------------------------------------


def test_a_bonus_for_the_form_is_found_to_teach_not_to_think() -> None:
    """In groups where nobody is right the bonus decides alone, and a line without working earns it."""
    found = audited(Bonus(Bonus.Args(max_calculations=2)))
    worst = [c for c in found.comparisons if c.weighting == "default" and c.verdict == "violated"]
    assert {(c.honest, c.dishonest) for c in worst} >= {("weak", "form only"), ("weak", "constant answer")}
    assert all(c.honest == "weak" for c in worst) and "where neither succeeds" in worst[0].why
    assert verdicts(found, "form", "oracle") == {"holds", "violated"} and found.exit_code == 1


def test_the_same_without_the_bonus_holds() -> None:
    found = audited(Correct(Correct.Args(max_calculations=2)))
    assert {c.verdict for c in found.comparisons if c.weighting in ("default", "correct")} == {"holds"}


@pytest.mark.parametrize("name", ["arith", "gsm8k-calculator", MINE])
def test_shipped_environments_of_one_reply_and_of_tools_hold_by_success(name: str) -> None:
    env = load_environment(name)
    found = audited(env)
    assert {c.verdict for c in found.comparisons} == {"holds"}
    assert not found.missing and not any(kind.problem for kind in found.kinds)


@pytest.mark.long
def test_musique_holds_by_every_component() -> None:
    found = audited(load_environment("musique"), per_kind=16)
    bad = [(c.kind, c.weighting, c.honest, c.dishonest) for c in found.comparisons if c.verdict != "holds"]
    assert not bad and found.exit_code == 0
    assert {w.name for w in found.weightings} >= {"default", "recall", "citation_recall", "format", "mixture"}


@pytest.mark.long
def test_tune_holds_by_every_component() -> None:
    env = load_environment("tune", {"datasets": ["concrete", "storms", "quakes", "weather"], "workers": 1})
    found = audited(env, per_kind=12)
    shaping = {"default": False, "improvement": False, "headroom": False, "tool": True, "idle": True}
    assert {w.name: w.shaping for w in found.weightings} == shaping
    bad = [(c.weighting, c.honest, c.dishonest, c.why) for c in found.comparisons if c.verdict != "holds"]
    assert not bad and found.exit_code == 0


# --- how it judges --------------------------------------------------------------------------------------------


def test_components_are_judged_alone_and_shaping_beside_the_others() -> None:
    env = load_environment("soup", {"mode": "bootstrap"})
    found = {w.name: w for w in make_weightings(env)}
    assert found["process"].weights == {"answer": 1.0, "process": 1.0} and found["process"].shaping
    assert found["answer"].weights == {"answer": 1.0} and not found["answer"].shaping
    tune = make_weightings(load_environment("tune"), {"headroom": 1.0, "tool": 0.5})
    assert tune[0].name == "as given" and tune[0].weights == {"headroom": 1.0, "tool": 0.5}
    with pytest.raises(AirError, match="no reward component 'hedroom'"):
        make_weightings(load_environment("tune"), {"hedroom": 1.0})


def test_the_distance_in_a_group_is_the_trainers() -> None:
    advantages = group_advantages([1.0] * 4 + [0.0] * 4, scale=True)
    assert full_distance() == advantages[0] - advantages[-1] == pytest.approx(1.87, abs=0.01)


class Lucky(Correct):
    """Whose weak script is never right."""

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return super().scripted("noop" if name == "weak" else name, task, seed)


class Unweak(Correct):
    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        if name == "weak":
            raise AirError("no such script")
        return super().scripted(name, task, seed)


class Broken(Correct):
    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return super().scripted("noop" if name == "oracle" else name, task, seed)


class Fails(Correct):
    def open(self, task: Task, seed: int) -> Any:
        raise RuntimeError("the machine is on fire")


def test_honest_work_that_never_succeeds_decides_nothing() -> None:
    found = audited(Lucky(Lucky.Args(max_calculations=2)))
    assert verdicts(found, "default", "oracle") == {"holds"} and verdicts(found, "default", "weak") == {"undecided"}
    assert found.exit_code == 2 and "never succeeded" in format_audit(as_json(found, Lucky()), found)


def test_an_environment_without_a_weak_script_is_said_and_judged_by_the_others() -> None:
    env = Unweak(Unweak.Args(max_calculations=2))
    found = audited(env)
    assert found.missing == ["weak"] and found.exit_code == 0
    assert "has no script 'weak': audited with the others" in format_audit(as_json(found, env), found)


@pytest.mark.parametrize(("kind", "why"), [(Broken, "the oracle never succeeded"), (Fails, "the machine is on fire")])
def test_a_kind_that_cannot_be_played_is_named_and_nothing_passes(kind: type[Environment], why: str) -> None:
    env = kind(kind.Args(max_calculations=2))  # type: ignore[call-arg]
    found = audited(env, per_kind=2)
    assert found.exit_code == 2 and all(why in k.problem for k in found.kinds)
    text = format_audit(as_json(found, env), found)
    assert "not judged" in text and why in text


class Ranked(Correct):
    """Pays a place in the group, as a rank does."""

    reward_weights: Mapping[str, float] = {"correct": 0.0, "form": 0.0, "rank": 1.0}

    @property
    def components(self) -> tuple[str, ...]:
        return ("rank",)

    def group_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        worth = [t.rewards["correct"] for t in trajectories]
        return [{"rank": sum(other < own for other in worth) / len(worth)} for own in worth]


def test_components_that_exist_only_in_a_group_are_judged_in_one() -> None:
    found = audited(Ranked(Ranked.Args(max_calculations=2)))
    assert verdicts(found, "default", "oracle") == {"holds"} and found.exit_code == 0


# --- the gaming policies, the command -------------------------------------------------------------------------


def test_made_up_arguments_are_what_a_schema_allows() -> None:
    schema = {
        "type": "object",
        "properties": {
            "status": {"enum": ["ok", "limit"]},
            "ids": {"type": "array", "items": {"type": "integer"}},
            "deep": {"type": "object", "properties": {"x": {"type": ["number", "null"]}, "y": {"type": "boolean"}}},
            "any": {},
            "left": {"type": "string"},
        },
        "required": ["status", "ids", "deep", "any"],
    }
    assert made_up(schema, "t") == {"status": "ok", "ids": [1], "deep": {"x": 1, "y": True}, "any": "t"}


def test_the_command_shows_everybody_and_ends_with_the_verdict(air: Any, tmp_path: Path) -> None:
    code, text, said = air("tasks", "audit", MINE, "--per-kind", "4")
    assert code == 0 and "every honest script earns more" in text
    assert all(name in text for name in (*GAMING_POLICIES, "oracle", "weak", "noop", "cheat"))
    assert "my_env: 4 rounds" in said
    code, text, _ = air("tasks", "audit", "arith", "--arg", "max_number=5", "--reward", "correct=2", "--json")
    report = json.loads(text)
    assert code == report["exit_code"] == 0 and report["weightings"][0]["weights"] == {"correct": 2.0}
    assert report["kinds"][0]["policies"]["oracle"]["as given"] == 2.0
    assert air("tasks", "audit", "arith", "--reward", "correct=yes")[0] == 1
    with pytest.raises(AirError, match="is no number"):
        parse_weights(["correct=yes"])
