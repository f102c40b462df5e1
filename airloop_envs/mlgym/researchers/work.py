"""How a scripted researcher works: write a file, run it, validate, mend what failed, submit the better draft."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.types import Message
from airloop_envs.mlgym.spec import Yardstick


@dataclass(frozen=True)
class Draft:
    """A file, why it is written so, and the command that makes the submission with it (empty: none is needed).

    `broken` is a first version with a mistake, which shows when it is run; then `text` is written.
    """

    thought: str
    path: str
    text: str
    run: str = ""
    broken: str = ""


def say(thought: str, command: str) -> Message:
    return Message(role="assistant", content=f"{thought}\n```bash\n{command}\n```")


def write_file(thought: str, path: str, text: str) -> Message:
    return say(thought, f"cat << 'EOF' > {path}\n{text.strip()}\nEOF")


def read_score(heard: str, metric: str) -> float | None:
    """The score in what `validate` printed; None if it printed none."""
    line = re.search(r"^score: (.*)$", heard, re.MULTILINE)
    found = line and re.search(rf"['\"]{re.escape(metric)}['\"]: (-?\d[\d.e+-]*)", line[1], re.IGNORECASE)
    return float(found[1]) if found else None


class Researcher:
    """Tries its drafts one after the other and submits the best of them; its last turn is always `submit`."""

    def __init__(self, drafts: Sequence[Draft], yardstick: Yardstick, max_turns: int) -> None:
        self.yardstick = yardstick
        self.turns_left = max_turns
        self.work = self._work(drafts)
        self.started = False

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        self.turns_left -= 1
        if self.turns_left <= 0:
            return say("My turns are used up.", "submit")
        heard = messages[-1]["content"] if self.started else None
        self.started = True
        return self.work.send(heard)  # type: ignore[arg-type]  # a generator begins with None

    def _work(self, drafts: Sequence[Draft]) -> Generator[Message, str, None]:
        scores: list[float] = []
        for number, draft in enumerate(drafts):
            if draft.broken:
                yield write_file(draft.thought, draft.path, draft.broken)
                yield say("Run it.", draft.run) if draft.run else say("How good is it?", "validate")
            thought = draft.thought if not draft.broken else "That failed; I mend the mistake."
            yield write_file(
                thought if number == 0 or draft.broken else f"Another idea: {thought}", draft.path, draft.text
            )
            if draft.run:
                yield say("Run it.", draft.run)
            heard = yield say("How good is it?", "validate")
            scores.append(self._worth(heard))
        best = drafts[max(range(len(drafts)), key=scores.__getitem__)]
        if best is not drafts[-1]:
            yield write_file("The earlier one was better.", best.path, best.text)
            if best.run:
                yield say("Run it.", best.run)
        while True:
            yield say("I submit this.", "submit")

    def _worth(self, heard: str) -> float:
        score = read_score(heard, self.yardstick.metric)
        if score is None:
            return float("-inf")
        return score if self.yardstick.direction == "up" else -score
