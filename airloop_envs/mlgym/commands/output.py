"""What a command printed: the requests in it, and the text as an agent should read it."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

Kind = Literal["validate", "submit", "skip", "exit_forfeit"]

# Printed by the functions of shell.py. The unit separator does not occur in text, and `open` never shows one.
REQUEST = re.compile(rf"\x1fair:({'|'.join(get_args(Kind))})\x1f(?:\r?\n)?")

ANSI = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[ -/]*[0-~]?"
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# A tqdm bar with its label before it; what follows on the line was printed over the standing bar. Repetitions are
# bounded, because the agent chooses the text they meet.
_BLOCKS = "█▏▎▍▌▋▊▉"
_TIMES = r"(?: *\[[^\]]*\])"
TQDM = re.compile(
    rf".{{0,200}}?\d{{1,3}}%\|(?:[{_BLOCKS}]+ *\|(?: *[^\s\[]+/[^\s\[]+)?|#*\d? *\| *[^\s\[]+/[^\s\[]+){_TIMES}?"
    rf"|[^\[]{{0,200}}?\b[\d.]{{1,12}}[a-zA-Z]{{0,12}} \[\d\d:\d\d[^\]]*/[^\]]*\]"  # without a total
)
LINE_BAR = re.compile(r"\d%|B/s|\beta\b")  # with a run of ━: pip, rich
LONGEST_BAR = 2000
NOTE_ROOM = 60


class Request(NamedTuple):
    kind: Kind
    start: int
    end: int  # after its line


def requests(output: str) -> list[Request]:
    """What the agent asked for, in order, by place in the output as it came (before clean_output)."""
    return [Request(match.group(1), match.start(), match.end()) for match in REQUEST.finditer(output)]  # type: ignore[arg-type]


def clean_output(text: str) -> str:
    """Without progress bars, overwritten text, escape codes and control characters. Blank lines stay."""
    lines = (_clean_line(line) for line in text.split("\n"))
    return "\n".join(line for line in lines if line is not None)


def _clean_line(line: str) -> str | None:
    """None if there was nothing but a progress bar."""
    if line.isprintable() and "%|" not in line and " [" not in line and "━" not in line:
        return line
    line = ANSI.sub("", line) if "\x1b" in line else line
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    if "\b" in line:
        line = _backspaced(line)
    return _without_bar(CONTROL.sub("", line))


def _without_bar(line: str) -> str | None:
    if len(line) > LONGEST_BAR:
        return line
    if "━━━━━" in line and LINE_BAR.search(line):
        return None
    rest = line
    while ("%|" in rest or " [" in rest) and (bar := TQDM.match(rest)):
        rest = rest[bar.end() :]
    return rest if rest.strip() or rest == line else None


def _backspaced(line: str) -> str:
    shown: list[str] = []
    for sign in line:
        if sign != "\b":
            shown.append(sign)
        elif shown:
            shown.pop()
    return "".join(shown)


def cut_middle(text: str, limit_chars: int) -> str:
    """At most `limit_chars` of it (or the note alone): its beginning and its end, cut between lines."""
    if len(text) <= limit_chars:
        return text
    half = max(0, limit_chars - NOTE_ROOM) // 2
    head = text[:half]
    tail = text[len(text) - half :]
    # A border in the outer half is worth moving to; in a line longer than that the cut falls inside it.
    if (border := head.rfind("\n") + 1) > half // 2:
        head = head[:border]
    if -1 < (border := tail.find("\n")) < half // 2:
        tail = tail[border + 1 :]
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n") + (not left_out.endswith("\n"))
    note = f"[… {lines} line{'s' * (lines != 1)}, {len(left_out)} characters left out …]"
    between = "" if not head or head.endswith("\n") else "\n"
    return f"{head}{between}{note}\n{tail}"
