"""What there is to train on: the registered environments, their tasks, and how a model sees one."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from air.envs.base import Environment, load_environment
from air.errors import AirError
from air.models.chat import ChatTokenizer
from air.types import Message

if TYPE_CHECKING:
    from air.envs.mlgym.tasks_report import Check, Watcher

SPLITS = ("train", "eval", "test")
RESEARCH = "mlgym"
SOURCES: tuple[Literal["auto", "builtin", "checkout"], ...] = ("auto", "builtin", "checkout")


def list_environments(
    names: Sequence[str] = (), mlgym_root: str | None = None, with_tasks: bool = False
) -> list[dict[str, Any]]:
    """A row per environment, with its default arguments. One that cannot be used says why in `problem`, and
    hides no other. `with_tasks`: research tasks, which have names, are in `catalogue`, runnable or not."""
    registered = sorted({point.name for point in entry_points(group="air.envs")})
    with _warnings_unsaid():
        rows = [_environment(name, asked=bool(names)) for name in names or registered]
        if with_tasks and (research := next((row for row in rows if row["id"] == RESEARCH), None)):
            from air.envs.mlgym.tasks_report import catalogue

            research["catalogue"] = catalogue(mlgym_root)
    return rows


@contextmanager
def _warnings_unsaid() -> Iterator[None]:
    """A run logs what is odd about its tasks; here it stands in what is printed."""
    log = logging.getLogger("air.envs.mlgym.library")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _environment(name: str, asked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"id": name, "about": "", "tasks": {}, "problem": ""}
    try:
        env = load_environment(name)
        row |= {
            "about": _about(env),
            "action_format": env.action_format,
            "max_turns": env.max_turns,
            "args": {key: _argument(field) for key, field in type(env).Args.model_fields.items()},
            "reward_weights": dict(env.reward_weights),
            "tasks": {split: len(env.tasks(split)) for split in SPLITS},
        }
    except (AirError, ImportError) as error:
        if asked:
            raise
        row["problem"] = str(error)
    return row


def _argument(field: Any) -> dict[str, Any]:
    return {"default": field.get_default(call_default_factory=True), "about": field.description or ""}


def _about(env: Environment) -> str:
    """The first sentence of the class, or of the module or package it is in."""
    module = sys.modules[type(env).__module__]
    package = sys.modules.get(module.__package__ or "")
    texts = [type(env).__dict__.get("__doc__"), module.__doc__, package.__doc__ if package else ""]
    text = next((inspect.cleandoc(t) for t in texts if t), "")
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].removesuffix(".")


def show_tasks(name: str, split: str, n: int) -> list[dict[str, Any]]:
    """The first n tasks of a split as the model will see them, with their length."""
    env = load_environment(name)
    found = env.tasks(split)
    if not found:
        counts = ", ".join(f"{s}: {len(env.tasks(s))}" for s in SPLITS)
        raise AirError(f"{name} has no tasks in the split {split!r}.", f"choose another split ({counts}).")
    return asyncio.run(_openings(env, found[:n]))


async def _openings(env: Environment, chosen: Sequence[Any]) -> list[dict[str, Any]]:
    tokenizer = cached_tokenizer()
    rows = []
    try:
        for task in chosen:
            async with env.open(task, 0) as session:
                opening = await session.begin()
            messages, tools = list(opening.messages), list(opening.tools)
            row: dict[str, Any] = {"task": task.id, "split": task.split, "messages": messages, "tools": tools}
            if tokenizer is not None:
                row["tokens"] = len(tokenizer.encode(tokenizer.render(messages, tools, True)))
            row["characters"] = sum(len(m["content"]) for m in messages)
            rows.append(row)
    finally:
        await env.close()
    return rows


def check_task(name: str, mlgym_root: str | None, source: str, watcher: Watcher) -> Check:
    """A research task, tried out from end to end. AirError if there is none of that name."""
    from air.envs.mlgym import tasks_report

    if name in {point.name for point in entry_points(group="air.envs")}:
        raise AirError(f"{name!r} is an environment, not one of its tasks.", f"air tasks show {name}")
    for known in SOURCES:
        if known == source:
            with _warnings_unsaid():
                return asyncio.run(tasks_report.check_task(name, mlgym_root, known, watcher, _count_tokens))
    raise AirError(f"--source {source!r} is not known.", f"use {', '.join(SOURCES)}.")


def _count_tokens(messages: Sequence[Message]) -> int | None:
    tokenizer = cached_tokenizer()
    return len(tokenizer.encode(tokenizer.render(list(messages), [], True))) if tokenizer else None


def cached_tokenizer() -> ChatTokenizer | None:
    """The default model's tokenizer, if it is on this machine already: to look at tasks fetches nothing."""
    from air.models import list_models, quiet

    path = next((row.path for row in list_models() if row.default), None)
    if path is None or not (path / "tokenizer.json").is_file():
        return None
    with quiet():
        from transformers import PreTrainedTokenizerFast

        return ChatTokenizer(PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True))


def format_environments(rows: Sequence[dict[str, Any]], with_args: bool) -> str:
    lines = []
    for row in rows:
        lines.append(f"{row['id']}: {row['about']}" if row["about"] else row["id"])
        if row["problem"]:
            lines.append(f"  cannot be used: {row['problem']}")
        else:
            lines += _facts(row, with_args)
        if "catalogue" in row:
            from air.envs.mlgym.tasks_report import format_catalogue

            lines += [f"  {line}" for line in format_catalogue(row["catalogue"]).splitlines()]
    return "\n".join(lines) or "no environment is registered"


def _facts(row: dict[str, Any], with_args: bool) -> list[str]:
    counts = ", ".join(f"{count} {split}" for split, count in row["tasks"].items())
    form = {"command": "a command", "tools": "tool calls", "text": "plain text"}[row["action_format"]]
    lines = [f"  tasks: {counts}; turns: at most {row['max_turns']}; a reply is {form}"]
    if with_args:
        lines += [f"  args.{k} = {v['default']!r}  {v['about']}" for k, v in row["args"].items()]
    return lines


def format_tasks(rows: Sequence[dict[str, Any]]) -> str:
    blocks = []
    for row in rows:
        length = f"{row['tokens']} tokens" if "tokens" in row else f"{row['characters']} characters"
        tools = f", tools: {', '.join(_tool_name(t) for t in row['tools'])}" if row["tools"] else ""
        lines = [f"=== {row['task']} ({row['split']}), {length}{tools}"]
        for message in row["messages"]:
            lines += [f"--- {message['role']}", message["content"]]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _tool_name(tool: dict[str, Any]) -> str:
    return str((tool.get("function") or tool).get("name", "?"))
