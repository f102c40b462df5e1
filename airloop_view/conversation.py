"""One episode as the page shows it: turns with what was shown, thought, done, seen and earned.

An answer has a bounded size. Long texts are cut, with their full length beside them ("cut") and the name by which the
rest can be had ("part"); where even that is too much, everything is cut shorter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airloop_view.diffs import Change, Workspace
from airloop_view.highlight import Highlighter, action_text

LONGEST = 20_000  # characters of one text
SHORTEST = 200
BUDGET = 1_200_000  # characters of all texts in one answer
TURN = 700  # what a turn adds beside its texts
FENCES = ("```", "<tool_call>")


@dataclass
class Cutter:
    """Cuts texts at the same length, which is chosen so that all of them fit."""

    limit: int = LONGEST
    turns: int = BUDGET // TURN  # that are shown
    coloured: Highlighter = field(default_factory=Highlighter)

    def __call__(self, name: str, text: str, part: str) -> dict[str, Any]:
        """`name` is the field of the text."""
        if len(text) <= self.limit:
            return {name: text}
        prefix = "" if name in ("content", "text", "diff") else f"{name}_"
        return {name: text[: self.limit], f"{prefix}cut": len(text), f"{prefix}part": part}

    def shorter(self) -> Cutter:
        """For an answer that was still too large; signs that JSON has to escape take up to six times their room."""
        if self.limit > SHORTEST:
            return Cutter(max(SHORTEST, self.limit // 4), self.turns)
        return Cutter(self.limit, max(1, self.turns // 2))


def fitting(episode: dict[str, Any]) -> Cutter:
    lengths = [len(text) for _, text in parts(episode)]
    limit = LONGEST
    while limit > SHORTEST and sum(min(length, limit) for length in lengths) > BUDGET:
        limit //= 2
    return Cutter(max(limit, SHORTEST))


def parts(episode: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text of an episode, by the name that a request for the whole of it uses."""
    yield "error", episode["error"]
    yield "payload", json.dumps(episode["task"]["payload"], ensure_ascii=False, indent=2)
    for place, (turn, changes) in enumerate(zip(episode["turns"], changes_of(episode), strict=True)):
        at = f"turns.{place}"
        for i, message in enumerate(turn["shown"]):
            yield f"{at}.shown.{i}", message["content"]
        yield f"{at}.thought", thought(turn) or ""
        yield f"{at}.reply", turn["reply"]
        for i, action in enumerate(turn["actions"]):
            yield f"{at}.actions.{i}", action_text(action)
        for i, seen in enumerate(turn["observations"]):
            yield f"{at}.observations.{i}", seen["text"]
        for i, change in enumerate(changes):
            yield f"{at}.files.{i}", change.diff


def changes_of(episode: dict[str, Any]) -> list[list[Change]]:
    """What each turn did to files; worked out once, and kept with the episode."""
    if "changes" not in episode:
        workspace = Workspace()
        episode["changes"] = [workspace.after(turn) for turn in episode["turns"]]
    found: list[list[Change]] = episode["changes"]
    return found


def find_part(episode: dict[str, Any], name: str) -> str | None:
    return next((text for part, text in parts(episode) if part == name), None)


def conversation(episode: dict[str, Any], cut: Cutter) -> tuple[list[dict[str, Any]], int | None]:
    """The turns, and how many there are where not all are given."""
    most = cut.turns
    turns = [_turn(episode, place, cut) for place in range(min(most, len(episode["turns"])))]
    return turns, len(episode["turns"]) if len(episode["turns"]) > most else None


def _turn(episode: dict[str, Any], place: int, cut: Cutter) -> dict[str, Any]:
    turn, at = episode["turns"][place], f"turns.{place}"
    sampled = episode["sampled"][place] if place < len(episode["sampled"]) else {}
    rewards = episode["turn_rewards"][place] if place < len(episode["turn_rewards"]) else {}
    thinking = thought(turn)
    places = turn["places"] if len(turn["places"]) == len(turn["shown"]) else []
    return {
        "shown": [
            {
                "role": message["role"],
                **cut("content", message["content"], f"{at}.shown.{i}"),
                **({"place": places[i]} if places else {}),
            }
            for i, message in enumerate(turn["shown"])
        ],
        **({"thought": None} if thinking is None else cut("thought", thinking, f"{at}.thought")),
        **cut("reply", turn["reply"], f"{at}.reply"),
        "actions": [_action(action, cut, f"{at}.actions.{i}") for i, action in enumerate(turn["actions"])],
        "observations": [
            {
                **cut("text", seen["text"], f"{at}.observations.{i}"),
                "rewards": seen["rewards"],
                "done": seen["done"],
                "failed": seen["failed"],
                "lines": seen["text"].count("\n") + bool(seen["text"]),
            }
            for i, seen in enumerate(turn["observations"])
        ],
        "files": [
            {"path": change.path, "note": change.note, **cut("diff", change.diff, f"{at}.files.{i}")}
            for i, change in enumerate(changes_of(episode)[place])
        ],
        "rewards": rewards,
        "times": _times(turn["times"]),
        "tokens": sampled.get("tokens", 0),
        "stop": sampled.get("stop") or None,
        "version": sampled.get("version"),
    }


def _action(action: dict[str, Any], cut: Cutter, part: str) -> dict[str, Any]:
    text = cut("text", action_text(action), part)
    arguments = {"arguments": action["arguments"]} if action["kind"] == "tool" and "cut" not in text else {}
    html = cut.coloured.action(action, text["text"])
    return {"kind": action["kind"], "name": action["name"], **text, **arguments, "html": html}


def thought(turn: dict[str, Any]) -> str | None:
    """What was said before acting: the recorder's word, what stands between think tags, or before the command."""
    if turn["thought"]:
        return str(turn["thought"])
    reply = turn["reply"]
    if "</think>" in reply:
        return reply.partition("</think>")[0].replace("<think>", "", 1).strip() or None
    if not any(action["kind"] in ("command", "tool") for action in turn["actions"]):
        return None
    at = min((place for fence in FENCES if (place := reply.find(fence)) >= 0), default=0)
    return reply[:at].strip() or None


def _times(times: dict[str, float]) -> dict[str, Any]:
    total = sum(times.values())
    share = {name: seconds / total if total > 0 else 0.0 for name, seconds in times.items()}
    return {**times, "total": total, "share": share}


def fitting_payload(payload: dict[str, Any]) -> dict[str, Any]:
    """A task's payload, or the beginning of its text where that is long (a page of HTML)."""
    text = json.dumps(payload, ensure_ascii=False, indent=2)
    return payload if len(text) <= LONGEST else {"text": text[:LONGEST], "cut": len(text), "part": "payload"}


def diverging(replies: list[list[str]]) -> dict[str, int] | None:
    """The first turn, and the characters into it, at which not all say the same; None if they never differ."""
    if len(replies) < 2:
        return None
    for turn in range(max(map(len, replies))):
        said = [own[turn] if turn < len(own) else None for own in replies]
        if len(set(said)) > 1:
            there = [text for text in said if text is not None]
            if len(there) < len(said):
                return {"turn": turn, "chars": 0}
            low, high = min(there), max(there)
            same = next(
                (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
            )
            return {"turn": turn, "chars": same}
    return None
