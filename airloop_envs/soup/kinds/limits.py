"""Pages that cannot be read, and their twins that can.

All eight kinds draw their prompts from the same random numbers: for one seed the eight prompts are the same, word for
word, so a prompt says nothing about whether its page can be read. Both pages of a pair have the same canvas, image,
script or document; only in the twin do the values also stand in the HTML. A table of older values is in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airloop_envs.soup.answers import Schema, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import Limit
from airloop_envs.soup.task_kind import TaskDraft, kind, recipe
from airloop_envs.soup.words import CITIES, code, date, money, phrase, products, rare, sentence

MEASURES = ("price", "order code", "keeper", "last check", "tariff", "opening balance", "reference")

# What an agent has to call the limit, by what shows the values to people.
REASONS = {"script": "javascript", "image": "image", "canvas": "canvas", "pdf": "pdf"}


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    things: tuple[str, ...]
    place: int
    query: str
    schema: Schema

    def answer(self, values: list[str]) -> Any:
        value = values[self.place]
        return {"value": value} if self.schema["type"] == "object" else value


def panel(d: Rng) -> Panel:
    """What is asked, before anything is known of the page."""
    title, measure = f"{phrase(d)} {d.between(100, 999)}", d.pick(MEASURES)
    things = tuple(d.pick((products, places))(d, d.between(4, 7)))
    place = d.below(len(things))
    asked = d.pick(
        (
            'Under the heading "{title}": what is the {measure} of "{thing}"?',
            'The section "{title}" gives a {measure} for each entry. Which one belongs to "{thing}"?',
            'Look up "{thing}" in the section "{title}" and give its {measure}.',
            'Which {measure} does the page give for "{thing}" (section "{title}")?',
        )
    )
    about = text(f"the {measure} as printed")
    schema = record(value=about) if d.chance(0.5) else about
    query = asked.format(title=title, measure=measure, thing=things[place])
    return Panel(title, things, place, query, schema)


def places(d: Rng, n: int) -> list[str]:
    return [f"{city} {d.between(10, 99)}" for city in d.sample(CITIES, n)]


def rows(things: tuple[str, ...], values: list[str]) -> str:
    inner = "".join(f"<tr><th>{t}</th><td>{v}</td></tr>" for t, v in zip(things, values, strict=True))
    return f"<table>{inner}</table>"


@dataclass(frozen=True, slots=True)
class Carrier:
    """What shows the values to people: its HTML with `{data}` where a twin has the table; the strings that prove
    a limit; and how code finds the string it gives as evidence."""

    html: str
    evidence: tuple[str, ...]
    find: str


def script(d: Rng) -> Carrier:
    mount, address = f"view-{d.hexadecimal(6)}", f"/api/v{d.between(1, 9)}/{d.invented()}/{d.hexadecimal(6)}.json"
    call = f'fetch("{address}").then(r => r.json()).then(data => draw("{mount}", data));'
    html = f'<div id="{mount}" class="view">{{data}}</div>\n<script>{call}</script>'
    return Carrier(html, (address, mount), 'box.find("script").string')


def image(d: Rng) -> Carrier:
    address = f"/scans/{d.hexadecimal(8)}.png"
    html = f'<figure><img src="{address}" alt="{sentence(d)}" width="{d.between(400, 900)}">{{data}}</figure>'
    return Carrier(html, (address,), 'box.find("img")["src"]')


def canvas(d: Rng) -> Carrier:
    mark, address = f"plot-{d.hexadecimal(6)}", f"/frames/{d.hexadecimal(8)}.bin"
    html = (
        f'<canvas id="{mark}" width="{d.between(400, 900)}" height="{d.between(200, 500)}">{{data}}</canvas>\n'
        f'<script>paint(document.getElementById("{mark}"), "{address}");</script>'
    )
    return Carrier(html, (mark, address), 'box.find("canvas")["id"]')


def pdf(d: Rng) -> Carrier:
    address = f"/documents/{d.hexadecimal(8)}.pdf"
    html = (
        f'<object data="{address}" type="application/pdf" width="100%" height="{d.between(400, 900)}">{{data}}</object>'
    )
    return Carrier(html, (address,), 'box.find("object")["data"]')


CARRIERS = {"script": script, "image": image, "canvas": canvas, "pdf": pdf}


def drafted(d: Rng, medium: str, readable: bool) -> TaskDraft:
    asked = panel(d)
    d = d.fork(f"{medium}/{readable}")  # prompts are shared, values are not
    make = d.pick((rare, code, date, lambda d: money(d.between(500, 99999), "$")))
    values = [make(d) for _ in asked.things]
    carrier = CARRIERS[medium](d)
    older = rows(asked.things, [make(d) for _ in asked.things])
    data = rows(asked.things, values) if readable else d.pick(("", f"<p>{sentence(d)}</p>"))
    sections = [
        f'<section class="part"><h2>{asked.title}</h2>\n{carrier.html.replace("{data}", data)}\n</section>',
        f'<section class="part"><h2>{phrase(d)} (before {d.between(1980, 1997)})</h2>\n{older}\n</section>',
    ]
    result = '{"value": value}' if asked.schema["type"] == "object" else "value"
    reason = REASONS[medium]
    code_text = recipe(
        f'{result} if cell else {{"limit": limit}}',
        f'box = soup.find("h2", string="{asked.title}").find_parent("section")',
        f'cell = box.find("th", string="{asked.things[asked.place]}")',
        'value = cell.find_next("td").get_text(strip=True) if cell else None',
        f'limit = {{"reason": "{reason}", "evidence": {carrier.find}}}',
    )
    return TaskDraft(
        asked.query,
        asked.schema,
        "\n".join(d.shuffled(sections)),
        asked.answer(values) if readable else None,
        code_text,
        limit=None if readable else Limit(reason, carrier.evidence),
    )


@kind("hard", "values that a script fetches: a limit", rng_name="panel", twin="script_static")
def script_rendered(d: Rng) -> TaskDraft:
    return drafted(d, "script", readable=False)


@kind("hard", "values that a script only refreshes", rng_name="panel", twin="script_rendered")
def script_static(d: Rng) -> TaskDraft:
    return drafted(d, "script", readable=True)


@kind("hard", "values in an image: a limit", rng_name="panel", twin="image_described")
def image_text(d: Rng) -> TaskDraft:
    return drafted(d, "image", readable=False)


@kind("hard", "values in an image and beside it", rng_name="panel", twin="image_text")
def image_described(d: Rng) -> TaskDraft:
    return drafted(d, "image", readable=True)


@kind("expert", "values on a canvas: a limit", rng_name="panel", twin="canvas_fallback")
def canvas_drawing(d: Rng) -> TaskDraft:
    return drafted(d, "canvas", readable=False)


@kind("expert", "values on a canvas and in its fallback", rng_name="panel", twin="canvas_drawing")
def canvas_fallback(d: Rng) -> TaskDraft:
    return drafted(d, "canvas", readable=True)


@kind("expert", "values in an embedded PDF: a limit", rng_name="panel", twin="pdf_fallback")
def embedded_pdf(d: Rng) -> TaskDraft:
    return drafted(d, "pdf", readable=False)


@kind("expert", "values in an embedded PDF and in its fallback", rng_name="panel", twin="embedded_pdf")
def pdf_fallback(d: Rng) -> TaskDraft:
    return drafted(d, "pdf", readable=True)
