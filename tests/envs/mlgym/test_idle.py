"""What was there already is recognised in any file that an agent may leave, whatever is in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airloop_envs.mlgym.idle import _same

STARTER = b"def row_strategy(history):\n    return 0  # a first version\n"
PIECES = ["'", '"', "'''", '"""', "(", ")", "\\", "\n", "    ", "\t", "def f():", "return 0", "#", "\0", "é", "f'{"]


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(lambda parts: "".join(parts).encode()))
def test_no_text_of_an_agent_breaks_the_comparison(text: bytes) -> None:
    """An open string, bracket or line's end ended a run after 42 steps."""
    _same(STARTER, text)
    assert _same(text, text)


def test_comments_and_blank_lines_are_no_work_and_broken_code_is_none_of_the_starters() -> None:
    assert _same(STARTER, b"\n\ndef row_strategy(history):\n\n  return 0\n")
    for broken in (
        b'def row_strategy(history):\n    return "0\n',
        b"def row_strategy(history):\n    return (0\n",
        b"x = '''",
    ):
        assert not _same(STARTER, broken)
