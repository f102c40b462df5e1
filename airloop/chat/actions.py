"""From a reply's text to what the agent asked for. Never fails: what cannot be read becomes an `invalid`
action whose text teaches the right form in one short sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airloop.chat.tool_calls import NOTHING_CALLED, PARSERS, read_calls
from airloop.envs.base import ActionFormat
from airloop.errors import AirError
from airloop.text.fences import SHELLS, fenced_blocks
from airloop.types import Action

NO_COMMAND = "No command found. Write ```bash, then the command on its own line, then ```."
CUT_COMMAND = "Your reply was cut off before the command ended, so nothing ran. Write less."
CUT_THOUGHT = "Your reply was cut off while you were thinking, so nothing ran. Think less."
ONLY_THOUGHT = "Your reply is only a thought, so nothing ran. After </think>, write what is to be done."

MAX_NAMED = 3  # commands named in a note


def parse(
    text: str,
    format: ActionFormat,
    parser: str = "auto",
    *,
    cut: bool = False,
    thinking: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    plain: Callable[[str], Action | None] = lambda text: None,
) -> tuple[list[Action], str]:
    """The actions of a reply, at least one, and a note for the agent (empty when there is nothing to say).

    `cut` says the reply ended by its length, not by the model's wish: a block left open is then not run. `thinking`
    says that the prompt itself has opened a thought, so that the reply begins inside it. `tools` are the schemas of
    those that may be called: a form without types of its own is read by them. `plain` says what a reply means
    that calls none of them.
    """
    if parser not in PARSERS:
        raise AirError(f"There is no tool-call parser {parser!r}.", f"use one of: {', '.join(PARSERS)}")
    if format == "text":
        return [Action("text", text=text)], ""
    spoken = _after_thinking(text, thinking)
    if spoken is None:
        return [Action("invalid", text=CUT_THOUGHT if cut else ONLY_THOUGHT)], ""
    if format == "command":
        return _command(spoken, cut)
    actions = read_calls(spoken, parser, cut, tools)
    meant = plain(spoken.strip()) if actions == [NOTHING_CALLED] else None
    return ([meant] if meant else actions), ""


def _after_thinking(text: str, thinking: bool) -> str | None:
    """What follows </think>: a command that was only considered must not run. None of a thought that never ends."""
    if "</think>" in text:
        return text.partition("</think>")[2]
    return None if thinking or text.lstrip().startswith("<think>") else text


# --- commands -----------------------------------------------------------------------------------------


def _command(text: str, cut: bool) -> tuple[list[Action], str]:
    blocks = [block for block in fenced_blocks(text) if block.body.strip()]
    ready = [block for block in blocks if block.closed or not cut]
    if not ready:
        return [Action("invalid", text=CUT_COMMAND if blocks or cut else NO_COMMAND)], ""
    # A block of another language is usually an illustration; it runs only if there is nothing else.
    first = next((block for block in ready if block.language in SHELLS), ready[0])
    others = [block.body for block in blocks if block is not first]
    return [Action("command", text=first.body)], _not_run(others)


def _not_run(bodies: list[str]) -> str:
    if not bodies:
        return ""
    named = [f"`{_short(body)}`" for body in bodies[:MAX_NAMED]]
    more = f" and {len(bodies) - MAX_NAMED} more" if len(bodies) > MAX_NAMED else ""
    return f"One command per reply; not run: {', '.join(named)}{more}."


def _short(body: str, limit: int = 40) -> str:
    lines = body.strip().splitlines()
    line = lines[0].strip()
    return line if len(lines) == 1 and len(line) <= limit else line[: limit - 1] + "…"
