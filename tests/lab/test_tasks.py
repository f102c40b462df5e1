"""air tasks: what there is, and what a model sees of it."""

from __future__ import annotations

import pytest

from air.errors import AirError
from air.lab import tasks
from air.models.chat import ChatTokenizer
from air.models.tiny import tiny_tokenizer


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
