"""A run's key figures as short texts: the same in the terminal and in the exported logbook."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.text.sparkline import sparkline, squeezed

NOTHING = "–"
PAGE = 100  # columns that text is wrapped at where there is no terminal; wrapping loses nothing
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+")


def plain(text: str) -> str:
    """On one line, without anything that a terminal would act on: names and notes are other people's."""
    return _CONTROL.sub(" ", text).strip()


def columns(text: str) -> int:
    """How wide a terminal shows it."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def fitted(text: str, width: int | None) -> str:
    """Cut to a width, with … where something is missing; whole where there is no width, as in a pipe."""
    if width is None or columns(text) <= width:
        return text
    while text and columns(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def squeeze(
    heads: Sequence[str], shown: list[int], widths: dict[int, int], width: int, spared: Sequence[str], narrowest: int
) -> None:
    """Columns, two signs apart, made to fit a terminal, in place: those that can be spared go, in that order, then the
    first is made narrower. `shown`: their places."""

    def needed() -> int:
        return sum(widths[i] for i in shown) + 2 * (len(shown) - 1)

    for head in spared:
        place = next((i for i in shown if heads[i] == head), None)
        if place is not None and needed() > width:
            shown.remove(place)
    if (missing := needed() - width) > 0:
        widths[0] = max(min(narrowest, widths[0]), widths[0] - missing)


def trend(values: Sequence[float], width: int) -> str:
    """The whole course in at most `width` bars."""
    if values and not math.isfinite(max(values) - min(values)):
        values = [value / 4 for value in values]  # damaged metrics: a span that no float can hold
    return sparkline(squeezed(values, width), width)


def decimal(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def arrow(first: str, last: str) -> str:
    return NOTHING if first == last == NOTHING else f"{first} → {last}"


def duration(seconds: float | None) -> str:
    """`20 s`, `12 min`, `3 h 05 min`, `2 d 4 h`"""
    if seconds is None:
        return NOTHING
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def memory(size: int | None) -> str:
    if size is None:
        return NOTHING
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def count(value: float | None) -> str:
    if value is None:
        return NOTHING
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.1f} {letter}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def money(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "<0.01" if 0 < value < 0.01 else f"{value:.2f}"


def interval(row: Mapping[str, float | None] | None) -> str:
    """The mean alone where it has no interval: of one task."""
    if row is None:
        return NOTHING
    if row["low"] is None or row["high"] is None:
        return decimal(row["mean"])
    return f"{decimal(row['mean'])} [{decimal(row['low'])}, {decimal(row['high'])}]"


def setting(value: Any) -> str:
    """A config's value as a person writes it."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def steps(row: dict[str, Any]) -> str:
    return f"{row['steps']}/{row['max_steps']}" if row["max_steps"] is not None else str(row["steps"])


def status(row: dict[str, Any]) -> str:
    """`superseded by exp1.4-tune-1115`"""
    if row["status"] == "superseded" and row["superseded_by"]:
        return f"superseded by {plain(row['superseded_by'])}"
    return row["status"] or "unknown"


def said(entry: dict[str, Any]) -> str:
    """What a person has added, as one reads it."""
    if entry["kind"] == "note":
        return str(entry["text"])
    if entry["kind"] == "reopened":
        return f"no longer {entry['text']}"
    what = f"superseded by {entry['by']}" if entry["kind"] == "superseded" else str(entry["kind"])
    return what + (f": {entry['text']}" if entry["text"] else "")


def success_label(row: dict[str, Any]) -> str:
    return plain(row["success_name"] or "success")


def success_change(row: dict[str, Any]) -> str:
    """`correct 17% → 36%`; of something that was only evaluated, `correct 36%`."""
    if row["success_last"] is None:
        return NOTHING
    change = share(row["success_last"])
    if row["success_first"] is not None:
        change = arrow(share(row["success_first"]), change)
    return f"{success_label(row)} {change}"


def key_results(row: dict[str, Any], bars: int = 0) -> list[tuple[str, str]]:
    """What came of a run, line by line; what its environment does not measure is left out."""
    found = [("steps", f"{row['steps']} of {row['max_steps']}" if row["max_steps"] is not None else str(row["steps"]))]
    if row["success_last"] is not None:
        trend = sparkline(row["success_trend"], bars) if bars else ""
        change = arrow(share(row["success_first"]), share(row["success_last"]))
        found.append((f"{success_label(row)} in training", f"{change}  {trend}".rstrip()))
    if row["eval_success_before"] or row["eval_success_after"]:
        change = arrow(interval(row["eval_success_before"]), interval(row["eval_success_after"]))
        found.append((f"held-out {success_label(row)}", change))
    trend = sparkline(row["reward_trend"], bars) if bars else ""
    change = arrow(decimal(row["reward_first"]), decimal(row["reward_last"]))
    found.append(("reward, first → last", f"{change}  {trend}".rstrip()))
    if row["mean_improvement"] is not None:
        best = f", best {decimal(row['best_improvement'])}" if row["best_improvement"] is not None else ""
        found.append(("improvement", f"mean {decimal(row['mean_improvement'])}{best}"))
    if row["eval_before"] or row["eval_after"]:
        found.append(("held-out reward", arrow(interval(row["eval_before"]), interval(row["eval_after"]))))
    rate = NOTHING if row["tokens_per_second"] is None else f"{count(row['tokens_per_second'])} tokens/s"
    found += [
        ("throughput", rate),
        ("peak memory", memory(row["peak_memory_bytes"])),
        ("sandbox errors", NOTHING if row["sandbox_errors"] is None else str(row["sandbox_errors"])),
        ("duration", duration(row["seconds"])),
    ]
    if row["cost"] is not None:
        found.append(("cost", f"{money(row['cost'])} at {row['price_per_hour']:g} an hour"))
    if row["proofs"] != "unknown":
        found.append(("doctor's proofs", row["proofs"]))
    return found
