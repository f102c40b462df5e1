"""GSM8K, with and without the calculator: scripts, splits, curves, and the genuine rows where they are at hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
from collections import Counter
from pathlib import Path

import pytest

from airloop.envs.base import load_environment
from airloop.envs.gsm8k import Gsm8kCalculatorEnv, Gsm8kEnv
from airloop.envs.gsm8k.answers import read_number, same
from airloop.envs.gsm8k.calculator import calculate
from airloop.envs.gsm8k.env import CalculatorArgs, Gsm8kArgs
from airloop.envs.gsm8k.problems import generated_rows
from airloop.envs.rows import read_rows
from airloop.errors import AirError
from airloop.rollout.episode import run_episode
from airloop.runs.trajectory_file import from_json, to_json
from airloop.types import Action, Message, Observation, Score, Task, Trajectory

DATA = Path(os.environ.get("AIR_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")
TRAIN, TEST = DATA / "gsm8k_train.jsonl.gz", DATA / "gsm8k_test_400.jsonl"
needs_data = pytest.mark.skipif(not TRAIN.is_file(), reason="needs GSM8K's rows; AIR_TEST_DATA says where they are")
SPLITS = ("train", "eval", "test")


async def play(env: Gsm8kEnv, task: Task, name: str, seed: int = 0) -> Trajectory:
    return await run_episode(env, task, env.scripted(name, task, seed), id="x", seed=seed)


def rewards(env: Gsm8kEnv, tasks: list[Task], name: str) -> list[float]:
    async def main() -> list[float]:
        return [(await play(env, task, name, seed)).reward for seed, task in enumerate(tasks)]

    return asyncio.run(main())


def everything(env: Gsm8kEnv) -> list[Task]:
    return [task for split in SPLITS for task in env.tasks(split)]


@pytest.mark.slow
@pytest.mark.parametrize("env", [Gsm8kEnv(), Gsm8kCalculatorEnv()], ids=lambda env: env.name)
def test_oracle_demo_noop_and_cheat_on_every_kind(env: Gsm8kEnv) -> None:
    """Every length of solution, in every split."""
    chosen = []
    for split in SPLITS:
        seen: Counter[str] = Counter()
        for task in env.tasks(split):
            seen[task.curve] += 1
            chosen += [task] if seen[task.curve] <= 4 else []
    assert len(seen) >= 6
    for name, reward in (("oracle", 1.0), ("demo", 1.0), ("noop", 0.0), ("cheat", 0.0)):
        assert rewards(env, chosen, name) == pytest.approx([reward] * len(chosen)), name
    with pytest.raises(AirError, match="no scripted agent 'genius'"):
        env.scripted("genius", chosen[0], 0)


def test_a_worked_example_goes_through_the_calculator() -> None:
    env = Gsm8kCalculatorEnv()
    task = next(task for task in env.tasks("train") if task.curve.endswith("steps-3"))
    trajectory = asyncio.run(play(env, task, "demo"))
    assert trajectory.ending == "done" and trajectory.metrics["calculator_calls"] == 3
    assert len(trajectory.turns) == 4
    said = [observation.text for turn in trajectory.turns for observation in turn.observations]
    assert said[2] == task.payload["answer"]
    assert from_json(to_json(trajectory)) == trajectory  # the payload is JSON already


def test_where_turns_are_few_calculations_share_one() -> None:
    for turns in (1, 2, 3):
        env = Gsm8kCalculatorEnv(CalculatorArgs(max_turns=turns))
        tasks = [task for task in env.tasks("train") if task.curve.endswith("steps-5")][:3]
        assert rewards(env, tasks, "oracle") == pytest.approx([1.0] * 3)


def act(*actions: Action) -> tuple[list[Observation], Score]:
    async def main() -> tuple[list[Observation], Score]:
        env = Gsm8kCalculatorEnv()
        async with env.open(Task(env.name, "t", "train", {"question": "?", "answer": "18"}), 0) as session:
            await session.begin()
            seen = [session.invalid(a) if a.kind == "invalid" else await session.act(a) for a in actions]
            return seen, await session.finish()

    return asyncio.run(main())


def tool(name: str, **arguments: object) -> Action:
    return Action("tool", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("action", "lesson"),
    [
        (tool("python", code="1"), "There is no tool 'python'. Call calculator or final_answer."),
        (tool("calculator", expr="1+1"), 'calculator takes one argument: {"expression": "16 - 3 * 4"}.'),
        (tool("calculator", expression="1+1", digits=2), "takes one argument"),
        (tool("calculator", expression=["1+1"]), "takes one argument"),
        (tool("calculator", expression=True), "takes one argument"),
        (tool("calculator", expression="1/0"), "divides by zero"),
        (tool("final_answer", answer="who knows"), "must be one plain number"),
        (tool("final_answer", answer="17 or 18"), "must be one plain number"),
        (tool("final_answer", value=18), 'final_answer takes one argument: {"answer": "42"}.'),
        (Action("invalid", text="No tool call found."), "No tool call found."),
    ],
)
def test_a_wrong_call_is_answered_with_a_lesson_and_the_episode_goes_on(action: Action, lesson: str) -> None:
    seen, score = act(action, tool("final_answer", answer=18))
    assert lesson in seen[0].text and seen[0].failed and not seen[0].done
    assert seen[1].done and score.rewards == {"correct": 1.0}
    assert score.metrics["tool_errors"] == 1 and score.metrics["format"] == 0.0


def test_an_answer_by_tool_may_be_a_number_or_a_text() -> None:
    for answer in (18, 18.0, "18", "$18.00"):
        score = act(tool("final_answer", answer=answer))[1]
        assert score.rewards == {"correct": 1.0} and score.metrics["format"] == 1.0
    assert act()[1].rewards == {"correct": 0.0} and act()[1].metrics["format"] == 0.0


@pytest.mark.parametrize("kind", [Gsm8kEnv, Gsm8kCalculatorEnv])
def test_correct_alone_is_paid_and_the_form_only_where_it_is_asked_for(kind: type[Gsm8kEnv]) -> None:
    """With form paid beside it, a real model went from 16 % correct to 6 % (E10)."""
    env = kind()
    task = env.tasks("train")[0]
    assert asyncio.run(play(env, task, "oracle")).rewards == {"correct": 1.0}
    env.weigh({"correct": 1.0, "format": 0.1})
    both = asyncio.run(play(env, task, "oracle"))
    assert both.rewards == {"correct": 1.0, "format": 1.0} and both.reward == pytest.approx(1.1)
    env.weigh({"correct": 2.0})  # no need to say that form is worth nothing
    assert asyncio.run(play(env, task, "oracle")).reward == 2.0
    with pytest.raises(AirError, match=r"(?s)no reward component 'formatt'.*mean 'format'"):
        env.weigh({"formatt": 1.0})


def test_the_generated_rows_are_right_and_never_change() -> None:
    rows = generated_rows()
    assert len({row["question"] for row in rows}) == len(rows) == 2000
    for row in rows:
        for step in row["answer"].split("<<")[1:]:
            expression, result = step.partition(">>")[0].rsplit("=", 1)
            assert calculate(expression) == result
    assert rows[0]["question"].startswith("Chen has 33 candles. Chen gives 15 of them to a friend.")
    assert rows[0]["answer"].endswith("#### 9")


def test_splits_share_no_question_and_generated_tasks_say_so() -> None:
    env = Gsm8kEnv()
    questions = {split: {task.payload["question"] for task in env.tasks(split)} for split in SPLITS}
    assert not questions["train"] & questions["eval"] and not questions["train"] & questions["test"]
    assert not questions["eval"] & questions["test"] and all(len(found) > 60 for found in questions.values())
    tasks = everything(env)
    assert len({task.id for task in tasks}) == len(tasks) == 2000
    assert all(task.id.startswith("generated-") and "generated" in task.curve for task in tasks)
    assert env.tasks("validation") == ()


def test_a_run_without_a_data_set_is_told_that_its_tasks_are_generated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Gsm8kEnv(Gsm8kArgs(dataset="generated")).warm()
        assert not caplog.records
        Gsm8kEnv().warm()
    assert "not GSM8K" in caplog.text and "openai/gsm8k,main" in caplog.text


def write(path: Path, rows: list[dict[str, str]]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_one_file_gives_all_splits_and_a_slice_moves_no_row_to_another_split(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl.gz", generated_rows(400))
    whole, part = (Gsm8kEnv(Gsm8kArgs(dataset=d, eval_share=0.2)) for d in (file, f"{file},,train[:100]"))
    home = {task.id: task.split for task in everything(whole)}
    assert len(home) == 400 and len(everything(part)) == 100
    assert all(home[task.id] == task.split for task in everything(part))
    assert all(task.curve.startswith("gsm8k-steps-") for task in everything(whole))


def test_test_rows_are_never_trained_on(tmp_path: Path) -> None:
    rows = generated_rows(60)
    train, test = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[40:])
    env = Gsm8kEnv(Gsm8kArgs(dataset=train, test_dataset=test))
    assert {task.payload["question"] for task in env.tasks("test")} == {row["question"] for row in rows[40:]}
    assert len(everything(env)) == 60
    with pytest.raises(AirError, match="training problems are generated"):
        Gsm8kEnv(Gsm8kArgs(test_dataset=test)).tasks("train")


def test_only_short_problems(tmp_path: Path) -> None:
    env = Gsm8kEnv(Gsm8kArgs(max_calculations=2))
    assert {task.curve[-1] for task in everything(env)} == {"1", "2"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "?", "answer": "18"}, "Row 1 of .* has no number after ####"),
        ({"question": "?", "answer": "#### many"}, "no number after ####"),
        ({"prompt": "?", "answer": "#### 1"}, "no text as question and answer"),
    ],
)
def test_a_row_of_another_form_is_told_by_its_number(tmp_path: Path, row: dict[str, str], problem: str) -> None:
    with pytest.raises(AirError, match=problem):
        Gsm8kEnv(Gsm8kArgs(dataset=write(tmp_path / "rows.jsonl", [row]))).tasks("train")


def test_a_solution_without_annotations_counts_its_lines(tmp_path: Path) -> None:
    row = {"question": "How old?", "answer": "Let x be it.\n2x = 8\nx = 4\n#### 4"}
    env = Gsm8kCalculatorEnv(CalculatorArgs(dataset=write(tmp_path / "rows.jsonl", [row])))
    task = everything(env)[0]
    assert task.curve == "gsm8k-calculator-steps-3"
    assert rewards(env, [task], "oracle") == pytest.approx([1.0])


def test_both_are_registered() -> None:
    assert load_environment("gsm8k").max_turns == 1
    env = load_environment("gsm8k-calculator", {"max_turns": 6})
    assert env.max_turns == 6 and env.action_format == "tools"
    opening = asyncio.run(env.open(env.tasks("train")[0], 0).begin())
    assert opening.messages[1] == Message(role="user", content=env.tasks("train")[0].payload["question"])
    with pytest.raises(AirError, match="did you mean 'dataset'"):
        load_environment("gsm8k", {"datasets": "x"})


@needs_data
def test_the_genuine_rows_score_as_they_should() -> None:
    text = Gsm8kEnv(Gsm8kArgs(dataset=str(TRAIN), test_dataset=str(TEST)))
    assert len(everything(text)) == 7873 and len(text.tasks("test")) == 400
    assert 300 < len(text.tasks("eval")) < 450
    sample = text.tasks("train")[::100]
    for name, reward in (("oracle", 1.0), ("noop", 0.0), ("cheat", 0.0)):
        assert rewards(text, sample, name) == pytest.approx([reward] * len(sample)), name
    tools = Gsm8kCalculatorEnv(CalculatorArgs(dataset=str(TRAIN), test_dataset=str(TEST)))
    sample = tools.tasks("train")[::100]
    assert rewards(tools, sample, "oracle") == pytest.approx([1.0] * len(sample))


@pytest.mark.long
@needs_data
def test_the_calculator_agrees_with_every_annotation_of_the_genuine_rows() -> None:
    env = Gsm8kEnv(Gsm8kArgs(dataset=str(TRAIN)))
    rows = read_rows(str(TRAIN))
    count = 0
    for row in rows:
        for step in row["answer"].split("<<")[1:]:
            expression, result = step.partition(">>")[0].rsplit("=", 1)
            mine, wanted = read_number(calculate(expression)), read_number(result)
            assert mine and wanted and same(mine, wanted), step
            count += 1
    assert count == 23716 and len(everything(env)) == len(rows)
