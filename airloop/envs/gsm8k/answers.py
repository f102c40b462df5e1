"""The number that a reply gives as its answer, and whether it is the right one.

Which number counts, the first of these that the reply has: what follows `####`; the inside of `\\boxed{}`; what
follows "the answer is"; else the last number of the reply. Text up to `</think>` is not part of a reply.

Only one number counts, and whoever hedges has not answered: markers that contradict each other, or a bare list of
numbers ("3, 4 or 5") where the answer should be, give no answer at all.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

MARK = "####"
LONGEST = 40  # digits of a number that is read; more is no answer to a word problem
# Rounding is accepted where the reference itself is rounded to at least so many decimals.
ROUNDED = 2

_DIGITS = r"(?:\d{1,3}(?:[,\u00a0\u202f]\d{3})+|\d+)"
_PLAIN = rf"(?:{_DIGITS}(?:\.\d+)?|(?<![\w.])\.\d+)"
# A minus is a sign only where no number or closing bracket stands before it: "10-4" has no negative number.
_NUMBER = re.compile(
    rf"(?<![^\W_])(?<!\d\.)(?P<sign>(?<![\d)\]])-[ ]?)?[$€£¥]?[ ]?(?P<inner>-)?"
    rf"(?:(?P<whole>\d+)[ ]+(?P<num>\d+)/(?P<den>\d+)|(?P<over>{_PLAIN})/(?P<under>{_PLAIN})(?![\d/])"
    rf"|(?P<plain>{_PLAIN})(?P<power>[eE][+-]?\d{{1,2}})?)"
    r"[ ]?(?P<percent>%)?"
)
# What stands between the entries of a bare list, and nothing else does.
_SEPARATORS = r"[\s,;:|/&•*.)\]}$€£¥%-]*"
_BETWEEN = re.compile(rf"{_SEPARATORS}(?:(?:and|or)\b{_SEPARATORS})?", re.IGNORECASE)
_PHRASE = re.compile(r"\banswer\b[*_\s]*(?:is\b|:|=)[*_\s]*:?", re.IGNORECASE)
_END = re.compile(r"\n|[.!?](?=\s|$)")  # of a sentence


@dataclass(frozen=True)
class Number:
    """`percent` and `decimals` as it was written: "12.50%" is 12.5 with two decimals and a percent sign."""

    value: Fraction
    percent: bool = False
    decimals: int = 0


def find_answer(reply: str) -> Number | None:
    """The number a reply gives as its answer, or None."""
    text = clean(spoken(reply))
    for segments in (_after_marks(text), _boxed(text), _after_phrases(text)):
        if segments:
            found = [_first(segment) for segment in segments]
            values = {number.value if number else None for number in found}
            return found[-1] if len(values) == 1 else None
    return _last(text)


def same(given: Number, reference: Number) -> bool:
    """Equal as numbers, whatever currency or unit was written. A percent sign may be read as a unit or as a
    hundredth where only one side has it; rounding counts only where the reference is rounded itself."""
    readings = [given.value]
    if given.percent and not reference.percent:
        readings.append(given.value / 100)
    elif reference.percent and not given.percent:
        readings.append(given.value * 100)
    return any(_close(value, reference) for value in readings)


def read_number(text: str) -> Number | None:
    """The number of a text that is an answer by itself, such as a reference or a tool's argument."""
    return _first(clean(text))


def has_form(reply: str) -> bool:
    """Whether the reply ends as it was told to: one marker, on the last line, with one bare number after it."""
    lines = clean(spoken(reply)).rstrip().rsplit("\n", 1)
    last = lines[-1].strip()
    if not last.startswith(MARK) or reply.count(MARK) != 1:
        return False
    found = _NUMBER.fullmatch(last.removeprefix(MARK).strip())
    return found is not None and _number(found) is not None


def spoken(reply: str) -> str:
    """The reply without its thinking; nothing, if the thinking never ended."""
    if "</think>" in reply:
        return reply.rpartition("</think>")[2]
    return "" if reply.lstrip().startswith("<think>") else reply


def clean(text: str) -> str:
    """One way of writing each thing: minus signs, LaTeX's fractions, spaces and escapes, no bold."""
    text = text.replace("\u2212", "-").replace("\u2013", "-").replace("{,}", ",").replace("\\!", "")
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}", r" \1", text)
    text = re.sub(r"\\([$%#€£])", r"\1", text)
    text = re.sub(r"\\[,;: ]|\\q?quad\b|~", " ", text)
    return re.sub(r"\*\*|__", "", text)


def _after_marks(text: str) -> list[str]:
    return [part.lstrip().split("\n", 1)[0] for part in text.split(MARK)[1:]]


def _boxed(text: str) -> list[str]:
    """Braces are matched: \\boxed{\\frac{1}{2}} was cleaned already, other macros may be left."""
    found = []
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if not depth:
            found.append(text[match.end() : at - 1])
    return found


def _after_phrases(text: str) -> list[str]:
    """To the end of the sentence; a phrase that no number follows ("the answer is simple") is no marker."""
    parts = [_END.split(text[match.end() :].lstrip(), maxsplit=1)[0] for match in _PHRASE.finditer(text)]
    return [part for part in parts if _NUMBER.search(part)]


def _first(segment: str) -> Number | None:
    """The number of a short text that should hold one; of a calculation ("9 * 2 = 18"), its result."""
    segment = segment.rsplit("=", 1)[1] if "=" in segment else segment
    found = list(_NUMBER.finditer(segment))
    if not found or any(_listed(segment, a, b) for a, b in itertools.pairwise(found)):
        return None
    return _number(found[0])


def _last(text: str) -> Number | None:
    found = list(_NUMBER.finditer(text))
    if not found or (len(found) > 1 and _listed(text, *found[-2:])):
        return None
    return _number(found[-1])


def _listed(text: str, before: re.Match[str], after: re.Match[str]) -> bool:
    return _BETWEEN.fullmatch(text, before.end(), after.start()) is not None


def _number(match: re.Match[str]) -> Number | None:
    parts = {name: re.sub("[,\u00a0\u202f]", "", part) for name, part in match.groupdict("").items()}
    if sum(len(part) for part in parts.values()) > LONGEST:
        return None
    try:
        if parts["whole"]:
            value = int(parts["whole"]) + Fraction(int(parts["num"]), int(parts["den"]))
        elif parts["over"]:
            value = Fraction(parts["over"]) / Fraction(parts["under"])
        else:
            value = Fraction(parts["plain"] + parts["power"])
    except ZeroDivisionError:
        return None
    if parts["sign"] or parts["inner"]:
        value = -value
    decimals = len(parts["plain"].partition(".")[2]) if not parts["power"] else 0
    return Number(value, bool(parts["percent"]), decimals)


def _close(value: Fraction, reference: Number) -> bool:
    difference = abs(value - reference.value)
    if difference <= abs(reference.value) * Fraction(1, 10**6):  # 17.9999999 of a calculator is 18
        return True
    return reference.decimals >= ROUNDED and difference <= Fraction(1, 2 * 10**reference.decimals)
