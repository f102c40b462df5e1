"""`air view --text`: the viewer's answers as text, good enough to work over ssh alone.

    air view DIR --text                      the runs
    air view DIR --text --run exp1.3         one run: curves, evaluations, alarms
    air view DIR --text --run exp1.3 --step 12     the episodes of a step (0: those evaluated before the first)
    air view DIR --text --find "train.py"    episodes in which this is said
    air view DIR --text --id titanic_pi12_20260206T031502_3     one episode, to be read

Whatever an agent has written is shown, never obeyed: control codes are made visible.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.text.keys import without_keys
from airloop.text.visible import visible
from airloop_view.api import Api
from airloop_view.folder import Collection, Folder
from airloop_view.index import Index
from airloop_view.indexing import told
from airloop_view.store import Store
from airloop_view.text_episode import episode_page
from airloop_view.text_pages import Ink, list_page, run_page, runs_page

MOST_ROWS = 200
PIPED = 120  # columns where there is no terminal to ask
SLOW_S = 1.0  # after which it is said that episodes are being indexed


def show(
    directory: Path,
    run: str | None = None,
    step: int | None = None,
    id: str | None = None,
    find: str | None = None,
) -> str:
    """What was asked for; with colours and as wide as the terminal where it is printed to one."""
    ink = Ink(_colours(), shutil.get_terminal_size((PIPED, 40)).columns)
    folder = Folder(directory)
    collections = folder.collections()
    if not collections:
        raise AirError(
            f"There are no runs in {directory}.", "name the directory that runs are in: air view DIR --text."
        )
    chosen = _choose(collections, run) if run else collections[0] if len(collections) == 1 else None
    listed = step is not None or bool(find) or (chosen is not None and chosen.kind != "run")
    with _opened(folder, indexed=listed or id is not None) as api:
        if id is not None:
            return episode_page(*_episode(api, chosen, id), ink)
        if listed:
            return list_page(*_list(api, collections, chosen, step, find or ""), ink)
        if chosen is not None:
            return run_page(api.run({"run": [chosen.id]}), chosen.id, ink)
        return runs_page(api.runs({})["runs"], str(folder.root), ink)


def put_out(text: str) -> None:
    """Printed, or, where it is longer than the terminal, given to the pager."""
    import click

    text = without_keys(text)  # a pager is a process of its own
    rows = shutil.get_terminal_size((PIPED, 40)).lines
    if sys.stdout.isatty() and text.count("\n") + 2 > rows:
        click.echo_via_pager(text, color=_colours())
    else:
        print(text)


@contextmanager
def _opened(folder: Folder, indexed: bool) -> Iterator[Api]:
    store = Store(folder.root / folder.only if folder.only else folder.root)
    index = Index(folder, store)
    try:
        if indexed:
            began = time.monotonic()
            if sys.stderr.isatty():
                print("looking through the episodes …", end="\r", file=sys.stderr, flush=True)
            with told(index.progress):
                index.update()
            if sys.stderr.isatty():
                took = time.monotonic() - began
                done = f"indexed {index.progress.total} episodes in {took:.0f} s\n" if took > SLOW_S else ""
                print(f"\x1b[2K\r{done}", end="", file=sys.stderr, flush=True)
        yield Api(folder, index, None)
    finally:
        index.parser.close()
        store.close()


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _choose(collections: list[Collection], asked: str) -> Collection:
    """By its id or directory, or by the beginning of its name where only one begins so."""
    names = {c.id: c for c in collections} | {c.path.name: c for c in collections}
    if exact := names.get(asked.rstrip("/")):
        return exact
    begin = [c for c in collections if c.path.name.startswith(asked) or str(c.path) == str(Path(asked).resolve())]
    if len(begin) == 1:
        return begin[0]
    known = ", ".join(visible(c.id) for c in (begin or collections)[:12])
    problem = f"Several runs begin with {asked!r}." if begin else f"There is no run {asked!r} here."
    raise AirError(problem, f"name one of: {known}{' …' if len(begin or collections) > 12 else ''}.")


def _list(
    api: Api, collections: list[Collection], chosen: Collection | None, step: int | None, find: str
) -> tuple[dict[str, Any], str, str]:
    """The rows, a title, and the words that were looked for."""
    query: dict[str, list[str]] = {"limit": [str(MOST_ROWS)], "sort": ["started"], "desc": ["0"]}
    title = "all runs"
    if chosen is not None:
        query["run"], title = [chosen.id], chosen.path.name
    if step is not None:
        if chosen is None:
            names = ", ".join(visible(c.id) for c in collections[:12])
            raise AirError("Which run's step is meant?", f"add --run with one of: {names}.")
        query["source"] = [f"step_{step - 1:04d}", f"evaluations/step_{step:04d}"] if step else ["evaluations/before"]
        title += f", step {step}" if step else ", before the first step"
    if find:
        query["q"] = [find]
        title += f", {find!r}"
    return api.trajectories(query), title, find


def _episode(api: Api, chosen: Collection | None, asked: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """As the viewer tells it, and what comes before and after it. The beginning of an id will do."""
    rows = _named(api, chosen, asked)
    exact = [row for row in rows if row["id"] == asked]
    found = exact if len(exact) == 1 else rows
    if not found:
        where = f"in {chosen.id}" if chosen else "here"
        raise AirError(f"There is no episode {asked!r} {where}.", "list them with --step N or --find TEXT.")
    if len(found) > 1:
        several = "".join(f"\n    --run {visible(row['run'])} --id {visible(row['id'])}" for row in found[:8])
        raise AirError(f"{len(found)} episodes are called so.", f"name one of them:{several}")
    query = {"run": [found[0]["run"]], "id": [found[0]["id"]]}
    near = {**query, "source": [found[0]["source"]], "sort": ["started"], "desc": ["0"]}
    return api.trajectory(query), api.neighbours(near)


def _named(api: Api, chosen: Collection | None, asked: str) -> list[dict[str, Any]]:
    return api.named(chosen.id if chosen else None, asked)
