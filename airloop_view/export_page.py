"""One episode as a single HTML file that needs nothing: no server, no network, no script.

Its own policy forbids all of these, so whatever an agent wrote, it can only be read. Colours of the tokens are chosen
by radio buttons and CSS alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airloop.text.visible import visible
from airloop_view.api import Api
from airloop_view.conversation import Cutter, conversation
from airloop_view.episode import Unreadable
from airloop_view.export_style import BY, style
from airloop_view.highlight import Highlighter

MOST_TOKENS = 40_000  # spans that a browser still opens at once
MOST_RAW = 2 << 20  # bytes of a file that is no episode
FOLDED_LINES = 20
FOLDED_CHARACTERS = 4_000
STEPS = 4  # of colour, on either side of zero


def export(api: Api, query: Mapping[str, list[str]]) -> tuple[str, str]:
    """The file's name and the page."""
    head = api.trajectory(query)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{head['id']}")[-120:] + ".html"
    try:
        episode = api.opened(query)[2]
        turns, _ = conversation(episode, Cutter(1 << 60, 1 << 60, Highlighter(1 << 20)))
        branches = list(_branches(api, query))
    except Unreadable:
        turns, branches = [], []
        with api.raw(query) as file:
            head = {**head, "raw": file.read(MOST_RAW).decode("utf-8", "replace")}
    return name, _page({**head, "turns": turns}, branches)


def _branches(api: Api, query: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Every branch whole, as long as a browser can show them."""
    left = MOST_TOKENS
    first = api.tokens({**query, "branch": ["0"]})
    for branch in range(first["branches"]):
        tokens: list[dict[str, Any]] = []
        view = first
        while len(tokens) < min(view["total"], left) or not tokens:
            view = api.tokens({**query, "branch": [str(branch)], "offset": [str(len(tokens))]})
            if not view["tokens"]:
                break
            tokens += view["tokens"]
        yield {**view, "tokens": tokens[:left]}
        left -= len(tokens)
        if left <= 0:
            return


def _page(data: dict[str, Any], branches: list[dict[str, Any]]) -> str:
    css = style()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = _text(f"{data['task']['id'] or data['id']} – {data['run']}")
    raw = f"<h2>The file</h2><pre>{_text(data['raw'])}</pre>" if "raw" in data else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{css}</style></head>\n<body><main>"
        f"<h1>{title}</h1>{_facts(data)}{raw}"
        f"{''.join(_turns(data['turns']))}{_tokens(branches)}"
        "</main></body></html>\n"
    )


def _facts(data: dict[str, Any]) -> str:
    training, group = data.get("training") or {}, data.get("group") or {}
    rows = {
        "episode": data["id"],
        "from": data["source"],
        "environment": data["task"]["env"],
        "ending": data["ending"],
        "what failed": data.get("error"),
        "reward": _number(data.get("reward")),
        "reward's parts": ", ".join(f"{k} {_number(v)}" for k, v in data.get("rewards", {}).items()),
        "its group": f"{group['size']} episodes, mean {_number(group['mean'])}" if group else "",
        "in training": training.get("why"),
        "policy version": data.get("version"),
        "seed": data.get("seed"),
        "seconds": _number(data.get("seconds")),
    }
    cells = (f"<dt>{k}</dt><dd>{_text(str(v))}</dd>" for k, v in rows.items() if v not in (None, ""))
    return f"<dl>{''.join(cells)}</dl>"


def _turns(turns: list[dict[str, Any]]) -> Iterator[str]:
    said: set[str] = set()  # what a turn printed is shown to the next one: it is there already
    for place, turn in enumerate(turns):
        yield _turn(place, {**turn, "shown": [m for m in turn["shown"] if m["content"].strip() not in said]})
        said = {seen["text"].strip() for seen in turn["observations"]}


def _turn(place: int, turn: dict[str, Any]) -> str:
    rewards = "".join(f" <b>{_text(k)} {_number(v)}</b>" for k, v in turn["rewards"].items())
    times = turn["times"]
    spent = f"queue {_seconds(times['queue'])}, model {_seconds(times['model'])}, tool {_seconds(times['tool'])}"
    parts = [f'<section id="turn-{place + 1}"><h2>Turn {place + 1}{rewards} <small>{spent}</small></h2>']
    parts += [_block(_text(m["role"]), m["content"], "shown") for m in turn["shown"]]
    if turn["thought"]:
        parts.append(_block("thought", turn["thought"], "thought"))
    spoken = [action for action in turn["actions"] if action["kind"] in ("command", "tool")]
    if not spoken:
        parts.append(_block("reply", turn["reply"], "reply"))
    for action in spoken:
        name = f"{action['kind']} {action['name']}".strip()
        parts.append(f'<h3>{_text(name)}</h3><pre class="code">{visible(action["html"])}</pre>')
    for change in turn["files"]:
        body = [line for line in change["diff"].split("\n") if line and not line.startswith(("--- ", "+++ "))]
        lines = "".join(map(_diff_line, body))
        note = f" <small>{_text(change['note'])}</small>" if change["note"] else ""
        parts.append(f'<h3>file {_text(change["path"])}{note}</h3><pre class="diff">{lines}</pre>')
    for seen in turn["observations"]:
        parts.append(_block("failed" if seen["failed"] else "output", seen["text"], "output"))
    return "".join(parts) + "</section>"


def _block(name: str, text: str, kind: str) -> str:
    body = f'<pre class="{kind}">{_text(text)}</pre>'
    lines = text.count("\n") + 1
    if lines > FOLDED_LINES or len(text) > FOLDED_CHARACTERS:
        size = f"{lines} lines, {len(text)} characters"
        return f'<h3>{name}</h3><details class="long"><summary>{size}</summary>{body}</details>'
    return f"<h3>{name}</h3>{body}"


def _diff_line(line: str) -> str:
    kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "same")
    return f'<span class="{kind}">{_text(line)}</span>\n'


# --- tokens -------------------------------------------------------------------------------------------------


def _tokens(branches: list[dict[str, Any]]) -> str:
    if not branches or not branches[0]["tokens"]:
        return ""
    buttons = "".join(_button(key, text) for key, text in BY.items())
    state = branches[0]["tokenizer"]
    note = "" if state == "exact" else f"<p>Ids instead of words: the tokenizer is {_text(state)}.</p>"
    parts = []
    for view in branches:
        cut = f" (the first {len(view['tokens'])} of {view['total']})" if len(view["tokens"]) < view["total"] else ""
        name = f"<h3>Branch {view['branch'] + 1} of {view['branches']}{cut}</h3>" if view["branches"] > 1 or cut else ""
        spans = "".join(_token(token, view) for token in view["tokens"])
        parts.append(f'{name}<pre class="tokens">{spans}</pre>')
    choice = f"<fieldset><legend>coloured by</legend>{buttons}</fieldset>"
    return f'<section id="tokens"><h2>Tokens</h2>{note}{choice}{"".join(parts)}</section>'


def _button(key: str, text: str) -> str:
    chosen = " checked" if key == "adv" else ""
    return f'<input type="radio" name="by" id="by-{key}"{chosen}><label for="by-{key}">{text}</label>'


def _token(token: dict[str, Any], view: dict[str, Any]) -> str:
    named = {"lp": "log-prob", "tlp": "trainer's", "gap": "gap", "entropy": "entropy", "adv": "advantage"}
    numbers = [f"{text} {token[key]:.4g}" for key, text in named.items() if token[key] is not None]
    about = [f"id {token['id']}", *([f"turn {token['turn'] + 1}"] if token["turn"] >= 0 else []), *numbers]
    about += [f"policy version {token['version']}"] if token["version"] is not None else []
    about.append(view["reasons"][token["why"]])
    classes = [
        f"{key}{_level(token[key], view['ranges'][key])}" for key in named if key != "tlp" and token[key] is not None
    ]
    classes.append("mask1" if token["train"] else "mask0")
    classes += [] if token["t"] else ["part"]
    text = _text(token["t"]).replace("\n", "↵\n")
    return f'<span class="{" ".join(classes)}" title="{_text("; ".join(about))}">{text}</span>'


def _level(value: float, span: list[float | None]) -> str:
    """p3 or n2: the sign, and how much of the largest size in this episode."""
    largest = max(abs(bound) for bound in span if bound is not None)
    size = round(STEPS * (abs(value) / largest)) if largest > 0 else 0
    return f"{'n' if value < 0 else 'p'}{size}"


def _text(text: str) -> str:
    return visible(html.escape(text))


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"
