"""What there is to train on: the registered environments, their tasks, and how a model sees one."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.envs.base import Environment, find_environment, load_environment
from airloop.envs.contract import begin_session, list_tasks, open_session
from airloop.errors import AirError
from airloop.plugins import plugins
from airloop.types import Message, Task

if TYPE_CHECKING:
    from airloop.models.chat import ChatTokenizer

SPLITS = ("train", "eval", "test")


def list_environments(
    names: Sequence[str] = (), args: Mapping[str, Any] | None = None, with_tasks: bool = False
) -> list[dict[str, Any]]:
    """A row per environment, with its default arguments. One that cannot be used says why in `problem`, and
    hides no other. `args` go to those that know them; AirError for one that none knows. `with_tasks`: tasks that have
    names, runnable or not, are in `catalogue`, and the table of them in `catalogue_text`."""
    args = args or {}
    rows = [_environment(name, args, with_tasks, asked=bool(names)) for name in names or sorted(plugins("envs"))]
    known = {key for row in rows for key in row.get("args", ())}
    unknown = [key for key in args if key not in known]
    if unknown and not any(row["problem"] for row in rows):  # one that cannot be used may know it
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise AirError(
            f"No environment that is listed has an argument {unknown[0]!r}.",
            f"{f'did you mean {near[0]!r}? ' if near else ''}`air tasks list ENV` shows an environment's.",
        )
    return rows


def _environment(name: str, args: Mapping[str, Any], with_tasks: bool, asked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"id": name, "about": "", "tasks": {}, "problem": "", "needs": "", "lacks": []}
    try:
        kind = find_environment(name)
    except AirError as error:
        if asked:
            raise
        return row | {"problem": error.problem, "needs": error.fix}
    try:
        known = kind().Args.model_fields
        if required := [key for key, field in known.items() if field.is_required() and key not in args]:
            about = {"about": _about(kind()), "args": {key: _argument(field) for key, field in known.items()}}
            return row | about | {"required": required}
        env = load_environment(name, {key: value for key, value in args.items() if key in known})
        row |= {
            "about": _about(type(env)),
            "action_format": env.action_format,
            "max_turns": env.max_turns,
            "args": {key: _argument(field) for key, field in known.items()},
            "reward_weights": dict(env.reward_weights),
            "tasks": {split: env.count(split) for split in SPLITS},
            "lacks": [{"what": lack.what, "fix": lack.fix} for lack in env.lacks()],
        }
        if with_tasks and (found := env.catalogue()):
            row["catalogue"], row["catalogue_text"] = found
    except (AirError, ImportError) as error:
        if asked:
            raise
        row["problem"] = str(error)
    return row


def _argument(field: Any) -> dict[str, Any]:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return {"default": default, "about": field.description or ""}


def _about(kind: type[Environment]) -> str:
    """The first sentence of the class, or of the module or package it is in."""
    module = sys.modules[kind.__module__]
    package = sys.modules.get(module.__package__ or "")
    texts = [kind.__dict__.get("__doc__"), module.__doc__, package.__doc__ if package else ""]
    text = next((inspect.cleandoc(t) for t in texts if t), "")
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].removesuffix(".")


def show_tasks(
    name: str, split: str, n: int, args: Mapping[str, Any] | None = None, model: str | None = None
) -> list[dict[str, Any]]:
    """The first n tasks of a split as the model will see them: `prompt` is what the chat template makes of the first
    messages and tools, to the character, and `tokens` its length. Without a tokenizer here: messages, characters."""
    env = load_environment(name, args)
    found = list_tasks(env, split) if split in env.splits else ()
    if not found:
        counts = ", ".join(f"{s}: {len(env.tasks(s))}" for s in env.splits)
        raise AirError(f"{name} has no tasks in the split {split!r}.", f"choose another split ({counts}).")
    tokenizer = tokenizer_of(model) if model else cached_tokenizer()
    return asyncio.run(_openings(env, found[:n], tokenizer))


async def _openings(env: Environment, chosen: Sequence[Task], tokenizer: ChatTokenizer | None) -> list[dict[str, Any]]:
    from airloop.models.chat import ONLY_TEXT

    rows = []
    try:
        for task in chosen:
            async with open_session(env, task, 0) as session:
                opening = await begin_session(session)
            messages, tools = list(opening.messages), list(opening.tools)
            row: dict[str, Any] = {
                "task": task.id,
                "split": task.split,
                "curve": task.curve,
                "messages": messages,
                "tools": tools,
            }
            if tokenizer is not None:
                text = tokenizer.render(messages, tools, True)
                notes = [*tokenizer.notes, *(tokenizer.tool_notes if tools else ())]
                row |= {"model": tokenizer.name, "notes": notes, "tokens": len(tokenizer.encode(text))}
                row["prompt"] = text.replace(ONLY_TEXT, "")
            row["characters"] = sum(len(m["content"]) for m in messages)
            rows.append(row)
    finally:
        await env.close()
    return rows


def parse_args(given: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs as an environment's args: values as TOML writes them, and what is no TOML is a text."""
    args: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise AirError(f"{pair!r} has no name and value.", "write it like max_turns=6.")
        try:
            args[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            args[key.strip()] = value
    return args


def parse_weights(given: Sequence[str]) -> dict[str, float]:
    """`name=weight` pairs."""
    weights = parse_args(given)
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise AirError(f"The weight of {name!r} is {weight!r}, which is no number.", "write it like headroom=1.0.")
    return {name: float(weight) for name, weight in weights.items()}


def count_tokens(messages: Sequence[Message]) -> int | None:
    """Of a prompt, by the default model's tokenizer, if it is at hand."""
    tokenizer = cached_tokenizer()
    return len(tokenizer.encode(tokenizer.render(list(messages), [], True))) if tokenizer else None


def cached_tokenizer() -> ChatTokenizer | None:
    """The default model's tokenizer, if it is on this machine already: to look at tasks fetches nothing."""
    from airloop.models.listing import list_models
    from airloop.models.sources import DEFAULT_MODEL

    path = next((row.path for row in list_models() if row.default), None)
    if path is None or not (path / "tokenizer.json").is_file():
        return None
    return _read_tokenizer(path, DEFAULT_MODEL)


def tokenizer_of(model: str) -> ChatTokenizer:
    """The tokenizer and chat template of a directory or of a hub id, whose weights are not fetched."""
    from huggingface_hub import snapshot_download

    from airloop.models.listing import list_models
    from airloop.models.sources import DEFAULT_MODEL

    if model == DEFAULT_MODEL and (tokenizer := cached_tokenizer()):
        return tokenizer
    if model.startswith("tiny:"):
        from airloop.models.loading import load_tokenizer

        return load_tokenizer(model)
    path = Path(model).expanduser()
    if not path.is_dir():
        here = next((row.path for row in list_models() if row.name == model and row.path), None)
        try:
            path = here or Path(snapshot_download(model, allow_patterns=["*token*.json", "*.jinja"], etag_timeout=10))
        except Exception as error:  # no network, no such model, no access: the library's sentence says which
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AirError(
                f"The tokenizer of {model} is not on this machine and cannot be fetched: {reason}",
                "give a directory with its tokenizer.json, or leave --model out.",
            ) from error
    if not (path / "tokenizer.json").is_file():
        raise AirError(f"{path} has no tokenizer.json.", "give the directory of a model.")
    return _read_tokenizer(path, model)


def _read_tokenizer(path: Path, name: str) -> ChatTokenizer:
    from airloop.models.silence_transformers import silenced

    with silenced():
        from transformers import PreTrainedTokenizerFast

        from airloop.models.chat import ChatTokenizer

        read = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        return ChatTokenizer(read, name=name)


def format_environments(rows: Sequence[dict[str, Any]], with_args: bool) -> str:
    lines = []
    for row in rows:
        lines.append(f"{row['id']}: {row['about']}" if row["about"] else row["id"])
        if row["problem"]:
            lines.append(f"  cannot be used: {row['problem']}")
            lines += [f"  install it: {row['needs']}"] if row["needs"] else []
        else:
            lines += _facts(row, with_args)
        lines += [f"  {line}" for line in row.get("catalogue_text", "").splitlines()]
    return "\n".join(lines) or "no environment is registered"


def _facts(row: dict[str, Any], with_args: bool) -> list[str]:
    described = [f"  args.{k} = {v['default']!r}  {v['about']}" for k, v in row.get("args", {}).items()]
    if "required" in row:
        return [f"  its tasks are made of its args: {', '.join(row['required'])}", *(described if with_args else [])]
    counts = ", ".join(f"{count} {split}" for split, count in row["tasks"].items())
    form = {"command": "a command", "tools": "tool calls", "text": "plain text"}[row["action_format"]]
    lines = [f"  tasks: {counts}; turns: at most {row['max_turns']}; a reply is {form}"]
    for lack in row["lacks"]:
        lines += [f"  not ready: {lack['what']}", f"  mend it: {lack['fix']}"]
    return [*lines, *(described if with_args else [])]


def format_tasks(rows: Sequence[dict[str, Any]]) -> str:
    blocks = []
    for row in rows:
        length = f"{row['tokens']} tokens" if "tokens" in row else f"{row['characters']} characters"
        tools = f", tools: {', '.join(_tool_name(t) for t in row['tools'])}" if row["tools"] else ""
        curve = f", curve {row['curve']}" if row["curve"] != row["task"] else ""
        lines = [f"=== {row['task']} ({row['split']}{curve}), {length}{tools}"]
        if "prompt" in row:
            lines.append(row["prompt"])
        else:
            for message in row["messages"]:
                lines += [f"--- {message['role']}", message["content"]]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, _told(rows)])


def _told(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    if "prompt" not in first:
        return (
            "The default model is not on this machine, so these are the messages, without a chat template; "
            "name one with --model, or fetch it with any run."
        )
    lengths = sorted(row["tokens"] for row in rows)
    total = f"{lengths[0]} to {lengths[-1]} tokens" if lengths[0] < lengths[-1] else f"{lengths[0]} tokens"
    return "\n".join([f"{total} by the chat template of {first['model']}", *first["notes"]])


def _tool_name(tool: dict[str, Any]) -> str:
    return str((tool.get("function") or tool).get("name", "?"))
