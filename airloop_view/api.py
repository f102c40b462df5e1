"""What the page can ask for, as plain functions from a request's parameters to JSON-ready values."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from airloop.errors import AirError
from airloop.runs.damaged import number, words
from airloop.text.keys import stream_without_keys
from airloop.version import __version__
from airloop.watch.metrics.names import all_names
from airloop_view.conversation import (
    Cutter,
    conversation,
    diverging,
    find_part,
    fitting,
    fitting_payload,
)
from airloop_view.episode import Unreadable, load
from airloop_view.folder import Collection, Folder
from airloop_view.index import Index, file_stamp
from airloop_view.records import Records, why
from airloop_view.run_page import alarms_at, results_of, run_page
from airloop_view.search import MOST_ROWS, Lists, group_number, read_filter, whole_number
from airloop_view.token_view import model_of, token_view
from airloop_view.vocabulary import Vocabularies
from airloop_view.weight import one_at_a_time

LARGEST = 2_000_000  # bytes of an answer in JSON
LONGEST = 20_000  # characters of one text of a group's member
Query = Mapping[str, list[str]]
FRESH_S = 1.0  # for which the directory is not searched again
MOST_HELD = 64 << 20  # bytes of the files of a group's members: what is read of them is held together
TEXT = 300_000  # characters of one answer to /api/text


def as_json(value: Any) -> bytes:
    """Halves of characters, which JSON can hold and UTF-8 cannot, become question marks; what is no number, which
    Python's JSON lets into a file, or a sum that has overflowed, becomes null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


class NotFound(AirError):
    """There is no such thing in the viewed directory."""


class Api:
    def __init__(self, folder: Folder, index: Index, price_per_hour: float | None) -> None:
        self._folder = folder
        self._index = index
        self._price = price_per_hour
        self._lists = Lists(index.store)
        self._vocabularies = Vocabularies()
        self._kept: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._found: tuple[float, list[Collection]] = (-math.inf, [])
        self._guard = threading.Lock()

    # --- everything -----------------------------------------------------------------------------------------

    def about(self, _: Query) -> dict[str, Any]:
        progress = self._index.progress
        return {
            "version": __version__,
            "dir": words(self._folder.name()),
            "read_only": True,
            "price_per_hour": self._price,
            "indexing": {"done": progress.done, "total": progress.total},
            "note": self._index.store.note,
        }

    def runs(self, _: Query) -> dict[str, Any]:
        """All of them; of thousands, the newest that an answer can hold, and how many there are ("cut")."""
        counts = self._lists.counts()
        rows = [self._row(c, counts.get(c.id, 0)) for c in self._collections()]
        if len(as_json({"runs": rows})) <= LARGEST:
            return {"runs": rows}
        newest = sorted(rows, key=lambda row: row.get("started") or 0.0, reverse=True)
        size = itertools.accumulate(len(as_json(row)) + 1 for row in newest)
        return {"runs": [row for row, end in zip(newest, size, strict=True) if end < LARGEST - 100], "cut": len(rows)}

    def _row(self, collection: Collection, trajectories: int) -> dict[str, Any]:
        found = self._priced(self._results(collection))
        return {**found, "id": collection.id, "kind": collection.kind, "trajectories": trajectories}

    def _results(self, collection: Collection) -> dict[str, Any]:
        """Kept until one of its files changes; a run that goes on is looked at each time, as its end may leave no
        trace in them."""
        stamp = file_stamp(collection.path)
        with self._guard:
            kept = self._kept.get(collection.id)
        if kept and kept[0] == stamp and kept[1].get("status") != "running":
            return kept[1]
        found = results_of(collection)
        found["reward_trend"] = [float(f"{value:.5g}") for value in found["reward_trend"]]
        with self._guard:
            self._kept[collection.id] = (stamp, found)
        return found

    def _priced(self, results: dict[str, Any]) -> dict[str, Any]:
        """The price that was given here stands in for one that the run does not say."""
        if results.get("price_per_hour") is None and self._price is not None and results.get("seconds") is not None:
            cost = self._price * results["seconds"] / 3600
            return {**results, "price_per_hour": self._price, "cost": results.get("cost") or cost}
        return results

    def run(self, query: Query) -> dict[str, Any]:
        collection = self._collection(query)
        known = {c.id: c for c in self._collections()}
        page = run_page(collection, known, self._lists.facets(collection.id))
        return {**page, "results": self._priced(page["results"])}

    def names(self, _: Query) -> dict[str, Any]:
        """By the names that curves have here: those of a training step without their `train/`."""
        return {n.pattern.removeprefix("train/"): {"text": n.text, "unit": n.unit} for n in all_names()}

    # --- lists ----------------------------------------------------------------------------------------------

    def trajectories(self, query: Query) -> dict[str, Any]:
        began = time.perf_counter()
        chosen = read_filter(query)
        offset, limit = whole_number(query, "offset", 0), whole_number(query, "limit", 50, MOST_ROWS)
        total, rows = self._lists.page(chosen, offset, limit)
        return {"total": total, "ms": round(1000 * (time.perf_counter() - began), 2), "rows": rows}

    def neighbours(self, query: Query) -> dict[str, Any]:
        """`run` and `id` name the episode; a list over other runs than its own says so by `in`."""
        run, id = _given(query, "run"), _given(query, "id")
        among = {**query, "run": list(query.get("in", [])) or ([run] if "in" not in query else [])}
        found = self._lists.neighbours(read_filter(among), run, id)
        if found is None:
            raise NotFound(f"There is no episode {id[:120]!r} in {run[:120]!r}.", "reload the list.")
        return found

    def named(self, run: str | None, name: str) -> list[dict[str, Any]]:
        return self._lists.named(run, name, MOST_ROWS)

    # --- one group, one episode -----------------------------------------------------------------------------

    def group(self, query: Query) -> dict[str, Any]:
        run, source, task = (_given(query, name) for name in ("run", "source", "task"))
        collection = self._collection(query)
        place = (query.get("place") or [""])[-1]
        rows = self._lists.members(run, source, task)
        rows = [row for row in rows if not place or group_number(row["id"]) == place]
        if not rows:
            raise NotFound(f"{run[:120]!r} has no episodes of {task[:120]!r} in {source[:120]!r}.", "reload the list.")
        made = self._records(collection, source).rewards({row["id"] for row in rows})
        prompt, held = "", 0
        members: list[dict[str, Any]] = []
        replies: list[list[str]] = []
        for row in rows[:64]:
            data = self._bytes(row["path"])
            held += len(data)
            if held > MOST_HELD and members:
                break
            try:
                episode = load(data, Path(os.fsdecode(row["path"])))
            except Unreadable:
                continue
            turns = episode["turns"]
            prompt = prompt or "\n\n".join(m["content"] for m in (turns[0]["shown"] if turns else []))
            replies.append([turn["reply"] for turn in turns])
            members.append(_member(row, episode, made.get(row["id"]) or episode["rewards"]))
        head = {"task": task, "source": source, "diverge": diverging(replies)}
        limit = LONGEST
        while True:
            cut = {"cut": len(prompt)} if len(prompt) > limit else {}
            found = {**head, "prompt": prompt[:limit], **cut, "members": [_cut_member(m, limit) for m in members]}
            if limit < 10 or len(as_json(found)) <= LARGEST:
                return found
            limit //= 4

    def _records(self, collection: Collection, source: str) -> Records:
        return Records(self._folder, collection.path, source)

    def trajectory(self, query: Query) -> dict[str, Any]:
        collection, row = self._episode(query)
        place = urlencode({"run": collection.id, "id": row["id"]})
        head = {
            "id": row["id"],
            "run": collection.id,
            "source": row["source"],
            "step": row["step"],
            "json": f"/api/raw?{place}",
            "export": f"/export?{place}",
            "alarms": alarms_at(collection.path, row["step"]) if row["step"] is not None else [],
        }
        self._vocabularies.ready(model_of(collection))  # whoever reads it may look at its tokens next
        try:
            episode = self._read(row["path"])
        except Unreadable as problem:
            return {**head, **_unreadable(str(problem))}
        cut = fitting(episode)
        while True:
            found = {**head, **self.told(collection, row, episode, cut)}
            if cut.turns == 1 or len(as_json(found)) <= LARGEST:
                return found
            cut = cut.shorter()

    def told(self, collection: Collection, row: Any, episode: dict[str, Any], cut: Cutter) -> dict[str, Any]:
        record = self._records(collection, row["source"]).of(row["id"])
        members = self._lists.group(collection.id, row)
        rewards = [m["reward"] for m in members if m["reward"] is not None]
        turns, total = conversation(episode, cut)
        task = {**episode["task"], "payload": fitting_payload(episode["task"]["payload"])}
        size = {"turns_total": total} if total is not None else {}
        own = record.get("rewards") if record and isinstance(record.get("rewards"), dict) else None
        return {
            "task": task,
            **cut("error", episode["error"], "error"),
            **{name: episode[name] for name in ("ending", "metrics", "version", "seed", "started", "seconds")},
            "reward": row["reward"],
            "rewards": {str(k): number(v) for k, v in own.items()} if own else episode["rewards"],
            "tools": episode["tools"] if len(str(episode["tools"])) < 200_000 else [],
            "group": {
                "source": row["source"],
                "task": row["task"],
                "place": group_number(row["id"]),
                "size": len(members),
                **_spread(rewards),
            }
            if len(members) > 1
            else None,
            "training": {
                "advantage": row["advantage"],
                "fate": row["fate"],
                "why": why(record, row["source"], row["ending"], len(members)),
            }
            if collection.kind == "run"
            else None,
            "turns": turns,
            **size,
        }

    def opened(self, query: Query) -> tuple[Collection, Any, dict[str, Any]]:
        collection, row = self._episode(query)
        return collection, row, self._read(row["path"])

    def tokens(self, query: Query) -> dict[str, Any]:
        collection, row, episode = self.opened(query)
        record = self._records(collection, row["source"]).of(row["id"])
        members = len(self._lists.group(collection.id, row))
        branch = whole_number(query, "branch", 0, 1 << 30)
        offset = whole_number(query, "offset", 0, 1 << 30)
        said = why(record, row["source"], row["ending"], members)
        return token_view(collection, episode, record, self._vocabularies, branch, offset, said, members)

    def text(self, query: Query) -> dict[str, Any]:
        _, row = self._episode(query)
        part, offset = _given(query, "part"), whole_number(query, "offset", 0)
        text = None
        if part == "raw":
            with one_at_a_time:
                text = self._bytes(row["path"]).decode("utf-8", "replace")
        else:
            text = find_part(self._read(row["path"]), part)
        if text is None:
            raise NotFound(f"This episode has no part {part[:80]!r}.", "use a part that the episode names.")
        end = min(len(text), offset + TEXT)
        return {
            "part": part,
            "total": len(text),
            "offset": offset,
            "text": text[offset:end],
            "next": end if end < len(text) else None,
        }

    def raw(self, query: Query) -> IO[bytes]:
        return self._opened(self._episode(query)[1]["path"])

    # --- finding --------------------------------------------------------------------------------------------

    def _collections(self) -> list[Collection]:
        with self._guard:
            made, found = self._found
        if time.monotonic() - made > FRESH_S:
            made, found = time.monotonic(), self._folder.collections()
            with self._guard:
                self._found = (made, found)
        return found

    def _collection(self, query: Query) -> Collection:
        """By comparing names with what the directory holds: what a request says is never made into a path."""
        asked = _given(query, "run")
        found = next((c for c in self._collections() if c.id == asked), None)
        if found is None:
            raise NotFound(f"There is no run {asked[:120]!r} here.", "reload the table of runs.")
        return found

    def _episode(self, query: Query) -> tuple[Collection, Any]:
        collection, id = self._collection(query), _given(query, "id")
        row = self._lists.row(collection.id, id)
        if row is None:
            raise NotFound(f"There is no episode {id[:120]!r} in {collection.id[:120]!r}.", "reload the list.")
        return collection, row

    def _opened(self, path: bytes) -> IO[bytes]:
        try:
            return self._folder.open(Path(os.fsdecode(path)))
        except OSError as error:
            raise NotFound(f"The file cannot be read: {error.strerror or error}.", "reload the list.") from None

    def _bytes(self, path: bytes) -> bytes:
        """Without keys, before a text is coloured piece by piece: an older run's file may hold some."""
        try:
            return b"".join(stream_without_keys([self._folder.read(Path(os.fsdecode(path)))]))
        except OSError as error:
            raise NotFound(f"The file cannot be read: {error.strerror or error}.", "reload the list.") from None

    def _read(self, path: bytes) -> dict[str, Any]:
        return load(self._bytes(path), Path(os.fsdecode(path)))


def _given(query: Query, name: str) -> str:
    values = query.get(name)
    if not values or not values[-1]:
        raise AirError(f"The address lacks {name}=.", f"add {name}=… to it.")
    return values[-1]


def _spread(rewards: list[float]) -> dict[str, float | None]:
    try:
        return {"mean": statistics.fmean(rewards), "std": statistics.pstdev(rewards)}
    except (OverflowError, statistics.StatisticsError):  # none, or such as no training gives
        return {"mean": None, "std": None}


def _unreadable(problem: str) -> dict[str, Any]:
    """In the form of an episode without turns; its bytes can be had as they are."""
    return {
        "task": {"env": "", "id": "", "family": "", "split": "", "payload": {}},
        "ending": "unreadable",
        "error": problem,
        "error_part": "raw",
        **dict.fromkeys(("reward", "version", "seed", "started", "seconds", "group", "training")),
        "rewards": {},
        "metrics": {},
        "tools": [],
        "turns": [],
    }


def _member(row: Any, episode: dict[str, Any], rewards: dict[str, Any]) -> dict[str, Any]:
    turns = [
        {
            "reply": turn["reply"],
            "observation": "\n".join(seen["text"] for seen in turn["observations"]),
            "rewards": episode["turn_rewards"][place] if place < len(episode["turn_rewards"]) else {},
        }
        for place, turn in enumerate(episode["turns"])
    ]
    named = ("id", "success", "reward", "advantage", "fate", "ending", "tokens", "seconds")
    return {
        **{name: row[name] for name in named},
        "rewards": {str(k): number(v) for k, v in rewards.items()},
        "turns": turns,
    }


def _cut_member(member: dict[str, Any], limit: int) -> dict[str, Any]:
    turns = []
    for turn in member["turns"]:
        texts = {name: turn[name][:limit] for name in ("reply", "observation")}
        cut = {f"{name}_cut": len(turn[name]) for name in texts if len(turn[name]) > limit}
        turns.append({**turn, **texts, **cut})
    return {**member, "turns": turns}
