"""What the index keeps of one episode: the columns of a list, and the text that a search finds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.runs.damaged import whole
from airloop.success import success_in
from airloop_view.episode import Unreadable, load_head

PREVIEW = 160
NAME = 300  # characters of a task's name and the like, as lists have it
# Characters of one episode that a search finds, from its beginning; what an agent prints beyond is rarely its own.
SEARCHED = 1 << 21
MOST_TOKENS = 1 << 53  # that a file may say it has: a database's column holds no more
# Between two texts: to the index a word of its own, so that no phrase is found across them.
BREAK = " \ue000 "
# Colours and titles that a terminal acts on, then any other control sign: neither is part of a word.
TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Entry:
    task: str
    family: str
    env: str
    ending: str
    success: float | None
    reward: float | None
    version: int | None
    turns: int
    tokens: int
    seconds: float | None
    started: float | None
    preview: str
    prompt: str  # said before the first reply: the same for a whole group, so it is kept once
    text: str


def read_entry(data: bytes, path: Path) -> Entry:
    """Of a file that cannot be read: an entry that says so, and finds its text."""
    try:
        return _entry(load_head(data, path))
    except Unreadable as problem:
        text = _clean(data[:SEARCHED].decode("utf-8", "replace"))
        return Entry("", "", "", "unreadable", None, None, None, 0, 0, None, None, _short(str(problem)), "", text)


def _entry(episode: dict[str, Any]) -> Entry:
    task, turns = episode["task"], episode["turns"]
    prompt = BREAK.join(m["content"] for m in turns[0]["shown"]) if turns else ""
    counted = whole(episode["metrics"].get("sampled_tokens")) or 0
    scored = episode["ending"] != "infra_error"  # whose 0 is no reward
    success = success_in(episode["metrics"])
    return Entry(
        task=_named(task["id"]),
        family=_named(task["family"] or task["env"]),
        env=_named(task["env"]),
        ending=_named(episode["ending"]),
        success=success[1] if scored and success else None,
        reward=episode["reward"] if scored else None,
        version=episode["version"],
        turns=len(turns),
        tokens=sum(s["tokens"] for s in episode["sampled"]) or (counted if 0 <= counted < MOST_TOKENS else 0),
        seconds=episode["seconds"],
        started=episode["started"],
        preview=_short(turns[0]["reply"] if turns else episode["error"]),
        prompt=_clean(prompt[:SEARCHED]),
        text=_clean(_said(episode)),
    )


def _said(episode: dict[str, Any]) -> str:
    """Replies, commands, observations, and what was shown after the first reply. What one of these repeats of
    another (an observation is shown again as a message) is taken once."""
    turns = episode["turns"]
    parts, size = [episode["error"]], 0
    for place, turn in enumerate(turns):
        before = len(parts)
        shown = [m["content"] for m in turn["shown"]] if place else []
        later = [m["content"] for m in turns[place + 1]["shown"]] if place + 1 < len(turns) else []
        parts += shown
        parts += [turn["thought"]] if turn["thought"] and turn["thought"] not in turn["reply"] else []
        parts.append(turn["reply"])
        for action in turn["actions"]:
            words = [action["text"], action["name"], *map(_word, action["arguments"].values())]
            parts += [word for word in words if word and word not in turn["reply"]]
        parts += [o["text"] for o in turn["observations"] if not any(o["text"] in text for text in later)]
        size += sum(map(len, parts[before:]))
        if size > SEARCHED:
            break
    return BREAK.join(parts)[:SEARCHED]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _clean(text: str) -> str:
    """As a database takes it: no halves of characters, no control signs."""
    return CONTROL.sub(" ", TERMINAL.sub("", text) if "\x1b" in text else text)


def _named(text: str) -> str:
    return _clean(text[:NAME])


def _short(text: str) -> str:
    return " ".join(_clean(text[: 4 * PREVIEW]).split())[:PREVIEW]
