"""Which number of a reply counts, and when it is the right one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.envs.gsm8k.answers import find_answer, has_form, read_number, same

RIGHT = [
    # the marker, with everything people write around a number
    ("#### 18", "18"),
    ("####18", "18"),
    ("She makes 9 * 2 = $18.\n#### 18", "18"),
    ("#### $18", "18"),
    ("#### 18 dollars", "18"),
    ("#### 18.00", "18"),
    ("#### 18.", "18"),
    ("#### 1,080", "1080"),
    ("#### 1080", "1,080"),
    ("#### $1,080.50", "1080.5"),
    ("#### 9 * 2 = 18", "18"),
    ("#### 18 (which is 12 + 6)", "18"),
    ("#### 5kg", "5"),
    ("#### 18 km/h", "18"),
    ("#### 1.8e1", "18"),
    ("#### .5", "0.5"),
    ("#### 0018", "18"),
    ("#### **18**", "18"),
    ("#### 18\nI hope that helps with your 3 questions!", "18"),
    # signs, percent, fractions
    ("#### -5", "-5"),
    ("#### \u22125", "-5"),
    ("#### -$5", "-5"),
    ("#### $-5", "-5"),
    ("#### 25%", "25"),
    ("#### 25%", "0.25"),
    ("#### 25", "25%"),
    ("#### 3/4", "0.75"),
    ("#### 1 1/2 cups", "1.5"),
    ("#### -3/4", "-0.75"),
    # LaTeX
    ("so it is \\boxed{18}", "18"),
    ("\\boxed{\\frac{3}{4}}", "0.75"),
    ("\\boxed{\\$1{,}080}", "1080"),
    ("\\boxed{18\\%}", "18"),
    ("\\boxed{18 \\text{ apples}}", "18"),
    ("$x = 18$", "18"),
    # the phrase
    ("The answer is 18.", "18"),
    ("**Answer:** 18 apples", "18"),
    ("The final answer is: $70,000.", "70000"),
    ("The answer is 9 * 2 = 18 eggs, of 24.", "18"),
    ("The answer is 18. Yes, the answer is 18", "18"),
    # the last number, if nothing else says which
    ("3 apples at 6 each is 18.", "18"),
    ("so $18.00 per day", "18"),
    ("3 * 4 = 12\n12 + 6 = 18", "18"),
    ("She earns $18/day", "18"),
    ("The total is...18", "18"),
    ("<think>#### 4, or 7?</think>It is 18", "18"),
    # rounded where the reference is
    ("33.333333", "33.33"),
    ("17.9999999", "18"),
]
WRONG = [
    ("", "18"),
    ("I do not know.", "18"),
    ("#### 81", "18"),
    ("#### 180", "18"),
    ("#### 1.8", "18"),
    ("#### 17.6", "18"),
    ("#### 18.45", "18.5"),
    ("#### -18", "18"),
    ("10-18", "-18"),
    ("#### 0.25", "25"),
    ("#### 1/0", "1"),
    ("#### " + "9" * 400, "9"),
    ("18\n#### none", "18"),
    # the stronger marker counts, not the number that happens to be right
    ("The answer is 18.\n#### 19", "18"),
    ("\\boxed{19} so 18", "18"),
    # hedging
    ("#### 17\n#### 18", "18"),
    ("#### 18 19 20", "18"),
    ("#### 17 or 18", "18"),
    ("\\boxed{17} \\boxed{18}", "18"),
    ("The answer is 17. The answer is 18.", "18"),
    ("16, 17, 18", "18"),
    ("16\n17\n18", "18"),
    ("17 and 18", "18"),
    ("<think>It is 18", "18"),
]


def is_correct(reply: str, reference: str) -> bool:
    given, wanted = find_answer(reply), read_number(reference)
    return given is not None and wanted is not None and same(given, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("reply", "reference"), RIGHT)
def test_right_however_it_is_written(reply: str, reference: str) -> None:
    assert is_correct(reply, reference), find_answer(reply)


@pytest.mark.parametrize(("reply", "reference"), WRONG)
def test_wrong_or_no_answer(reply: str, reference: str) -> None:
    assert not is_correct(reply, reference), find_answer(reply)


@pytest.mark.parametrize(
    ("reply", "formed"),
    [
        ("9 * 2 = 18\n#### 18", True),
        ("#### $1,080.50  \n", True),
        ("<think>#### ?</think>\n#### 18", False),  # two markers: which one was meant?
        ("#### 18 apples", False),
        ("#### 18 19", False),
        ("#### 18\nDone.", False),
        ("#### 17\n#### 18", False),
        ("The answer is 18", False),
        ("", False),
    ],
)
def test_the_form_is_one_marker_with_one_number_on_the_last_line(reply: str, formed: bool) -> None:
    assert has_form(reply) is formed


WHOLE = st.integers(-(10**12), 10**12)


@given(WHOLE, st.sampled_from(["", "$", "€"]), st.sampled_from(["", " dollars", ".", ".00", "%", " km"]), st.booleans())
def test_a_number_is_read_back_however_it_is_dressed(number: int, before: str, after: str, commas: bool) -> None:
    digits = f"{abs(number):,}" if commas else f"{abs(number)}"
    sign = "-" if number < 0 else ""
    for reply in (
        f"#### {sign}{before}{digits}{after}",
        f"So, in the end, the answer is {before}{sign}{digits}{after}",
    ):
        assert is_correct(reply, str(number))
        assert not is_correct(reply, str(number + 1)) or abs(number) >= 10**6  # one in a million is tolerance


@given(
    st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True), st.sampled_from([", ", "\n", " ", " or ", "; "])
)
def test_a_list_is_never_an_answer(numbers: list[int], between: str) -> None:
    text = between.join(map(str, numbers))
    assert find_answer(text) is None
    assert find_answer(f"#### {text.replace(chr(10), ' ')}") is None


@given(st.text(alphabet="0123456789.,/$%-=# \n\\{}()[]eE+boxedfracthniwsr<>", max_size=200))
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    find_answer(text)
    has_form(text)
