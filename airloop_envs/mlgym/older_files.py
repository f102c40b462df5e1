"""Starter files as a recorded agent saw them.

Some published episodes were played on files without the licence header that a checkout has today, so their
line-numbered edits fit only the text that their own first `open` shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from airloop_envs.mlgym.traj import RecordedStep, View, read_view

OPEN = re.compile(r"^\s*open\s", re.MULTILINE)
QUOTES = ('"""', "'''")


@dataclass(frozen=True)
class OlderFiles:
    contents: Mapping[str, bytes] = field(default_factory=dict)  # of the files that are to be replaced
    cut: Mapping[str, int] = field(default_factory=dict)  # lines that are left out at the beginning of each
    notes: tuple[str, ...] = ()  # files that were otherwise different there


def older_files(steps: Sequence[RecordedStep], files: Mapping[str, bytes]) -> OlderFiles:
    """What has to be changed in the starter files (name in the workspace, content) before a replay."""
    cut: dict[str, int] = {}
    notes: list[str] = []
    lines = {name: content.decode("utf-8", "replace").split("\n") for name, content in files.items()}
    for place, step in enumerate(steps):
        view = read_view(step.shown)
        if view is None or not view.lines or not OPEN.search(step.action.text):
            continue
        name = _name(view, files)
        if name is None or name in cut:
            continue
        found = _header_cut(lines[name], view)
        if found is None and not _named_before(steps[:place], name):
            notes.append(f"{name} as first shown in turn {place + 1} there is not the file of this checkout")
        cut[name] = found or 0
    headers = {_Header.of(lines[name][:count]) for name, count in cut.items() if count}
    for name in files.keys() - cut.keys():
        cut[name] = max((header.length_in(lines[name]) for header in headers), default=0)
    cut = {name: count for name, count in sorted(cut.items()) if count}
    contents = {name: b"\n".join(files[name].split(b"\n")[count:]) for name, count in cut.items()}
    return OlderFiles(contents, cut, tuple(notes))


def _name(view: View, files: Mapping[str, bytes]) -> str | None:
    path = PurePosixPath(view.path)
    fitting = [name for name in files if path.parts[-len(PurePosixPath(name).parts) :] == PurePosixPath(name).parts]
    return max(fitting, key=len, default=None)


def _named_before(steps: Sequence[RecordedStep], name: str) -> bool:
    last = PurePosixPath(name).name
    return any(last in step.action.text for step in steps)


def _header_cut(ours: Sequence[str], view: View) -> int | None:
    """How many of our first lines the view lacks; None if that alone does not explain it."""
    for count in sorted(range(_header_length(ours) + 1), key=lambda n: abs(len(ours) - n - view.total)):
        rest = ours[count:]
        if all(n <= len(rest) and rest[n - 1].rstrip() == text for n, text in view.lines.items()):
            return count
    return None


def _header_length(lines: Sequence[str]) -> int:
    """Comments, blank lines and a first docstring."""
    at, documented = 0, False
    while at < len(lines):
        text = lines[at].strip()
        if not text or text.startswith("#"):
            at += 1
        elif text.startswith(QUOTES) and not documented:
            documented = True
            quote = text[:3]
            if quote not in text[3:]:
                at += 1
                while at < len(lines) and quote not in lines[at]:
                    at += 1
            at += 1
        else:
            break
    return min(at, len(lines))


@dataclass(frozen=True)
class _Header:
    text: tuple[str, ...]
    blanks: int  # lines after it that went with it

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Header:
        said = [line.rstrip() for line in lines]
        end = max((i for i, line in enumerate(said, 1) if line), default=0)
        return cls(tuple(said[:end]), len(said) - end)

    def length_in(self, lines: Sequence[str]) -> int:
        """Of the same header in another file; 0 if it does not begin with it."""
        end = len(self.text)
        if not end or tuple(line.rstrip() for line in lines[:end]) != self.text:
            return 0
        after = lines[end : end + self.blanks]
        return end + next((i for i, line in enumerate(after) if line.strip()), len(after))
