"""Where settings come from: TOML files, left to right, then flags; and each setting's file and line."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.config.anchors import anchor_paths
from airloop.config.flag_values import parse_flag
from airloop.config.keys import field_at, is_free, section_at, without_none
from airloop.config.lines import key_lines
from airloop.config.orchestrator import DEFAULT_ENV
from airloop.errors import AirError
from airloop.files import is_deeper
from airloop.os_errors import refusal
from airloop.shipped import name_of, names, nearest, shipped
from airloop.text.command_flags import flags_of_command

KeyPath = tuple[str | int, ...]

# Flags that are typed often.
SHORT_FLAGS = {"minutes": "budget.minutes"}
_ASSIGNED = re.compile(r"\+{0,2}[A-Za-z_]\w*(\.\w+)+=.*", re.DOTALL)
_WORD_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NOT_TOML = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON"}
DEEPEST = 30  # sections in sections; an environment's own arguments may have some


@dataclass(frozen=True)
class Origin:
    """Where a setting was written: a file and line, or a flag."""

    file: str = ""
    line: int = 0
    flag: str = ""  # as it was written, with its value

    @property
    def place(self) -> str:
        return self.flag or f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Mistake:
    problem: str
    fix: str
    keys: frozenset[str] = frozenset()  # what it is about or would set
    id: str = "A11"  # of the failure catalogue: what cannot be used is refused, never ignored
    at: KeyPath = ()  # what the correction takes out
    changes: dict[str, Any] = field(default_factory=dict, compare=False)  # and what it puts in
    choice: bool = False  # no correction says the same: the user has to decide


@dataclass
class Settings:
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    foreign_flags: dict[str, str | None] = field(default_factory=dict)  # other tools' flags, for the aliases
    files: list[str] = field(default_factory=list)
    spelt: dict[str, str] = field(default_factory=dict)  # flags that were written in another form

    def origin(self, path: KeyPath) -> Origin | None:
        """Where the key was written, or failing that something in it, or the nearest table around it."""
        for end in range(len(path), 0, -1):
            near = path[:end]
            if near in self.origins:
                return self.origins[near]
            for known, origin in self.origins.items():
                if known[:end] == near:
                    return origin
        return None

    def lay(self, above: dict[str, Any], lines: dict[KeyPath, Origin]) -> None:
        self._merge(self.tree, above, ())
        self.origins.update(lines)

    def _merge(self, below: dict[str, Any], above: dict[str, Any], at: KeyPath) -> None:
        for key, value in above.items():
            if isinstance(value, dict) and isinstance(below.get(key), dict):
                self._merge(below[key], value, (*at, key))
            else:
                below[key] = value
                self.forget((*at, key))

    def correct(self, mistake: Mistake) -> None:
        """What the tree is once the user has made the correction: later mistakes are looked for in that."""
        origin = self.origin(mistake.at) if mistake.at else None
        if mistake.at:
            take_out(self.tree, mistake.at)
        for path, value in leaves(mistake.changes).items():
            if value is None:
                take_out(self.tree, path)
                continue
            try:
                _put(self.tree, path, value)
            except LookupError:  # into something that is itself refused
                continue
            if origin is not None and path not in self.origins:
                self.origins[path] = origin

    def forget(self, path: KeyPath) -> None:
        """A list or scalar is replaced as a whole, so what was inside it has no origin any more."""
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def read_sources(argv: Sequence[str], foreign: Sequence[str], *, environments: bool = True) -> Settings:
    """Files and flags of a command line, merged. `foreign` names flags of other tools, set aside. Without
    `environments` none of them is asked which of its arguments are paths."""
    settings = Settings()
    files, flags = _split(list(argv), settings)
    settings.files = files
    for file in files:
        _read_file(file, settings, environments)
    for name, text in flags:
        if whole := SHORT_FLAGS.get(name):  # said again as it was typed
            settings.spelt[whole] = f"--{name}" + ("" if text is None else f" {shlex.quote(text)}")
            name = whole
        bare = name.replace("-", "_")
        if bare in foreign:
            settings.foreign_flags[bare] = text
        else:
            _apply_flag(name, text, settings)
            anchor_paths(settings.tree, [Path.cwd()], environments=environments)
    return settings


def take_out(tree: dict[str, Any], path: KeyPath) -> None:
    """The value at a path, or the deepest that exists on the way to it; with it, tables that are left without keys
    and would not be there but for it."""
    node: Any = tree
    trail: list[tuple[Any, str | int]] = []
    for part in path:
        fits = isinstance(node, dict) and part in node
        if not fits and not (isinstance(node, list) and isinstance(part, int) and part < len(node)):
            break
        trail.append((node, part))
        node = node[part]
    for depth in range(len(trail), 0, -1):
        holder, part = trail[depth - 1]
        if depth < len(trail) and (holder[part] or field_at(path[:depth]) is not None):
            return
        if isinstance(holder, list) and field_at(path[:depth]) is None:
            holder[int(part)] = {}  # the others keep their places
            if any(holder):
                return
            holder.clear()
        else:
            del holder[part]


def leaves(changes: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Changed keys one by one: a section is taken apart, a free table or list is one value."""
    found: dict[KeyPath, Any] = {}
    for name, value in changes.items():
        path = parse_path(name)
        if isinstance(value, dict) and value and section_at(path) is not None:
            found |= leaves({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[path] = value
    return found


def at(tree: Any, *path: str | int) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def parse_path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdigit() else part for part in key.split(".")) if key else ()


def _split(argv: list[str], settings: Settings) -> tuple[list[str], list[tuple[str, str | None]]]:
    files: list[str] = []
    flags: list[tuple[str, str | None]] = []
    named = ""
    while argv:
        word = argv.pop(0)
        if word.startswith("@"):
            if word == "@" and not argv:
                raise AirError("`@` is the last word, but it needs a file after it.", "write @ run.toml")
            files.append(word[1:] or argv.pop(0))
        elif word.startswith("--") and len(word) > 2:
            name, equals, text = word[2:].partition("=")
            if equals:
                flags.append((name, text))
            else:
                takes = argv and not argv[0].startswith(("--", "@"))
                flags.append((name, argv.pop(0) if takes else None))
        elif _ASSIGNED.fullmatch(word):  # as on the command lines of hydra: a.b=c
            name, _, text = word.partition("=")
            flags.append((name.lstrip("+"), text))
            settings.spelt[name.lstrip("+")] = word
        elif mistake := _no_file(word, argv, named):
            settings.mistakes.append(mistake)
        elif not named:
            named = word
            try:
                files.append(_named(word))
            except AirError as error:  # said with what else is wrong
                settings.mistakes.append(Mistake(error.problem, error.fix))
        else:
            fix = f"write @ {word}" if word.endswith(".toml") else "write @ FILE.toml for a file, --KEY VALUE for a key"
            settings.mistakes.append(Mistake(f"{word}: neither a file (@) nor a flag (--).", fix))
    return files, flags


def _no_file(word: str, following: list[str], named: str) -> Mistake | None:
    """What is not meant as a config's name: a key without its dashes, a flag with one, a second name."""
    if found := _WORD_ASSIGNED.fullmatch(word):
        return Mistake(f"{word}: keys are written as flags.", f"write --{found[1]} {shlex.quote(found[2])}")
    if word.startswith("-") and len(word) > 1:
        if word[1:] in flags_of_command():
            return Mistake(f"{word}: flags begin with two dashes.", f"write -{word}")
        file = following.pop(0) if following and not following[0].startswith(("-", "@")) else "FILE.toml"
        return Mistake(f"{word}: flags begin with two dashes, and files are named after @.", f"write @ {file}")
    if named and word in names():
        fix = f"leave one of the two out, or `air configs copy {word}` and lay the copy over it: {named} @ {word}.toml"
        return Mistake(f"{word}: one config goes by its name, {named}, and others by @.", fix)
    return None


def _named(word: str) -> str:
    """The file behind a word by itself, as in `air train quickstart`: a config that comes with air, or a path."""
    if word in names():
        return str(shipped(word))
    if Path(word).expanduser().is_file():
        return word
    if known := name_of(word) or nearest(word) or nearest(word.lower()):
        raise AirError(f"There is no config {word}: none comes with air, and no file.", f"did you mean {known}?")
    raise AirError(
        f"{word} is neither a config that comes with air nor a file.",
        "`air configs list` shows their names; write @ FILE.toml for a file, --KEY VALUE for a key",
    )


def _read_file(name: str, settings: Settings, environments: bool) -> None:
    try:
        path = _find(name)
        text = path.read_text(encoding="utf-8").removeprefix("\ufeff")
        tree = tomllib.loads(text)
    except OSError as error:
        raise refusal(error, "read", name) from error
    except UnicodeDecodeError as error:
        raise AirError(f"{name}: byte {error.start} is not UTF-8, which TOML requires.", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(name, text, str(error)) from None
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:  # a number of thousands of digits
        raise AirError(f"{name} cannot be read: {error}.", "no config of air needs such a number") from None
    if is_deeper(tree, DEEPEST):
        raise _too_deep(name)
    anchor_paths(tree, [path.parent, Path.cwd()], environments=environments)
    settings.lay(tree, {key: Origin(file=name, line=line) for key, line in key_lines(text).items()})


def _too_deep(name: str) -> AirError:
    return AirError(f"{name} cannot be read: sections or lists are nested too deeply.", "no config of air needs that")


def _find(name: str) -> Path:
    path = Path.cwd() / Path(name).expanduser()
    if path.is_file():
        if path.suffix in _NOT_TOML:
            raise AirError(
                f"{name} is {_NOT_TOML[path.suffix]}, and air reads TOML.",
                "write its keys as TOML, or as flags; those of verl go as they are on its command line: "
                "air train a.b=c … (docs/coming_from.md)",
            )
        return path
    if path.is_symlink():
        raise AirError(f"{name} is a link to {path.readlink()}, which is not there.", "link it anew, or name the file.")
    if known := name_of(name):
        raise AirError(
            f"There is no file {name}. A config of that name comes with air and needs no @.",
            f"write {known} for it, as in `air train {known}`",
        )
    if path.is_dir():
        raise AirError(f"{name} is a folder, not a TOML file.", f"name a file in it: @ {name.rstrip('/')}/….toml")
    near = {other.stem: other for other in path.parent.glob("*.toml")}
    close = difflib.get_close_matches(path.stem, near, 1, 0.6)
    raise AirError(
        f"There is no file {name}: looked for {path}.",
        f"did you mean @ {near[close[0]]}?" if close else "check the name after @",
    )


def _syntax_error(name: str, text: str, message: str) -> AirError:
    match = re.search(r"\(at line (\d+), column (\d+)\)", message)
    lines = text.splitlines()
    line = int(match[1]) if match else max(1, len(lines))
    what = re.sub(r" \(at .*\)$", "", message)
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return AirError(
        f"{name}:{line}: this is not valid TOML: {what}, in the line: {shown}",
        'a line is `key = value` (text in "quotes", true and false in lower case), `[section]` or `# …`, each key once',
    )


def _apply_flag(name: str, text: str | None, settings: Settings) -> None:
    path, negated = _flag_path(name, settings.tree)
    flag = f"--{name}"
    written = settings.spelt.get(name) or (flag if text is None else f"{flag} {shlex.quote(text)}")
    flag = written if text is None else flag
    field = field_at(path)
    annotation = getattr(field, "annotation", None)
    if text is None or negated:
        if annotation is not None and without_none(annotation) is not bool:
            example = (field.examples if field else None) or ["VALUE"]
            problem = f"{flag} needs a value."
            settings.mistakes.append(
                Mistake(problem, f"write {flag} {example[0]}", frozenset([".".join(map(str, path))]))
            )
            return
        if text is not None:
            settings.mistakes.append(Mistake(f"{written}: a --no- flag takes no value.", f"write {flag}"))
            return
    try:
        value = not negated if text is None else parse_flag(text, annotation)
        _put(settings.tree, path, value)
    except LookupError as error:
        settings.mistakes.append(Mistake(f"{written}: {error.args[0]}", error.args[1]))
        return
    settings.forget(path)
    settings.origins[path] = Origin(flag=written)


def _flag_path(name: str, tree: dict[str, Any]) -> tuple[KeyPath, bool]:
    """The key behind a flag, and whether a `no` in front of it (or of its last part) switches it off."""
    parts = [int(part) if part.isdigit() else part.replace("-", "_") for part in name.split(".")]
    path: KeyPath = tuple(parts)
    if is_free(path):
        return (*path[:-1], _spelled_as_in(tree, path)), False
    if field_at(path) is not None:
        return path, False
    head, last = str(parts[0]), str(parts[-1])
    candidates: list[KeyPath] = [
        (head.removeprefix("no_"), *parts[1:]),
        (*parts[:-1], last.removeprefix("no_")),
    ]
    for candidate in candidates:
        if candidate != path and (is_free(candidate) or field_at(candidate) is not None):
            return candidate, True
    return path, False


def _spelled_as_in(tree: dict[str, Any], path: KeyPath) -> str | int:
    """Below free tables the file's own spelling counts: `max-turns` there is not made a second key."""
    node: Any = tree
    for part in path[:-1]:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return path[-1]
    spellings = {str(key).replace("-", "_"): key for key in node} if isinstance(node, dict) else {}
    return spellings.get(str(path[-1]), str(path[-1]))


def _put(tree: dict[str, Any], path: KeyPath, value: Any) -> None:
    node: Any = tree
    for depth, part in enumerate(path):
        here = ".".join(map(str, path[:depth]))
        if isinstance(node, list):
            if not isinstance(part, int) or part > len(node):
                raise LookupError(f"{here} has {len(node)} elements, counted from 0.", f"write --{here}.0.…")
            if part == len(node):
                node.append({})
        elif isinstance(part, int) or not isinstance(node, dict):
            shape = "a list" if isinstance(part, int) else "a section"
            raise LookupError(f"{here} is {node!r}, not {shape}.", f"write --{here} VALUE")
        if depth == len(path) - 1:
            node[part] = value
        elif isinstance(node, dict) and part not in node:
            # the first environment is there by default, so a flag may change it
            default_env = path[: depth + 1] == ("orchestrator", "env")
            is_index = isinstance(path[depth + 1], int)
            node[part] = [{"id": DEFAULT_ENV}] if default_env and is_index else [] if is_index else {}
        if depth < len(path) - 1:
            node = node[part]
