"""What people add to a run: notes, its goal, that it was superseded, abandoned or archived. Kept in its directory.

    logbook.json   {"schema_version": 1, "entries": [{"time": …, "kind": "note", "text": "…"}, …]}

Entries are only ever added; of a kind that can change, the last one counts. A line is as old as its `time` says, so
a run that is started again after it was abandoned is not abandoned any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from airloop import locks
from airloop.errors import AirError
from airloop.files import write_text
from airloop.runs.damaged import Reader, epoch, items, table, whole, words
from airloop.text.keys import without_keys_in

FILE = "logbook.json"
SCHEMA_VERSION = 1
# reopened: what was last said of the run's status is taken back. parent: a run's name, or its path from the folder
# that this one is in; "" for none.
Kind = Literal["note", "goal", "parent", "superseded", "abandoned", "archived", "reopened"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STATUS_KINDS = ("superseded", "abandoned", "archived")


@dataclass(frozen=True)
class Entry:
    time: float
    kind: Kind
    text: str  # the note, the goal, the reason
    by: str = ""  # of superseded: the run that takes its place


@dataclass(frozen=True)
class Entries:
    """All of a run's, oldest first."""

    all: tuple[Entry, ...] = ()
    started: float | None = None  # when the run was last started

    @property
    def notes(self) -> list[Entry]:
        return [entry for entry in self.all if entry.kind == "note"]

    @property
    def goal(self) -> str | None:
        return next((entry.text for entry in reversed(self.all) if entry.kind == "goal"), None)

    @property
    def parent(self) -> str | None:
        """ "" where it is known that there is none; None where nothing is known."""
        return next((entry.text for entry in reversed(self.all) if entry.kind == "parent"), None)

    @property
    def status(self) -> Entry | None:
        """What a person has last said of its status, unless it was taken back or the run started again."""
        said: list[Entry] = []
        for entry in self.all:
            if entry.kind in STATUS_KINDS:
                said.append(entry)
            elif entry.kind == "reopened" and said:
                said.pop()
        if not said or (self.started is not None and said[-1].time < self.started):
            return None
        return said[-1]

    @property
    def superseded_by(self) -> str | None:
        return self.status.by or None if self.status and self.status.kind == "superseded" else None


def read_entries(reader: Reader, status: dict[str, Any] | None = None) -> Entries:
    """Entries that cannot be read are left out and counted among the reader's problems. `status` is what status.json
    holds: it knows when the run was started."""
    found = []
    broken = 0
    for row in items(reader.json(FILE).get("entries")):
        if (entry := _entry(table(row))) is None:
            broken += 1
        else:
            found.append(entry)
    if broken:
        reader.problems.append(f"{FILE}: {broken} {'entry' if broken == 1 else 'entries'} cannot be read")
    began = [epoch(items(session)[0]) for session in items((status or {}).get("sessions")) if items(session)]
    return Entries(tuple(found), max((t for t in began if t is not None), default=None))


def _entry(row: dict[str, Any]) -> Entry | None:
    when, text = epoch(row.get("time")), words(row.get("text"))
    for kind in KINDS:
        if row.get("kind") == kind and when is not None and text is not None:
            return Entry(when, kind, text, words(row.get("by")) or "")
    return None


def add_entry(path: Path, kind: Kind, text: str, by: str = "") -> Entry:
    """One more entry, whoever else adds one at the same time."""
    entry = Entry(time.time(), kind, text, by)
    try:
        with locked(path):
            data = _saved(path)
            made = {"schema_version": SCHEMA_VERSION, **data, "entries": [*data.get("entries", []), asdict(entry)]}
            write_text(path / FILE, json.dumps(without_keys_in(made), ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise AirError(f"{path / FILE} cannot be written: {error.strerror}.", "check who owns the run.") from error
    return entry


def _saved(path: Path) -> dict[str, Any]:
    """What is there, to be kept as it is: never overwritten where it cannot be understood."""
    reader = Reader(path)
    data = reader.json(FILE)
    version = whole(data.get("schema_version", SCHEMA_VERSION))
    if not reader.problems and not isinstance(data.get("entries", []), list):
        reader.problems.append(f"{FILE}: entries are no list")
    if not reader.problems and (version is None or version > SCHEMA_VERSION):
        reader.problems.append(f"{FILE} is of a newer air (schema_version {data['schema_version']})")
    if reader.problems:
        raise AirError(f"{path}: {reader.problems[0]}.", f"mend {path / FILE}, or move it away to begin a new one.")
    return data


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Between reading and writing a run's books nobody else writes them: neither another process nor a thread of this
    one."""
    with locks.alone_in(path):
        yield
