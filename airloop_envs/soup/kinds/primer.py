"""First steps: one element, one attribute, one list on a short page."""

from __future__ import annotations

from airloop_envs.soup.answers import array, integer, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import TaskDraft, kind, recipe
from airloop_envs.soup.words import PARTS, TOPICS, code, date, money, people, phrase, products, rare, sentence, slug

STRIPPED = "get_text(strip=True)"


def boxes(d: Rng, parts: list[str], values: list[str], attribute: str) -> str:
    """One element per value, named by id or class, each with a sentence after it."""
    rows = [
        f'<div><span {attribute}="{part}">{value}</span> <em>{sentence(d)}</em></div>'
        for part, value in zip(parts, values, strict=True)
    ]
    return "\n".join(rows)


@kind("primer", "the text of the element with a given id")
def text_by_id(d: Rng) -> TaskDraft:
    parts = [f"{part}-{d.between(10, 99)}" for part in d.sample(PARTS, 4)]
    values = [rare(d) for _ in parts]
    place = d.below(4)
    asked = d.pick(("What is the text of the element with the id", "Give the text of the element whose id is"))
    return TaskDraft(
        f'{asked} "{parts[place]}"?' if asked.startswith("What") else f'{asked} "{parts[place]}".',
        text("the element's text"),
        boxes(d, parts, values, "id"),
        values[place],
        recipe(f'soup.find(id="{parts[place]}").{STRIPPED}'),
    )


@kind("primer", "the text of the element with a given class")
def text_by_class(d: Rng) -> TaskDraft:
    parts = d.sample(PARTS, 4)
    values = [rare(d) for _ in parts]
    place = d.below(4)
    asked = d.pick(
        ("Which text does the element of class {} hold?", "Find the one element of class {}; give its text.")
    )
    return TaskDraft(
        asked.format(f'"{parts[place]}"'),
        text("the element's text"),
        boxes(d, parts, values, "class"),
        values[place],
        recipe(f'soup.find(class_="{parts[place]}").{STRIPPED}'),
    )


@kind("primer", "the text of the only element with a given tag")
def text_by_tag(d: Rng) -> TaskDraft:
    tags = d.sample(("h1", "time", "address", "blockquote", "mark", "cite", "kbd"), 4)
    values = [rare(d) for _ in tags]
    place = d.below(4)
    rows = "\n".join(f"<div><{t}>{v}</{t}> {sentence(d)}</div>" for t, v in zip(tags, values, strict=True))
    asked = d.pick(("The page has one <{}> element. What is its text?", "Give the text of the page's <{}> element."))
    return TaskDraft(
        asked.format(tags[place]),
        text("the element's text"),
        rows,
        values[place],
        recipe(f'soup.find("{tags[place]}").{STRIPPED}'),
    )


@kind("primer", "the value of an attribute")
def attribute_value(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    names = d.sample(("data-code", "data-ref", "data-owner", "data-batch", "title", "data-key"), 3)
    values = [code(d) for _ in names]
    attributes = " ".join(f'{n}="{v}"' for n, v in zip(names, values, strict=True))
    asked = d.pick(
        ("What is the value of the attribute {} of the element with the id {}?", "Read {} of the element {} (its id).")
    )
    return TaskDraft(
        asked.format(f'"{names[1]}"', f'"{part}"'),
        text("the attribute's value"),
        f'<div id="{part}" {attributes}>{sentence(d)}</div>\n<p>{sentence(d)}</p>',
        values[1],
        recipe(f'soup.find(id="{part}")["{names[1]}"]'),
    )


@kind("primer", "how many elements have a given class")
def count_elements(d: Rng) -> TaskDraft:
    mine, other = d.sample(PARTS, 2)
    n = d.between(5, 44)
    marks = d.shuffled([mine] * n + [other] * d.between(3, 12))
    rows = "\n".join(f'<i class="{mark}">{d.invented(2)}</i>' for mark in marks)
    asked = d.pick(("How many elements of the page have the class {}?", "Count the elements of class {}."))
    return TaskDraft(
        asked.format(f'"{mine}"'),
        integer("the count"),
        f"<div>{rows}</div>",
        n,
        recipe(f'len(soup.find_all(class_="{mine}"))'),
    )


@kind("primer", "the items of a list")
def list_items(d: Rng) -> TaskDraft:
    mine, other = d.sample(PARTS, 2)
    items = [rare(d) for _ in range(d.between(3, 6))]
    rows = "".join(f"<li>{item}</li>" for item in items)
    decoy = "".join(f"<li>{rare(d)}</li>" for _ in range(3))
    asked = d.pick(
        ("List the items of the list with the id {}, in their order.", "What does the list {} (its id) hold?")
    )
    lists = d.shuffled([f'<ul id="{mine}">{rows}</ul>', f'<ul id="{other}">{decoy}</ul>'])
    return TaskDraft(
        asked.format(f'"{mine}"'),
        array(text(), "the items in page order"),
        "\n".join(lists),
        items,
        recipe(f'[li.{STRIPPED} for li in soup.find(id="{mine}").find_all("li")]'),
    )


@kind("primer", "texts and addresses of links")
def link_targets(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    links = [(rare(d), f"/{d.pick(TOPICS)}/{d.between(1000, 9999)}") for _ in range(d.between(2, 4))]
    rows = " ".join(f'<a href="{href}">{name}</a>' for name, href in links)
    asked = d.pick(("Which links are in the element with the id {}?", "List the links inside the element {} (an id)."))
    return TaskDraft(
        asked.format(f'"{part}"'),
        array(record(text=text("the link's text"), href=text("its address as written")), "the links in page order"),
        f'<p><a href="/{d.pick(TOPICS)}">{phrase(d)}</a></p>\n<div id="{part}">{rows}</div>',
        [{"text": name, "href": href} for name, href in links],
        recipe(f'[{{"text": a.{STRIPPED}, "href": a["href"]}} for a in soup.find(id="{part}").find_all("a")]'),
    )


@kind("primer", "the address of a link with a given text")
def link_by_text(d: Rng) -> TaskDraft:
    names = [phrase(d) for _ in range(d.between(3, 6))]
    targets = [f"/{d.pick(TOPICS)}/{d.hexadecimal(6)}" for _ in names]
    place = d.below(len(names))
    rows = "\n".join(f'<p><a href="{href}">{name}</a></p>' for name, href in zip(names, targets, strict=True))
    asked = d.pick(("Where does the link {} lead?", "Give the address of the link with the text {}."))
    return TaskDraft(
        asked.format(f'"{names[place]}"'),
        text("the address as written"),
        rows,
        targets[place],
        recipe(f'soup.find("a", string="{names[place]}")["href"]'),
    )


@kind("primer", "addresses of images")
def image_sources(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    names = [slug(name) for name in products(d, d.between(2, 4))]
    images = [f"/media/{d.hexadecimal(4)}/{name}.png" for name in names]
    rows = "\n".join(f'<img src="{src}" alt="{d.invented()}" width="{d.between(80, 400)}">' for src in images)
    asked = d.pick(
        ("Give the addresses of the images in the element {} (its id).", "Which images are inside {} (an id)?")
    )
    return TaskDraft(
        asked.format(f'"{part}"'),
        array(text("the image's src as written"), "in page order"),
        f'<img src="/media/{d.hexadecimal(4)}.gif" alt="">\n<div id="{part}">{rows}</div>',
        images,
        recipe(f'[img["src"] for img in soup.find(id="{part}").find_all("img")]'),
    )


@kind("primer", "the page's metadata")
def page_metadata(d: Rng) -> TaskDraft:
    names = d.sample(("author", "publisher", "issue", "edition", "archive-id", "editor"), 4)
    values = [rare(d), people(d, 1)[0], code(d), date(d)]
    metas = "\n".join(f'<meta name="{n}" content="{v}">' for n, v in zip(names, values, strict=True))
    place = d.below(4)
    asked = d.pick(("What is the content of the page's meta element named {}?", "Read the metadata {} of the page."))
    return TaskDraft(
        asked.format(f'"{names[place]}"'),
        text("the content"),
        f"<p>{sentence(d)}</p>",
        values[place],
        recipe(f'soup.find("meta", attrs={{"name": "{names[place]}"}})["content"]'),
        head=metas,
    )


@kind("primer", "the item at a given position")
def item_by_position(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    items = [f"{rare(d)}: {money(d.between(100, 99999), '$')}" for _ in range(d.between(5, 9))]
    place = d.between(1, len(items) - 2)
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    rows = "\n".join(f"<li>{item}</li>" for item in items)
    asked = d.pick(("What is the {} item of the list with the class {}?", "Give the {} entry of the list of class {}."))
    return TaskDraft(
        asked.format(words[place], f'"{part}"'),
        text("the item's text"),
        f'<ol class="{part}">{rows}</ol>',
        items[place],
        recipe(f'soup.find("ol", class_="{part}").find_all("li")[{place}].{STRIPPED}'),
    )
