"""Where things stand: children, descendants, siblings, removal, and the traps of `.string` and white space."""

from __future__ import annotations

from airloop_envs.soup.answers import array, nullable, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import TaskDraft, kind, recipe
from airloop_envs.soup.words import (
    CITIES,
    PARTS,
    TOPICS,
    code,
    products,
    rare,
    sentence,
    slug,
)

SPACES = "Give text without white space around it; white space inside counts as one space."


@kind("easy", "a text among places that look alike")
def text_with_decoys(d: Rng) -> TaskDraft:
    part, where = d.pick(PARTS), d.pick(("offer", "entry", "ticket", "record"))
    right, hidden, old, aside = (rare(d) for _ in range(4))
    others = [
        f'<!-- <p class="{part}">{old}</p> -->',
        f'<div class="{where}-archive"><p class="{part}">{aside}</p></div>',
        f'<template><p class="{part}">{hidden}</p></template>',
        f'<div class="{where}"><p class="{part}" data-current="yes">{right}</p><p>{sentence(d)}</p></div>',
    ]
    return TaskDraft(
        f'Give the text of class "{part}" that stands in the element of class "{where}". The archive, comments and '
        "templates do not count.",
        text("the text"),
        "\n".join(d.shuffled(others)),
        right,
        recipe(f'soup.select_one("div.{where} > p.{part}").get_text(strip=True)'),
    )


@kind("easy", "direct children only, not what is nested in them")
def direct_children(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    items = [rare(d) for _ in range(d.between(3, 6))]
    rows = []
    for item in items:
        inner = "".join(f"<li><b>{rare(d)}</b></li>" for _ in range(d.below(3)))
        rows.append(f"<li><b>{item}</b>" + (f"<ul>{inner}</ul>" if inner else "") + "</li>")
    return TaskDraft(
        f'The list with the id "{part}" has items, and some of these have lists of their own. Give the bold text of '
        "the outer items only, in order.",
        array(text(), "in page order"),
        f'<ul id="{part}">' + "\n".join(rows) + "</ul>",
        items,
        recipe(
            '[li.b.get_text(strip=True) for li in top.find_all("li", recursive=False)]',
            f'top = soup.find(id="{part}")',
        ),
    )


@kind("easy", "everything inside, however deep")
def all_descendants(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    values = [code(d) for _ in range(d.between(3, 7))]
    inner = ""
    for value in values:
        wrap = d.pick(("div", "section", "span"))
        inner = f"{inner}<{wrap}><code>{value}</code></{wrap}>" if d.chance(0.5) else f"{inner}<code>{value}</code>"
    nested = f"<div><div>{inner}</div></div>"
    return TaskDraft(
        f'List every code (the text of <code> elements) anywhere inside the element with the id "{part}".',
        array(text(), "in page order"),
        f'<div><code>{code(d)}</code></div>\n<div id="{part}">{nested}</div>\n<p><code>{code(d)}</code></p>',
        values,
        recipe(f'[c.get_text(strip=True) for c in soup.find(id="{part}").find_all("code")]'),
    )


@kind("easy", "the element after a label")
def next_sibling(d: Rng) -> TaskDraft:
    labels = d.sample([part.capitalize() for part in PARTS], d.between(4, 7))
    values = [rare(d) for _ in labels]
    rows = "\n".join(f"<dt>{label}</dt>\n<dd>{value}</dd>" for label, value in zip(labels, values, strict=True))
    place = d.below(len(labels))
    return TaskDraft(
        d.pick(
            (
                f'In the page\'s description list, what stands under "{labels[place]}"?',
                f'Which description follows the term "{labels[place]}"?',
            )
        ),
        text("the description"),
        f"<dl>\n{rows}\n</dl>",
        values[place],
        recipe(
            'term.find_next_sibling("dd").get_text(strip=True)',
            f'term = soup.find("dt", string="{labels[place]}")',
        ),
    )


@kind("easy", "the element before a mark")
def previous_sibling(d: Rng) -> TaskDraft:
    names = [rare(d) for _ in range(d.between(4, 8))]
    place = d.between(1, len(names) - 1)
    part = d.pick(PARTS)
    rows = [f'<p class="stop">{name}</p>' for name in names]
    rows.insert(place, f'<hr class="{part}">')
    return TaskDraft(
        f'A line (<hr>) of class "{part}" divides the stops. Give the text of the stop directly before it.',
        text("the stop"),
        "<div>\n" + "\n".join(rows) + "\n</div>",
        names[place - 1],
        recipe(f'soup.find("hr", class_="{part}").find_previous_sibling("p").get_text(strip=True)'),
    )


@kind("easy", "readable text without scripts and styles")
def script_style_removed(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    texts = [f"{sentence(d)} {rare(d)}." for _ in range(3)]
    noise = (
        f'<script>var {d.invented()} = "{rare(d)}";</script>',
        f"<style>.{d.invented()} {{ color: #{d.hexadecimal(6)}; }}</style>",
    )
    rows = f"<p>{texts[0]}</p>\n{noise[0]}\n<p>{texts[1]}</p>{noise[1]}\n<p>{texts[2]}</p>"
    return TaskDraft(
        f'What can a reader see in the element with the id "{part}"? Give its whole text, without scripts and styles.',
        text("the visible text, with single spaces"),
        f'<div id="{part}">\n{rows}\n</div>',
        " ".join(texts),
        recipe(
            '" ".join(box.get_text(" ").split())',
            f'box = soup.find(id="{part}")',
            'for noise in box.find_all(["script", "style"]):',
            "    noise.decompose()",
        ),
        constraints=SPACES,
    )


@kind("easy", "an element whose .string is None")
def string_is_none(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    words = [rare(d) for _ in range(3)]
    decoy = rare(d)
    return TaskDraft(
        f'Give the full text of the element of class "{part}", including what its inner elements say.',
        text("the text, with single spaces"),
        f'<p class="other">{decoy}</p>\n<p class="{part}">{words[0]} <b>{words[1]}</b> <i>{words[2]}</i></p>',
        " ".join(words),
        recipe(f'" ".join(soup.find(class_="{part}").get_text().split())'),
        constraints=SPACES,
    )


@kind("easy", "attributes that some elements lack")
def missing_attributes(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    names = [slug(name) for name in products(d, d.between(3, 6))]
    alts = [rare(d) if d.chance(0.6) else None for _ in names]
    sources = [f"/photo/{name}.jpg" for name in names]
    rows = "\n".join(
        f'<img src="{src}"' + (f' alt="{alt}">' if alt else ">") for src, alt in zip(sources, alts, strict=True)
    )
    return TaskDraft(
        f'For every image inside the element "{part}" (its id) give the address and the alternative text.',
        array(record(src=text("the address as written"), alt=nullable(text("the alternative text"))), "in page order"),
        f'<div id="{part}">\n{rows}\n</div>',
        [{"src": src, "alt": alt} for src, alt in zip(sources, alts, strict=True)],
        recipe(f'[{{"src": i["src"], "alt": i.get("alt")}} for i in soup.find(id="{part}").find_all("img")]'),
    )


@kind("easy", "tag and class together")
def class_keyword(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    mine, other = d.sample(("p", "span", "li", "strong", "em"), 2)
    values = [rare(d) for _ in range(d.between(2, 5))]
    rows = [f'<{mine} class="{part}">{value}</{mine}>' for value in values]
    decoys = [f'<{other} class="{part}">{rare(d)}</{other}>' for _ in range(3)]
    decoys += [f'<{mine} class="{part}-old">{rare(d)}</{mine}>' for _ in range(2)]
    places = d.shuffled([True] * len(rows) + [False] * len(decoys))
    mixed = [rows.pop(0) if right else decoys.pop() for right in places]
    return TaskDraft(
        f'List the texts of the <{mine}> elements of class "{part}"; other elements of that class do not count.',
        array(text(), "in page order"),
        "<div>" + "\n".join(mixed) + "</div>",
        values,
        recipe(f'[e.get_text(strip=True) for e in soup.find_all("{mine}", class_="{part}")]'),
    )


@kind("easy", "elements with several classes")
def multi_valued_class(d: Rng) -> TaskDraft:
    first, second, third = d.sample(PARTS, 3)
    sets = [[first, second], [second, first], [first], [second], [first, third], [third, second, first]]
    chosen = d.shuffled(sets * 2)[: d.between(7, 11)]
    if not any(first in classes and second in classes for classes in chosen):
        chosen[0] = [first, second]
    values = [rare(d) for _ in chosen]
    rows = "\n".join(f'<li class="{" ".join(c)}">{v}</li>' for c, v in zip(chosen, values, strict=True))
    return TaskDraft(
        f'List the texts of all elements that have both classes, "{first}" and "{second}", in whatever order they are '
        "written and whichever others they have.",
        array(text(), "in page order"),
        f"<ul>{rows}</ul>",
        [v for c, v in zip(chosen, values, strict=True) if first in c and second in c],
        recipe(f'[e.get_text(strip=True) for e in soup.select(".{first}.{second}")]'),
    )


@kind("easy", "siblings with white space between them")
def whitespace_siblings(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    cities = d.sample(CITIES, d.between(4, 7))
    times = [
        f"{d.between(5, 22):02d}:{d.between(0, 59):02d} platform {d.between(10, 99)}{d.pick('abc')}" for _ in cities
    ]
    rows = "\n  ".join(f"<b>{city}</b>\n  <span>{time}</span>" for city, time in zip(cities, times, strict=True))
    place = d.below(len(cities))
    return TaskDraft(
        f'In the element "{part}" (its id), every bold place is followed by its departure. What follows '
        f'"{cities[place]}"?',
        text("the departure"),
        f'<div id="{part}">\n  {rows}\n</div>',
        times[place],
        recipe(
            "city.find_next_sibling().get_text(strip=True)",
            f'city = soup.find(id="{part}").find("b", string="{cities[place]}")',
        ),
    )


@kind("easy", "what a comment says")
def html_comment(d: Rng) -> TaskDraft:
    part, word = d.pick(PARTS), d.pick(("build", "revision", "reviewer", "template"))
    value = rare(d)
    decoys = [f"<!-- {other}: {rare(d)} -->" for other in ("cache", "layout", "owner")]
    inner = "\n".join(d.shuffled([f"<!-- {word}: {value} -->", *decoys, f"<p>{sentence(d)}</p>"]))
    return TaskDraft(
        f'A comment in the source of the element "{part}" (its id) begins with "{word}:". What stands after the colon?',
        text("the rest of the comment"),
        f'<!-- {word}: {rare(d)} -->\n<div id="{part}">\n{inner}\n</div>',
        value,
        recipe(
            f'[n for n in notes if n.strip().startswith("{word}:")][0].split(":", 1)[1].strip()',
            "from bs4 import Comment",
            f'notes = soup.find(id="{part}").find_all(string=lambda s: isinstance(s, Comment))',
        ),
    )


@kind("easy", "what a section under a heading says")
def section_under_heading(d: Rng) -> TaskDraft:
    headings = d.sample([topic.capitalize() for topic in TOPICS], d.between(3, 5))
    sections = [[f"{sentence(d)} {rare(d)}." for _ in range(d.between(1, 3))] for _ in headings]
    rows = "\n".join(
        f"<h4>{heading}</h4>\n" + "\n".join(f"<p>{p}</p>" for p in section)
        for heading, section in zip(headings, sections, strict=True)
    )
    place = d.below(len(headings))
    return TaskDraft(
        f'Give the paragraphs that stand under the heading "{headings[place]}", up to the next heading.',
        array(text(), "the paragraphs in order"),
        f"<div>\n{rows}\n</div>",
        sections[place],
        recipe(
            "found",
            f'heading = soup.find("h4", string="{headings[place]}")',
            "found = []",
            "for sibling in heading.find_next_siblings():",
            '    if sibling.name == "h4":',
            "        break",
            "    found.append(sibling.get_text(strip=True))",
        ),
    )
