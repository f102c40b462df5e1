"""Questions that need more than one look: joins, filters, aggregates, nested output and near twins."""

from __future__ import annotations

from typing import Any

from airloop_envs.soup.answers import array, integer, mapping, number, record, text
from airloop_envs.soup.kinds.tables import table
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import EXACT, TaskDraft, kind, recipe
from airloop_envs.soup.words import (
    CATEGORIES,
    CITIES,
    COLOURS,
    MATERIALS,
    PARTS,
    code,
    date,
    money,
    people,
    products,
    rare,
    sentence,
)


@kind("hard", "two tables joined by a number")
def relational_join(d: Rng) -> TaskDraft:
    owners, cities = people(d, d.between(6, 9)), d.sample(CITIES, 9)
    numbers = d.numbers(1000, 9999, len(owners))
    towns = [d.pick(cities) for _ in owners]
    ships = products(d, d.between(8, 14))
    owned = [d.below(len(owners)) for _ in ships]
    place = owned[d.below(len(ships))]
    left = table(
        [[str(n), o, t] for n, o, t in zip(numbers, owners, towns, strict=True)],
        ["No.", "Name", "Town"],
        'id="keepers"',
    )
    right = table(
        [[ship, str(numbers[o]), date(d)] for ship, o in zip(ships, owned, strict=True)],
        ["Item", "Keeper no.", "Since"],
        'id="holdings"',
    )
    return TaskDraft(
        f'The table "holdings" names keepers by their number in the table "keepers". Which items does {owners[place]} '
        "keep?",
        array(text("an item"), "in page order"),
        "\n".join(d.shuffled([left, right])),
        [ship for ship, o in zip(ships, owned, strict=True) if o == place],
        recipe(
            '[c[0] for c in cells("holdings") if c[1] == number]',
            "def cells(name):",
            '    rows = soup.find(id=name).tbody.find_all("tr")',
            '    return [[c.get_text(strip=True) for c in row.find_all("td")] for row in rows]',
            f'number = [c[0] for c in cells("keepers") if c[1] == "{owners[place]}"][0]',
        ),
    )


def stall(d: Rng, low: int = 8, high: int = 14) -> tuple[str, list[dict[str, Any]]]:
    """Cards of wares with category, colour, price in cents and stock, as HTML and as data."""
    wares: list[dict[str, Any]] = []
    amounts = d.numbers(500, 99_999, high)
    for name, amount in zip(products(d, d.between(low, high)), amounts, strict=False):
        wares.append(
            {
                "name": name,
                "category": d.pick(CATEGORIES[:4]),
                "colour": d.pick(COLOURS[:4]),
                "price": amount,
                "stock": d.between(0, 99),
                "code": code(d),
            }
        )
    cards = "\n".join(
        f'<div class="ware" data-category="{w["category"]}" data-code="{w["code"]}"><h4>{w["name"]}</h4>'
        f'<p class="about">{sentence(d)}</p><span class="colour">{w["colour"]}</span> '
        f'<span class="price">{money(w["price"], "$")}</span> <span class="stock">{w["stock"]} left</span></div>'
        for w in wares
    )
    return f'<div class="stall">\n{cards}\n</div>', wares


PRICE = 'price = lambda w: float(w.find(class_="price").get_text().strip("$ ").replace(",", ""))'
WARES = 'wares = soup.find_all(class_="ware")'


@kind("hard", "several conditions at once")
def multi_hop_filter(d: Rng) -> TaskDraft:
    html, wares = stall(d, 12, 20)
    model = d.pick(wares)
    bound = model["price"] // 100 + d.between(1, 200)
    found = [
        w["code"]
        for w in wares
        if w["category"] == model["category"] and w["colour"] == model["colour"] and w["price"] < bound * 100
    ]
    return TaskDraft(
        f'Which wares of the category "{model["category"]}" are {model["colour"]} and cost less than ${bound}? Give '
        "their codes (data-code).",
        array(text("a code"), "in any order"),
        html,
        found,
        recipe(
            '[w["data-code"] for w in wares if fits(w)]',
            WARES,
            PRICE,
            'colour = lambda w: w.find(class_="colour").get_text(strip=True)',
            f'fits = lambda w: (w["data-category"] == "{model["category"]}" and colour(w) == "{model["colour"]}"'
            f" and price(w) < {bound})",
        ),
        unordered=True,
    )


@kind("hard", "the cheapest or dearest of a category")
def aggregate_extreme(d: Rng) -> TaskDraft:
    html, wares = stall(d, 10, 16)
    category = d.pick(wares)["category"]
    inside = [w for w in wares if w["category"] == category]
    word, choose = d.pick((("cheapest", min), ("most expensive", max)))
    best = choose(inside, key=lambda w: w["price"])
    return TaskDraft(
        f'What is the {word} ware of the category "{category}"? Give its name and its price as a number.',
        record(name=text(), price=number("without currency sign")),
        html,
        {"name": best["name"], "price": best["price"] / 100},
        recipe(
            '{"name": best.h4.get_text(strip=True), "price": price(best)}',
            PRICE,
            f'wares = soup.find_all(class_="ware", attrs={{"data-category": "{category}"}})',
            f"best = {choose.__name__}(wares, key=price)",
        ),
    )


@kind("hard", "totals by group")
def aggregate_totals(d: Rng) -> TaskDraft:
    html, wares = stall(d, 10, 16)
    by = d.pick(("category", "colour"))
    totals: dict[str, int] = {}
    for ware in wares:
        totals[ware[by]] = totals.get(ware[by], 0) + ware["stock"]
    key = 'w["data-category"]' if by == "category" else 'w.find(class_="colour").get_text(strip=True)'
    return TaskDraft(
        f"How many pieces are left in all, for each {by} of the wares?",
        mapping(integer("the sum of what is left"), f"whose keys are the {by} names on the page"),
        html,
        totals,
        recipe(
            "totals",
            WARES,
            "totals = {}",
            "for w in wares:",
            f"    key = {key}",
            '    totals[key] = totals.get(key, 0) + int(w.find(class_="stock").get_text().split()[0])',
        ),
    )


@kind("hard", "the first few by price")
def ranking(d: Rng) -> TaskDraft:
    html, wares = stall(d, 9, 15)
    n = d.between(3, 5)
    word, down = d.pick((("most expensive", True), ("cheapest", False)))
    ordered = sorted(wares, key=lambda w: w["price"], reverse=down)[:n]
    number_word = {3: "three", 4: "four", 5: "five"}[n]
    return TaskDraft(
        f"Name the {number_word} {word} wares, the {word} first.",
        array(text("a name"), "in order of price"),
        html,
        [w["name"] for w in ordered],
        recipe(
            f"[w.h4.get_text(strip=True) for w in sorted(wares, key=price, reverse={down})[:{n}]]",
            WARES,
            PRICE,
        ),
    )


@kind("hard", "nested output")
def structured_output(d: Rng) -> TaskDraft:
    sections, answer = [], []
    for city in d.sample(CITIES, d.between(2, 4)):
        team = [(name, rare(d)) for name in people(d, d.between(1, 4))]
        rows = "\n".join(f'<li><a href="/staff/{d.hexadecimal(5)}">{n}</a> <small>{r}</small></li>' for n, r in team)
        street, room = rare(d), d.between(100, 999)
        sections.append(
            f'<section class="branch"><h4>{city}</h4><p class="where">{street}, room <b>{room}</b></p>\n'
            f"<ul>{rows}</ul></section>"
        )
        staff = [{"name": name, "role": role} for name, role in team]
        answer.append({"branch": city, "room": room, "staff": staff})
    return TaskDraft(
        'Describe every element of class "branch": its heading, its room, and its staff with their roles.',
        array(
            record(branch=text(), room=integer(), staff=array(record(name=text(), role=text()), "in page order")),
            "in page order",
        ),
        "\n".join(sections),
        answer,
        recipe(
            "found",
            "found = []",
            'for b in soup.find_all("section", class_="branch"):',
            "    staff = []",
            '    for li in b.find_all("li"):',
            '        staff.append({"name": li.a.get_text(strip=True), "role": li.small.get_text(strip=True)})',
            '    room = int(b.find("p").b.get_text())',
            '    found.append({"branch": b.h4.get_text(strip=True), "room": room, "staff": staff})',
        ),
    )


@kind("hard", "one of several near twins")
def near_twins(d: Rng) -> TaskDraft:
    name = products(d, 1)[0]
    material, other = d.sample(MATERIALS, 2)
    colour, another = d.sample(COLOURS, 2)
    variants = [
        (material, colour, "new"),
        (material, another, "new"),
        (other, colour, "new"),
        (material, colour, "used"),
    ]
    values = [(code(d), money(d.between(500, 99999), "$")) for _ in variants]
    cards = [
        f'<div class="variant"><h4>{name}</h4><ul><li>Material: {m}</li><li>Colour: {c}</li><li>State: {s}</li></ul>'
        f'<span class="code">{v[0]}</span><span class="price">{v[1]}</span></div>'
        for (m, c, s), v in zip(variants, values, strict=True)
    ]
    return TaskDraft(
        f'The page offers "{name}" in several variants. Give code and price (as printed) of the one that is new, made '
        f"of {material} and {colour}.",
        record(code=text(), price=text("as printed")),
        "\n".join(d.shuffled(cards)),
        {"code": values[0][0], "price": values[0][1]},
        recipe(
            '{"code": said("code"), "price": said("price")}',
            f'wanted = {{"Material: {material}", "Colour: {colour}", "State: new"}}',
            'facts = lambda v: {li.get_text(strip=True) for li in v.find_all("li")}',
            'v = [v for v in soup.find_all(class_="variant") if facts(v) == wanted][0]',
            "said = lambda name: v.find(class_=name).get_text(strip=True)",
        ),
    )


@kind("hard", "who is above whom")
def reporting_line(d: Rng) -> TaskDraft:
    names = people(d, d.between(8, 12))
    codes = [code(d) for _ in names]
    above = [None, *(codes[d.below(place)] for place in range(1, len(names)))]
    place = d.between(len(names) // 2, len(names) - 1)
    chain, at = [], above[place]
    while at is not None:
        chain.append(names[codes.index(at)])
        at = above[codes.index(at)]
    rows = [
        f'<tr id="{c}"><td>{n}</td><td>' + (f'<a href="#{up}">see</a>' if up else "none") + "</td></tr>"
        for n, c, up in zip(names, codes, above, strict=True)
    ]
    part = d.pick(PARTS)
    return TaskDraft(
        f'In the table "{part}" (its class) each person\'s row links to the row of the person above. Who is above '
        f"{names[place]}, from the next one up to the top?",
        array(text("a name"), "from the next one to the top"),
        f'<table class="{part}">' + "\n".join(d.shuffled(rows)) + "</table>",
        chain,
        recipe(
            "chain",
            f'row = soup.find("td", string="{names[place]}").find_parent("tr")',
            "chain = []",
            "while row.a:",
            '    row = soup.find(id=row.a["href"][1:])',
            "    chain.append(row.td.get_text(strip=True))",
        ),
        constraints=EXACT + " A link #x leads to the row with the id x.",
    )
