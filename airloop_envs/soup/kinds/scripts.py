"""Other scripts and languages, right-to-left text and emoji: read as they are, nothing decoded twice."""

from __future__ import annotations

from airloop_envs.soup.answers import array, mapping, record, text
from airloop_envs.soup.languages import EMOJI, LANGUAGES, RIGHT_TO_LEFT, Language, expression
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import TaskDraft, kind, recipe
from airloop_envs.soup.words import PARTS, rare

LABELS = ("price", "colour", "weight", "maker", "delivery")


def fact_sheet(d: Rng, language: Language, share: int) -> tuple[str, list[str]]:
    """A description list in the language, and its values in the labels' order."""
    values = [expression(d, language) for _ in language.labels]
    rows = list(zip(language.labels, values, strict=True))
    inner = "\n".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in d.shuffled(rows)[:share] or rows)
    return f'<dl lang="{language.code}">\n{inner}\n</dl>', values


@kind("medium", "a label in another language")
def multilingual(d: Rng) -> TaskDraft:
    language, *others = d.sample(LANGUAGES, 4)
    html, values = fact_sheet(d, language, 5)
    sheets = [html, *(fact_sheet(d, other, 5)[0] for other in others)]
    place = d.below(5)
    return TaskDraft(
        f"The page describes one item in several languages. What does the {language.name} description give as the "
        f"{LABELS[place]}?",
        text("as on the page, in its language"),
        "\n".join(d.shuffled(sheets)),
        values[place],
        recipe(
            'term.find_next_sibling("dd").get_text(strip=True)',
            f'term = soup.find("dl", lang="{language.code}").find("dt", string="{language.labels[place]}")',
        ),
        lang=language.code,
    )


@kind("medium", "right-to-left text")
def right_to_left(d: Rng) -> TaskDraft:
    language = d.pick(RIGHT_TO_LEFT)
    part = d.pick(PARTS)
    items = [expression(d, language) for _ in range(d.between(3, 6))]
    rows = "\n".join(f'<li><bdi dir="rtl">{item}</bdi></li>' for item in items)
    decoys = "\n".join(f"<li><bdi>{expression(d, language)}</bdi></li>" for _ in range(3))
    return TaskDraft(
        f'The page is written from right to left. List the items of the list with the id "{part}".',
        array(text("in the page's script"), "in page order"),
        f'<ul>{decoys}</ul>\n<ul id="{part}" dir="rtl">{rows}</ul>',
        items,
        recipe(f'[li.get_text(strip=True) for li in soup.find(id="{part}").find_all("li")]'),
        lang=language.code,
        right_to_left=True,
    )


@kind("medium", "emoji, some of several code points")
def emoji(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    marks = d.sample(EMOJI, d.between(4, 7))
    values = [rare(d) for _ in marks]
    rows = "\n".join(f"<li><span>{mark}</span> <b>{v}</b></li>" for mark, v in zip(marks, values, strict=True))
    return TaskDraft(
        f'In the list "{part}" (its class) every entry has an emoji and a bold text. Give the text for each emoji.',
        mapping(text("the bold text"), "whose keys are the emoji"),
        f'<ul class="{part}">{rows}</ul>',
        dict(zip(marks, values, strict=True)),
        recipe(
            "{li.span.get_text(strip=True): li.b.get_text(strip=True) for li in items}",
            f'items = soup.find("ul", class_="{part}").find_all("li")',
        ),
    )


@kind("medium", "character references")
def character_references(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    pairs = [("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"), ("&eacute;", "é"), ("&#8364;", "€"), ("&#x2014;", "—")]
    twice = ("&amp;amp;", "&amp;")  # what the author wrote, and it is not to be decoded again
    written, read = [], []
    for code, sign in [*d.sample(pairs, 2), twice]:
        first, second = d.invented(), d.between(10, 9999)
        written.append(f"<li>{first} {code} {second}</li>")
        read.append(f"{first} {sign} {second}")
    order = d.shuffled(range(3))
    return TaskDraft(
        f'List the items of the list "{part}" (its id) as a reader sees them.',
        array(text("with characters, not references"), "in page order"),
        f'<ul id="{part}">' + "".join(written[i] for i in order) + "</ul>",
        [read[i] for i in order],
        recipe(f'[li.get_text(strip=True) for li in soup.find(id="{part}").find_all("li")]'),
    )


@kind("medium", "which entries are in a language")
def by_language(d: Rng) -> TaskDraft:
    language, *others = d.sample(LANGUAGES, 3)
    entries = [(language, expression(d, language)) for _ in range(d.between(2, 4))]
    entries += [(other, expression(d, other)) for other in others for _ in range(d.between(1, 3))]
    entries = d.shuffled(entries)
    rows = "\n".join(
        f'<div class="entry"><q lang="{lang.code}">{said}</q> <code>{d.hexadecimal(8)}</code></div>'
        for lang, said in entries
    )
    codes = [row.split("<code>")[1][:8] for row in rows.split("\n")]
    return TaskDraft(
        f"Entries of the page quote several languages. Give text and code of those whose quotation is marked as "
        f"{language.name}.",
        array(record(text=text("the quotation"), code=text()), "in page order"),
        rows,
        [{"text": said, "code": c} for (lang, said), c in zip(entries, codes, strict=True) if lang is language],
        recipe(
            '[{"text": q.get_text(strip=True), "code": q.find_next("code").get_text(strip=True)} for q in quotes]',
            f'quotes = soup.find_all("q", lang="{language.code}")',
        ),
    )
