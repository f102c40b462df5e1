"""Tables: as dicts, as lists, one column, and cells that span rows or columns."""

from __future__ import annotations

from typing import Any

from airloop_envs.soup.answers import Schema, array, integer, mapping, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import EXACT, TaskDraft, kind, recipe
from airloop_envs.soup.words import (
    CATEGORIES,
    CITIES,
    MATERIALS,
    MONTHS,
    PARTS,
    code,
    date,
    money,
    people,
    products,
    rare,
)


def table(rows: list[list[str]], header: list[str], attributes: str = "", sections: bool = True) -> str:
    head = "<tr>" + "".join(f"<th>{cell}</th>" for cell in header) + "</tr>"
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    if sections:
        head, body = f"<thead>{head}</thead>", f"<tbody>\n{body}\n</tbody>"
    return f"<table {attributes}>\n{head}\n{body}\n</table>"


def goods(d: Rng, n: int) -> tuple[list[str], list[list[str]]]:
    """A header of three to five columns and `n` rows of wares, all text."""
    columns = {
        "Item": products(d, n),
        "Code": [code(d) for _ in range(n)],
        "Price": [money(d.between(500, 99999), "$") for _ in range(n)],
        "Keeper": people(d, n),
        "Since": [date(d) for _ in range(n)],
        "Store": [d.pick(CITIES) for _ in range(n)],
    }
    header = ["Item", *d.sample([name for name in columns if name != "Item"], d.between(2, 4))]
    return header, [list(row) for row in zip(*(columns[name] for name in header), strict=True)]


def among_decoys(d: Rng, main: str) -> str:
    header, rows = goods(d, d.between(2, 3))
    decoy = table(rows, header, f'id="{d.pick(PARTS)}-{d.between(100, 999)}"')
    return "\n<p></p>\n".join(d.shuffled([main, decoy]))


CELLS = '[c.get_text(strip=True) for c in row.find_all(["th", "td"])]'


@kind("easy", "a table as a list of objects")
def table_dicts(d: Rng) -> TaskDraft:
    header, rows = goods(d, d.between(3, 6))
    name = f"{d.pick(PARTS)}-{d.between(10, 99)}"
    fields: dict[str, Schema] = {column: text() for column in header}
    return TaskDraft(
        f'Read the table with the id "{name}": for every row of data an object with the column headings as keys.',
        array(record(**fields), "in page order"),
        among_decoys(d, table(rows, header, f'id="{name}"', sections=d.chance(0.5))),
        [dict(zip(header, row, strict=True)) for row in rows],
        recipe(
            "[dict(zip(cells[0], row)) for row in cells[1:]]",
            f'cells = [{CELLS} for row in soup.find(id="{name}").find_all("tr")]',
        ),
        constraints=EXACT + " All values are text, prices too.",
    )


@kind("easy", "a table as a list of lists")
def table_lists(d: Rng) -> TaskDraft:
    header, rows = goods(d, d.between(3, 6))
    name = f"{d.pick(PARTS)}-{d.between(10, 99)}"
    return TaskDraft(
        f'Give the rows of data of the table with the id "{name}" as lists of the cells\' texts, without the heading.',
        array(array(text()), "in page order"),
        among_decoys(d, table(rows, header, f'id="{name}"', sections=d.chance(0.5))),
        rows,
        recipe(
            "cells[1:]",
            f'cells = [{CELLS} for row in soup.find(id="{name}").find_all("tr")]',
        ),
    )


@kind("easy", "one column of a table")
def table_column(d: Rng) -> TaskDraft:
    header, rows = goods(d, d.between(4, 8))
    place = d.between(1, len(header) - 1)
    caption = rare(d)
    html = table(rows, header, f'class="{d.pick(PARTS)}"').replace("<thead>", f"<caption>{caption}</caption><thead>", 1)
    return TaskDraft(
        f'The table with the caption "{caption}" has a column "{header[place]}". List its values.',
        array(text(), "from top to bottom"),
        among_decoys(d, html),
        [row[place] for row in rows],
        recipe(
            "[row[place] for row in cells[1:]]",
            f'table = soup.find("caption", string="{caption}").find_parent("table")',
            f'cells = [{CELLS} for row in table.find_all("tr")]',
            f'place = cells[0].index("{header[place]}")',
        ),
    )


@kind("easy", "a table turned on its side")
def table_key_values(d: Rng) -> TaskDraft:
    keys = d.sample([part.capitalize() for part in PARTS], d.between(4, 7))
    values = [rare(d) for _ in keys]
    rows = "\n".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in zip(keys, values, strict=True))
    name = d.pick(PARTS)
    return TaskDraft(
        f'The table of class "{name}" has a name and a value in every row. Give them as one object.',
        mapping(text(), "whose keys are the names"),
        among_decoys(d, f'<table class="{name}">{rows}</table>'),
        dict(zip(keys, values, strict=True)),
        recipe(
            "{row.th.get_text(strip=True): row.td.get_text(strip=True) for row in rows}",
            f'rows = soup.find("table", class_="{name}").find_all("tr")',
        ),
    )


@kind("medium", "cells that span rows")
def table_rowspan(d: Rng) -> TaskDraft:
    name = d.pick(PARTS)
    rows, answer = [], []
    for category in d.sample(CATEGORIES, d.between(3, 5)):
        items = products(d, d.between(1, 4))
        for place, item in enumerate(items):
            price = money(d.between(500, 99999), "$")
            span = f'<td rowspan="{len(items)}">{category}</td>' if place == 0 else ""
            rows.append(f"<tr>{span}<td>{item}</td><td>{price}</td></tr>")
            answer.append({"category": category, "item": item, "price": price})
    html = "<tr><th>Category</th><th>Item</th><th>Price</th></tr>\n" + "\n".join(rows)
    return TaskDraft(
        f'In the table "{name}" (its id) a category\'s cell spans the rows of its items. Give every item with its '
        "category and its price.",
        array(record(category=text(), item=text(), price=text("as printed")), "in page order"),
        f'<table id="{name}">{html}</table>',
        answer,
        recipe(
            "found",
            "found = []",
            f'for row in soup.find(id="{name}").find_all("tr")[1:]:',
            '    cells = [c.get_text(strip=True) for c in row.find_all("td")]',
            "    if len(cells) == 3:",
            "        category = cells.pop(0)",
            '    found.append({"category": category, "item": cells[0], "price": cells[1]})',
        ),
    )


@kind("medium", "cells that span columns")
def table_colspan(d: Rng) -> TaskDraft:
    name = d.pick(PARTS)
    cities = d.sample(CITIES, d.between(5, 8))
    first = d.between(0, 7)
    months = MONTHS[first : first + 5]
    grid: dict[str, dict[str, int]] = {}
    rows = []
    for city in cities:
        spans, left = [], 5
        while left:
            spans.append(min(left, d.between(1, 3)))
            left -= spans[-1]
        values = [d.between(100, 9999) for _ in spans]
        cells = "".join(
            f'<td colspan="{s}">{v}</td>' if s > 1 else f"<td>{v}</td>" for s, v in zip(spans, values, strict=True)
        )
        rows.append(f"<tr><th>{city}</th>{cells}</tr>")
        flat = [v for s, v in zip(spans, values, strict=True) for _ in range(s)]
        grid[city] = dict(zip(months, flat, strict=True))
    head = "<tr><th>Place</th>" + "".join(f"<th>{m}</th>" for m in months) + "</tr>"
    asked = d.pick(months)
    return TaskDraft(
        f'In the table "{name}" (its id) one cell may stand for several months. Which value does each place have in '
        f"{asked}?",
        mapping(integer(), "whose keys are the places"),
        f'<table id="{name}">{head}\n' + "\n".join(rows) + "</table>",
        {city: grid[city][asked] for city in cities},
        recipe(
            "found",
            f'rows = soup.find(id="{name}").find_all("tr")',
            f'place = [c.get_text(strip=True) for c in rows[0].find_all("th")].index("{asked}") - 1',
            "found = {}",
            "for row in rows[1:]:",
            "    flat = []",
            '    for c in row.find_all("td"):',
            '        flat += [int(c.get_text(strip=True))] * int(c.get("colspan", 1))',
            "    found[row.th.get_text(strip=True)] = flat[place]",
        ),
    )


@kind("hard", "a heading of two rows")
def table_two_headings(d: Rng) -> TaskDraft:
    name = d.pick(PARTS)
    groups = d.sample(MONTHS, 3)
    inner = d.sample(("Sold", "Ordered", "Returned", "Lost"), 2)
    cities = d.sample(CITIES, d.between(6, 10))
    values = [[d.between(10, 9999) for _ in range(6)] for _ in cities]
    top = '<tr><th rowspan="2">Store</th>' + "".join(f'<th colspan="2">{g}</th>' for g in groups) + "</tr>"
    second = "<tr>" + "".join(f"<th>{column}</th>" for _ in groups for column in inner) + "</tr>"
    body = "\n".join(
        f"<tr><td>{city}</td>" + "".join(f"<td>{v:,}</td>" for v in row) + "</tr>"
        for city, row in zip(cities, values, strict=True)
    )
    group, chosen = d.below(3), d.below(2)
    answer: list[dict[str, Any]] = [
        {"store": city, "value": row[group * 2 + chosen]} for city, row in zip(cities, values, strict=True)
    ]
    return TaskDraft(
        f'In the table "{name}" (its id) headings stand in two rows. Give "{inner[chosen]}" under "{groups[group]}" of '
        "every store.",
        array(record(store=text(), value=integer("without separators")), "in page order"),
        f'<table id="{name}"><thead>{top}{second}</thead><tbody>{body}</tbody></table>',
        answer,
        recipe(
            '[{"store": c[0], "value": int(c[place].replace(",", ""))} for c in cells]',
            f'rows = soup.find(id="{name}").find_all("tr")',
            'groups = [c.get_text(strip=True) for c in rows[0].find_all("th")][1:]',
            'names = [c.get_text(strip=True) for c in rows[1].find_all("th")]',
            'cells = [[c.get_text(strip=True) for c in row.find_all("td")] for row in rows[2:]]',
            f'place = 1 + groups.index("{groups[group]}") * 2 + names.index("{inner[chosen]}")',
        ),
    )


@kind("medium", "materials by row, with links in the cells")
def table_links(d: Rng) -> TaskDraft:
    name = d.pick(PARTS)
    items = products(d, d.between(5, 9))
    materials = [d.pick(MATERIALS) for _ in items]
    hrefs = [f"/sheet/{d.hexadecimal(6)}.html" for _ in items]
    asked = d.pick(materials)
    rows = [
        [f'<a href="{href}">{item}</a>', material] for item, href, material in zip(items, hrefs, materials, strict=True)
    ]
    return TaskDraft(
        f'In the table "{name}" (its id) items are links to their sheets. Give the addresses of all whose material is '
        f'"{asked}".',
        array(text("the address as written"), "in page order"),
        table(rows, ["Item", "Material"], f'id="{name}"'),
        [href for href, material in zip(hrefs, materials, strict=True) if material == asked],
        recipe(
            f'[row.a["href"] for row in rows if row.find_all("td")[1].get_text(strip=True) == "{asked}"]',
            f'rows = soup.find(id="{name}").tbody.find_all("tr")',
        ),
    )
