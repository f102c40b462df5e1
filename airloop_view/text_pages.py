"""Runs, one run, and lists of episodes as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airloop.text.figures import (
    NOTHING,
    arrow,
    columns,
    count,
    decimal,
    duration,
    fitted,
    interval,
    key_results,
    padded,
    status,
    steps,
    success_change,
)
from airloop.text.sparkline import sparkline, squeezed
from airloop.text.visible import one_line, visible
from airloop_view.curves import FIRST

BARS = 40
# Curves of a run's page, by the viewer's groups, in this order; of the others only their names are of interest.
SHOWN_GROUPS = (
    "success",
    "reward",
    "task",
    "lengths",
    "entropy",
    "kl",
    "gradient",
    "gap",
    "throughput",
    "memory",
)
PER_GROUP = 8
NUMBERS = frozenset({"steps", "tok/s", "time", "reward", "advantage", "turns", "tokens", "episodes"})


@dataclass(frozen=True)
class Ink:
    """How it is printed: with colours or without, and how wide."""

    colours: bool
    width: int

    def head(self, text: str) -> str:
        return self._styled("1", text)

    def dim(self, text: str) -> str:
        return self._styled("2", text)

    def role(self, role: str, text: str) -> str:
        return self._styled({"assistant": "1;36", "user": "1;32", "system": "1;35"}.get(role, "1;33"), text)

    def _styled(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and text else text


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], ink: Ink, keep: int = 2) -> list[str]:
    """Columns in which nobody has anything are left out, then the last ones until the rest fits; the first `keep`
    stay."""
    places = [i for i in range(len(heads)) if i < keep or any(row[i] not in ("", NOTHING) for row in rows)]
    widths = {i: max(columns(heads[i]), *(columns(row[i]) for row in rows)) if rows else len(heads[i]) for i in places}
    while len(places) > keep and sum(widths[i] + 2 for i in places) - 2 > ink.width:
        places.pop()

    def line(cells: Sequence[str]) -> str:
        parts = [
            " " * (widths[i] - columns(cells[i])) + cells[i] if heads[i] in NUMBERS else padded(cells[i], widths[i])
            for i in places
        ]
        return fitted("  ".join(parts).rstrip(), ink.width)

    return [ink.head(line(heads)), *(line(row) for row in rows)]


def runs_page(rows: Sequence[dict[str, Any]], root: str, ink: Ink) -> str:
    heads = ("run", "status", "steps", "success", "trend", "reward", "alarms", "tok/s", "time", "task", "model")
    cells = [
        (
            _word(row["id"] if row["id"] != "." else row["name"]),
            _word(status(row)) if row["kind"] != "traj" else "episodes",
            steps(row) if row["kind"] == "run" else "",
            success_change(row),
            sparkline(squeezed(row["success_trend"] or row["reward_trend"] or [], 16), 16),
            arrow(decimal(row["reward_first"]), decimal(row["reward_last"]))
            if row["kind"] == "run"
            else decimal(row["reward_last"]),
            _word(" ".join(row["alarm_ids"] or [])),
            count(row["tokens_per_second"]),
            duration(row["seconds"]),
            _word(row["task"] or ""),
            _word((row["model"] or "").rpartition("/")[2]),
        )
        for row in rows
    ]
    lines = [ink.head(f"{len(rows)} in {visible(root)}"), "", *table(heads, cells, ink)]
    lines += ["", ink.dim("one of them: --run NAME   episodes: --find TEXT")]
    return "\n".join(lines)


def run_page(page: dict[str, Any], name: str, ink: Ink) -> str:
    results = page["results"]
    lines = [f"{ink.head(_word(results['name']))}   {_word(status(results))}"]
    if results["why"]:
        lines += _wrapped(results["why"], ink.width, "  ")
    about = [("goal", results["goal"]), ("task", results["task"]), ("model", results["model"])]
    about += [("parent", results["parent"])]
    about += [("logged to", f"{title}: {url}") for title, url in results["sink_urls"].items()]
    rows = [(label, text) for label, text in about if text] + key_results(results)
    lines += ["", *(line for label, text in rows for line in _labelled(label, text, ink))]
    lines += _curves(page["curves"], ink)
    lines += _evaluations(page["evaluations"], ink)
    lines += _alarms(page["alarms"], ink)
    if page["config_diff"]:
        lines += ["", ink.head(f"config, what differs from {_word(page['parent'] or results['parent'] or '')}")]
        lines += [
            fitted(f"  {_word(row['key'])}: {_word(str(row['parent']))} → {_word(str(row['here']))}", ink.width)
            for row in page["config_diff"]
        ]
    if results["problems"]:
        lines += ["", ink.head("could not be read")]
        lines += [line for problem in results["problems"] for line in _wrapped(f"! {problem}", ink.width, "  ")]
    last = f"1 to {max(page['steps']) + 1}" if page["steps"] else "none yet"
    lines += ["", ink.dim(f"episodes: --run {_word(name)} --step N ({last}; 0: before the first), or --find TEXT")]
    return "\n".join(lines)


def _curves(curves: Sequence[dict[str, Any]], ink: Ink) -> list[str]:
    """Success, the reward, and those that move, each once: of one task the mean over tasks is the same curve again."""
    lines: list[str] = []
    seen: set[tuple[float | None, ...]] = set()
    for group in SHOWN_GROUPS:
        members = []
        for curve in curves:
            course = tuple(curve["y"])
            first = curve["name"] in FIRST
            moves = len({v for v in course if v is not None}) > 1 and course not in seen
            if curve["group"] == group and (first or moves) and any(v is not None for v in course):
                seen.add(course)
                members.append(curve)
        for curve in members[:PER_GROUP]:
            values = [v for v in curve["y"] if v is not None]
            bars = sparkline(squeezed(curve["y"], BARS), BARS)
            label = one_line(curve["label"], 28)
            figures = f"{_short(values[0])} → {_short(values[-1])}  ({_short(min(values))} to {_short(max(values))})"
            unit = f" {_word(curve['unit'])}" if curve["unit"] not in ("", "reward", "share") else ""
            lines.append(
                fitted(f"  {padded(label, 28)}  {padded(bars, min(BARS, len(curve['y'])))}  {figures}{unit}", ink.width)
            )
        if len(members) > PER_GROUP:
            lines.append(ink.dim(f"  … {len(members) - PER_GROUP} more of {group}"))
    return ["", ink.head("curves: first → last (lowest to highest)"), *lines] if lines else []


def _evaluations(rows: Sequence[dict[str, Any]], ink: Ink) -> list[str]:
    if not rows:
        return []
    names = list(dict.fromkeys(row["success_name"] for row in rows if row["success_name"]))
    heads = ("evaluation", "split", "episodes", f"{names[0] if names else 'success'}, 95 %", "reward, 95 % interval")
    cells = [
        (
            _word(row["name"]),
            _word(row["split"]),
            str(row["episodes"] if row["episodes"] is not None else NOTHING)
            + (f" +{row['lost']} lost" if row["lost"] else ""),
            *(interval(row[name]) if row[name]["mean"] is not None else NOTHING for name in ("success", "reward")),
        )
        for row in rows
    ]
    return ["", *(f"  {line}" for line in table(heads, cells, Ink(ink.colours, ink.width - 2), keep=3))]


def _alarms(rows: Sequence[dict[str, Any]], ink: Ink) -> list[str]:
    lines = []
    for alarm in rows:
        at = f"step {alarm['step'] + 1}" if alarm["step"] is not None else "some step"
        title = f"{alarm['id']} {alarm['name'].replace('_', ' ')}, {at}"
        if alarm["event"] == "cleared":
            lines += _wrapped(f"{title}: over", ink.width, "  ")
            continue
        lines += _wrapped(f"{title} ({alarm['severity']}): {alarm['seen']}", ink.width, "  ")
        lines += _wrapped(f"why: {alarm['why']}", ink.width, "      ")
        lines += _wrapped(f"fix: {alarm['fix']}", ink.width, "      ")
    return ["", ink.head("alarms"), *lines] if lines else []


def list_page(found: dict[str, Any], title: str, find: str, ink: Ink) -> str:
    rows = found["rows"]
    lines = [ink.head(f"{visible(title)}: {found['total']} episodes"), ""]
    heads = ("id", "success", "reward", "ending", "advantage", "fate", "turns", "tokens", "time", "run")
    several = len({row["run"] for row in rows}) > 1
    cells = [
        (
            _word(row["id"]),
            decimal(row["success"]),
            decimal(row["reward"]),
            _word(row["ending"]),
            NOTHING if row["advantage"] is None else f"{row['advantage']:+.3f}",
            _word(row["fate"] or ""),
            str(row["turns"]),
            str(row["tokens"]),
            duration(row["seconds"]),
            _word(row["run"]) if several else "",
        )
        for row in rows
    ]
    first, *others = table(heads, cells, ink)
    lines.append(first)
    for line, row in zip(others, rows, strict=True):
        lines.append(line)
        if row["preview"]:
            lines.append(ink.dim(fitted(f"    {one_line(row['preview'], ink.width)}", ink.width)))
    if found["total"] > len(rows):
        lines.append(f"… {found['total'] - len(rows)} more: name a --run, a --step, or more words to --find")
    if find and not rows:
        lines.append("no episode has all of these words; a phrase is put in quotes, a word's beginning ends in *")
    lines += ["", ink.dim("one of them: --id ID (its beginning will do)")]
    return "\n".join(lines)


def _labelled(label: str, text: str, ink: Ink) -> list[str]:
    first, *rest = _wrapped(text, ink.width - 24, "") or [""]
    return [f"  {ink.dim(padded(label, 22))}{first}", *(f"{' ' * 24}{line}" for line in rest)]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Longer words, such as paths, are left whole."""
    return textwrap.wrap(
        " ".join(visible(text).split()),
        max(20, width),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def _word(text: str) -> str:
    return one_line(text, 400)
