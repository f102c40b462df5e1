"""Which episodes hold the words that a person typed: each word is looked up once, for the count, the page and what lies
beside an episode, and is remembered for the next page and for the next word."""

from __future__ import annotations

import re
import sqlite3

SHORTEST_BEGINNING = 3  # letters before a *: fewer begin so many words that looking for all of them takes seconds
KEPT = 12  # terms whose episodes one connection remembers
MOST_TERMS = 10  # of one search; who types more has said enough
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
    """Tables of keys beside the index, in the memory of one connection: for each term the episodes that say it and the
    prompts that hold it, which are kept apart."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self._db.execute("ATTACH ':memory:' AS found")
        self._tables: dict[str, int] = {}
        self._version = -1
        self._made = 0

    def conditions(self, text: str) -> list[str]:
        """For each term of a search, the condition on an episode `t` to hold it."""
        terms = search_terms(text)[:MOST_TERMS]
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._tables.keys() | set(terms)) > KEPT:
            for number in self._tables.values():
                self._db.execute(f"DROP TABLE found.said{number}")
                self._db.execute(f"DROP TABLE found.asked{number}")
            self._tables, self._version = {}, version
        return [self._condition(term) for term in terms]

    def _condition(self, term: str) -> str:
        if term not in self._tables:
            self._made += 1
            for table, words in ((f"found.said{self._made}", "words"), (f"found.asked{self._made}", "prompt_words")):
                self._db.execute(f"CREATE TABLE {table} (key INTEGER PRIMARY KEY)")
                self._db.execute(f"INSERT INTO {table} SELECT rowid FROM {words} WHERE {words} MATCH ?", (term,))
            self._tables[term] = self._made
        number = self._tables[term]
        said = f"t.key IN (SELECT key FROM found.said{number})"
        asked = self._db.execute(f"SELECT 1 FROM found.asked{number} LIMIT 1").fetchone()
        return f"({said} OR t.prompt IN (SELECT key FROM found.asked{number}))" if asked else said
