"""The logbook: every run there is, with its goal, what changed since its parent and what came of it.

Nothing has to be entered: it is read from the run directories. What people add is kept there too (entries.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.runs.damaged import Reader, directories, number, whole, words
from airloop.runs.entries import Entry, add_entry, read_entries
from airloop.runs.lineage import find_parent, parse_name
from airloop.runs.results import config_diff, effective_config, run_results
from airloop.waits import waiting

DEPTH = 4  # folders below the logbook's own in which runs are looked for
NAMED = 6  # runs that a refusal lists
LAST = "last"
# Shown of every run, whether they changed or not: what one asks for first.
SETTINGS = (
    "max_steps",
    "seed",
    "model.name",
    "trainer.model.train",
    "trainer.model.lora.rank",
    "trainer.optim.lr",
    "trainer.loss.type",
    "trainer.loss.kl_beta",
    "trainer.loss.entropy_beta",
    "orchestrator.batch_size",
    "orchestrator.rollouts_per_example",
    "seq_len",
    "orchestrator.sampling.max_tokens",
    "orchestrator.sampling.temperature",
)


def find_runs(root: Path) -> list[Path]:
    """Runs in a directory and below, or the directory itself if it is one."""
    if is_run(root):
        return [root]
    return list(_below(root, DEPTH))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for path in directories(folder):
        if path.name.startswith("."):  # a run that is being made, too
            continue
        if is_run(path):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def is_run(path: Path) -> bool:
    """By its name, or by what is in it: a damaged run is still one, and is named."""
    try:
        named = parse_name(path.name) is not None and path.is_dir()
        return named or all((path / name).is_file() for name in ("config.toml", "status.json"))
    except OSError:  # a folder that may not be looked into, or no name of one
        return False


READ_S = 60.0  # for one run: its metrics, not its episodes


def logbook(root: Path) -> list[dict[str, Any]]:
    """The results of every run, oldest first, those that were not started yet last."""
    if not root.is_dir():
        raise AirError(f"There is no directory {root}.", "name the one with your runs: --dir DIR (it is output_dir).")
    found = find_runs(root)
    rows = []
    with waiting(f"the runs in {root}", "the disk", READ_S) as wait:
        for number, path in enumerate(found):
            wait.progress(f"{number} of {len(found)}")
            rows.append(run_results(path))
    return sorted(rows, key=in_order)


def in_order(row: dict[str, Any]) -> tuple[bool, float, tuple[int, int], str]:
    name = parse_name(row["name"] or "")
    return row["started"] is None, row["started"] or 0.0, name.number if name else (0, 0), row["path"] or ""


def choose_run(named: str, root: Path) -> Path:
    """By path, by name, by the beginning of a name (`exp1.3`, or 1.3 for short), or the last one."""
    path = Path(named).expanduser()
    if is_run(path):
        return path
    runs = find_runs(root)
    if named == LAST and runs:
        return Path(min(logbook(root), key=_latest)["path"])
    short = named if named.startswith("exp") else f"exp{named}"
    found = [p for p in runs if p.name == named] or [p for p in runs if p.name.startswith(f"{short}-")]
    if len(found) == 1:
        return found[0]
    if found:
        raise AirError(f"{named!r} is the name of {len(found)} runs.", f"give a path: {_named(found)}")
    raise AirError(
        f"There is no run {named!r} in {root}.",
        f"it has {_named([p.name for p in runs[-NAMED:]])}." if runs else "name their directory: --dir DIR.",
    )


def _latest(row: dict[str, Any]) -> float:
    return -(row["started"] or 0.0)


def _named(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:NAMED])) + (" …" if len(things) > NAMED else "")


def run_page(path: Path) -> dict[str, Any]:
    """All that the logbook knows of a run: its results, settings and what changed, alarms, notes."""
    results = run_results(path)
    reader = Reader(path)
    entries = read_entries(reader)
    parent = find_parent(path)
    return {
        **results,
        "parent_exists": bool(parent and is_run(parent)),
        "config": settings(path, parent),
        "raised": raised_alarms(reader),
        "entries": [asdict(entry) for entry in entries.all if entry.kind != "parent"],
    }


def settings(path: Path, parent: Path | None) -> list[dict[str, Any]]:
    """Rows of the config table: what one asks for first, then whatever else is not as in the parent."""
    here = effective_config(Reader(path))
    changed = {row["key"]: row for row in config_diff(path, parent)} if parent else {}
    keys = [key for key in SETTINGS if key in here or key in changed]
    keys += [key for key in changed if key not in keys]
    return [
        {
            "key": key,
            "here": here.get(key),
            "parent": changed[key]["parent"] if key in changed else here.get(key),
            "changed": key in changed,
        }
        for key in keys
    ]


def raised_alarms(reader: Reader) -> list[dict[str, Any]]:
    """Each alarm once: when it was first raised, how often, whether it was cleared at last."""
    found: dict[str, dict[str, Any]] = {}
    for line in reader.lines("alarms.jsonl"):
        name = words(line.get("name")) or words(line.get("id")) or "?"
        if line.get("event") == "raised":
            row = found.setdefault(name, _alarm(line, name))
            row["times"] += 1
            row["cleared"] = False
        elif name in found:
            found[name]["cleared"] = True
    return list(found.values())


def _alarm(line: dict[str, Any], name: str) -> dict[str, Any]:
    step = whole(line.get("step"))
    return {
        "id": words(line.get("id")),
        "name": name,
        "severity": words(line.get("severity")),
        "step": step + 1 if step is not None else None,  # as people count
        "seen": words(line.get("seen")) or "",
        "fix": words(line.get("fix")) or "",
        "time": number(line.get("time")),
        "times": 0,
        "cleared": False,
    }


# --- what people add ------------------------------------------------------------------------------------------


def add_text(path: Path, kind: str, text: str) -> Entry:
    """A note or a goal."""
    said = text.strip()
    if not said:
        raise AirError(f"An empty {kind} says nothing.", f'write it in quotes: air log {kind} RUN "…"')
    return add_entry(path, "goal" if kind == "goal" else "note", said)


def supersede(path: Path, by: Path, why: str = "") -> Entry:
    if path.resolve() == by.resolve():
        raise AirError(f"{path.name} cannot supersede itself.", "name the older run, then the newer: OLD NEW.")
    following, chain = by, [path.name]
    while (after := read_entries(Reader(following)).superseded_by) is not None and following.name not in chain:
        chain.append(following.name)
        following = following.parent / after
        if following.resolve() == path.resolve():
            raise AirError(
                f"{' is superseded by '.join([*chain[1:], path.name])}: the two would supersede each other.",
                f"take that back first: air log supersede {chain[-1]} --undo.",
            )
    return add_entry(path, "superseded", why, by=by.name)


def close(path: Path, kind: str, why: str = "") -> Entry:
    """Abandoned or archived: not while it runs."""
    if run_results(path)["status"] == "running":
        raise AirError(f"{path.name} is running.", "stop it first (Ctrl-C where it runs), or wait for its end.")
    return add_entry(path, "abandoned" if kind == "abandoned" else "archived", why)


def reopen(path: Path, kind: str) -> Entry:
    """Take back what was last said of its status: superseded, abandoned or archived."""
    reader = Reader(path)
    said = read_entries(reader, reader.json("status.json")).status
    if said is None or said.kind != kind:
        now = f"it is {said.kind}" if said else "there is nothing to undo"
        raise AirError(f"{path.name} is not {kind}.", f"{now}; `air log show {path.name}` has its notes.")
    return add_entry(path, "reopened", said.kind)
