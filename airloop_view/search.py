"""Lists of episodes: filters and words to SQL, pages, and what lies before and after one in the same list."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.errors import AirError
from airloop_view.store import Reader, Store

# Columns of `facts` whose number stands for a text.
NAMED = ("source", "task", "family", "env", "ending", "fate")
NUMBERS = ("step", "success", "reward", "advantage", "version", "turns", "tokens", "seconds", "started")
# What a list can be sorted by: as SQL, and what has to be joined for it.
SORTS = {
    **{name: ("n.text", f"LEFT JOIN names n ON n.key = t.{name}") for name in NAMED},
    **{name: (f"t.{name}", "") for name in NUMBERS},
    "id": ("d.id", "JOIN details d ON d.key = t.key"),
    "run": ("c.id", "JOIN collections c ON c.key = t.collection"),
}
ROW = (
    "SELECT t.key, c.id AS run, d.id, d.preview, d.path, "
    + ", ".join(f"t.{name}" for name in NUMBERS)
    + "".join(f", (SELECT text FROM names WHERE key = t.{name}) AS {name}" for name in NAMED)
    + " FROM facts t JOIN details d ON d.key = t.key JOIN collections c ON c.key = t.collection"
)
SHOWN = ("run", "id", *NAMED, *NUMBERS, "preview")
MOST_ROWS = 500


@dataclass(frozen=True)
class Filter:
    """What a list shows. Several values of one kind mean any of them; an empty one means all."""

    runs: tuple[str, ...] = ()
    words: str = ""
    tasks: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()
    endings: tuple[str, ...] = ()
    fates: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    alarms: tuple[str, ...] = ()
    sort: str = "started"
    descending: bool = True  # the newest, the best, the longest first

    def where(self, reader: Reader) -> tuple[str, list[Any]]:
        found, db = Conditions(), reader.database
        if self.runs:
            found.any_of("t.collection", _keys(db, "collections", "id", self.runs))
        for column, given in (("source", self.sources), ("ending", self.endings)):
            if given:
                found.any_of(f"t.{column}", _keys(db, "names", "text", given))
        if self.fates:
            codes = _keys(db, "names", "text", self.fates)
            without = " OR t.fate IS NULL" if "none" in self.fates else ""
            found.add(f"(t.fate IN ({_marks(codes)}){without})", *codes)
        if self.tasks:
            codes = _keys(db, "names", "text", self.tasks)
            found.add(f"(t.task IN ({_marks(codes)}) OR t.family IN ({_marks(codes)}))", *codes, *codes)
        if self.versions:
            spans = " OR ".join("t.version BETWEEN ? AND ?" for _ in self.versions)
            found.add(f"({spans})", *(bound for span in self.versions for bound in span))
        if self.lowest is not None:
            found.add("t.reward >= ?", self.lowest)
        if self.highest is not None:
            found.add("t.reward <= ?", self.highest)
        if self.alarms:
            found.add(*_under_alarm(self.alarms))
        for condition in reader.hits.conditions(self.words):
            found.add(condition)
        return " AND ".join(found.clauses), found.values


class Conditions:
    def __init__(self) -> None:
        self.clauses, self.values = ["1"], list[Any]()

    def add(self, clause: str, *values: Any) -> None:
        self.clauses.append(clause)
        self.values.extend(values)

    def any_of(self, column: str, values: Sequence[Any]) -> None:
        self.add(f"{column} IN ({_marks(values)})", *values)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _keys(db: sqlite3.Connection, table: str, column: str, values: Sequence[str]) -> list[int]:
    """The numbers that stand for texts; of one that is nowhere, none."""
    return [row[0] for row in db.execute(f"SELECT key FROM {table} WHERE {column} IN ({_marks(values)})", values)]


def _under_alarm(alarms: Sequence[str]) -> tuple[Any, ...]:
    """By the steps of each run in which one of them was up: few, beside the episodes."""
    named = "" if "any" in alarms else f"WHERE a.id IN ({_marks(alarms)})"
    return (
        "(t.collection, t.step) IN (SELECT s.collection, s.step"
        " FROM (SELECT DISTINCT collection, step FROM facts WHERE step IS NOT NULL) s"
        f" JOIN alarms a ON a.collection = s.collection AND s.step BETWEEN a.first AND a.last {named})",
        *(alarms if named else ()),
    )


class Lists:
    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, chosen: Filter, offset: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
        reader = self._store.reader()
        db, (where, values) = reader.database, chosen.where(reader)
        total = int(db.execute(f"SELECT count(*) FROM facts t WHERE {where}", values).fetchone()[0])
        count = max(0, min(limit, MOST_ROWS, total - offset))
        backward = offset > total // 2  # the last pages are the first ones from the other end
        start = total - offset - count if backward else offset
        sort, join = SORTS[chosen.sort]
        keys = [
            row[0]
            for row in db.execute(
                f"SELECT t.key FROM facts t {join} WHERE {where}"
                f" ORDER BY {_order(sort, chosen.descending, backward)} LIMIT ? OFFSET ?",
                [*values, count, max(0, start)],
            )
        ]
        return total, self._rows(keys[::-1] if backward else keys)

    def _rows(self, keys: list[int]) -> list[dict[str, Any]]:
        found = self._store.reader().database.execute(f"{ROW} WHERE t.key IN ({_marks(keys)})", keys)
        rows = {row["key"]: {**{name: row[name] for name in SHOWN}, "group": group_number(row["id"])} for row in found}
        return [rows[key] for key in keys if key in rows]

    def neighbours(self, chosen: Filter, run: str, id: str) -> dict[str, Any] | None:
        """Before and after one in a list; `place` counts from 1 and is None if the list does not hold it. None if
        there is no such episode at all."""
        own = self.row(run, id)
        if own is None:
            return None
        reader = self._store.reader()
        db, (where, values) = reader.database, chosen.where(reader)
        sort, join = SORTS[chosen.sort]
        value, key = own[chosen.sort], own["key"]
        before, after = (_beyond(sort, chosen.descending, value, key, forward) for forward in (False, True))

        def nearest(condition: tuple[str, list[Any]], backward: bool) -> dict[str, str] | None:
            found = db.execute(
                f"SELECT t.key FROM facts t {join} WHERE {where} AND {condition[0]}"
                f" ORDER BY {_order(sort, chosen.descending, backward)} LIMIT 1",
                [*values, *condition[1]],
            ).fetchone()
            rows = self._rows([found[0]]) if found else []
            return {name: rows[0][name] for name in ("run", "id")} if rows else None

        def count(condition: str, given: Sequence[Any], joined: str = "") -> int:
            query = f"SELECT count(*) FROM facts t {joined} WHERE {where} {condition}"
            return int(db.execute(query, [*values, *given]).fetchone()[0])

        held = count("AND t.key = ?", [key])
        return {
            "previous": nearest(before, backward=True),
            "next": nearest(after, backward=False),
            "place": count(f"AND {before[0]}", before[1], join) + 1 if held else None,
            "total": count("", []),
        }

    def row(self, run: str, id: str) -> sqlite3.Row | None:
        query = f"{ROW} WHERE c.id = ? AND d.collection = c.key AND d.id = ?"
        found: sqlite3.Row | None = self._store.reader().database.execute(query, (run, id)).fetchone()
        return found

    def members(self, run: str, source: str, task: str) -> list[sqlite3.Row]:
        """All of one group, by name."""
        codes = "(SELECT key FROM names WHERE text = ?)"
        query = f"{ROW} WHERE c.id = ? AND t.source = {codes} AND t.task = {codes} ORDER BY d.id"
        return self._store.reader().database.execute(query, (run, source, task)).fetchall()

    def group(self, run: str, row: sqlite3.Row) -> list[sqlite3.Row]:
        """Those that an episode was compared with, itself included: a task may come twice in a step, each time with a
        baseline of its own, and what the machinery spoilt has no part in one."""
        number = group_number(row["id"])
        return [
            member
            for member in self.members(run, row["source"], row["task"])
            if group_number(member["id"]) == number and (member["ending"] != "infra_error" or member["id"] == row["id"])
        ]

    def named(self, run: str | None, name: str, most: int) -> list[dict[str, Any]]:
        """Those whose id begins so, or ends so after its place."""
        own = " AND c.id = ?" if run is not None else ""
        query = f"{ROW} WHERE (substr(d.id, 1, ?) = ? OR substr(d.id, ?) = ?){own} ORDER BY d.id LIMIT ?"
        values = (len(name), name, -len(name) - 1, f"/{name}", *([run] if run is not None else []), most)
        return [{name: row[name] for name in SHOWN} for row in self._store.reader().database.execute(query, values)]

    def counts(self) -> dict[str, int]:
        rows = self._store.reader().database.execute(
            "SELECT c.id, f.n FROM collections c JOIN"
            " (SELECT collection, count(*) AS n FROM facts GROUP BY collection) f ON f.collection = c.key"
        )
        return {id: count for id, count in rows}

    def facets(self, run: str) -> dict[str, Any]:
        """What a run's list can be filtered by. Tasks by name where they are few; else only their families."""
        db = self._store.reader().database
        own = "collection = (SELECT key FROM collections WHERE id = ?)"

        def distinct(column: str) -> list[str]:
            codes = f"SELECT DISTINCT {column} FROM facts WHERE {own}"
            rows = db.execute(f"SELECT text FROM names WHERE key IN ({codes}) ORDER BY text LIMIT 5000", (run,))
            return [row[0] for row in rows if row[0]]

        names, families = distinct("task"), distinct("family")
        lo, hi = db.execute(f"SELECT min(version), max(version) FROM facts WHERE {own}", (run,)).fetchone()
        return {
            "tasks": [*families, *(n for n in names if n not in families)] if len(names) <= 200 else families,
            "endings": distinct("ending"),
            "fates": distinct("fate"),
            "versions": [lo, hi],
            "sources": distinct("source"),
        }


def group_number(id: str) -> str | None:
    """Of an episode's group within its step, as the sampler puts it into ids: `…_3-0` is of group 3."""
    found = re.search(r"_(\d+)-\d+(?:-\d+)?$", id)
    return found[1] if found else None


def _order(sort: str, descending: bool, backward: bool = False) -> str:
    """Numbers and texts as asked, what has none always last; equal ones in the order they were found."""
    first, second = ("DESC", "ASC") if backward else ("ASC", "DESC")
    way = second if descending else first
    return f"({sort} IS NULL) {first}, {sort} {way}, t.key {way}"


def _beyond(sort: str, descending: bool, value: Any, key: int, forward: bool) -> tuple[str, list[Any]]:
    """The condition on a row to stand after (or before) the given one in the order above."""
    further = "<" if descending == forward else ">"
    if value is None:
        among = f"({sort} IS NULL AND t.key {further} ?)"
        return (among, [key]) if forward else (f"({sort} IS NOT NULL OR {among})", [key])
    among = f"({sort} {further} ? OR ({sort} = ? AND t.key {further} ?))"
    last = f" OR {sort} IS NULL" if forward else ""
    return f"({among}{last})", [value, value, key]


# --- from a request -----------------------------------------------------------------------------------------


def read_filter(query: Mapping[str, list[str]]) -> Filter:
    """Each parameter that is there is used or refused."""
    sort = _one(query, "sort") or "started"
    if sort not in SORTS:
        raise AirError(f"A list cannot be sorted by {sort[:40]!r}.", f"use one of: {', '.join(SORTS)}.")
    lowest, highest = (_number(query, name) for name in ("min", "max"))
    return Filter(
        runs=_all(query, "run"),
        words=_one(query, "q")[:10_000],
        tasks=_all(query, "task"),
        sources=_all(query, "source"),
        versions=tuple(_span(text) for text in _all(query, "version")),
        endings=_all(query, "ending"),
        fates=_all(query, "fate"),
        lowest=lowest,
        highest=highest,
        alarms=_all(query, "alarm"),
        sort=sort,
        descending=_one(query, "desc") not in ("0", "false"),
    )


def _all(query: Mapping[str, list[str]], name: str) -> tuple[str, ...]:
    return tuple(value for value in query.get(name, ()) if value)


def _one(query: Mapping[str, list[str]], name: str) -> str:
    return (query.get(name) or [""])[-1]


def _number(query: Mapping[str, list[str]], name: str) -> float | None:
    text = _one(query, name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if found != found:
        raise AirError(f"{name}={text[:40]!r} is no number.", f"give a reward, as in {name}=0.5.")
    return found


def _span(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", text)
    if not found:
        raise AirError(f"version={text[:40]!r} is no policy version.", "give one, as in version=3, or version=3-7.")
    return int(found[1]), int(found[2] or found[1])


def whole_number(query: Mapping[str, list[str]], name: str, otherwise: int, most: int = 1 << 60) -> int:
    text = _one(query, name)
    if not text:
        return otherwise
    if not re.fullmatch(r"\d{1,18}", text):
        raise AirError(f"{name}={text[:40]!r} is no whole number.", f"give one, as in {name}=0.")
    return min(int(text), most)
