"""The index's database: one SQLite file in the user's cache, made anew whenever it is of another make or damaged.

The searched text is not kept in it, only the words' places (an FTS5 table without content). What every episode of a
group is shown alike, the prompt, is taken once. An entry that is replaced gets a new number, so that words of the old
one point at nothing and are never found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

from airloop.errors import AirError
from airloop.files import cache_directory
from airloop_view.hits import Hits

MAKE = 9  # of the tables below: another number, and the file is made anew
OF = ".of"  # the file beside an index that says of which directory it is
KEPT_S = 60 * 86400.0
WAIT_S = 20.0  # for another viewer of the same directory that is writing

# What is filtered and sorted by is in `facts`, a table so narrow that looking through a hundred thousand rows takes
# milliseconds: texts that repeat are numbers there, and all that is only shown is in `details`.
TABLES = """
CREATE TABLE collections (key INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, kind TEXT NOT NULL);
CREATE TABLE names (key INTEGER PRIMARY KEY, text TEXT UNIQUE NOT NULL);
CREATE TABLE facts (
    key INTEGER PRIMARY KEY AUTOINCREMENT, collection INTEGER NOT NULL, source INTEGER NOT NULL, step INTEGER,
    task INTEGER NOT NULL, family INTEGER NOT NULL, env INTEGER NOT NULL, ending INTEGER NOT NULL, success REAL,
    reward REAL, advantage REAL, fate INTEGER, version INTEGER, turns INTEGER NOT NULL, tokens INTEGER NOT NULL,
    seconds REAL, started REAL, prompt INTEGER
);
CREATE INDEX by_source ON facts (collection, source, task);
CREATE INDEX by_step ON facts (collection, step);
CREATE TABLE details (
    key INTEGER PRIMARY KEY, collection INTEGER NOT NULL, id TEXT NOT NULL, preview TEXT NOT NULL,
    path BLOB UNIQUE NOT NULL, size INTEGER NOT NULL, mtime INTEGER NOT NULL
);
CREATE UNIQUE INDEX by_name ON details (collection, id);
CREATE TABLE prompts (key INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL);
CREATE TABLE shelves (path BLOB PRIMARY KEY, mtime INTEGER NOT NULL);
CREATE TABLE records (path BLOB PRIMARY KEY, mtime INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TABLE alarms (collection INTEGER NOT NULL, id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize="unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE prompt_words USING fts5(text, content='', tokenize="unicode61 remove_diacritics 2");
"""


class Reader:
    """A connection that cannot change the index, for one thread."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(
            f"file:{_quoted(path)}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
        )
        self.database.row_factory = sqlite3.Row
        self.database.execute("PRAGMA cache_size = -8192")
        self.database.execute("PRAGMA mmap_size = 536870912")
        self.hits = Hits(self.database)


class Store:
    """Connections to the file: one that writes, and one that reads for each thread."""

    def __init__(self, viewed: Path) -> None:
        self.path, self.note = _place(viewed)
        self._local = threading.local()
        self._readers: list[Reader] = []
        self._guard = threading.Lock()
        self.writer = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._checked()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise
            _remove_database(self.path)
            return self._checked()

    def _checked(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=WAIT_S, check_same_thread=False, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("BEGIN IMMEDIATE")
            make = database.execute("PRAGMA user_version").fetchone()[0]
            if make not in (0, MAKE):
                database.execute("ROLLBACK")
                raise sqlite3.DatabaseError("of another make")
            if make == 0:
                for statement in TABLES.strip().split(";\n"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {MAKE}")
            database.execute("COMMIT")
            database.execute("SELECT count(*) FROM collections").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def reader(self) -> Reader:
        """This thread's own."""
        found: Reader | None = getattr(self._local, "reader", None)
        if found is None:
            found = self._local.reader = Reader(self.path)
            with self._guard:
                self._readers.append(found)
        return found

    def close(self) -> None:
        with self._guard:
            for reader in self._readers:
                reader.database.close()
        self.writer.close()


def _place(viewed: Path) -> tuple[Path, str]:
    """Never in what is viewed. Where the cache cannot be written, a directory that goes with this process."""
    name = hashlib.sha256(os.fsencode(viewed)).hexdigest()[:24] + ".sqlite"
    try:
        directory = cache_directory() / "view"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = directory / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except (OSError, AirError) as error:
        apart = Path(tempfile.mkdtemp(prefix="air-view-"))
        why = error.problem if isinstance(error, AirError) else f"{error.filename} cannot be written ({error.strerror})"
        return apart / name, f"{why.rstrip('.')}; the index is made anew at every start"
    with contextlib.suppress(OSError):
        directory.chmod(0o700)  # what agents wrote is nobody else's business
    _sweep(directory)
    (directory / name).with_suffix(OF).write_bytes(os.fsencode(viewed))
    return directory / name, ""


def _sweep(directory: Path) -> None:
    """Indexes of directories that are gone, or that nobody has viewed for long."""
    for note in directory.glob(f"*{OF}"):
        with contextlib.suppress(OSError):
            viewed = Path(os.fsdecode(note.read_bytes()))
            if not viewed.exists() or time.time() - note.stat().st_mtime > KEPT_S:
                _remove_database(note.with_suffix(".sqlite"))
                note.with_suffix(".sqlite.lock").unlink(missing_ok=True)
                note.unlink()


def _remove_database(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
