"""On which line of a TOML file each key stands. `tomllib` gives the values but not their places.

The text has already been parsed by `tomllib`, so the scanner may assume that it is valid.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'")
_TEXT = re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|' r"'''(?:[^']|'{1,2}(?!'))*'{3,5}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """The line (from 1) of every key, table and array element; elements are counted from 0."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # elements so far of each [[array of tables]]

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self.blank()
        while self.at < len(self.text):
            if self.peek("["):
                table = self.header()
            else:
                self.pair(table)
            self.blank()
        return self.lines

    def header(self) -> Path:
        array = self.peek("[[")
        start = self.at
        self.at += 2 if array else 1
        keys = self.dotted()
        self.at = self.text.index("]", self.at) + (2 if array else 1)
        table = self.within_arrays(keys[:-1])
        table = (*table, keys[-1])
        if array:
            self.mark(table, start)
            self.counts[table] = self.counts.get(table, -1) + 1
            table = (*table, self.counts[table])
        for depth in range(1, len(table)):
            self.mark(table[:depth], start)  # tables that have no header of their own
        self.lines[table] = self.line(start)
        return table

    def within_arrays(self, keys: tuple[str, ...]) -> Path:
        """`[a.b.c]` after `[[a.b]]` is inside the latest element of a.b."""
        table: Path = ()
        for key in keys:
            table = (*table, key)
            if table in self.counts:
                table = (*table, self.counts[table])
        return table

    def pair(self, table: Path) -> None:
        start = self.at
        keys = self.dotted()
        for depth in range(1, len(keys) + 1):
            self.mark((*table, *keys[:depth]), start)
        self.at = self.text.index("=", self.at) + 1
        self.value((*table, *keys))

    def dotted(self) -> tuple[str, ...]:
        keys = []
        while True:
            self.blank(newlines=False)
            if match := _QUOTED.match(self.text, self.at):
                keys.append(str(tomllib.loads(f"k = {match[0]}")["k"]))
            elif match := _BARE.match(self.text, self.at):
                keys.append(match[0])
            else:
                raise ValueError(f"no key at character {self.at}")
            self.at = match.end()
            self.blank(newlines=False)
            if not self.peek("."):
                return tuple(keys)
            self.at += 1

    def value(self, path: Path) -> None:
        self.blank(newlines=False)
        if self.peek("["):
            self.items("]", path, array=True)
        elif self.peek("{"):
            self.items("}", path, array=False)
        else:
            match = (
                _TEXT.match(self.text, self.at)
                or _QUOTED.match(self.text, self.at)
                or _SCALAR.match(self.text, self.at)
            )
            if match is None:
                raise ValueError(f"no value at character {self.at}")
            self.at = match.end()

    def items(self, close: str, path: Path, *, array: bool) -> None:
        self.at += 1
        index = 0
        self.blank()
        while not self.peek(close):
            if array:
                self.mark((*path, index), self.at)
                self.value((*path, index))
                index += 1
            else:
                self.pair(path)
            self.blank()
            if self.peek(","):
                self.at += 1
                self.blank()
        self.at += 1

    def blank(self, *, newlines: bool = True) -> None:
        """Step over white space, and with newlines over comments as well."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if newlines and char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t" or (newlines and char == "\n"):
                self.at += 1
            else:
                return

    def peek(self, start: str) -> bool:
        return self.text.startswith(start, self.at)

    def mark(self, path: Path, at: int) -> None:
        self.lines.setdefault(path, self.line(at))

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1
