"""One episode as a person reads it: who said what, what was done, what came of it, and what it earned."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.text.figures import NOTHING, decimal, duration
from airloop.text.visible import one_line, visible
from airloop_view.text_pages import Ink

LINES = 120  # of one text; a tool's output can have megabytes
CHARACTERS = 12_000


def episode_page(told: dict[str, Any], near: dict[str, Any], ink: Ink) -> str:
    lines = [*_head(told, near, ink)]
    answered: set[str] = set()
    for number, turn in enumerate(told["turns"], 1):
        lines += ["", *_turn(number, turn, answered, ink)]
        answered = {seen["text"] for seen in turn["observations"]}
    if told.get("turns_total"):
        lines.append(f"… {told['turns_total'] - len(told['turns'])} more turns; the file has them")
    if told["error"]:
        lines += ["", ink.head("error"), *_text(told["error"], ink, "  ", told.get("error_cut"))]
    lines += ["", *_end(told, near, ink)]
    return "\n".join(lines)


def _head(told: Mapping[str, Any], near: Mapping[str, Any], ink: Ink) -> Iterator[str]:
    place = f"   {near['place']} of {near['total']}" if near["place"] else ""
    yield f"{ink.head(_word(told['id']))}{ink.dim(place)}"
    where = f"step {told['step'] + 1}" if told["step"] is not None else _word(told["source"])
    task = told["task"]
    yield f"  {_word(told['run'])}, {where}   task {_word(task['id'])} ({_word(task['env'])}, {_word(task['split'])})"
    reward = f"reward {decimal(told['reward'])}"
    parts = _numbers(told["rewards"])
    took = f"{len(told['turns'])} turns in {duration(told['seconds'])}"
    yield f"  {ink.head(reward)}{f' ({parts})' if parts else ''}, ended: {_word(told['ending'])}, {took}"
    if told["group"]:
        group = told["group"]
        yield f"  its group: {group['size']} episodes, mean {decimal(group['mean'])} ± {decimal(group['std'])}"
    if told["training"]:
        yield f"  {_word(told['training']['why'])}"
    for alarm in told["alarms"]:
        yield f"  alarm at this step: {_word(alarm['id'])} {_word(alarm['name'].replace('_', ' '))}"


def _turn(number: int, turn: Mapping[str, Any], answered: set[str], ink: Ink) -> Iterator[str]:
    """`answered`: what the environment said in the turn before, which is not repeated as the message it became."""
    times = turn["times"]
    spent = ", ".join(f"{name} {times[name]:.1f} s" for name in ("queue", "model", "tool") if times[name] >= 0.05)
    tokens = f"{turn['tokens']} tokens" if turn["tokens"] else ""
    stop = "cut at max_tokens" if turn["stop"] == "length" else ""
    about = "  ".join(part for part in (tokens, stop, spent) if part)
    yield ink.dim(_rule(f"turn {number}", about, ink.width))
    for message in turn["shown"]:
        if message["content"] in answered:
            continue
        yield ink.role(message["role"], _word(message["role"]) or "message")
        yield from _text(message["content"], ink, "  ", message.get("cut"))
    yield ink.role("assistant", "assistant")
    yield from _text(turn["reply"], ink, "  ", turn.get("reply_cut"))
    for action in turn["actions"]:
        if action["kind"] == "invalid":
            yield ink.role("problem", "  no action could be read from this")
        elif action["text"] not in turn["reply"]:  # else it has just been shown
            yield ink.role("action", f"  → {_word(action['name'] or action['kind'])}")
            yield from _text(action["text"], ink, "    ", action.get("cut"))
    for seen in turn["observations"]:
        notes = [word for word, holds in (("failed", seen["failed"]), ("the end", seen["done"])) if holds]
        rewards = _numbers(seen["rewards"])
        yield ink.role("environment", " ".join(["environment", *(f"({n})" for n in [*notes, rewards] if n)]))
        yield from _text(seen["text"], ink, "  ", seen.get("cut"))
    for file in turn["files"]:
        yield ink.role("file", f"file {_word(file['path'])} {_word(file.get('note') or '')}".rstrip())
        yield from _text(file["diff"], ink, "  ", file.get("cut"))
    if rewards := _numbers(turn["rewards"]):
        yield ink.head(f"earned in this turn: {rewards}")


def _end(told: Mapping[str, Any], near: Mapping[str, Any], ink: Ink) -> Iterator[str]:
    metrics = _numbers(told["metrics"])
    if metrics:
        yield from textwrap.wrap(f"measured: {metrics}", ink.width, subsequent_indent="  ", break_long_words=False)
    for name in ("previous", "next"):
        if near[name]:
            yield ink.dim(f"{name}: --run {_word(near[name]['run'])} --id {_word(near[name]['id'])}")


def _text(text: str, ink: Ink, indent: str, total: int | None) -> Iterator[str]:
    """As it was, indented; lines are broken where the terminal ends. What is left out is counted."""
    shown = visible(text[:CHARACTERS]).split("\n")
    for line in shown[:LINES]:
        pieces = textwrap.wrap(
            line, max(20, ink.width - len(indent)), drop_whitespace=False, replace_whitespace=False, tabsize=4
        )
        yield from (f"{indent}{piece}".rstrip() for piece in pieces or [""])
    kept = min(CHARACTERS, sum(len(line) + 1 for line in shown[:LINES]))
    left = (total or len(text)) - kept
    if left > 0 and (len(shown) > LINES or len(text) > CHARACTERS or total):
        yield ink.dim(f"{indent}… {left:,} more characters; the file has them")


def _numbers(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{_word(name)} {NOTHING if value is None else f'{value:.4g}'}" for name, value in values.items())


def _rule(title: str, about: str, width: int) -> str:
    line = "─" * max(2, min(width, 100) - len(title) - len(about) - 6)
    return f"── {title} {line} {about}".rstrip()


def _word(text: str) -> str:
    return one_line(text, 300)
