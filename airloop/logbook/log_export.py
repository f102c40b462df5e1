"""The logbook as one Markdown file that a team can commit.

The same runs give the same bytes, on any machine: times are UTC, links are relative to the file, and paths of the
machine are cut to their last part. What people wrote is kept word for word.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airloop.errors import AirError
from airloop.eval.baselines import Table, cells, find_baselines, grouped, heads, part_table
from airloop.files import write_text
from airloop.logbook.logbook import logbook, run_page
from airloop.text.figures import (
    NOTHING,
    arrow,
    decimal,
    duration,
    key_results,
    money,
    plain,
    said,
    setting,
    status,
    steps,
    success_change,
)
from airloop.text.keys import without_keys

MADE_BY = "<!-- Written by `air log export`; add to it with `air log note` and `air log goal`, then export again. -->"
FORMS = {"md": Path("LOGBOOK.md"), "json": Path("LOGBOOK.json")}
MADE_BY_KEY = "air_logbook"
_ABSOLUTE = re.compile(r"(?<![\w:/.])~?/(?:[^\s/'\"`,;|]+/)*([^\s/'\"`,;|]+)/?")
# What Markdown would act on where we write: inside a line or a cell, never at a line's beginning.
_ACTIVE = re.compile(r"([\\`*<|~]|&(?=#?\w+;)|\](?=\()|(?<!\w)_|_(?!\w))")
_WEB = re.compile(r"https?://[^\s<>]+")


def export_logbook(root: Path, form: str, out: Path | None) -> tuple[str, Path | None, dict[str, int]]:
    """The text, the file it was written to (None: to be printed), and how much is in it."""
    if form not in FORMS:
        raise AirError(f"--format {form!r} is not known.", f"use {' or '.join(FORMS)}.")
    where = None if out == Path("-") else out or FORMS[form]
    if where is not None:
        _refuse_to_overwrite(where)
    pages = [run_page(Path(row["path"])) for row in logbook(root)]
    evaluations = find_baselines(root)
    base = where.parent if where is not None else Path()
    make = markdown if form == "md" else as_json
    text = without_keys(make(pages, grouped(evaluations), base))
    if where is not None:
        try:
            write_text(where, text)
        except OSError as error:
            raise AirError(f"{where} cannot be written: {error.strerror}.", "give another --out.") from error
    return text, where, {"runs": len(pages), "baselines": len(evaluations)}


def _refuse_to_overwrite(where: Path) -> None:
    """A file that someone wrote by hand is not ours to replace."""
    if where.is_dir():
        raise AirError(f"{where} is a directory.", f"name a file in it: --out {where / 'LOGBOOK.md'}.")
    if where.exists() and not _is_ours(where):
        raise AirError(f"{where} was not written by `air log export`.", "give another --out, or move it away.")


def _is_ours(where: Path) -> bool:
    try:
        start = where.read_text(encoding="utf-8")[:4000]
    except (OSError, ValueError):
        return False
    return not start.strip() or MADE_BY in start or f'"{MADE_BY_KEY}"' in start


def as_json(pages: Sequence[dict[str, Any]], tables: Sequence[Table], base: Path) -> str:
    runs = [{**_portable(page), "path": _link(Path(page["path"]), base)} for page in map(_settled, pages)]
    found = [
        {"title": of.title, "rows": [{**_portable(row), "path": _link(Path(row["path"]), base)} for row in of.rows]}
        for of in tables
    ]
    data = {MADE_BY_KEY: 1, "runs": runs, "baselines": found}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _settled(page: dict[str, Any]) -> dict[str, Any]:
    """While a run goes on, its duration is another one every time one looks."""
    return {**page, "seconds": None, "cost": None} if page["status"] == "running" else page


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return cut_paths(value)
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if isinstance(value, dict):
        kept = ("goal", "entries")  # people's own words
        return {k: v if k in kept else _portable(v) for k, v in value.items()}
    return value


def cut_paths(text: str) -> str:
    """`/home/me/models/qwen` → `…/qwen`"""
    return _ABSOLUTE.sub(lambda match: f"…/{match[1]}", text)


# --- Markdown -------------------------------------------------------------------------------------------------


def markdown(pages: Sequence[dict[str, Any]], tables: Sequence[Table], base: Path) -> str:
    lines = ["# Logbook", "", MADE_BY, ""]
    lines += _index([_settled(page) for page in pages]) if pages else ["No runs yet.", ""]
    if tables:
        lines += _baselines(tables, base)
    names = {page["name"] for page in pages}
    for page in pages:
        lines += _page(_settled(page), base, names)
    return "\n".join(lines).rstrip() + "\n"


def _index(pages: Sequence[dict[str, Any]]) -> list[str]:
    head = ["run", "date", "status", "steps", "success", "reward", "time", "cost", "alarms", "goal"]
    rows = []
    for page in pages:
        rows.append(
            [
                f"[{_text(page['name'])}](#{_anchor(page['name'])})",
                _day(page["started"]),
                _text(status(page)),
                steps(page),
                _text(success_change(page)),
                arrow(decimal(page["reward_first"]), decimal(page["reward_last"])),
                duration(page["seconds"]),
                money(page["cost"]),
                _text(" ".join(page["alarm_ids"])) or NOTHING,
                _text(page["goal"] or ""),
            ]
        )
    return ["## Runs", "", *_table(head, rows), ""]


def _page(page: dict[str, Any], base: Path, names: Collection[str]) -> list[str]:
    """The template of a run, filled in. `names` are those that have a page here."""
    place = _link(Path(page["path"]), base)
    lines = [f"## {_text(page['name'])}", ""]
    parent = _text(page["parent"])
    if page["parent"] in names:
        parent = f"[{parent}](#{_anchor(page['parent'])})"
    facts = [
        ("Status", _text(status(page)) + (f": {_text(cut_paths(page['why']))}" if page["why"] else "")),
        ("Date", _period(page)),
        ("Task", _text(page["task"])),
        ("Model", _text(cut_paths(page["model"] or ""))),
        ("Parent", parent),
        ("Directory", f"[{_text(place)}]({quote(place)})"),
        *((_text(title), _web(url)) for title, url in page["sink_urls"].items()),
        ("Fault on purpose", _text(page["fault"])),
    ]
    lines += [f"- **{name}:** {text}" for name, text in facts if text]
    lines += ["", f"**Goal.** {_text(page['goal']) or 'Not stated.'}", ""]
    if page["config"]:
        lines += ["### Config", "", *_config(page), ""]
    lines += ["### Results", "", *_table(["", ""], [[_text(a), _text(b)] for a, b in key_results(page)]), ""]
    lines += _alarms(page) + _notes(page)
    if page["artefacts"]:
        links = [f"[{_text(name)}]({quote(f'{place}/{name}')})" for name in page["artefacts"]]
        lines += ["### Artefacts", "", ", ".join(links), ""]
    if page["problems"]:
        lines += ["### Could not be read", "", *(f"- {_text(cut_paths(p))}" for p in page["problems"]), ""]
    return lines


def _config(page: dict[str, Any]) -> list[str]:
    """What differs from the parent is bold."""
    rows = []
    for row in page["config"]:
        here, was = (_code(cut_paths(setting(row[side]))) for side in ("here", "parent"))
        changed = row["changed"]
        rows.append([f"**{_code(row['key'])}**" if changed else _code(row["key"]), here, was if changed else ""])
    since = f"before ({_text(page['parent'])})" if page["parent_exists"] else ""
    if not since:
        return _table(["key", "value"], [row[:2] for row in rows])
    return _table(["key", "value", since], rows)


def _alarms(page: dict[str, Any]) -> list[str]:
    if not page["raised"]:
        return []
    rows = [
        [
            _text(f"{a['id'] or '?'} {a['name'].replace('_', ' ')}"),
            str(a["step"] or NOTHING) + (f" and {a['times'] - 1} more" if a["times"] > 1 else ""),
            _text(cut_paths(a["seen"])),
            "cleared" if a["cleared"] else "",
        ]
        for a in page["raised"]
    ]
    return ["### Alarms", "", *_table(["alarm", "step", "seen", ""], rows), ""]


def _notes(page: dict[str, Any]) -> list[str]:
    rows = [(e["time"], said(e)) for e in page["entries"] if e["kind"] != "goal"]
    return ["### Notes", "", *(f"- {_moment(when)}: {_text(text)}" for when, text in rows), ""] if rows else []


def _baselines(tables: Sequence[Table], base: Path) -> list[str]:
    lines = ["## Model baselines", ""]
    for of in tables:
        rows = []
        for row in of.rows:
            made = [_text(cut_paths(cell)) for cell in cells(row)]
            made[-1] = f"[{made[-1]}]({quote(_link(Path(row['path']), base))})"
            rows.append(made)
        lines += [f"### {_text(of.title)}", "", *_table(list(map(_text, heads(of))), rows), ""]
        lines += [f"- {_text(r['name'])}: {_text(cut_paths(p))}" for r in of.rows for p in r["problems"]]
        lines += [""] if any(row["problems"] for row in of.rows) else []
        if parts := part_table(of):
            head, *rest = [[_text(cut_paths(cell)) for cell in line] for line in parts]
            head[0] = f"{_text(of.share_name)} (reward)"
            lines += [*_table(head, rest), ""]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def _text(text: str | None) -> str:
    """As Markdown shows it, letter for letter, on one line: nobody's note makes a heading, a link or a tag."""
    return _ACTIVE.sub(r"\\\1", plain(text or ""))


def _code(text: str) -> str:
    inner = plain(text).replace("`", "'").replace("|", "\\|")
    return f"`{inner}`" if inner else ""


def _web(address: str) -> str:
    """A link, if it is an address and nothing else."""
    return f"<{address}>" if _WEB.fullmatch(plain(address)) else _text(address)


def _anchor(name: str | None) -> str:
    """As Git hosts make them of headings."""
    return re.sub(r"[^\w\- ]", "", plain(name or "").lower()).replace(" ", "-")


def _link(path: Path, base: Path) -> str:
    return Path(os.path.relpath(str(path), str(base))).as_posix()


def _day(seconds: float | None) -> str:
    return NOTHING if seconds is None else time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _period(page: dict[str, Any]) -> str:
    if page["started"] is None:
        return ""
    return _moment(page["started"]) + (f" to {_moment(page['ended'])}" if page["ended"] is not None else "")
