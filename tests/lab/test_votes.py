"""Several episodes of a task: the answer that most of them gave, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_runs import write_config

from airloop.envs.base import load_environment
from airloop.eval.evaluate import EvalOptions, evaluate, format_report
from airloop.eval.votes import BEST, MAJORITY, majority, votes
from airloop.types import Action, Message, Task, Times, Trajectory, Turn
from airloop.watch.display.display import Display


def episode(task: Task, success: float, reply: str = "", actions: tuple[Action, ...] = ()) -> Trajectory:
    turn = Turn((), Message(role="assistant", content=reply), None, actions, (), Times(), ())
    return Trajectory("a", task, 0, 0, (turn,), (), "done", {}, (), {"success": success}, success, 0.0, 0.0)


def asked(*answers: tuple[str | None, float]) -> float:
    task = Task("arith", "1+1", "eval")
    return majority([said for said, _ in answers], [episode(task, success) for _, success in answers])


def test_the_commonest_answer_counts_and_ties_are_shared() -> None:
    assert asked(("2", 1.0), ("2", 1.0), ("3", 0.0)) == 1.0
    assert asked(("2", 1.0), ("3", 0.0), ("3", 0.0)) == 0.0
    assert asked(("2", 1.0), ("3", 0.0)) == 0.5
    assert asked((None, 0.0), (None, 0.0), ("2", 1.0)) == 1.0, "who says nothing has no vote"
    assert asked((None, 0.0), (None, 0.0)) == 0.0
    assert asked(("x", 0.5), ("x", 1.0), ("y", 0.0)) == 0.75, "equal answers that were graded apart"


@given(st.lists(st.tuples(st.sampled_from(["1", "2", "3", None]), st.just(0.0)), min_size=1, max_size=9), st.randoms())
def test_an_order_decides_nothing(answers: list[tuple[str | None, float]], random: object) -> None:
    graded = [(said, float(said == "2")) for said, _ in answers]
    mixed = list(graded)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert asked(*graded) == asked(*mixed)
    assert 0.0 <= asked(*graded) <= max(success for _, success in graded)


@pytest.mark.parametrize(
    ("id", "replies", "expected"),
    [
        ("gsm8k", ["so #### 1,200", "The answer is 1200.", "#### 3 or 4"], ["1200", "1200", None]),
        ("arith", ["12", " 12 of course", "twelve"], ["12", "12", None]),
    ],
)
def test_answers_are_read_from_replies(id: str, replies: Sequence[str], expected: Sequence[str | None]) -> None:
    env = load_environment(id)
    assert [env.answer_of(episode(Task(id, "0", "eval"), 1.0, reply)) for reply in replies] == expected


def test_answers_are_read_from_calls() -> None:
    env, task = load_environment("gsm8k-calculator"), Task("gsm8k-calculator", "0", "eval")
    final = Action("tool", name="final_answer", arguments={"answer": "$42.0"})
    look = Action("tool", name="calculator", arguments={"expression": "42"})
    assert [env.answer_of(episode(task, 1.0, actions=(a,))) for a in (final, look)] == ["42", None]
    musique = load_environment("musique")
    done = Action("tool", name="complete", arguments={"final_answer": "The  London!", "cited_doc_ids": [1]})
    assert musique.answer_of(episode(Task("musique", "0", "eval"), 1.0, actions=(done,))) == "london"


def test_one_episode_a_task_has_no_votes_and_an_environment_without_answers_no_majority() -> None:
    envs = {"arith": load_environment("arith"), "tune": load_environment("tune")}
    one, other = (Task("arith", name, "eval") for name in ("1+1", "2+2"))
    assert votes([episode(one, 1.0, "2"), episode(other, 0.0, "5")], envs) == {}
    twice = [episode(one, 1.0, "2"), episode(one, 0.0, "3"), episode(other, 0.0, "5"), episode(other, 0.0, "5")]
    found = votes(twice, envs)
    assert (found[BEST].mean, found[MAJORITY].mean) == (0.5, 0.25) and found[BEST].n == 2, "over tasks"
    silent = Task("tune", "a", "eval")
    assert set(votes([*twice, episode(silent, 1.0), episode(silent, 0.0)], envs)) == {BEST}


def test_an_evaluation_tells_them(tmp_path: Path) -> None:
    options = EvalOptions("scripted:weak", n=8, rollouts=9)
    report = evaluate(["@", str(write_config(tmp_path))], options, Display(quiet=True))
    found = report["votes"]
    assert found[BEST]["mean"] == 1.0, "one of nine tries that succeed half of the time"
    assert found[MAJORITY]["mean"] > report["means"]["success"]["mean"]
    told = format_report(report).splitlines()
    place = next(i for i, line in enumerate(told) if line.startswith("correct"))
    assert {line.split()[0] for line in told[place + 1 : place + 3]} == {BEST, MAJORITY} and "of 9" in told[place + 1]
