"""What is wrong with a configuration, said so that the corrected lines can be pasted."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from airloop.config import keys
from airloop.config.conflict import Conflict
from airloop.config.env_aliases import env_args
from airloop.config.first_flags import flag_meant, short_flag
from airloop.config.foreign import ALIASES, AMBIGUOUS, FOREIGN_KEYS, FOREIGN_VALUES, SETTLED, Alias, Answer
from airloop.config.foreign_paths import foreign_at
from airloop.config.rules import NOT_YET
from airloop.config.sources import KeyPath, Mistake, Origin, Settings, at, leaves, parse_path
from airloop.config.toml import toml_key, toml_value
from airloop.errors import AirError
from airloop.plugins import plugins
from airloop.text.spelling import misspelt

_SHOWN = 80  # characters of an offending value


class Refused(AirError):
    """A configuration with mistakes: all of them."""

    def __init__(self, mistakes: list[Mistake], problem: str, fix: str = "") -> None:
        super().__init__(problem, fix)
        self.mistakes = tuple(mistakes)


def as_error(mistakes: list[Mistake]) -> Refused:
    mistakes = sorted(mistakes, key=_place)
    if len(mistakes) == 1:
        return Refused(mistakes, mistakes[0].problem, mistakes[0].fix)
    lines = [f"{len(mistakes)} mistakes in the configuration:"]
    for number, mistake in enumerate(mistakes, 1):
        lines.append(f"{number}. {mistake.problem}")
        lines.append(f"  fix: {mistake.fix}")
    return Refused(mistakes, "\n".join(lines))


_PLACE = re.compile(r"(.+?):(\d+)[:,]")


def _place(mistake: Mistake) -> tuple[bool, str, int]:
    """In the order of the file; what has no line comes last."""
    found = _PLACE.match(mistake.problem)
    return (False, found[1], int(found[2])) if found else (True, "", 0)


def missing_template(settings: Settings) -> Iterable[Mistake]:
    path = ("model", "chat_template")
    section = settings.tree.get("model")
    value = section.get("chat_template") if isinstance(section, dict) else None
    origin = settings.origin(path)
    if not isinstance(value, str) or origin is None or Path(value).is_file():
        return
    places = [*([str((Path.cwd() / origin.file).parent / value)] if origin.file else []), str(Path.cwd() / value)]
    yield Mistake(
        f"{head(path, value, origin)}: there is no such file; looked for {' and '.join(dict.fromkeys(places))}.",
        "write the path of a Jinja file, relative to the TOML's folder, or delete the line to use the "
        "tokenizer's own template",
        frozenset(["model.chat_template"]),
        "A8",
    )


def explain_conflict(conflict: Conflict, settings: Settings) -> Mistake:
    paths = [parse_path(key) for key in conflict.keys]
    origins = [settings.origins[path] for path in paths if path in settings.origins]
    where = ", ".join(dict.fromkeys(origin.place for origin in origins))
    as_flags = bool(origins) and all(origin.flag for origin in origins)
    return Mistake(
        f"{where}: {conflict.problem}." if where else f"{conflict.problem}.",
        correction(conflict.changes, as_flags=as_flags),
        frozenset(conflict.keys),
        conflict.id,
        changes=conflict.changes,
    )


def explain(error: ErrorDetails, settings: Settings) -> Mistake:
    """One of pydantic's errors in our words."""
    path: KeyPath = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        return unknown(path, error["input"], settings)
    while len(path) > 1 and (keys.field_at(path) is None or isinstance(path[-1], int)):
        path = path[:-1]  # an element of a list or free table: the key is what is named
    value = at(settings.tree, *path)
    origin = settings.origin(tuple(error["loc"])) or settings.origin(path)
    as_flags = bool(origin and origin.flag)
    if error["type"] == "missing":  # there is one key that must be given: an environment's id
        problem = f"{origin.place if origin else ''}: {keys.dotted(*path)} is missing."
        keys_ = frozenset([keys.dotted(*path)])
        fix = f"name the environment; known are {', '.join(sorted(plugins('envs')))}"
        return Mistake(problem.removeprefix(": "), fix, keys_, choice=True)
    answer = _expectation(error, path, value)
    # What comes with a corrected value is not put in the place of what the user has said himself.
    kept = {k: v for k, v in answer.changes.items() if k == keys.dotted(*path) or _unsaid(k, settings)}
    answer = replace(answer, changes=kept)
    name, field = keys.dotted(*path), keys.field_at(path)
    if field is not None and field.examples and answer.changes.get(name) is None:  # no default to fall back on
        example = f"--{short_flag(name)} {field.examples[0]}" if as_flags else f"{path[-1]} = {field.examples[0]}"
        answer = replace(answer, changes={}, instead=f"write {example}, for instance", choice=True)
    return Mistake(
        f"{head(path, value, origin)}: {answer.why}.",
        correction(answer.changes, as_flags=as_flags, instead=answer.instead, choice=answer.choice),
        frozenset([name, *answer.changes]),
        "A3" if field is not None and keys.section_of(field.annotation) is not None else "A11",
        at=path,
        changes=answer.changes,
        choice=answer.choice,
    )


def _unsaid(key: str, settings: Settings) -> bool:
    value = at(settings.tree, *parse_path(key))
    return value is None or isinstance(value, dict | list) or not key.startswith("trainer.loss.")


def _expectation(error: ErrorDetails, path: KeyPath, value: Any) -> Answer:
    """What was expected in place of a value, and the corrected keys."""
    field = keys.field_at(path)
    name, annotation = keys.dotted(*path), field.annotation if field else None
    section = keys.section_of(annotation)
    if section is not None and keys.is_list(annotation):
        why = f"expected a list of tables, with double brackets [[{name}]]"
        inner = value if isinstance(value, dict) else {"id": value} if isinstance(value, str) else {}
        return Answer(why, {f"{name}.0": inner} if inner else {}, "see `air tasks` for the ids", choice=not inner)
    if section is not None:
        if name in ALIASES and isinstance(value, str):
            return Answer(f"expected a table, [{name}]", ALIASES[name].changes(value))
        return Answer(f"expected a table, [{name}], not a single value", {name: _example_table(section, path, value)})
    if isinstance(value, str) and (known := FOREIGN_VALUES.get(name, {}).get(value)):
        return known
    message = error["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        message = f"expected {message.removeprefix('Input should be ')}"
    message = message.replace("after validation, ", "").replace("List should", "the list should")
    if field is None:
        return Answer(message, instead="correct it", choice=True)
    corrected = _suggestion(field, value)
    if corrected is None and get_origin(keys.without_none(annotation)) is Literal:
        return Answer(message, instead="write one of these", choice=True)
    return Answer(message, {name: corrected})


def _suggestion(field: keys.FieldInfo, value: Any) -> Any:
    kind = keys.without_none(field.annotation)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if get_origin(kind) is Literal:
        return misspelt(str(value), [choice for choice in get_args(kind) if choice not in NOT_YET])
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


def _example_table(section: type[keys.BaseModel], path: KeyPath, given: Any) -> dict[str, Any]:
    """What a section may have; of a key without a default, what was said may be meant for it."""
    for name, field in section.model_fields.items():
        if field.examples:
            return {name: given if _fits((*path, name), given) else field.examples[0]}
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in section.model_fields.items()
        if keys.section_of(field.annotation) is None and not field.is_required()
    }
    return dict([(name, value) for name, value in defaults.items() if value is not None][:2])


def unknown(path: KeyPath, value: Any, settings: Settings) -> Mistake:
    origin = settings.origin(path)
    as_flags = bool(origin and origin.flag)
    answer = _right_place(path, value, settings, as_flags=as_flags)
    answer = fitting(answer) if answer.id != "A3" else answer
    fix = correction(answer.changes, as_flags=as_flags, instead=answer.instead, choice=answer.choice)
    about = frozenset(keys.dotted(*key) for key in leaves(answer.changes))
    problem = f"{head(path, value, origin)}: {answer.why}."
    return Mistake(problem, fix, about, answer.id, at=path, changes=answer.changes, choice=answer.choice)


def _right_place(path: KeyPath, value: Any, settings: Settings, *, as_flags: bool) -> Answer:
    """Why there is no such key, and what to write: by known mistakes, then by name, then by spelling."""
    section, leaf = path[:-1], str(path[-1]).replace("-", "_")
    if answer := by_name(path, value, settings.tree):
        return answer
    if as_flags and not section and (answer := flag_meant(leaf, value)):
        return answer
    if leaf in env_args():
        return _env_arg(section, leaf, value, settings, as_flags=as_flags)
    homes = _homes(leaf, section, value)
    if homes:
        also = f" (there is also {', '.join(homes[1:])})" if homes[1:] else ""
        place = keys.header(homes[0].rpartition(".")[0]) or "the top level"
        return Answer(f"unknown key; {leaf} belongs in {place}{also}", {homes[0]: value}, id="A1")
    here = list(model.model_fields) if (model := keys.section_at(section)) else []
    close = misspelt(leaf, here)
    if close and _fits((*section, close), value):
        return Answer(f"unknown key; the nearest is {close}", {keys.dotted(*section, close): value})
    place = keys.header(keys.dotted(*section)) or "the top level"
    instead = "one of these may be meant"
    return Answer(f"unknown key; {place} has {', '.join(here)}", instead=instead, choice=True)


def by_name(path: KeyPath, value: Any, tree: Mapping[str, Any]) -> Answer | None:
    """What is known of a key of another trainer: by its whole path, or by its name wherever it stands."""
    section, leaf = path[:-1], str(path[-1]).replace("-", "_")
    if alias := SETTLED.get(keys.dotted(*section, leaf)):
        return alias.answer(value, tree)
    if alias := foreign_at((*section, leaf)):
        return named(alias, value, tree)
    if leaf in FOREIGN_KEYS:
        answer = FOREIGN_KEYS[leaf].answer(value, tree)
        changes = answer.changes if value is not False else {}
        return replace(answer, why=f"not supported here: {answer.why}", changes=changes)
    mine = keys.section_at(section)
    if leaf not in ALIASES or leaf in env_args() or (mine and misspelt(leaf, mine.model_fields)):
        return None
    if leaf in AMBIGUOUS and section not in ((), ("trainer",), ("trainer", "loss")):
        return None
    if leaf == "batch_size":  # a key of ours in the wrong section
        return None
    return named(ALIASES[leaf], value, tree)


def named(alias: Alias, value: Any, tree: Mapping[str, Any]) -> Answer:
    """The answer with the name that the key has here, if it has one."""
    answer = alias.answer(value, tree)
    here = f"here it is {', '.join(answer.changes)}" if answer.changes and (alias.key or not answer.why) else ""
    return replace(answer, why=f"unknown key; {', '.join(filter(None, (here, answer.why)))}")


def _fits(path: KeyPath, value: Any) -> bool:
    """Whether the key could have this value: a name that is near is not meant if it could not."""
    return not _objection(path, value)


def _objection(path: KeyPath, value: Any) -> str:
    """What the schema says against a value by itself."""
    model = keys.section_at(path[:-1])
    if model is None or keys.field_at(path) is None:
        return "" if keys.is_free(path) else "there is no such key"
    try:
        model.model_validate({str(path[-1]): value})
    except ValidationError as error:
        own = [detail for detail in error.errors() if detail["loc"][:1] == (path[-1],)]
        whole = [detail for detail in own if len(detail["loc"]) == 1 or not isinstance(value, dict)]
        return str(whole[0]["msg"]).replace("Input should be", "expected", 1) if whole else ""
    return ""


def fitting(answer: Answer) -> Answer:
    """Without values that the key here could not have: a correction must load."""
    changes = {_respelt(path): value for path, value in leaves(answer.changes).items()}
    if changes.keys() != {keys.dotted(*path) for path in leaves(answer.changes)}:
        answer = replace(answer, changes=changes)
    wrong = {key: said for key, value in changes.items() if (said := _objection(parse_path(key), value))}
    if not wrong:
        return answer
    kept = {key: value for key, value in changes.items() if key not in wrong}
    said = "; ".join(f"{key}: {objection}" for key, objection in wrong.items())
    asked = [f"{key} = …" for key in wrong if keys.field_at(parse_path(key)) is not None]
    instead = f"write {', '.join(asked)}" if asked else "`air train --help` has the keys"
    return Answer("; ".join(filter(None, (answer.why, said))), kept, instead, choice=True, id=answer.id)


def _respelt(path: KeyPath) -> str:
    """In a section that is moved or respelt, keys may be misspelt as well."""
    model = keys.section_at(path[:-1])
    known = misspelt(str(path[-1]), model.model_fields) if model and keys.field_at(path) is None else None
    return keys.dotted(*path[:-1], known or path[-1])


def _env_arg(section: KeyPath, leaf: str, value: Any, settings: Settings, *, as_flags: bool) -> Answer:
    env: KeyPath = (
        section if section[:2] == ("orchestrator", "env") and len(section) == 3 else ("orchestrator", "env", 0)
    )
    why = f"unknown key; {leaf} is the environment's own and belongs in its args"
    named = at(settings.tree, *env, "id")
    if as_flags:
        return Answer(why, {keys.dotted(*env, "args", leaf): value}, id="A1")
    args = at(settings.tree, *env, "args")
    changes = {keys.dotted(*env, "args"): {**(args if isinstance(args, dict) else {}), leaf: value}}
    if named is None:  # whose it is, only the user knows
        example = "\n".join(indented(toml_lines(changes)).splitlines())
        return Answer(why, instead=f"name the environment and write it there, as\n{example}\n ", choice=True, id="A1")
    return Answer(why, changes, id="A1")


# Names that mean something else in every section.
_GENERIC = {"type", "name", "id", "args", "samples", "interval", "level", "steps", "source", "split", "model", "log"}
_GENERIC |= {"env", "offline", "project", "minutes", "freq", "eval", "seed", "rewards", "mode", "device", "episodes"}


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

    # A name that means much is taken only for what the same part of the config has of it, such as an environment's id.
    near = [name for name in found if leaf not in _GENERIC or (section and (*section, "env", "0") == _up(name))]
    return sorted((name for name in near if _fits(parse_path(name), value)), key=rank)


def _up(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[:-1])


def _fields(section: str) -> Iterable[str]:
    model = keys.section_at(parse_path(section))
    return model.model_fields if model else ()


def correction(
    changes: Mapping[str, Any], *, as_flags: bool, what: str = "line", instead: str = "", choice: bool = False
) -> str:
    """What to write, or that nothing is lost without it; where the user has to decide, what can be done instead."""
    delete = "leave it out" if as_flags else "take it out of args" if what == "argument" else f"delete the {what}"
    if not changes or all(value is None for value in changes.values()):
        if choice:  # where a key has to be written, leaving it out is no way
            return f"your choice: {instead}" + (
                "" if instead.startswith("write ") else f"; to go on without it, {delete}"
            )
        return f"{delete}; {instead}" if instead else delete
    lead = f"your choice: {instead}; otherwise " if choice else ""
    if as_flags:
        flags = " ".join(
            f"--{short_flag(keys.dotted(*p))} {_flag_text(v)}" for p, v in leaves(changes).items() if v is not None
        )
        return f"{lead}write {flags}"
    where = " above the first [section]" if all(len(path) == 1 for path in leaves(changes)) else ""
    of = " of the table" if what == "table" else ""
    return f"{lead}write{where} instead{of}\n{indented(toml_lines(changes))}"


def _flag_text(value: Any) -> str:
    return shlex.quote(value if isinstance(value, str) else toml_value(value))


def toml_lines(changes: Mapping[str, Any]) -> list[str]:
    sections: dict[KeyPath, list[str]] = {(): []}  # keys of the top level come before any section
    for path, value in leaves(changes).items():
        if value is None:
            continue
        if path[-2:-1] == ("args",):  # an environment's settings are written on one line
            value, path = {str(path[-1]): value}, path[:-1]
        sections.setdefault(path[:-1], []).append(f"{toml_key(str(path[-1]))} = {toml_value(value)}")
    parts = ((keys.header(keys.dotted(*section)), lines) for section, lines in sections.items())
    return [line for header, lines in parts for line in ([header] if header else []) + lines]


def indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def head(path: KeyPath, value: Any, origin: Origin | None) -> str:
    if origin and origin.flag:
        return origin.flag
    text = toml_value(value) if value is not None else "none"
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    section, place = keys.dotted(*path[:-1]), f"{origin.place}: " if origin else ""
    if path[:2] == ("orchestrator", "env") and "args" in path[:-1]:
        return f"{place}{keys.dotted(*path[4:])} = {text} in args of [[orchestrator.env]]"
    if isinstance(value, dict):
        return f"{place}{keys.header(keys.dotted(*path))}"
    return f"{place}{path[-1]} = {text} " + (f"in {keys.header(section)}" if section else "at top level")
