"""The logbook in a terminal: a line or two per run, and a page for one."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.text.figures import (
    NOTHING,
    PAGE,
    arrow,
    columns,
    count,
    decimal,
    duration,
    fitted,
    key_results,
    money,
    padded,
    plain,
    said,
    setting,
    squeeze,
    status,
    steps,
    success_change,
    trend,
)

TREND = 8
HEADS = ("run", "status", "steps", "success", "", "reward", "tokens/s", "time", "cost", "alarms")
RIGHT = {"tokens/s", "time", "cost"}
SPARED = ("tokens/s", "time", "cost", "")  # left out first where a terminal is narrow: `air log show` has them
NARROWEST = 14  # of a run's name: its number and a beginning
OFTEN_EMPTY = {"success", "cost", "alarms"}  # columns that are left out where no run has something in them


def format_list(rows: Sequence[dict[str, Any]], root: Path, width: int | None, hidden: int = 0) -> str:
    """A row per run, with its goal below it, and at the end what could not be read. Without a width nothing is cut: a
    pipe or a file has room, and whoever reads it cannot make it wider."""
    if not rows:
        told = f" ({hidden} archived: --all shows them)" if hidden else ""
        return f"no runs in {plain(str(root))}{told}"
    cells = [_cells(row, whole=width is None) for row in rows]
    shown = [i for i, head in enumerate(HEADS) if head not in OFTEN_EMPTY or any(c[i] != NOTHING for c in cells)]
    widths = {i: max(columns(line[i]) for line in [HEADS, *cells]) for i in shown}
    if width is not None:
        squeeze(HEADS, shown, widths, width, SPARED, NARROWEST)
    lines = [_line(HEADS, shown, widths, width)]
    for row, line in zip(rows, cells, strict=True):
        lines.append(_line(line, shown, widths, width))
        if row["goal"]:
            lines.append(fitted(f"    {plain(row['goal'])}", width))
        if row["fault"]:
            lines.append(fitted(f"    ! fault on purpose: {plain(row['fault'])}", width))
        problems = row["problems"] if width is None else row["problems"][:2]
        lines += [fitted(f"    ! {plain(problem)}", width) for problem in problems]
    lines += ["", *textwrap.wrap(_counted(rows, hidden), width or PAGE)]
    return "\n".join(lines)


def _line(cells: Sequence[str], shown: Sequence[int], widths: Mapping[int, int], width: int | None) -> str:
    texts = {i: fitted(cells[i], widths[i]) for i in shown}
    parts = [
        " " * (widths[i] - columns(text)) + text if HEADS[i] in RIGHT else padded(text, widths[i])
        for i, text in texts.items()
    ]
    return fitted("  ".join(parts).rstrip(), width)


def _cells(row: dict[str, Any], whole: bool) -> list[str]:
    marks = fitted(" ".join(row["alarm_ids"]), None if whole else 14)
    return [
        plain(row["name"]),
        fitted(_short_status(row), None if whole else 20),
        steps(row) if row["status"] != "planned" else NOTHING,
        success_change(row),
        trend(row["success_trend"] or row["reward_trend"], TREND),
        arrow(decimal(row["reward_first"]), decimal(row["reward_last"])),
        count(row["tokens_per_second"]),
        duration(row["seconds"]),
        money(row["cost"]),
        plain(marks) or NOTHING,
    ]


def _short_status(row: dict[str, Any]) -> str:
    """`superseded by exp1.4`: the number is the name's beginning."""
    text = status(row)
    return text.partition("-")[0] if text.startswith("superseded by exp") else text


def _counted(rows: Sequence[dict[str, Any]], hidden: int) -> str:
    counts = Counter(row["status"] or "unknown" for row in rows)
    parts = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    price = [row["cost"] for row in rows if row["cost"] is not None]
    cost = f"; cost {money(sum(price))}" if price else ""
    told = f"; {hidden} archived not shown (--all)" if hidden else ""
    return f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: {parts}{cost}{told}"


# --- one run --------------------------------------------------------------------------------------------------


def format_page(page: dict[str, Any], terminal: int | None) -> str:
    """`terminal`: its width; None for a pipe or a file."""
    width = terminal or PAGE
    lines = [f"{plain(page['name'])}   {status(page)}"]
    if page["why"]:
        lines += _wrapped("", page["why"], width)
    if page["fault"]:
        lines += _wrapped("!", f"fault on purpose: {page['fault']}", width, label_width=2)
    lines.append("")
    for label, text in _about(page):
        lines += _wrapped(label, text, width)
    lines += _config(page, terminal)
    lines += ["", "results"]
    for label, text in key_results(page, bars=30):
        lines += _wrapped(label, text, width, label_width=22)
    if page["eval_before"] and page["eval_after"]:
        lines.append(f"  is the held-out difference more than chance? air compare {plain(page['path'])}")
    lines += _alarms(page, width)
    added = [entry for entry in page["entries"] if entry["kind"] != "goal"]
    if added:
        lines += ["", "notes"]
        for entry in added:
            lines += _wrapped(_when(entry["time"]), said(entry), width, label_width=18)
    if page["artefacts"]:
        lines += ["", f"files in {plain(page['path'])}"]
        lines += _wrapped("", ", ".join(page["artefacts"]), width, label_width=0)
    if page["problems"]:
        lines += ["", "could not be read"]
        lines += [line for problem in page["problems"] for line in _wrapped("!", problem, width, label_width=2)]
    return "\n".join(lines)


def _about(page: dict[str, Any]) -> list[tuple[str, str]]:
    found = [("goal", page["goal"] or f'none yet: air log goal {page["name"]} "…"')]
    found += [("task", page["task"] or NOTHING), ("model", page["model"] or NOTHING)]
    if page["started"] is not None:
        ended = f" to {_when(page['ended'])}" if page["ended"] is not None else ", still running"
        found.append(("when", f"{_when(page['started'])}{ended}"))
    if page["status"] == "planned":
        found.append(("start it", f"air train --resume {page['path']}"))
    if page["parent"]:
        found.append(("parent", page["parent"] + ("" if page["parent_exists"] else " (its directory is gone)")))
    return found + [("logged to", f"{title}: {url}") for title, url in page["sink_urls"].items()]


def _config(page: dict[str, Any], width: int | None) -> list[str]:
    if not page["config"]:
        return []
    since = f", what changed since {plain(page['parent'])} marked" if page["parent_exists"] else ""
    lines = ["", f"config{since}"]
    wide = max(columns(plain(row["key"])) for row in page["config"])
    for row in page["config"]:
        was = f"   (was {setting(row['parent'])})" if row["changed"] else ""
        text = (
            f"{'*' if row['changed'] else ' '} {padded(plain(row['key']), wide)}  {plain(setting(row['here']) + was)}"
        )
        lines.append(fitted(text, width))
    return lines


def _alarms(page: dict[str, Any], width: int) -> list[str]:
    if not page["raised"]:
        return []
    lines = ["", "alarms"]
    for alarm in page["raised"]:
        step = f", step {alarm['step']}" if alarm["step"] is not None else ""
        again = f", {alarm['times']} times" if alarm["times"] > 1 else ""
        ended = ", cleared" if alarm["cleared"] else ""
        title = f"{alarm['id'] or '?'} {alarm['name'].replace('_', ' ')}{step}{again}{ended}"
        lines += _wrapped("", f"{title}: {alarm['seen']}", width, label_width=0)
        if alarm["fix"]:
            lines += _wrapped("", f"fix: {alarm['fix']}", width, label_width=4)
    return lines


def _wrapped(label: str, text: str, width: int, label_width: int = 10) -> list[str]:
    label = padded(label, label_width)
    room = max(20, width - 2 - len(label))
    first, *rest = textwrap.wrap(plain(text), room, break_on_hyphens=False, break_long_words=False) or [""]
    return [f"  {label}{first}".rstrip(), *(f"  {' ' * len(label)}{line}" for line in rest)]


def _when(seconds: float | None) -> str:
    """In the reader's own time."""
    return NOTHING if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
