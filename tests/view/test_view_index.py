"""The index: the same answers as looking through every file, whatever is asked."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indexed_runs import close, everything, index_of
from support.made_runs import WORDS, episode, mixed_runs, save, start_run

from airloop.errors import AirError
from airloop_view.hits import search_terms
from airloop_view.search import SORTS, Filter, Lists, read_filter

# --- against looking through everything ----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AIR_CACHE", str(cache))
    return cache


@dataclass
class Mixed:
    lists: Lists
    rows: list[dict[str, Any]]  # with `text` and `prompt`, as the files have them
    alarms: dict[tuple[str, str], set[int]]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        root = tmp_path_factory.mktemp("mixed")
        runs = mixed_runs(root)
        index, lists = index_of(root)
        rows = [row for run in runs for row in looked_through(run)]
        yield Mixed(lists, rows, {(runs[0].name, "F1"): {1}, (runs[0].name, "E1"): {3}})
        close(index)


def looked_through(run: Path) -> Iterator[dict[str, Any]]:
    for path in run.rglob("*.json"):
        if path.parent.parent.name not in ("trajectories", "evaluations"):
            continue
        data = json.loads(path.read_text())
        step = int(path.parent.name[5:]) if path.parent.parent.name == "trajectories" else None
        source = path.parent.name if step is not None else f"evaluations/{path.parent.name}"
        made = made_of(run, step, path.stem)
        own = float(data["reward"]) if data["ending"] != "infra_error" else math.nan  # the machinery's 0 is no reward
        reward = own if made.get("reward") is None else made["reward"]
        turns = data["turns"]
        said = [t["reply"]["content"] for t in turns] + [o.get("text", "") for t in turns for o in t["observations"]]
        yield {
            "run": run.name,
            "id": path.stem if step is not None else f"{source}/{path.stem}",
            "source": source,
            "step": step,
            "task": data["task"]["id"],
            "family": data["task"]["family"] or "arith",
            "env": "arith",
            "ending": data["ending"],
            "success": data["metrics"].get("success") if data["ending"] != "infra_error" else None,
            "reward": None if math.isnan(reward) else reward,
            "advantage": made.get("advantage"),
            "fate": made.get("fate"),
            "version": data["version"],
            "turns": len(turns),
            "tokens": sum(len(s["token_ids"]) for s in data["sampled"]),
            "seconds": data["seconds"],
            "started": data["started"],
            "texts": [*said, *(m["content"] for t in turns for m in t["shown"])],
        }


def made_of(run: Path, step: int | None, id: str) -> dict[str, Any]:
    path = run / "tokens" / f"step_{step or 0:04d}.jsonl"
    lines = path.read_text().splitlines() if step is not None and path.exists() else []
    return next((row for row in map(json.loads, lines) if row["id"] == id), {})


def folded(text: str) -> list[str]:
    """Words as a search sees them: without case, accents or signs."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", plain)


def holds(texts: list[str], words: list[str], beginning: bool) -> bool:
    for text in map(folded, texts):
        for at in range(len(text) - len(words) + 1):
            part = text[at : at + len(words)]
            last = part[-1].startswith(words[-1]) if beginning else part[-1] == words[-1]
            if part[:-1] == words[:-1] and last:
                return True
    return False


def fits(row: dict[str, Any], chosen: Filter, mixed: Mixed) -> bool:
    terms = [(folded(term.strip('"*')), term.endswith("*")) for term in search_terms(chosen.words)]
    steps = [mixed.alarms.get((row["run"], id), set()) for id in chosen.alarms if id != "any"]
    if "any" in chosen.alarms:
        steps = [steps for (run, _), steps in mixed.alarms.items() if run == row["run"]]
    return (
        (not chosen.runs or row["run"] in chosen.runs)
        and (not chosen.tasks or row["task"] in chosen.tasks or row["family"] in chosen.tasks)
        and (not chosen.sources or row["source"] in chosen.sources)
        and (not chosen.versions or any(lo <= row["version"] <= hi for lo, hi in chosen.versions))
        and (not chosen.endings or row["ending"] in chosen.endings)
        and (not chosen.fates or (row["fate"] or "none") in chosen.fates)
        and (chosen.lowest is None or (row["reward"] is not None and row["reward"] >= chosen.lowest))
        and (chosen.highest is None or (row["reward"] is not None and row["reward"] <= chosen.highest))
        and (not chosen.alarms or any(row["step"] in s for s in steps))
        and all(holds(row["texts"], words, beginning) for words, beginning in terms)
    )


some = lambda *values: st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)  # noqa: E731
terms = st.one_of(
    st.sampled_from(WORDS), st.just('"alpha beta"'), st.just("tra*"), st.just('"'), st.just("* - ()"), st.just("zzz")
)
filters = st.builds(
    Filter,
    runs=some("exp1.0-arith-1115", "exp1.1-arith-1115"),
    words=st.lists(terms, max_size=2).map(" ".join),
    tasks=some("0+1", "2+3", "small", "arith"),
    sources=some("step_0001", "step_0003", "evaluations/before"),
    versions=st.sampled_from([(), ((1, 1),), ((0, 2),), ((5, 9),)]),
    endings=some("done", "max_turns"),
    fates=some("trained", "none", "no_signal"),
    lowest=st.sampled_from([None, None, 0.0, 0.3]),
    highest=st.sampled_from([None, None, 0.5, 1.0]),
    alarms=st.sampled_from([(), (), ("F1",), ("E1",), ("any",), ("Z9",)]),
    sort=st.sampled_from(sorted(SORTS)),
    descending=st.booleans(),
)


def test_a_phrase_is_within_one_text(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    save(run / "trajectories" / "step_0000", episode("a_0-0", ["one two", "three"], seen=["four"]))
    index, lists = index_of(tmp_path)
    assert len(everything(lists, words='"one two"')) == 1
    assert everything(lists, words='"two three"') == everything(lists, words='"two four"') == []
    close(index)


@pytest.mark.slow
@settings(max_examples=100)
@given(chosen=filters)
def test_a_list_is_what_looking_through_every_file_finds(mixed: Mixed, chosen: Filter) -> None:
    rows = everything(mixed.lists, **vars(chosen))
    wanted = [row for row in mixed.rows if fits(row, chosen, mixed)]
    assert {(r["run"], r["id"]) for r in rows} == {(r["run"], r["id"]) for r in wanted}
    values = [row[chosen.sort] for row in rows if row[chosen.sort] is not None]
    assert values == sorted(values, reverse=chosen.descending)
    assert [row[chosen.sort] is None for row in rows] == [False] * len(values) + [True] * (len(rows) - len(values))


def test_rows_say_what_the_files_say(mixed: Mixed) -> None:
    wanted = {(row["run"], row["id"]): row for row in mixed.rows}
    rows = everything(mixed.lists)
    assert len(rows) == len(wanted) == 120
    for row in rows:
        own = wanted[row["run"], row["id"]]
        assert {k: row[k] for k in own if k != "texts"} == {k: v for k, v in own.items() if k != "texts"}
        assert row["preview"] == own["texts"][0]


@settings(max_examples=25)
@given(chosen=filters)
def test_next_and_previous_walk_through_the_list(mixed: Mixed, chosen: Filter) -> None:
    rows = [(row["run"], row["id"]) for row in everything(mixed.lists, **vars(chosen))]
    for place, (run, id) in enumerate(rows):
        found = mixed.lists.neighbours(chosen, run, id)
        assert found is not None and (found["place"], found["total"]) == (place + 1, len(rows))
        beside = [(n["run"], n["id"]) if n else None for n in (found["previous"], found["next"])]
        assert beside == [rows[place - 1] if place else None, rows[place + 1] if place + 1 < len(rows) else None]


def test_beside_one_that_the_list_does_not_hold(mixed: Mixed) -> None:
    row = next(r for r in mixed.rows if r["ending"] == "done")
    found = mixed.lists.neighbours(Filter(endings=("max_turns",)), row["run"], row["id"])
    assert found is not None and found["place"] is None and found["previous"] and found["next"]
    assert mixed.lists.neighbours(Filter(), row["run"], "no such") is None


def test_pages_do_not_overlap(mixed: Mixed) -> None:
    chosen = Filter(sort="task")
    whole = [r["id"] for r in everything(mixed.lists, sort="task")]
    pages = [mixed.lists.page(chosen, at, 7)[1] for at in range(0, 120, 7)]
    assert [r["id"] for page in pages for r in page] == whole


@given(st.text())
def test_whatever_is_typed_can_be_searched_for(mixed: Mixed, text: str) -> None:
    total, rows = mixed.lists.page(replace(Filter(), words=text), 0, 5)
    assert len(rows) == min(5, total)


def test_parameters_that_say_nothing_are_refused() -> None:
    for query, word in (
        ({"sort": ["x; DROP"]}, "sorted"),
        ({"min": ["a"]}, "number"),
        ({"version": ["1-"]}, "version"),
    ):
        with pytest.raises(AirError, match=word):
            read_filter(query)
    assert read_filter({"version": ["3-7"], "desc": ["0"]}).versions == ((3, 7),)
