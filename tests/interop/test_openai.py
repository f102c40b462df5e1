"""OpenAI's own client, of two major versions, unchanged: in whatever way it asks, what is trained is what it got."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.interop_world import both_at_once, one_by_one, play

pytestmark = pytest.mark.interop


def adds(prompt: str, seed: int) -> str:
    """Of agents side by side: says a number again, or the sum of several."""
    asked = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    return str(sum(int(word) for word in asked.split() if word.isdecimal()))


@pytest.mark.parametrize("library", ["openai2", "openai3"])
@pytest.mark.parametrize(
    ("function", "speak", "turns", "conversations"),
    [
        ("solve", one_by_one, 3, 1),
        ("solve", both_at_once, 2, 1),
        ("solve_async", both_at_once, 2, 1),
        ("solve_stream", one_by_one, 3, 1),
        ("solve_stream", both_at_once, 2, 1),
        ("solve_stream_helper", both_at_once, 2, 1),
        ("solve_side_by_side", adds, 3, 3),
        ("solve_responses", one_by_one, 3, 1),
        ("solve_responses", both_at_once, 2, 1),
        ("solve_responses_stream", both_at_once, 2, 1),
    ],
)
def test_episodes_of_its_client(
    library: str, function: str, speak: Callable[[str, int], str], turns: int, conversations: int, tmp_path: Path
) -> None:
    played = play(tmp_path, library, f"chat_loop.py:{function}", speak)
    assert [len(t.turns) for t in played] == [turns] * len(played)
    assert [t.metrics["conversations"] for t in played] == [conversations] * len(played)
