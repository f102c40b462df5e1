"""Which episodes hold the words that a person typed: looked up once, then used for the count, the page and what lies
beside an episode, and kept for the next page."""

from __future__ import annotations

import re
import sqlite3

SHORTEST_BEGINNING = 3  # letters before a *: fewer begin so many words that looking for all of them takes seconds
KEPT = 4  # searches of one connection
TERM = re.compile(r'"([^"]*)"?|(\S+)')
WORD = re.compile(r"[^\W_]")


def search_terms(text: str) -> list[str]:
    """What a person typed as FTS5 strings, all of which must occur: words, "quoted phrases", and beginnings of words
    ending in *. Every sign that means something to FTS5 is quoted; what holds no letter or digit is left out."""
    terms = []
    for phrase, word in TERM.findall(text.replace("\0", " ")):
        found = phrase or word
        if not WORD.search(found):
            continue
        bare = found.rstrip("*")
        beginning = word.endswith("*") and len(bare) >= SHORTEST_BEGINNING
        terms.append('"' + bare.replace('"', '""') + '"' + ("*" if beginning else ""))
    return terms


class Hits:
    """Tables of episodes' keys beside the index, in the memory of one connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self._db.execute("ATTACH ':memory:' AS found")
        self._tables: dict[tuple[str, ...], str] = {}
        self._version = -1
        self._made = 0

    def of(self, text: str) -> str | None:
        """A table with the keys of the episodes that hold all of it; None if it asks for nothing."""
        terms = tuple(search_terms(text))
        if not terms:
            return None
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or (len(self._tables) >= KEPT and terms not in self._tables):
            for table in self._tables.values():
                self._db.execute(f"DROP TABLE {table}")
            self._tables, self._version = {}, version
        if terms not in self._tables:
            self._made += 1
            table = f"found.q{self._made}"
            self._db.execute(f"CREATE TABLE {table} (key INTEGER PRIMARY KEY)")
            self._fill(table, terms)
            self._tables[terms] = table
        return self._tables[terms]

    def _fill(self, table: str, terms: tuple[str, ...]) -> None:
        """A term may stand in what the episode says or in its prompt, which is kept apart. First those that say all of
        it themselves; of the others only those whose prompt holds some of it are looked at, term by term."""
        everything = " AND ".join(terms)
        self._db.execute(f"INSERT INTO {table} SELECT rowid FROM words WHERE words MATCH ?", (everything,))
        prompted = "prompt IN (SELECT rowid FROM prompt_words WHERE prompt_words MATCH ?)"
        said = "key IN (SELECT rowid FROM words WHERE words MATCH ?)"
        some = " OR ".join(prompted for _ in terms)
        each = " AND ".join(f"({prompted} OR {said})" for _ in terms)
        self._db.execute(
            f"INSERT INTO {table} SELECT key FROM facts"
            f" WHERE ({some}) AND key NOT IN (SELECT key FROM {table}) AND {each}",
            [*terms, *(term for term in terms for _ in range(2))],
        )
