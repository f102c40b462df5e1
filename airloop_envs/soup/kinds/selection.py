"""Selecting on richer pages: depth, ambiguity, selectors, missing fields."""

from __future__ import annotations

from airloop_envs.soup.answers import array, integer, nullable, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import EXACT, TaskDraft, kind, recipe
from airloop_envs.soup.words import PARTS, TOPICS, date, money, people, phrase, products, prose, rare


@kind("medium", "far down a deep nesting")
def deep_nesting(d: Rng) -> TaskDraft:
    path = d.sample(PARTS, 5)
    right, depth = rare(d), d.between(14, 30)

    def wrapped(value: str, names: list[str]) -> str:
        inner = f'<span class="leaf">{value}</span>'
        for level in range(depth):
            name = names[len(names) - 1 - level // 3] if level % 3 == 0 and level // 3 < len(names) else ""
            inner = f'<div class="{name}">{inner}</div>' if name else f"<div>{inner}</div>"
        return inner

    others = [[*path[:3], path[4], path[3]], [path[1], path[0], *path[2:]], [*path[:4], "void"]]
    rows = [wrapped(right, path), *(wrapped(rare(d), other) for other in others)]
    selector = " ".join(f".{name}" for name in [*path, "leaf"])
    words = ", inside ".join(f'"{name}"' for name in reversed(path))
    return TaskDraft(
        f'Deep in the page an element of class "leaf" stands inside {words} (classes, innermost first; other elements '
        "may lie between). Give its text.",
        text("the text"),
        "\n".join(d.shuffled(rows)),
        right,
        recipe(f'soup.select_one("{selector}").get_text(strip=True)'),
    )


@kind("medium", "the right one of several matches")
def ambiguous_match(d: Rng) -> TaskDraft:
    names = people(d, d.between(5, 8))
    part = d.pick(("mail", "desk", "phone", "room"))
    values = [rare(d) for _ in names]
    roles = d.sample(
        ("editor", "treasurer", "clerk", "engineer", "librarian", "surveyor", "warden", "pilot"), len(names)
    )
    rows = [
        f'<div class="entry"><h4>{name}</h4><span class="role">{role}</span> <span class="{part}">{value}</span></div>'
        for name, role, value in zip(names, roles, values, strict=True)
    ]
    place = d.below(len(names))
    return TaskDraft(
        f'Several entries have an element of class "{part}". Give the one of the entry whose role is "{roles[place]}", '
        "and say whose entry it is.",
        record(name=text("the entry's heading"), value=text(f'the text of class "{part}"')),
        "<div>" + "\n".join(rows) + "</div>",
        {"name": names[place], "value": values[place]},
        recipe(
            f'{{"name": e.h4.get_text(strip=True), "value": e.find(class_="{part}").get_text(strip=True)}}',
            f'e = soup.find("span", class_="role", string="{roles[place]}").find_parent(class_="entry")',
        ),
    )


@kind("medium", "attribute selectors: begins, ends, contains")
def attribute_selectors(d: Rng) -> TaskDraft:
    topic = d.pick(TOPICS)
    words, symbol = d.pick((("begins with", "^="), ("ends with", "$="), ("contains", "*=")))
    n = d.between(8, 12)
    codes = [f"{d.pick(TOPICS)}-{d.between(100, 999)}-{d.pick(TOPICS)}" for _ in range(n)]
    for place in d.sample(range(n), d.between(2, 4)):
        start, middle, end = (
            f"{topic}-{d.between(10, 99)}",
            f"x-{topic}-{d.between(10, 99)}",
            f"{d.between(10, 99)}-{topic}",
        )
        codes[place] = {"^=": start, "*=": middle, "$=": end}[symbol]
    values = [rare(d) for _ in range(n)]
    rows = "\n".join(f'<li data-code="{c}">{v}</li>' for c, v in zip(codes, values, strict=True))
    test = {"^=": str.startswith, "$=": str.endswith, "*=": str.__contains__}[symbol]
    return TaskDraft(
        f'List the texts of the elements whose attribute data-code {words} "{topic}".',
        array(text(), "in page order"),
        f"<ul>{rows}</ul>",
        [v for c, v in zip(codes, values, strict=True) if test(c, topic)],
        recipe(f"[e.get_text(strip=True) for e in soup.select('[data-code{symbol}\"{topic}\"]')]"),
    )


@kind("medium", "combinators: child, next and later siblings")
def combinators(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    relation = d.pick((">", "+", "~"))
    words = {
        ">": f'that are children (not deeper descendants) of the <section> of class "{part}"',
        "+": f'that come directly after an element of class "{part}"',
        "~": f'that come somewhere after the element of class "{part}" under the same parent',
    }[relation]
    right = [rare(d) for _ in range(d.between(2, 4))]
    wrong = [rare(d) for _ in range(5)]
    if relation == ">":
        inner = (
            f"<div><p>{wrong[0]}</p></div>" + "".join(f"<p>{v}</p>" for v in right) + f"<div><p>{wrong[1]}</p></div>"
        )
        html = f'<p>{wrong[2]}</p><section class="{part}">{inner}</section><p>{wrong[3]}</p>'
        selector = f"section.{part} > p"
    elif relation == "+":
        html = f"<p>{wrong[0]}</p>" + "".join(
            f'<div class="{part}">{d.invented()}</div>\n<p>{v}</p>\n<p>{d.pick(wrong)}</p>' for v in right
        )
        selector = f".{part} + p"
    else:
        rows = "\n".join(f"<p>{v}</p><span>{d.invented()}</span>" for v in right)
        html = (
            f'<p>{wrong[0]}</p><p>{wrong[1]}</p><h5 class="{part}">{phrase(d)}</h5>{rows}</div><div><p>{wrong[2]}</p>'
        )
        selector = f".{part} ~ p"
    return TaskDraft(
        f"List the texts of the paragraphs {words}.",
        array(text(), "in page order"),
        f"<div>{html}</div>",
        right,
        recipe(f'[p.get_text(strip=True) for p in soup.select("{selector}")]'),
    )


@kind("medium", "fields that some entries lack")
def nullable_fields(d: Rng) -> TaskDraft:
    rows, answer = [], []
    for name in products(d, d.between(4, 7)):
        stock = d.between(2, 900) if d.chance(0.7) else None
        note = rare(d) if d.chance(0.5) else None
        price = money(d.between(500, 99999), "$")
        inner = f'<h4 class="name">{name}</h4><span class="price">{price}</span>'
        inner += f'<span class="stock" data-count="{stock}">in stock</span>' if stock else ""
        inner += f'<p class="note">{note}</p>' if note else d.pick(("", "<p>No note.</p>"))
        rows.append(f'<div class="offer">{inner}</div>')
        answer.append({"name": name, "price": price, "stock": stock, "note": note})
    return TaskDraft(
        'Describe every element of class "offer": its name, its price as printed, the count in the attribute '
        "data-count of its stock, and its note. Some have no stock or no note.",
        array(
            record(
                name=text(), price=text("as printed"), stock=nullable(integer()), note=nullable(text("of class note"))
            ),
            "in page order",
        ),
        "<div>" + "\n".join(rows) + "</div>",
        answer,
        recipe(
            "found",
            "found = []",
            'for o in soup.find_all(class_="offer"):',
            '    stock, note = o.find(class_="stock"), o.find(class_="note")',
            '    found.append({"name": o.h4.get_text(strip=True),',
            '        "price": o.find(class_="price").get_text(strip=True),',
            '        "stock": int(stock["data-count"]) if stock else None,',
            '        "note": note.get_text(strip=True) if note else None})',
        ),
        constraints=EXACT + " A missing value is null, not an empty text.",
    )


@kind("medium", "a date in an attribute")
def machine_date(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    years = [date(d) for _ in range(d.between(4, 6))]
    labels = d.sample(("Founded", "Opened", "Closed", "Moved", "Restored", "Sold", "Listed"), len(years))
    place = d.below(len(years))
    rows = "\n".join(
        f'<div class="{part}"><span>{label}</span><time datetime="{year}">{prose(d, 1)}</time></div>'
        for label, year in zip(labels, years, strict=True)
    )
    return TaskDraft(
        f'The page\'s entries of class "{part}" have dates in machine-readable form. Which date belongs to '
        f'"{labels[place]}"?',
        text("the date as the page's code writes it"),
        rows,
        years[place],
        recipe(f'soup.find("span", string="{labels[place]}").find_next("time")["datetime"]'),
    )
