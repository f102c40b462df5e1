"""Files that an agent wrote, as diffs: followed through its commands, from what the recording shows of them.

Nobody kept the files themselves. Their text is known where the agent wrote all of it (a here-document, a tool's
argument) or was shown it (`open`); what is not known stands as unknown, and the diff then shows only what was written.
"""

from __future__ import annotations

import bisect
import difflib
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any

from airloop_envs.mlgym.commands.syntax import Command, HereDocument, read
from airloop_envs.mlgym.traj import read_view

LONGEST_COMMAND = 100_000  # characters of a command that is looked into
MOST_COMMANDS = 200_000  # and of all of an episode
LONGEST_SHOWN = 400_000  # and of what one printed: a view of a file has a thousand lines at most
MOST_LINES = 5_000  # of a file that is compared line by line
MOST_MOVED = 1_000_000  # lines of all files that the edits of an episode go through: each goes through its whole file
RANGE = re.compile(r"(\d{1,9}):(\d{1,9})")
OPENED = re.compile(r"^\[File: (?P<path>.+?) \(\d+ lines? total", re.MULTILINE)
REFUSED = ("Not applied:", "Nothing was run:", "Your proposed edit has introduced new syntax error")
PATHS = ("path", "file_path", "filepath", "filename", "file")
CONTENTS = ("content", "contents", "file_text", "text")


@dataclass(frozen=True)
class Change:
    path: str
    diff: str
    note: str = ""


@dataclass
class Workspace:
    """What is known of the agent's files as an episode goes on: path → its lines by number, from 1."""

    files: dict[str, dict[int, str]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)  # those whose every line is known
    open: str = ""
    left: int = MOST_COMMANDS
    moves: int = MOST_MOVED

    def after(self, turn: dict[str, Any]) -> list[Change]:
        """What a turn's actions changed."""
        changes: list[Change] = []
        for place, action in enumerate(turn["actions"]):
            answers: list[dict[str, Any]] = turn["observations"][place : place + 1]
            seen: dict[str, Any] = answers[0] if answers else {"text": "", "failed": False}
            if action["kind"] == "command" and len(action["text"]) <= min(LONGEST_COMMAND, self.left):
                self.left -= len(action["text"])
                changes += self._command(action["text"], seen["text"][:LONGEST_SHOWN], seen["failed"])
            elif action["kind"] == "tool" and not seen["failed"]:
                changes += self._tool(action["arguments"])
        return changes

    # --- commands -------------------------------------------------------------------------------------------

    def _command(self, text: str, shown: str, failed: bool) -> list[Change]:
        changes: list[Change] = []
        looked_into = "<<" in text or "edit" in text or "insert" in text or "create" in text or "open" in text
        if looked_into and not any(word in shown for word in REFUSED):
            reading = read(text)
            documents = sorted(reading.documents, key=lambda document: document.start)
            for command in reading.commands:
                words = command.arguments()
                if words:
                    changes += self._one(text, command, words, documents, failed)
        self._learn(shown)
        return changes

    def _one(
        self, text: str, command: Command, words: list[str], documents: list[HereDocument], failed: bool
    ) -> list[Change]:
        name = words[0]
        if name in ("open", "create") and len(words) > 1 and not failed:
            self.open = self._path(words[1])
            return self._write(self.open, "", new=True) if name == "create" else []
        document = _document_of(command, documents)
        if document is None or not document.closed:
            return []
        body = text[document.body_start : document.body_end]
        if document.tabs:
            body = re.sub(r"^\t+", "", body, flags=re.MULTILINE)
        if name in ("edit", "insert"):
            return [] if failed else self._edit(name, words, body)
        target, appends = _redirected(text, command, document)
        if name == "tee" and len(words) > 1:
            target, appends = next((w for w in words[1:] if not w.startswith("-")), ""), "-a" in words
        if name in ("cat", "tee") and target:  # a write that precedes a failing command was made all the same
            return self._append(target, body) if appends else self._write(self._path(target), body)
        return []

    def _edit(self, name: str, words: list[str], body: str) -> list[Change]:
        """`edit 3:5` and `insert 3` change the open file."""
        if not self.open or len(words) < 2:
            return []
        new = body.split("\n")[:-1] if body.endswith("\n") else body.split("\n") if body else []
        if name == "insert" and words[1].isdigit():
            start, end = int(words[1]) + 1, int(words[1])
        elif found := RANGE.fullmatch(words[1]):
            start, end = int(found[1]), int(found[2])
        else:
            return []
        if start > end + 1:
            return []
        known = self.files.get(self.open, {})
        if self.open in self.whole:
            end = min(end, len(known))
        self.moves -= len(known) + len(new)
        if self.moves < 0:
            return []
        return [self._replace(self.open, start, end, new)]

    def _replace(self, path: str, start: int, end: int, new: list[str]) -> Change:
        """Lines start..end (none if end is before start) become `new`."""
        known = self.files.setdefault(path, {})
        old = [known[line] for line in sorted(known) if start <= line <= end]  # `edit 1:999999` may name any number
        shift = len(new) - (end - start + 1)
        moved = {
            (line if line < start else line + shift): text for line, text in known.items() if not start <= line <= end
        }
        moved.update({start + i: text for i, text in enumerate(new)})
        context = [known.get(line) for line in range(max(1, start - 3), start)]
        after = [known.get(line) for line in range(end + 1, end + 4)]
        self.files[path] = moved
        missing = end - start + 1 - len(old)
        lines = [f" {text}" for text in context if text is not None]
        lines += [f"-{text}" for text in old] + [f"+{text}" for text in new]
        lines += [f" {text}" for text in after if text is not None]
        head = f"--- {path}\n+++ {path}\n@@ -{start},{end - start + 1} +{start},{len(new)} @@\n"
        note = f"{missing} of the lines that were replaced were never shown" if missing else ""
        return Change(path, head + "".join(f"{line}\n" for line in lines), note)

    def _append(self, path: str, body: str) -> list[Change]:
        path = self._path(path)
        if path not in self.whole:
            added = "".join(f"+{line}\n" for line in body.splitlines())
            return [Change(path, f"--- {path}\n+++ {path}\n{added}", "appended; what stood before is not known")]
        return self._write(path, "".join(f"{line}\n" for line in self._lines(path)) + body)

    def _write(self, path: str, body: str, new: bool = False) -> list[Change]:
        """The whole file is now `body`."""
        known = path in self.whole
        old = self._lines(path) if known else []
        lines = body.splitlines()
        self.files[path] = {i + 1: line for i, line in enumerate(lines)}
        self.whole.add(path)
        if new and not lines:
            return [Change(path, "", "created, empty")]
        note = "" if known else "written whole; what stood there before, if anything, is not known"
        return [Change(path, unified(path, old, lines), note)]

    def _lines(self, path: str) -> list[str]:
        known = self.files.get(path, {})
        return [known[line] for line in sorted(known)]

    def _path(self, path: str) -> str:
        return posixpath.normpath(path)

    def _learn(self, shown: str) -> None:
        """What a view of a file shows becomes known. The recorder's path may be the same file's longer name."""
        head = OPENED.search(shown)
        view = read_view(shown[head.start() :]) if head else None
        if view is None:
            return
        path = posixpath.normpath(view.path)
        if self.open and (path == self.open or path.endswith("/" + self.open.lstrip("./"))):
            path = self.open
        self.open = path
        self.files.setdefault(path, {}).update(view.lines)
        if len(view.lines) == view.total:
            self.files[path] = dict(view.lines)
            self.whole.add(path)

    # --- tools ----------------------------------------------------------------------------------------------

    def _tool(self, arguments: dict[str, Any]) -> list[Change]:
        """A call with a path and a whole text, or with a text and what it becomes."""
        path = next((arguments[k] for k in PATHS if isinstance(arguments.get(k), str)), None)
        if path is None:
            return []
        path = self._path(path)
        content = next((arguments[k] for k in CONTENTS if isinstance(arguments.get(k), str)), None)
        old, new = arguments.get("old_str"), arguments.get("new_str")
        if isinstance(old, str) and isinstance(new, str):
            return self._exchange(path, old, new)
        return self._write(path, content) if content is not None else []

    def _exchange(self, path: str, old: str, new: str) -> list[Change]:
        text = "\n".join(self._lines(path))
        if path in self.whole and old in text:
            return self._write(path, text.replace(old, new, 1))
        return [Change(path, unified(path, old.splitlines(), new.splitlines()), "a part of the file")]


def unified(path: str, old: list[str], new: list[str]) -> str:
    if max(len(old), len(new)) > MOST_LINES or sum(map(len, old)) + sum(map(len, new)) > 1_000_000:
        return "".join([f"--- {path}\n+++ {path}\n", *(f"-{x}\n" for x in old), *(f"+{x}\n" for x in new)])
    return "".join(f"{line}\n" for line in difflib.unified_diff(old, new, path, path, lineterm=""))


def _document_of(command: Command, documents: list[HereDocument]) -> HereDocument | None:
    """The here-document that a command reads: the one that begins where the command stands. They are in order."""
    at = bisect.bisect_left(documents, command.words[0].start, key=lambda document: document.start)
    return documents[at] if at < len(documents) and documents[at].start <= command.end else None


def _redirected(text: str, command: Command, document: HereDocument) -> tuple[str, bool]:
    """Where a command's output goes, and whether it is added there."""
    line_end = text.find("\n", command.words[0].start)
    line = text[command.words[0].start : line_end if line_end >= 0 else len(text)]
    found = re.search(r"(?<![0-9&<>])(>>?)[ \t]*('[^']*'|\"[^\"]*\"|[^\s;&|<>()]+)", line)
    if not found:
        return "", False
    return found[2].strip("'\""), found[1] == ">>"
