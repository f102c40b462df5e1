"""What is wrong with a configuration, said so that the corrected lines can be pasted."""

from __future__ import annotations

import difflib
import math
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from airloop.config import keys
from airloop.config.foreign import ALIASES, ENV_ARGS, FOREIGN_KEYS, FOREIGN_PATHS
from airloop.config.rules import NOT_YET, Conflict
from airloop.config.sources import KeyPath, Mistake, Origin, Settings
from airloop.config.toml import toml_key, toml_value
from airloop.errors import AirError

_SHOWN = 80  # characters of an offending value


class Refused(AirError):
    """A configuration with mistakes: all of them."""

    def __init__(self, mistakes: list[Mistake], problem: str, fix: str = "") -> None:
        super().__init__(problem, fix)
        self.mistakes = tuple(mistakes)


def as_error(mistakes: list[Mistake]) -> Refused:
    if len(mistakes) == 1:
        return Refused(mistakes, mistakes[0].problem, mistakes[0].fix)
    lines = [f"{len(mistakes)} mistakes in the configuration:"]
    for number, mistake in enumerate(mistakes, 1):
        lines.append(f"{number}. {mistake.problem}")
        lines.append(f"  fix: {mistake.fix}")
    return Refused(mistakes, "\n".join(lines))


def foreign_flags(settings: Settings) -> Iterable[Mistake]:
    given = settings.foreign_flags
    sizes = {
        name: given[name] for name in ("batch_size", "gradient_accumulation_steps", "num_processes") if name in given
    }
    numbers = [int(text) for text in sizes.values() if text and text.isdigit()]
    for name, text in given.items():
        alias, flag = ALIASES[name], _as_written(name, text)
        changes = alias.changes(text)
        if name == "batch_size" and len(numbers) == len(sizes) > 1:
            changes = {"orchestrator.batch_size": math.prod(numbers)}
            flag = " ".join(_as_written(*size) for size in sizes.items())
            why = f"{alias.why}: {' × '.join(map(str, numbers))} = {math.prod(numbers)}"
        elif name == "gradient_accumulation_steps" and "batch_size" in given:
            continue  # said together with --batch-size
        else:
            why = alias.why
        if name == "datasets":
            changes = {"orchestrator.env.0.id": "musique", **changes}
        what = "another trainer's flag" + (f"; {why}" if why else "")
        fix = "leave it out"
        if changes:
            fix = f"{correction(changes, as_flags=True)}, or in TOML\n{_indent(_toml_lines(changes))}"
        yield Mistake(f"{flag}: {what}.", fix, frozenset(changes), "A2")


def _as_written(name: str, text: str | None) -> str:
    return f"--{name.replace('_', '-')}" + (f" {shlex.quote(text)}" if text is not None else "")


def missing_template(settings: Settings) -> Iterable[Mistake]:
    path = ("model", "chat_template")
    section = settings.tree.get("model")
    value = section.get("chat_template") if isinstance(section, dict) else None
    origin = settings.origin(path)
    if not isinstance(value, str) or origin is None or Path(value).is_file():
        return
    places = [*([str((Path.cwd() / origin.file).parent / value)] if origin.file else []), str(Path.cwd() / value)]
    yield Mistake(
        f"{_head(path, value, origin)}: there is no such file; looked for {' and '.join(dict.fromkeys(places))}.",
        "write the path of a Jinja file, relative to the TOML's folder, or delete the line to use the "
        "tokenizer's own template",
        frozenset(["model.chat_template"]),
        "A8",
    )


def explain_conflict(conflict: Conflict, settings: Settings) -> Mistake:
    paths = [_parse(key) for key in conflict.keys]
    origins = [settings.origins[path] for path in paths if path in settings.origins]
    where = ", ".join(dict.fromkeys(origin.place for origin in origins))
    as_flags = bool(origins) and all(origin.flag for origin in origins)
    return Mistake(
        f"{where}: {conflict.problem}." if where else f"{conflict.problem}.",
        correction(conflict.changes, as_flags=as_flags),
        frozenset(conflict.keys),
        conflict.id,
    )


def explain(error: ErrorDetails, settings: Settings) -> Mistake:
    """One of pydantic's errors in our words."""
    path: KeyPath = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(path, error["input"], settings)
    while len(path) > 1 and (keys.field_at(path) is None or isinstance(path[-1], int)):
        path = path[:-1]  # an element of a list or free table: the key is what is named
    value = _at(settings.tree, path)
    origin = settings.origin(tuple(error["loc"])) or settings.origin(path)
    as_flags = bool(origin and origin.flag)
    if error["type"] == "missing":
        changes = {keys.dotted(*error["loc"]): _example(path)}
        problem = f"{origin.place if origin else ''}: {keys.dotted(*path)} is missing."
        return Mistake(problem.removeprefix(": "), correction(changes, as_flags=as_flags), frozenset(changes))
    expected, changes = _expectation(error, path, value)
    name, field = keys.dotted(*path), keys.field_at(path)
    return Mistake(
        f"{_head(path, value, origin)}: {expected}.",
        correction(changes, as_flags=as_flags),
        frozenset([name, *changes]),
        "A3" if field is not None and keys.section_of(field.annotation) is not None else "A11",
    )


def _expectation(error: ErrorDetails, path: KeyPath, value: Any) -> tuple[str, dict[str, Any]]:
    """What was expected in place of a value, and the corrected keys."""
    field = keys.field_at(path)
    name, annotation = keys.dotted(*path), field.annotation if field else None
    section = keys.section_of(annotation)
    if section is not None and keys.is_list(annotation):
        inner = value if isinstance(value, dict) else {"id": value if isinstance(value, str) else _example(path)}
        return f"expected a list of tables, with double brackets [[{name}]]", {f"{name}.0": inner}
    if section is not None:
        if name in ALIASES and isinstance(value, str):
            return f"expected a table, [{name}]", ALIASES[name].changes(value)
        return f"expected a table, [{name}], not a single value", {name: _example_table(section)}
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        message = f"expected {message.removeprefix('Input should be ')}"
    message = message.replace("after validation, ", "").replace("List should", "the list should")
    return message, {name: _suggestion(field, value)} if field else {}


def _suggestion(field: keys.FieldInfo, value: Any) -> Any:
    kind = keys.without_none(field.annotation)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if get_origin(kind) is Literal:
        choices = [choice for choice in get_args(kind) if choice not in NOT_YET]
        close = difflib.get_close_matches(str(value).lower().replace("-", "_"), choices, 1, 0.5)
        return close[0] if close else default
    if kind is bool and str(value).lower() in ("yes", "on", "1", "true"):
        return True
    if isinstance(value, str) and kind in (int, float, bool):
        try:
            unquoted = tomllib.loads(f"value = {value.lower()}")["value"]
        except tomllib.TOMLDecodeError:
            return default
        return unquoted if type(unquoted) is kind or (kind is float and type(unquoted) is int) else default
    if kind is int and isinstance(value, float) and value.is_integer() and value > 0:
        return int(value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if get_origin(kind) is list and type(value) in get_args(kind):
        return [value]
    return default


def _example(path: KeyPath) -> Any:
    return "tune" if path[:2] == ("orchestrator", "env") else ""


def _example_table(section: type[keys.BaseModel]) -> dict[str, Any]:
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in section.model_fields.items()
        if keys.section_of(field.annotation) is None and not field.is_required()
    }
    return dict([(name, value) for name, value in defaults.items() if value is not None][:2])


def _unknown(path: KeyPath, value: Any, settings: Settings) -> Mistake:
    origin = settings.origin(path)
    id, why, changes = _right_place(path, value, settings, as_flags=bool(origin and origin.flag))
    fix = correction(changes, as_flags=bool(origin and origin.flag))
    about = [keys.dotted(*key) for key in _leaves(changes)]
    return Mistake(f"{_head(path, value, origin)}: {why}.", fix, frozenset(about), id)


def _right_place(path: KeyPath, value: Any, settings: Settings, *, as_flags: bool) -> tuple[str, str, dict[str, Any]]:
    """The mistake's id, why there is no such key, and what to write: by known mistakes, then by name, then by
    spelling."""
    section, leaf = path[:-1], str(path[-1]).replace("-", "_")
    if path in FOREIGN_PATHS:
        why, changes = FOREIGN_PATHS[path](value)
        return "A2", f"unknown key; {why}", changes
    if leaf in FOREIGN_KEYS:
        alias = FOREIGN_KEYS[leaf]
        return alias.id, f"not supported here: {alias.why}", alias.changes(value) if value is not False else {}
    if leaf in ENV_ARGS:
        return "A1", *_env_arg(section, leaf, value, settings, as_flags=as_flags)
    homes = _homes(leaf, section, value)
    if homes:
        also = f" (there is also {', '.join(homes[1:])})" if homes[1:] else ""
        place = keys.header(homes[0].rpartition(".")[0]) or "the top level"
        return "A1", f"unknown key; {leaf} belongs in {place}{also}", {homes[0]: value}
    if leaf in ALIASES:
        alias = ALIASES[leaf]
        return "A2", f"unknown key; {alias.why or 'here it is ' + alias.key}", alias.changes(value)
    here = list(model.model_fields) if (model := keys.section_at(section)) else []
    if close := difflib.get_close_matches(leaf, here, 1, 0.6):
        return "A2", f"unknown key; the nearest is {close[0]}", {keys.dotted(*section, close[0]): value}
    names = {key.name.rpartition(".")[2]: key.name for key in reversed(keys.describe_keys())}
    if close := difflib.get_close_matches(leaf, names, 1, 0.75):
        return "A2", f"unknown key; the nearest is {names[close[0]]}", {names[close[0]]: value}
    place = keys.header(keys.dotted(*section)) or "the top level"
    return "A2", f"unknown key; {place} has {', '.join(here)}", {}


def _env_arg(
    section: KeyPath, leaf: str, value: Any, settings: Settings, *, as_flags: bool
) -> tuple[str, dict[str, Any]]:
    env: KeyPath = (
        section if section[:2] == ("orchestrator", "env") and len(section) == 3 else ("orchestrator", "env", 0)
    )
    why = f"unknown key; {leaf} is the environment's own and belongs in its args"
    if as_flags:
        return why, {keys.dotted(*env, "args", leaf): value}
    args = _at(settings.tree, (*env, "args"))
    return why, {keys.dotted(*env, "args"): {**(args if isinstance(args, dict) else {}), leaf: value}}


def _homes(leaf: str, section: KeyPath, value: Any) -> list[str]:
    """Where a key or section of this name exists: nearest to where it was written first, warmstart last."""
    found = [key.name for key in keys.describe_keys() if key.name.rpartition(".")[2] == leaf]
    if isinstance(value, dict):
        names = {key.section: None for key in keys.describe_keys() if key.section}
        tables = [name for name in names if name.rpartition(".")[2] == leaf]
        fits = [name for name in tables if set(value) <= set(_fields(name))]
        found = found or fits or tables

    def rank(name: str) -> tuple[int, bool]:
        shared = 0
        for mine, theirs in zip(map(str, section), name.split("."), strict=False):
            if mine != theirs:
                break
            shared += 1
        return -shared, name.startswith("warmstart")

    return sorted(found, key=rank)


def _fields(section: str) -> Iterable[str]:
    model = keys.section_at(_parse(section))
    return model.model_fields if model else ()


def correction(changes: Mapping[str, Any], *, as_flags: bool) -> str:
    if not changes or all(value is None for value in changes.values()):
        return "leave it out" if as_flags else "delete the line"
    if as_flags:
        leaves = _leaves(changes).items()
        return "write " + " ".join(f"--{keys.dotted(*path)} {_flag_text(value)}" for path, value in leaves)
    where = "" if any("." in key for key in changes) else " above the first [section]"
    return f"write{where} instead\n{_indent(_toml_lines(changes))}"


def _flag_text(value: Any) -> str:
    return shlex.quote(value if isinstance(value, str) else toml_value(value))


def _toml_lines(changes: Mapping[str, Any]) -> list[str]:
    sections: dict[str, list[str]] = {}
    for path, value in _leaves(changes).items():
        header = keys.header(keys.dotted(*path[:-1]))
        if path[-2:-1] == ("args",):  # an environment's settings are written on one line
            header, value, path = keys.header(keys.dotted(*path[:-2])), {str(path[-1]): value}, path[:-1]
        sections.setdefault(header, []).append(f"{toml_key(str(path[-1]))} = {toml_value(value)}")
    return [line for header, lines in sections.items() for line in ([header] if header else []) + lines]


def _leaves(changes: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Changed keys one by one: a section is taken apart, a free table or list is one value."""
    leaves: dict[KeyPath, Any] = {}
    for name, value in changes.items():
        path = _parse(name)
        if isinstance(value, dict) and value and keys.section_at(path) is not None:
            leaves |= _leaves({keys.dotted(name, key): inner for key, inner in value.items()})
        elif value is not None:
            leaves[path] = value
    return leaves


def _indent(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _head(path: KeyPath, value: Any, origin: Origin | None) -> str:
    if origin and origin.flag:
        return origin.flag
    text = toml_value(value) if value is not None else "none"
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    section, place = keys.dotted(*path[:-1]), f"{origin.place}: " if origin else ""
    if isinstance(value, dict):
        return f"{place}[{keys.dotted(*path)}]"
    return f"{place}{path[-1]} = {text} " + (f"in {keys.header(section)}" if section else "at top level")


def _at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _parse(key: str) -> KeyPath:
    return tuple(int(part) if part.isdigit() else part for part in key.split(".")) if key else ()
