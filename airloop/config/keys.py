"""The keys there are, read off the schema: for help, for flags, and to say where a stray key belongs."""

from __future__ import annotations

import difflib
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from airloop.config.schema import RunConfig
from airloop.config.toml import toml_value

REQUIRED = "required"


@dataclass(frozen=True)
class Key:
    name: str  # dotted, as in a flag; an element of a list is `0`
    type: str
    default: str  # as TOML; "" for none, REQUIRED where it must be given
    help: str

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]


def describe_keys() -> list[Key]:
    """Every key that can be set, in the order of the resolved TOML."""
    return list(_keys(RunConfig, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    sections = []
    for name, field in model.model_fields.items():
        if (inner := section_of(field.annotation)) is not None:
            sections.append((inner, dotted(prefix, name, *(["0"] if is_list(field.annotation) else []))))
        else:
            default = _default(field)
            yield Key(dotted(prefix, name), type_text(field.annotation), default, field.description or "")
    for inner, path in sections:
        yield from _keys(inner, path)


def dotted(*parts: str | int) -> str:
    return ".".join(str(part) for part in parts if part != "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    return "" if value is None else toml_value(value)


def without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not types.NoneType)
    return annotation


def is_list(annotation: Any) -> bool:
    return get_origin(without_none(annotation)) is list


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class behind an annotation: itself, optional, or as a list's element."""
    annotation = without_none(annotation)
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def type_text(annotation: Any) -> str:
    annotation = without_none(annotation)
    match get_origin(annotation):
        case origin if origin is Literal:
            return " | ".join(toml_value(value) for value in get_args(annotation))
        case origin if origin in (list, tuple):
            inner = [type_text(part) for part in get_args(annotation)]
            return f"[{', '.join(inner)}{', …' if origin is list else ''}]"
        case origin if origin is dict:
            return "{ … }"
        case _:
            return str(annotation.__name__)


def field_at(path: Sequence[str | int]) -> FieldInfo | None:
    """The schema's field at a path; None for unknown keys and for what is inside a list or free table."""
    model: type[BaseModel] | None = RunConfig
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            if field is None or not is_list(field.annotation) or model is None:
                return None
            continue
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        model = section_of(field.annotation)
    return field


def is_free(path: Sequence[str | int]) -> bool:
    """Whether the path is inside a table whose keys are not the schema's, such as an environment's args."""
    for end in range(1, len(path)):
        field = field_at(path[:end])
        if field is not None and get_origin(without_none(field.annotation)) is dict:
            return True
    return False


def section_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """The section class at a path; () is the top level."""
    if not path:
        return RunConfig
    field = field_at(path)
    return section_of(field.annotation) if field is not None else None


def find_keys(name: str) -> list[Key]:
    """The keys of a section with those below it, or one key; else whatever is called so, wherever it stands."""
    wanted, known = _as_named(name), describe_keys()
    if wanted in ("", "top_level"):
        return [key for key in known if not key.section]
    within = [key for key in known if f"{_as_named(key.name)}.".startswith(f"{wanted}.")]
    return within or [key for key in known if f".{wanted}." in f".{_as_named(key.name)}."]


def nearest_names(name: str) -> list[str]:
    """Keys and sections that a name may have been meant for: near by the whole, or by the last part."""
    wanted, keys = _as_named(name), describe_keys()
    names = sorted({*(_as_named(key.name) for key in keys), *(_as_named(key.section) for key in keys if key.section)})
    leaves = {one.rpartition(".")[2]: one for one in names}
    near = [leaves[leaf] for leaf in difflib.get_close_matches(wanted.rpartition(".")[2], leaves)]
    return list(dict.fromkeys([*difflib.get_close_matches(wanted, names), *near]))


def _as_named(name: str) -> str:
    """As in help: `[[orchestrator.env]]`, `--orchestrator.env.0` and `orchestrator.env` are the same."""
    return name.strip("[]- ").replace("-", "_").replace(" ", "_").replace(".0", "")


def format_keys(keys: Sequence[Key] | None = None, width: int = 120) -> str:
    """The keys by section, for `air train --help`."""
    lines: list[str] = []
    keys = describe_keys() if keys is None else keys
    widest = max(len(key.name.rpartition(".")[2]) for key in keys)
    for index, key in enumerate(keys):
        if index == 0 or key.section != keys[index - 1].section:
            lines += ["", header(key.section) or "top level"]
        default = f" = {key.default}" if key.default not in ("", REQUIRED) else ""
        note = " (required)" if key.default == REQUIRED else ""
        lead, under = f"  {key.name.rpartition('.')[2]:<{widest}}  ", " " * (widest + 6)
        lines += _wrapped(f"{key.type}{default}{note}", width, lead, under)
        lines += _wrapped(key.help, width, under, under)
    return "\n".join(lines).strip()


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def header(section: str) -> str:
    """The TOML header of a dotted section: `[a.b]`, or `[[a.b]]` for an element of a list."""
    if not section:
        return ""
    stem, _, last = section.rpartition(".")
    return f"[[{stem}]]" if last.isdigit() else f"[{section}]"
