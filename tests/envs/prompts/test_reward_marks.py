"""`@airloop.reward`: functions of one reply, for `prompts` and for TRL."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import airloop
from airloop import AirError
from airloop.envs.base import load_environment
from airloop.envs.prompts.reward import reward
from airloop.envs.script import Script
from airloop.rollout.episode import run_episode

ROWS = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]
CODE = """
from airloop import reward

@reward
def correct(reply, answer):
    return float(reply == answer)

@reward(weight=0.25)
async def short(reply, prompt, longest=9):
    return float(len(reply) < longest and prompt.endswith("="))

@reward(weight=0)
def anything(reply, **columns):
    return float(sorted(columns) == ["answer", "prompt", "question"])

def helper(reply):
    return 0.0
"""


def environment(folder: Path, code: str = CODE, name: str = "", **args: Any) -> Any:
    (folder / "rewards.py").write_text(code)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = {"dataset": f"{folder}/rows.jsonl", "rewards": f"{folder}/rewards.py{name}", "prompt": "question", **args}
    return load_environment("prompts", given)


def test_a_file_gives_all_that_are_marked_with_their_weights(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env.reward_weights == {"correct": 1.0, "short": 0.25, "anything": 0.0}
    task = env.tasks("train")[0]
    played = asyncio.run(run_episode(env, task, Script(task.payload["columns"]["answer"]), id="1", seed=0))
    assert played.rewards == {"correct": 1.0, "short": 1.0, "anything": 1.0} and played.reward == 1.25
    assert played.metrics["success"] == 1.0


def test_one_may_be_named_and_weighed_by_the_config(tmp_path: Path) -> None:
    env = environment(tmp_path, name=":short")
    assert env.components == ("short",)
    env.weigh({"short": 2.0})
    assert env.reward_weights == {"short": 2.0}


def test_a_column_that_is_missing_is_named_and_so_is_a_file_without_any(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"correct \(.*rewards.py:\d+\) needs 'solution'"):
        environment(tmp_path, CODE.replace("answer", "solution")).count("train")
    (tmp_path / "none").mkdir()
    with pytest.raises(AirError, match="none is marked with @airloop"):
        environment(tmp_path / "none", "def correct(completions): return [1.0]\ndef other(completions): ...\n")


def test_what_it_raises_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"correct raised ZeroDivisionError: .*rewards.py:6\)"):
        environment(tmp_path, CODE.replace("float(reply == answer)", "1 / 0")).count("train")


def test_a_function_without_a_reply_is_refused() -> None:
    with pytest.raises(AirError, match="takes no 'reply'"):

        @reward
        def wrong(completions: list[str]) -> float:
            return 0.0


def test_trl_calls_it_as_its_own() -> None:
    """With lists of prompts and completions, texts or messages, and columns by name."""

    @reward(weight=0.5)
    def same(reply: str, answer: str) -> float | None:
        """Whether it is right."""
        return float(reply == answer) if answer else None

    chat = [[{"role": "assistant", "content": text}] for text in ("a", "b", "c")]
    columns = {"answer": ["a", "c", ""], "completion_ids": [[1], [2], [3]], "trainer_state": None}
    for completions in (["a", "b", "c"], chat):
        assert same(prompts=["p"] * 3, completions=completions, **columns) == [1.0, 0.0, None]
    assert list(inspect.signature(same).parameters) == ["prompts", "completions", "answer"]
    assert (same.__name__, same.__doc__) == ("same", "Whether it is right.") and airloop.reward is reward
