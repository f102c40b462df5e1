"""Keeping the index true to the directory: what is new is read, what never changes is read once.

A step's directory gets its episodes by renaming, which changes the directory's own time; so one that has had the same
time for a while is not even listed again. What training made of the episodes (advantage, fate) comes later, from
another file, and so do alarms.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airloop.runs.damaged import Reader, number, table, whole, words
from airloop_view.folder import Collection, Folder, Shelf
from airloop_view.parse import Parser
from airloop_view.records import Records
from airloop_view.rows import Made, Rows
from airloop_view.store import Store
from airloop_view.weight import too_heavy

SETTLED_NS = 3_000_000_000  # a file's time may be this coarse; a directory changed since is looked at again
BATCH = 256  # episodes per transaction: small enough for readers to see the index grow
BATCH_BYTES = 32 << 20  # and of their files: the words of a batch are held together
LONGEST_NAME = 1_000  # signs of an episode's id or fate: all of a step are held together
LAST_STEP = 1 << 62
# The small files that a run's page is made of.
WATCHED = (
    *("status.json", "metrics.jsonl", "alarms.jsonl", "config.toml"),
    *("evaluation.json", "doctor.json", "logbook.json"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """An episode's file as the directory lists it."""

    shelf: Shelf
    path: Path
    size: int
    mtime: int


@dataclass
class Progress:
    done: int = 0
    total: int = 0


@dataclass
class Index:
    folder: Folder
    store: Store
    progress: Progress = field(default_factory=Progress)
    stopping: threading.Event = field(default_factory=threading.Event)
    tell: Callable[[set[str]], None] = lambda changed: None  # while much is being added

    def __post_init__(self) -> None:
        self.parser = Parser(self.folder)
        self._rows = Rows(self.store.writer)
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._shelves = self._rows.shelves()
        self._records = self._rows.records()
        self._with_alarms: set[str] = set()
        self._sources: dict[str, set[str]] = {}  # of each collection, as they were at the last look

    def update(self) -> set[str]:
        """Looks once; the ids of the collections in which something is new."""
        collections = self.folder.collections()
        changed = self._rows.keep(collections)
        if changed:
            self._shelves = self._rows.shelves()
        found: list[Found] = []
        self._looked: list[tuple[Shelf, int, int]] = []  # each with its own time and its youngest file's
        for collection in collections:
            if self.stopping.is_set():
                return changed
            if self._changed_files(collection):
                changed.add(collection.id)
            shelves = self.folder.shelves(collection)
            sources = {shelf.source for shelf in shelves}
            if self._sources.get(collection.id) != sources and self._rows.leave(collection.id, sources):
                changed.add(collection.id)
                self._shelves = self._rows.shelves()
            self._sources[collection.id] = sources
            for shelf in shelves:
                new, is_changed = self._look(shelf)
                found += new
                changed |= {collection.id} if is_changed else set()
        self._add(found)
        if self.stopping.is_set():
            return changed
        self._settle()
        for collection in collections:
            if self._read_records(collection):
                changed.add(collection.id)
            self._read_alarms(collection, collection.id in changed)
        return changed

    def changed_files(self) -> set[str]:
        """Of which collections a small file has changed: all that is left to be seen while another viewer keeps the
        index."""
        return {collection.id for collection in self.folder.collections() if self._changed_files(collection)}

    def _changed_files(self, collection: Collection) -> bool:
        """Whether one of the small files has changed since the last look."""
        stamp = file_stamp(collection.path)
        before = self._stamps.get(collection.id)
        self._stamps[collection.id] = stamp
        return before is not None and before != stamp

    # --- episodes -------------------------------------------------------------------------------------------

    def _look(self, shelf: Shelf) -> tuple[list[Found], bool]:
        """Files that are new or changed, and whether anything is."""
        place = os.fsencode(shelf.path)
        try:
            mtime = os.stat(shelf.path, follow_symlinks=False).st_mtime_ns
        except OSError:
            return [], False
        if self._shelves.get(place) == mtime:
            return [], False
        files = list(self._files(shelf))
        known = self._rows.on(shelf)
        gone = known.keys() - {os.fsencode(f.path) for f in files}
        fresh = [f for f in files if known.get(os.fsencode(f.path)) != (f.size, f.mtime)]
        if gone:
            self._rows.remove(gone)
        self._looked.append((shelf, mtime, max([mtime, *(f.mtime for f in files)])))
        return fresh, bool(gone or fresh)

    def _settle(self) -> None:
        """What was looked through and read need not be listed again, unless it may still change unseen."""
        settled = []
        for shelf, mtime, youngest in self._looked:
            place = os.fsencode(shelf.path)
            if time.time_ns() - youngest > SETTLED_NS and not self._rows.unreadable(shelf):
                settled.append((place, mtime))
                self._shelves[place] = mtime
        if settled:
            self._rows.settle(settled)

    def _files(self, shelf: Shelf) -> Iterator[Found]:
        for entry in self.folder.files(shelf):
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield Found(shelf, Path(entry.path), found.st_size, found.st_mtime_ns)

    def _add(self, found: list[Found]) -> None:
        """The newest first: whoever watches a run looks at its end."""
        found.sort(key=lambda f: f.mtime, reverse=True)
        self.progress.done, self.progress.total = 0, len(found)
        parts = _batches(found)
        for part, entries in zip(parts, self.parser.stream([[f.path for f in p] for p in parts]), strict=False):
            if self.stopping.is_set():
                return
            with self._rows.transaction():
                for file, entry in zip(part, entries, strict=True):
                    if entry is not None:
                        self._rows.insert(file.shelf, file.path, file.size, file.mtime, entry)
            for shelf in {f.shelf for f in part if f.shelf.step is not None}:
                self._read_record(shelf.collection, shelf.source)  # may have been read before these were there
            self.progress.done += len(part)
            if len(parts) > 1:
                self.tell({f.shelf.collection.id for f in part})

    # --- what training made of them, and alarms -------------------------------------------------------------

    def _read_records(self, collection: Collection) -> bool:
        directory = collection.path / "tokens"
        if collection.kind != "run" or directory.is_symlink():
            return False
        try:
            entries = [e for e in os.scandir(directory) if e.name.endswith(".jsonl")]
        except OSError:
            return False
        return any([self._read_record(collection, entry.name.removesuffix(".jsonl"), False) for entry in entries])

    def _read_record(self, collection: Collection, source: str, again: bool = True) -> bool:
        """Advantage, fate and final reward of a step's episodes, if the file is new or is to be read again."""
        path = collection.path / "tokens" / f"{source}.jsonl"
        try:
            found = os.lstat(path)
        except OSError:
            return False
        place, file = os.fsencode(path), (found.st_mtime_ns, found.st_size)
        if not stat.S_ISREG(found.st_mode) or (self._records.get(place) == file and not again):
            return False
        heads = Records(self.folder, collection.path, source).heads()
        self._rows.record(collection.id, (place, *file), [_made_of(line) for line in heads])
        self._records[place] = file
        return True

    def _read_alarms(self, collection: Collection, changed: bool) -> None:
        known = collection.id in self._with_alarms
        if collection.kind == "run" and (changed or not known) and not (collection.path / "alarms.jsonl").is_symlink():
            self._rows.alarms(collection.id, alarm_spans(collection))
            self._with_alarms.add(collection.id)


def _batches(found: list[Found]) -> list[list[Found]]:
    parts: list[list[Found]] = []
    held = 0
    for file in found:
        held += file.size
        if not parts or len(parts[-1]) >= BATCH or held > BATCH_BYTES:
            parts.append([])
            held = file.size
        parts[-1].append(file)
    return parts


def _made_of(line: dict[str, object]) -> Made:
    advantage, reward = number(line.get("advantage")), number(line.get("reward"))
    id, fate = words(line.get("id")), words(line.get("fate"))
    return id and id[:LONGEST_NAME], advantage, fate and fate[:LONGEST_NAME], reward


def file_stamp(path: Path) -> tuple[int, ...]:
    """Times and sizes of the small files."""
    stamp: list[int] = []
    for name in WATCHED:
        try:
            found = os.lstat(path / name)
            stamp += [found.st_mtime_ns, found.st_size]
        except OSError:
            stamp += [0, 0]
    return tuple(stamp)


def alarm_spans(collection: Collection) -> list[tuple[str, int, int]]:
    """(id, first step, last step) in which an alarm was up; one that was never cleared lasts."""
    spans: list[tuple[str, int, int]] = []
    up: dict[str, int] = {}
    light = not too_heavy(collection.path, WATCHED)
    for line in map(table, Reader(collection.path).lines("alarms.jsonl") if light else ()):
        id, step = words(line.get("id")), whole(line.get("step"))
        if id is None or step is None or not 0 <= step < LAST_STEP:
            continue
        if line.get("event") == "raised":
            up[id] = min(step, up.get(id, step))  # a resumed run may raise it anew, at an earlier step
        elif id in up:
            first = up.pop(id)
            spans.append((id, first, max(first, step - 1)))
    return spans + [(id, first, LAST_STEP) for id, first in up.items()]
