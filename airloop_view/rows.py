"""Writing the index's tables: episodes in and out, what training made of them, alarms."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airloop_view.entry import Entry
from airloop_view.folder import Collection, Shelf

Made = tuple[str | None, float | None, str | None, float | None]  # episode, advantage, fate, reward


class Rows:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self.collections: dict[str, int] = {}  # id → key
        self._names: dict[str, int] = {}
        self._prompts: dict[bytes, int] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            self._names.clear()  # what was only in this transaction is not there
            self._prompts.clear()
            raise
        self._db.execute("COMMIT")

    # --- collections ----------------------------------------------------------------------------------------

    def keep(self, collections: Sequence[Collection]) -> set[str]:
        """These are there now, and no others; the ids of those that are new, changed or gone."""
        kept = {c.id: c.kind for c in collections}
        known = {id: (key, kind) for key, id, kind in self._db.execute("SELECT key, id, kind FROM collections")}
        gone = [id for id, (_, kind) in known.items() if kept.get(id) != kind]
        new = [c for c in collections if c.id not in known or c.id in gone]
        if gone or new:
            with self.transaction():
                for id in gone:
                    self._forget(known[id][0])
                self._db.executemany("INSERT INTO collections (id, kind) VALUES (?, ?)", [(c.id, c.kind) for c in new])
        self.collections = {id: key for key, id in self._db.execute("SELECT key, id FROM collections")}
        return {*gone, *(c.id for c in new)}

    def _forget(self, collection: int) -> None:
        paths = [row[0] for row in self._db.execute("SELECT path FROM details WHERE collection = ?", (collection,))]
        shelves = {os.path.dirname(path) for path in paths}
        self._db.executemany("DELETE FROM shelves WHERE path = ?", [(path,) for path in shelves])
        for name in ("facts", "details", "alarms"):
            self._db.execute(f"DELETE FROM {name} WHERE collection = ?", (collection,))
        self._db.execute("DELETE FROM collections WHERE key = ?", (collection,))

    # --- shelves --------------------------------------------------------------------------------------------

    def shelves(self) -> dict[bytes, int]:
        """Those in which nothing can change unseen: path → its time when it was last looked through."""
        return {path: mtime for path, mtime in self._db.execute("SELECT path, mtime FROM shelves")}

    def settle(self, shelves: Iterable[tuple[bytes, int]]) -> None:
        with self.transaction():
            self._db.executemany("INSERT OR REPLACE INTO shelves VALUES (?, ?)", shelves)

    def on(self, shelf: Shelf) -> dict[bytes, tuple[int, int]]:
        """Path → size and time of every episode of a shelf."""
        rows = self._db.execute(
            "SELECT d.path, d.size, d.mtime FROM facts f JOIN details d ON d.key = f.key"
            " WHERE f.collection = ? AND f.source = (SELECT key FROM names WHERE text = ?)",
            (self.collections[shelf.collection.id], shelf.source),
        )
        own = os.fsencode(shelf.path)  # two may be called the same where their names are no text
        return {path: (size, mtime) for path, size, mtime in rows if os.path.dirname(path) == own}

    def unreadable(self, shelf: Shelf) -> bool:
        """Whether one of its episodes may still be in the making."""
        found = self._db.execute(
            "SELECT 1 FROM facts WHERE collection = ? AND source = (SELECT key FROM names WHERE text = ?)"
            " AND ending = (SELECT key FROM names WHERE text = 'unreadable') LIMIT 1",
            (self.collections[shelf.collection.id], shelf.source),
        )
        return found.fetchone() is not None

    def leave(self, collection: str, sources: set[str]) -> bool:
        """Forgets the episodes of shelves that are not there any more; whether there were any."""
        key = self.collections[collection]
        held = self._db.execute(
            "SELECT DISTINCT f.source, n.text FROM facts f JOIN names n ON n.key = f.source WHERE f.collection = ?",
            (key,),
        )
        gone = [source for source, text in held if text not in sources]
        if gone:
            own = "key IN (SELECT key FROM facts WHERE collection = ? AND source = ?)"
            with self.transaction():
                for source in gone:
                    paths = self._db.execute(f"SELECT path FROM details WHERE {own}", (key, source))
                    places = {os.path.dirname(row[0]) for row in paths}  # one that comes back is looked through anew
                    self._db.executemany("DELETE FROM shelves WHERE path = ?", [(place,) for place in places])
                    self._delete(own, key, source)
        return bool(gone)

    # --- episodes -------------------------------------------------------------------------------------------

    def remove(self, paths: Iterable[bytes]) -> None:
        with self.transaction():
            for path in paths:
                self._delete("path = ?", path)

    def _delete(self, condition: str, *values: object) -> None:
        for (key,) in self._db.execute(f"SELECT key FROM details WHERE {condition}", values).fetchall():
            self._db.execute("DELETE FROM facts WHERE key = ?", (key,))
            self._db.execute("DELETE FROM details WHERE key = ?", (key,))

    def insert(self, shelf: Shelf, path: Path, size: int, mtime: int, entry: Entry) -> None:
        """Within a transaction. It replaces what the index had of the same file."""
        collection, id, place = self.collections[shelf.collection.id], shelf.episode(path.name), os.fsencode(path)
        self._delete("path = ?", place)
        if shelf.step is not None:  # to be read for this one too; if we end before that, at the next start
            tokens = shelf.collection.path / "tokens" / f"{shelf.source}.jsonl"
            self._db.execute("DELETE FROM records WHERE path = ?", (os.fsencode(tokens),))
        plain, again = id, 0
        while self._db.execute("SELECT 1 FROM details WHERE collection = ? AND id = ?", (collection, id)).fetchone():
            # A step that somebody copied, or names that differ only in bytes that are no text: all are shown.
            again += 1
            id = f"{shelf.source}/{plain}" + (f"~{again}" if again > 1 else "")
        named = (self._name(text) for text in (shelf.source, entry.task, entry.family, entry.env, entry.ending))
        source, task, family, env, ending = named
        facts = (
            *(collection, source, shelf.step, task, family, env, ending, entry.success, entry.reward, entry.version),
            *(entry.turns, entry.tokens, entry.seconds, entry.started, self._prompt(entry.prompt)),
        )
        added = self._db.execute(
            "INSERT INTO facts (collection, source, step, task, family, env, ending, success, reward, version, turns,"
            f" tokens, seconds, started, prompt) VALUES ({', '.join('?' * len(facts))})",
            facts,
        )
        details = (added.lastrowid, collection, id, entry.preview, place, size, mtime)
        self._db.execute("INSERT INTO details VALUES (?, ?, ?, ?, ?, ?, ?)", details)
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (added.lastrowid, entry.text))

    def _name(self, text: str) -> int:
        if text not in self._names:
            self._db.execute("INSERT OR IGNORE INTO names (text) VALUES (?)", (text,))
            self._names[text] = self._db.execute("SELECT key FROM names WHERE text = ?", (text,)).fetchone()[0]
        return self._names[text]

    def _prompt(self, text: str) -> int | None:
        if not text:
            return None
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in self._prompts:
            row = self._db.execute("SELECT key FROM prompts WHERE digest = ?", (digest,)).fetchone()
            if row is None:
                row = (self._db.execute("INSERT INTO prompts (digest) VALUES (?)", (digest,)).lastrowid,)
                self._db.execute("INSERT INTO prompt_words (rowid, text) VALUES (?, ?)", (row[0], text))
            self._prompts[digest] = row[0]
        return self._prompts[digest]

    # --- what training made of them, and alarms -------------------------------------------------------------

    def records(self) -> dict[bytes, tuple[int, int]]:
        return {path: (mtime, size) for path, mtime, size in self._db.execute("SELECT * FROM records")}

    def record(self, collection: str, file: tuple[bytes, int, int], made: Iterable[Made]) -> None:
        """`file`: path, time and size of what was read."""
        key = self.collections[collection]
        with self.transaction():
            self._db.executemany(
                "UPDATE facts SET advantage = ?, fate = ?, reward = coalesce(?, reward)"
                " WHERE key = (SELECT key FROM details WHERE collection = ? AND id = ?)",
                [
                    (advantage, self._name(fate) if fate is not None else None, reward, key, id)
                    for id, advantage, fate, reward in made
                ],
            )
            self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", file)

    def alarms(self, collection: str, spans: Iterable[tuple[str, int, int]]) -> None:
        key = self.collections[collection]
        with self.transaction():
            self._db.execute("DELETE FROM alarms WHERE collection = ?", (key,))
            self._db.executemany("INSERT INTO alarms VALUES (?, ?, ?, ?)", [(key, *span) for span in spans])
