"""A YAML file as MLGym's users write it, and its values with the types they should have.

A wrong value is noted, not raised: a person who checks a task wants all its mistakes at once.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from airloop.errors import AirError

T = TypeVar("T")

# libyaml's where it is there: ten times as fast, and just as safe. It takes tabs for spaces without a word.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# ValueError: a date such as 2020-13-45.
UNPARSED = (yaml.YAMLError, ValueError, RecursionError)
# A task is a page of text. Whoever wrote it may be no friend: lists of lists of aliases, or brackets without end, say
# more in a few lines than any memory holds.
LARGEST = 1 << 17  # bytes
DEEPEST = 50
MOST_VALUES = 50_000
MOST_NAMES = 1000
LONGEST_NUMBER = 60
NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-Fxob_.:+-]*")


def read_mapping(file: Path) -> tuple[dict[str, Any], list[str]]:
    """The file's mapping, and what had to be overlooked to read it. AirError says where it cannot be read."""
    try:
        if file.stat().st_size > LARGEST:
            raise AirError(f"{file} is larger than {LARGEST // 1024} KiB, which no task is.", "shorten it.")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise AirError(f"{file} cannot be read: {error.strerror}.", "correct the path or the file's rights.") from None
    except UnicodeDecodeError:
        raise AirError(f"{file} is not UTF-8 text.", "save it as UTF-8.") from None
    warnings: list[str] = []
    try:
        data = _parsed(text, yaml.SafeLoader if "\t" in text else LOADER)
    except UNPARSED as error:
        if "\t" not in text:
            raise _broken(file, error) from None
        # YAML forbids tabs between tokens, editors write them all the same.
        try:
            data = _parsed(text.expandtabs(2), LOADER)
        except UNPARSED:
            raise _broken(file, error) from None
        warnings.append(f"{file.name} is indented with tabs, read as two spaces each; YAML allows spaces only.")
    if not isinstance(data, dict):
        raise AirError(f"{file} holds {_kind(data)}, not keys with values.", "write `key: value` lines.")
    return {str(key): value for key, value in data.items()}, warnings


def _parsed(text: str, loader: Any) -> Any:
    _refuse_growth(yaml.parse(text, Loader=loader))
    return yaml.load(text, Loader=loader)


def _refuse_growth(events: Iterator[Any]) -> None:
    """Counts what a text says when every alias is written out; reads events one by one, so depth costs nothing."""
    sizes: dict[str, int] = {}  # of what has an anchor
    stack: list[list[Any]] = [[None, 0]]  # of what is open: its anchor, its size so far
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise _Grows(f"the alias *{event.anchor} stands for what it is part of, or for nothing", event)
            stack[-1][1] += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > LONGEST_NUMBER and NUMBER.fullmatch(event.value):
                raise _Grows(f"a number of {len(event.value)} characters", event)
            stack[-1][1] += 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            stack.append([event.anchor, 1])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = stack.pop()
            stack[-1][1] += size
            sizes |= {anchor: size} if anchor else {}
        if len(stack) > DEEPEST:
            raise _Grows(f"more than {DEEPEST} levels, one inside the other", event)
        if stack[-1][1] > MOST_VALUES:
            raise _Grows(f"more than {MOST_VALUES} values when its aliases are written out", event)


class _Grows(yaml.MarkedYAMLError):
    def __init__(self, problem: str, event: Any) -> None:
        super().__init__(problem=problem, problem_mark=event.start_mark)


def sentence(error: AirError) -> str:
    return f"{error.problem} Fix: {error.fix}" if error.fix else error.problem


def cannot_run(key: str, problem: str) -> AirError:
    """The refusal of a task by one of its problems. What such a sentence says is to be done is the fix, said once."""
    what, _, fix = problem.partition(" Fix: ")
    more = f"`air tasks check {key}` says more"
    return AirError(f"The task {key!r} cannot be run: {what}", f"{fix.rstrip('.')}; {more}." if fix else f"{more}.")


def _broken(file: Path, error: Exception) -> AirError:
    mark = getattr(error, "problem_mark", None)
    place = f"{file}:{mark.line + 1}" if mark else str(file)
    said = getattr(error, "problem", None) or str(error).split("\n")[0]
    return AirError(f"{place} is not valid YAML: {said}.", "correct that line.")


def _kind(value: Any) -> str:
    return {type(None): "nothing", str: "text", list: "a list", bool: "a flag", dict: "a mapping"}.get(
        type(value), "a number"
    )


class Fields:
    """Typed reading of one mapping; what is wrong gathers in `problems` and `warnings`."""

    def __init__(self, data: dict[str, Any], file: str, problems: list[str], warnings: list[str]) -> None:
        self.data = data
        self.file = file
        self.problems = problems
        self.warnings = warnings

    def warn_unknown(self, known: Collection[str]) -> None:
        for key in self.data:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.warnings.append(f"{self.file}: the key {key!r} is not known and has no effect{hint}")

    def text(self, key: str, default: str = "") -> str:
        value = self.data.get(key)
        if value is None:
            return default
        if isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value):
            return str(value)
        return self._refuse(key, value, "a text", default)

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key)
        entries = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or len(entries) > MOST_NAMES or not all(map(_is_name, entries)):
            return self._refuse(key, value, f"a list of at most {MOST_NAMES} names", ())
        return tuple(entries)

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        return self._refuse(key, value, "true or false", default)

    def seconds(self, key: str, default: float) -> float:
        value = self.data.get(key)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        return self._refuse(key, value, "a number of seconds above 0", default)

    def scores(self, key: str) -> tuple[dict[str, float], ...]:
        """One dict for each data set. What is no number is left out, so that its metric counts as not given."""
        value = self.data.get(key)
        dicts = [] if value is None else [value] if isinstance(value, dict) else value
        if not isinstance(dicts, list) or not all(isinstance(one, dict) for one in dicts):
            return self._refuse(key, value, "a list with one `metric: number` mapping for each data set", ())
        kept = []
        for scores in dicts:
            kept.append({str(name): float(score) for name, score in scores.items() if _is_finite(score)})
            for name, score in scores.items():
                if not _is_finite(score):
                    said = short(score)
                    self.warnings.append(f"{self.file}: {key} has {name}: {said}, no finite number; left out.")
        return tuple(one for one in kept if one)

    def _refuse(self, key: str, value: Any, expected: str, default: T) -> T:
        self.problems.append(f"{self.file}: {key} is {_kind(value)} ({short(value)}); write {expected}.")
        return default


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
