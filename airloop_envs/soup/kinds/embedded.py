"""Data inside pages: JSON-LD, JSON for scripts, microdata, and geometry in SVG."""

from __future__ import annotations

import json
from typing import Any

from airloop_envs.soup.answers import array, integer, nullable, number, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import TaskDraft, kind, recipe
from airloop_envs.soup.words import (
    CITIES,
    COLOURS,
    PARTS,
    code,
    date,
    people,
    phrase,
    product,
    products,
    rare,
    sentence,
)


def linked(data: Any, d: Rng) -> str:
    text = json.dumps(data, indent=2 if d.chance(0.5) else None)
    return f'<script type="application/ld+json">{text}</script>'


def site_data(d: Rng) -> list[Any]:
    """What most pages have beside what one looks for."""
    trail = [{"@type": "ListItem", "position": i + 1, "name": phrase(d)} for i in range(2)]
    return [
        {"@context": "https://schema.org", "@type": "WebSite", "name": phrase(d), "url": "https://example.org/"},
        {"@context": "https://schema.org", "@type": "BreadcrumbList", "itemListElement": trail},
    ]


def offer(d: Rng, name: str) -> dict[str, Any]:
    return {
        "@type": "Product",
        "name": name,
        "sku": code(d),
        "brand": {"@type": "Brand", "name": d.invented().capitalize()},
        "offers": {"@type": "Offer", "price": f"{d.between(5, 900)}.{d.between(10, 99)}", "priceCurrency": "EUR"},
        "aggregateRating": {"ratingValue": f"{d.between(10, 49) / 10:.1f}", "reviewCount": d.between(3, 9000)},
    }


@kind("medium", "a JSON-LD object")
def jsonld_object(d: Rng) -> TaskDraft:
    made = {"@context": "https://schema.org", **offer(d, product(d))}
    blocks = [linked(block, d) for block in d.shuffled([made, *site_data(d)])]
    return TaskDraft(
        "The page describes its product in JSON-LD. Give its name, stock number (sku), brand, price, rating value and "
        "number of reviews, each in the type it has there.",
        record(
            name=text(),
            sku=text(),
            brand=text("its name"),
            price=text("text, as in the data"),
            rating=text("text, as in the data"),
            reviews=integer(),
        ),
        f"<h1>{phrase(d)}</h1>\n<p>{sentence(d)}</p>",
        {
            "name": made["name"],
            "sku": made["sku"],
            "brand": made["brand"]["name"],
            "price": made["offers"]["price"],
            "rating": made["aggregateRating"]["ratingValue"],
            "reviews": made["aggregateRating"]["reviewCount"],
        },
        recipe(
            '{"name": p["name"], "sku": p["sku"], "brand": p["brand"]["name"], "price": p["offers"]["price"],'
            ' "rating": p["aggregateRating"]["ratingValue"], "reviews": p["aggregateRating"]["reviewCount"]}',
            'blocks = [json.loads(s.string) for s in soup.find_all("script", type="application/ld+json")]',
            'p = [b for b in blocks if b["@type"] == "Product"][0]',
        ),
        head="\n".join(blocks),
        constraints="Keep the types of the data: what is text there stays text.",
    )


@kind("medium", "objects of one type in a JSON-LD array")
def jsonld_array_by_type(d: Rng) -> TaskDraft:
    events = [
        {
            "@type": "Event",
            "name": rare(d),
            "startDate": date(d),
            "location": {"@type": "Place", "name": d.pick(CITIES)},
        }
        for _ in range(d.between(2, 4))
    ]
    persons = [{"@type": "Person", "name": name, "identifier": code(d)} for name in people(d, d.between(2, 4))]
    wares = [offer(d, name) for name in products(d, d.between(1, 3))]
    things: list[dict[str, Any]] = [*events, *persons, *wares]
    graph = d.shuffled(things)
    asked = d.pick(("Event", "Person"))
    if asked == "Event":
        query = "Give name, start date and place of every event"
        schema = record(name=text(), start=text("as in the data"), place=text("its name"))
        answer = [
            {"name": e["name"], "start": e["startDate"], "place": e["location"]["name"]}
            for e in graph
            if e["@type"] == "Event"
        ]
        result = '[{"name": e["name"], "start": e["startDate"], "place": e["location"]["name"]} for e in found]'
    else:
        query = "Give name and identifier of every person"
        schema = record(name=text(), identifier=text())
        answer = [{"name": p["name"], "identifier": p["identifier"]} for p in graph if p["@type"] == "Person"]
        result = '[{"name": p["name"], "identifier": p["identifier"]} for p in found]'
    data: Any = graph if d.chance(0.5) else {"@context": "https://schema.org", "@graph": graph}
    return TaskDraft(
        f"The page's JSON-LD holds things of several types. {query}, in the order of the data.",
        array(schema),
        f"<h1>{phrase(d)}</h1>",
        answer,
        recipe(
            result,
            "graph = []",
            'for s in soup.find_all("script", type="application/ld+json"):',
            "    data = json.loads(s.string)",
            '    graph += data if isinstance(data, list) else data.get("@graph", [data])',
            f'found = [e for e in graph if e["@type"] == "{asked}"]',
        ),
        head="\n".join([linked(site_data(d)[0], d), linked(data, d)]),
    )


@kind("medium", "JSON that a page carries for its scripts")
def script_json(d: Rng) -> TaskDraft:
    names = products(d, d.between(4, 7))
    items = {name: {"id": d.between(10000, 99999), "stock": d.between(0, 900)} for name in names}
    asked = d.pick(names)
    mark = d.invented()
    state = {"user": None, "build": d.hexadecimal(8), "items": [{"name": n, **v} for n, v in items.items()]}
    return TaskDraft(
        f'The page carries its data for scripts as JSON in a script element with the id "{mark}". Which id and stock '
        f'has "{asked}" there?',
        record(id=integer(), stock=integer()),
        f'<div class="root">{sentence(d)}</div>',
        items[asked],
        recipe(
            '{"id": item["id"], "stock": item["stock"]}',
            f'data = json.loads(soup.find("script", id="{mark}").string)',
            f'item = [i for i in data["items"] if i["name"] == "{asked}"][0]',
        ),
        tail=f'<script id="{mark}" type="application/json">{json.dumps(state)}</script>',
    )


@kind("medium", "microdata")
def microdata(d: Rng) -> TaskDraft:
    rows, answer = [], []
    for name in people(d, d.between(2, 4)):
        job, city = rare(d), d.pick(CITIES)
        born = date(d) if d.chance(0.6) else None
        inner = f'<span itemprop="name">{name}</span>, <em itemprop="jobTitle">{job}</em> '
        inner += f'<meta itemprop="birthDate" content="{born}">' if born else ""
        place = f'<span itemprop="address" itemscope>in <b itemprop="addressLocality">{city}</b></span>'
        rows.append(f'<div itemscope itemtype="https://schema.org/Person">{inner}{place}</div>')
        answer.append({"name": name, "job": job, "born": born, "city": city})
    rows.insert(
        d.below(len(rows)), f'<div itemscope itemtype="https://schema.org/Place"><b itemprop="name">{rare(d)}</b></div>'
    )
    return TaskDraft(
        "The page marks up people as microdata. Give name, job title, date of birth and town (addressLocality) "
        "of each.",
        array(record(name=text(), job=text(), born=nullable(text("as written")), city=text()), "in page order"),
        "\n".join(rows),
        answer,
        recipe(
            "found",
            "found = []",
            'for p in soup.find_all(itemtype="https://schema.org/Person"):',
            "    said = lambda name: p.find(itemprop=name).get_text(strip=True)",
            '    born = p.find(itemprop="birthDate")',
            '    found.append({"name": said("name"), "job": said("jobTitle"),',
            '        "born": born["content"] if born else None, "city": said("addressLocality")})',
        ),
    )


@kind("hard", "the geometry of a drawing")
def svg_geometry(d: Rng) -> TaskDraft:
    n = d.between(6, 12)
    shapes, areas = [], {}
    colours = d.sample(COLOURS, min(n, len(COLOURS)))
    sizes = d.numbers(40, 400, n)
    for colour, width in zip(colours, sizes, strict=True):
        height = d.between(10, 300)
        x, y, mark = d.between(0, 900), d.between(0, 600), f"r-{d.hexadecimal(6)}"
        shapes.append(f'<rect id="{mark}" x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>')
        areas[mark] = width * height
    circles = [
        f'<circle id="c-{d.hexadecimal(6)}" cx="{d.below(900)}" cy="{d.below(600)}" r="{d.between(5, 200)}"/>'
        for _ in range(d.between(2, 5))
    ]
    best = max(areas.values())
    right = [mark for mark, area in areas.items() if area == best]
    if len(right) > 1:  # so rare that drawing again costs nothing
        return svg_geometry(d)
    body = "\n".join(d.shuffled([*shapes, *circles]))
    return TaskDraft(
        "The page has a drawing (SVG). Which of its rectangles has the largest area? Give its id and the area.",
        record(id=text(), area=integer()),
        f'<svg viewBox="0 0 1000 700" xmlns="http://www.w3.org/2000/svg">\n{body}\n</svg>',
        {"id": right[0], "area": best},
        recipe(
            '{"id": best["id"], "area": area(best)}',
            'area = lambda r: int(r["width"]) * int(r["height"])',
            'best = max(soup.find("svg").find_all("rect"), key=area)',
        ),
    )


@kind("hard", "positions of labelled points")
def svg_nearest(d: Rng) -> TaskDraft:
    labels = d.sample(CITIES, d.between(6, 10))
    xs, ys = d.numbers(20, 980, len(labels)), d.numbers(20, 680, len(labels))
    origin = d.below(len(labels))
    squares = {
        label: (x - xs[origin]) ** 2 + (y - ys[origin]) ** 2
        for label, x, y in zip(labels, xs, ys, strict=True)
        if label != labels[origin]
    }
    least = min(squares.values())
    near = [label for label, square in squares.items() if square == least]
    if len(near) > 1:
        return svg_nearest(d)
    marks = "\n".join(
        f'<g transform="translate({x},{y})"><circle r="4"/><text>{label}</text></g>'
        for label, x, y in zip(labels, xs, ys, strict=True)
    )
    return TaskDraft(
        f'The map on the page is an SVG whose places are moved into position by "translate". Which place is nearest to '
        f"{labels[origin]}, and what is the square of the distance?",
        record(place=text(), square=number("of the distance, in the drawing's units")),
        f'<svg class="{d.pick(PARTS)}" viewBox="0 0 1000 700">\n{marks}\n</svg>',
        {"place": near[0], "square": least},
        recipe(
            '{"place": place, "square": square}',
            "import re",
            "at = {}",
            'for g in soup.find("svg").find_all("g"):',
            '    at[g.find("text").get_text(strip=True)] = [int(n) for n in re.findall(r"\\d+", g["transform"])]',
            f'x, y = at.pop("{labels[origin]}")',
            "square, place = min(((a - x) ** 2 + (b - y) ** 2, name) for name, (a, b) in at.items())",
        ),
    )
