"""Models side by side, from the directories that `air eval` made.

Only evaluations of the same rows under the same mode stand in one table: a mean over other tasks is another quantity.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.runs.damaged import Reader, directories, interval_of, items, number, table, whole, words
from airloop.success import NAME, success_in
from airloop.text.figures import (
    NOTHING,
    PAGE,
    columns,
    count,
    decimal,
    duration,
    fitted,
    interval,
    money,
    padded,
    plain,
    share,
    squeeze,
)

FILE = "evaluation.json"
DEPTH = 4
EFFORTS = ("calls", "turns")


@dataclass(frozen=True)
class Table:
    """Evaluations that can be compared, the best first."""

    title: str
    rows: list[dict[str, Any]]

    @property
    def share_name(self) -> str:
        return next((row["share_name"] for row in self.rows if row["share_name"]), "passed")


def find_baselines(root: Path) -> list[dict[str, Any]]:
    """A row per evaluation directory in `root` and below; one that cannot be read is named in its `problems`."""
    if not root.is_dir():
        raise AirError(f"There is no directory {root}.", "name the one with evaluations: air log baselines --dir DIR.")
    return [_baseline(path) for path in _evaluations(root, DEPTH)]


def _evaluations(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file():
        yield folder
    elif depth:
        for path in directories(folder):
            if not path.name.startswith(".") and not (path / "metrics.jsonl").is_file():  # a run has its own
                yield from _evaluations(path, depth - 1)


def _baseline(path: Path) -> dict[str, Any]:
    reader = Reader(path)
    data = reader.json(FILE)
    means = table(data.get("means"))
    finished = data.get("finished") is True
    if data and not finished:
        reader.problems.append("it was stopped before its end")
    name, success = success_in(means, data.get(NAME)) or (None, None)
    tokens = table(data.get("tokens"))
    return {
        "name": words(path.name),
        "path": words(str(path)),
        "agent": words(data.get("agent")),
        "model": words(data.get("model")) or words(data.get("agent")),
        "version": whole(data.get("version")),
        "date": words(data.get("date")),
        "split": words(data.get("split")),
        "tasks": whole(data.get("tasks")),
        "rollouts": whole(data.get("rollouts")),
        "episodes": whole(data.get("episodes")),
        "lost": len(items(data.get("lost"))),
        "finished": finished,
        "temperature": number(table(data.get("sampling")).get("temperature")),
        "env": sorted(words(e) or "" for e in table(table(data.get("mode")).get("env"))),
        "conditions": _conditions(data),
        "share_name": words(name),
        "reward": interval_of(means.get("reward")),
        "share": interval_of(success),
        "effort": {n: number(table(means.get(n)).get("mean")) for n in EFFORTS if n in means},
        "tokens_in": number(tokens.get("in")),
        "tokens_out": number(tokens.get("out")),
        "cost": number(data.get("cost")),
        "seconds": number(data.get("seconds")),
        "parts": _parts(data),
        "problems": [words(problem) for problem in reader.problems],
    }


def _conditions(data: dict[str, Any]) -> str:
    """Equal where two evaluations had the same rows and the same mode. Sampling stands in a column of its own: that a
    script has none does not keep it out of the table."""
    mode = {key: value for key, value in table(data.get("mode")).items() if key not in ("context", "strategy")}
    rows = sorted(json.dumps(row, sort_keys=True) for row in items(data.get("rows")))
    return hashlib.sha256(json.dumps([_alike(mode), rows], sort_keys=True).encode()).hexdigest()[:12]


def _alike(value: Any) -> Any:
    """600 and 600.0 are the same setting, one from a default and one from a file."""
    if isinstance(value, dict):
        return {key: _alike(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_alike(item) for item in value]
    return value if (found := number(value)) is None else found


def _parts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """By level and kind where its tasks have some, else by family (a research task, a number of hops); empty where
    there is but one."""
    kinds = [table(row) for row in items(data.get("kinds"))]
    rows = [(words(r.get("family")) or "", words(r.get("kind")) or "", r) for r in kinds if r.get("family") != "all"]
    if not rows:
        rows = [(words(name) or "", "", table(row)) for name, row in sorted(table(data.get("task")).items())]
    if len(rows) < 2:
        return []
    return [
        {
            "family": family,
            "kind": kind,
            "episodes": whole(row.get("episodes")),
            "share": number((success_in(row) or ("", None))[1]),
            "reward": number(row.get("reward")),
        }
        for family, kind, row in rows
    ]


def grouped(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Tables of what can be compared; what was not finished or cannot be read comes last, in one of its own."""
    whole_ones = [row for row in rows if row["finished"] and row["reward"]]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in whole_ones:
        found.setdefault((_title(row), row["conditions"]), []).append(row)
    tables = [Table(title, sorted(of, key=_best_first)) for (title, _), of in sorted(found.items())]
    rest = [row for row in rows if row not in whole_ones]
    return [*tables, Table("not finished, or cannot be read", sorted(rest, key=_best_first))] if rest else tables


def _title(row: dict[str, Any]) -> str:
    return f"{', '.join(row['env'])}: {row['tasks']} tasks of {row['split']!r} × {row['rollouts']}"


def _best_first(row: dict[str, Any]) -> tuple[float, float, str, str]:
    """By success, then by the reward."""
    success, reward = (row[name]["mean"] if row[name] else 0.0 for name in ("share", "reward"))
    return -success, -reward, row["model"] or "", row["path"]


# --- showing --------------------------------------------------------------------------------------------------

HEADS = ("model", "share", "reward [95 %]", "turns", "temp.", "tok. in", "tok. out", "cost", "time", "directory")
SPARED = ("time", "tok. in", "temp.")  # in this order, where a terminal is too narrow
NARROWEST = 12


def cells(row: dict[str, Any]) -> list[str]:
    """In the order of HEADS."""
    effort = next((row["effort"][n] for n in EFFORTS if row["effort"].get(n) is not None), None)
    version = f" v{row['version']}" if row["version"] else ""
    return [
        plain(f"{row['model'] or NOTHING}{version}"),
        share(row["share"]["mean"]) if row["share"] else NOTHING,
        interval(row["reward"]) + (f" ({row['lost']} lost)" if row["lost"] else ""),
        NOTHING if effort is None else f"{effort:.1f}",
        NOTHING if row["temperature"] is None else f"{row['temperature']:g}",
        count(row["tokens_in"]),
        count(row["tokens_out"]),
        money(row["cost"]),
        duration(row["seconds"]),
        plain(row["name"]),
    ]


def heads(of: Table) -> list[str]:
    """The share and the effort by the names that the environment gives them."""
    effort = next((n for row in of.rows for n in EFFORTS if n in row["effort"]), "turns")
    return [{"share": of.share_name, "turns": effort}.get(head, head) for head in HEADS]


def part_table(of: Table) -> list[list[str]]:
    """Success and reward of each kind, a column per model; empty where there are no kinds. The first row has names."""
    keys = list(dict.fromkeys((p["family"], p["kind"]) for row in of.rows for p in row["parts"]))
    if not keys:
        return []
    lines = [["", "", *(plain(row["model"] or NOTHING) for row in of.rows)]]
    for family, kind in sorted(keys):
        line = ["" if kind else plain(family), plain(kind)]
        for row in of.rows:
            part = next((p for p in row["parts"] if (p["family"], p["kind"]) == (family, kind)), None)
            line.append(NOTHING if part is None else _part(part))
        lines.append(line)
    return lines


def _part(part: dict[str, Any]) -> str:
    if part["share"] is None:
        return decimal(part["reward"])
    return f"{share(part['share'])} ({decimal(part['reward'])})"


def format_baselines(tables: Sequence[Table], root: Path, width: int | None) -> str:
    """`width`: of the terminal; None for a pipe or a file, where nothing is left out."""
    if not tables:
        return f"no evaluations in {plain(str(root))}: `air eval` makes them"
    blocks = []
    for of in tables:
        lines = [plain(of.title), *_columns([heads(of), *map(cells, of.rows)], width)]
        lines += [f"  ! {plain(row['name'])}: {plain(p)}" for row in of.rows for p in row["problems"]]
        if parts := part_table(of):
            lines += ["", f"  {of.share_name} (reward) of each kind", *_columns(parts, width)]
        blocks.append("\n".join(lines))
    told = "Only what stands in one table was measured on the same rows; `air compare A B` says whether two differ."
    return "\n\n".join([*blocks, "\n".join(textwrap.wrap(told, width or PAGE))])


def _columns(lines: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Texts to the left, figures to the right. Columns without a figure are left out; where there is no room, those
    that can be spared are too, and then models' names are cut."""
    shown = [i for i in range(len(lines[0])) if i == 0 or any(line[i] not in (NOTHING, "") for line in lines[1:])]
    widths = {i: max(columns(line[i]) for line in lines) for i in shown}
    if width is not None:
        squeeze(lines[0], shown, widths, width - 2, SPARED, NARROWEST)
    left = {0, len(lines[0]) - 1, *([1] if lines[0][1] == "" else [])}
    made = []
    for line in lines:
        texts = [fitted(line[i], widths[i]) for i in shown]
        cells_ = [
            padded(text, widths[i]) if i in left else " " * (widths[i] - columns(text)) + text
            for i, text in zip(shown, texts, strict=True)
        ]
        made.append(fitted("  " + "  ".join(cells_).rstrip(), width))
    return made
