"""air tasks: what there is, and what a model sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airloop.errors import AirError
from airloop.eval import tasks
from airloop.eval.transcripts import format_transcripts, play_tasks
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer


@pytest.mark.slow
def test_registered_environments_are_listed_with_their_tasks() -> None:
    rows = {row["id"]: row for row in tasks.list_environments()}
    assert {"arith", "tune"} <= rows.keys()
    assert rows["arith"]["tasks"] == {"train": 79, "eval": 13, "test": 8}
    assert rows["arith"]["max_turns"] == 1 and not rows["arith"]["problem"]
    text = tasks.format_environments(list(rows.values()), with_args=False)
    assert "arith: The environment `arith`: add two small numbers in one reply" in text
    assert "79 train, 13 eval, 8 test" in text


def test_one_environment_is_shown_with_its_arguments() -> None:
    text = tasks.format_environments(tasks.list_environments(["arith"]), with_args=True)
    assert "args.max_number = 9  largest summand" in text and "tune" not in text
    with pytest.raises(AirError, match="No environment is registered as 'aritm'"):
        tasks.list_environments(["aritm"])


def test_tasks_are_shown_as_the_model_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "cached_tokenizer", lambda: ChatTokenizer(tiny_tokenizer()))
    rows = tasks.show_tasks("arith", "test", 2)
    assert [row["messages"][0]["role"] for row in rows] == ["user", "user"]
    assert rows[0]["messages"][0]["content"].endswith("=")
    assert rows[0]["tokens"] > rows[0]["characters"]  # bytes, and the template around them
    assert f"{rows[0]['tokens']} tokens" in tasks.format_tasks(rows)


def test_without_a_tokenizer_characters_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "cached_tokenizer", lambda: None)
    assert "4 characters" in tasks.format_tasks(tasks.show_tasks("arith", "train", 1))


def test_an_empty_split_is_told_with_the_others() -> None:
    with pytest.raises(AirError, match="no tasks in the split 'validation'") as error:
        tasks.show_tasks("arith", "validation", 1)
    assert "train: 79" in error.value.fix


def test_the_prompt_is_the_chat_templates_with_tools_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "cached_tokenizer", lambda: ChatTokenizer(tiny_tokenizer(), name="tiny"))
    args = tasks.parse_args(["max_calculations=1", "max_turns = 3", "dataset=generated"])
    assert args == {"max_calculations": 1, "max_turns": 3, "dataset": "generated"}
    rows = tasks.show_tasks("gsm8k-calculator", "eval", 2, args)
    text = tasks.format_tasks(rows)
    assert rows[0]["prompt"].startswith("<|im_start|>system\n") and rows[0]["prompt"] in text
    assert rows[0]["prompt"].endswith("<|im_start|>assistant\n") and '"name": "final_answer"' in rows[0]["prompt"]
    assert "(eval, curve gsm8k-calculator-generated-steps-1)" in text and "tools: calculator, final_answer" in text
    assert "tokens by the chat template of tiny" in text
    with pytest.raises(AirError, match="has no argument 'max_turn'"):
        tasks.show_tasks("gsm8k-calculator", "eval", 2, {"max_turn": 3})
    with pytest.raises(AirError, match="no name and value"):
        tasks.parse_args(["max_turns"])


def test_another_models_template_is_read_from_its_directory(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    rows = tasks.show_tasks("arith", "test", 1, model=str(tmp_path))
    assert rows[0]["model"] == str(tmp_path) and rows[0]["prompt"].startswith("<|im_start|>user\n")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(AirError, match=r"has no tokenizer\.json"):
        tasks.show_tasks("arith", "test", 1, model=str(tmp_path))


def test_a_whole_episode_of_a_script_can_be_read() -> None:
    rows = play_tasks("gsm8k-calculator", "test", 2, "demo", {"max_calculations": 2})
    text = format_transcripts(rows)
    assert all(row["ending"] == "done" and row["rewards"] == {"correct": 1.0} for row in rows)
    assert [m["role"] for m in rows[0]["messages"]][:4] == ["system", "user", "assistant", "tool"]
    assert "--- tool calculator" in text and "=== done: success 1, reward 1.000 (correct 1)" in text
    with pytest.raises(AirError, match="no tasks in the split 'dev'"):
        play_tasks("arith", "dev", 1, "oracle")
