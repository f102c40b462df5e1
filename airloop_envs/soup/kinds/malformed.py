"""Flawed markup that parsers read differently. What counts is how a browser reads it (html5lib does the same),
or how two named parsers do; answers follow from how the page is made, not from running a parser."""

from __future__ import annotations

from airloop_envs.soup.answers import array, integer, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import EXACT, TaskDraft, kind, recipe
from airloop_envs.soup.words import PARTS, code, money, products, rare, sentence

AS_BROWSER = EXACT + " The markup is flawed: read it as a web browser does."


@kind("hard", "list items that are never closed")
def malformed_list(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    items = [rare(d) for _ in range(d.between(4, 9))]
    rows = "\n".join(f"<li><b>{item}</b>" + ("</li>" if d.chance(0.3) else "") for item in items)
    extra = "".join(f"<li><b>{rare(d)}</b>" for _ in range(3))
    return TaskDraft(
        f'How does a browser read the list "{part}" (its id)? Give the full text of each of its items.',
        array(text("an item's own text, not its neighbours'"), "in page order"),
        f'<ul id="{part}">\n{rows}\n</ul>\n<ul>{extra}</ul>',
        items,
        recipe(f'[li.get_text(strip=True) for li in soup.find(id="{part}").find_all("li")]', parser="html5lib"),
        constraints=AS_BROWSER,
    )


@kind("hard", "a table without end tags")
def malformed_table(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    names = products(d, d.between(4, 7))
    rows = [[name, code(d), money(d.between(500, 99999), "$")] for name in names]
    html = "\n".join("<tr><td>" + "<td>".join(row) + ("</tr>" if d.chance(0.3) else "") for row in rows)
    return TaskDraft(
        f'The table "{part}" (its id) leaves out most end tags. Give its rows as a browser shows them.',
        array(array(text()), "each a list of three cells, in page order"),
        f'<table id="{part}">\n{html}\n</table>',
        rows,
        recipe(
            '[[c.get_text(strip=True) for c in row.find_all("td")] for row in rows]',
            f'rows = soup.find(id="{part}").find_all("tr")',
            parser="html5lib",
        ),
        constraints=AS_BROWSER,
    )


@kind("hard", "attributes given twice, unquoted or in capitals")
def malformed_attributes(d: Rng) -> TaskDraft:
    names = [f"{part}{d.between(10, 99)}" for part in d.sample(PARTS, d.between(4, 7))]
    first, second = [d.hexadecimal(8) for _ in names], [d.hexadecimal(8) for _ in names]
    rows = []
    for name, value, again in zip(names, first, second, strict=True):
        form = d.below(3)
        if form == 0:
            rows.append(f'<SPAN ID={name} data-mark="{value}" data-mark="{again}">{rare(d)}</SPAN>')
        elif form == 1:
            rows.append(f"<span id='{name}' DATA-MARK={value}>{rare(d)}</span>")
        else:
            rows.append(f'<span id="{name}"data-mark={value} data-mark="{again}" data-other={again}>{rare(d)}</span>')
    place = d.below(len(names))
    return TaskDraft(
        f'Which value of data-mark does a browser keep for the element "{names[place]}" (its id)? Where an attribute '
        "is given twice, the first one counts.",
        text("the value"),
        "<p>" + "\n".join(rows) + "</p>",
        first[place],
        recipe(f'soup.find(id="{names[place]}")["data-mark"]', parser="html5lib"),
        constraints=AS_BROWSER,
    )


@kind("hard", "a paragraph that a block ends early")
def malformed_paragraph(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    before, inside, after = rare(d), rare(d), rare(d)
    block = d.pick((f"<div>{inside}</div>", f"<ul><li>{inside}</ul>", f"<h5>{inside}</h5>"))
    return TaskDraft(
        f'The element "{part}" (its id) is a paragraph with a block inside, which paragraphs cannot have. What text '
        "does the paragraph hold in a browser?",
        text("the paragraph's own text"),
        f'<div><p id="{part}">{before} {block} {after}</p></div>\n<div><p>{sentence(d)}</p></div>',
        before,
        recipe(f'soup.find(id="{part}").get_text(strip=True)', parser="html5lib"),
        constraints=AS_BROWSER,
    )


@kind("hard", "formatting that overlaps")
def malformed_overlap(d: Rng) -> TaskDraft:
    parts = d.sample(PARTS, 3)
    bolds, rows = [], []
    for part in parts:
        a, b, c = d.invented(4), d.invented(4), d.invented(4)
        rows.append(f'<div class="{part}"><b>{a} <i>{b}</b> {c}</i></div>')
        bolds.append((f"{a} {b}", f"{b} {c}"))
    place = d.below(3)
    return TaskDraft(
        f'In the element of class "{parts[place]}" bold and italic overlap. Which text is bold and which is italic in '
        "a browser?",
        record(bold=text("with single spaces"), italic=text("with single spaces")),
        "\n".join(rows),
        {"bold": bolds[place][0], "italic": bolds[place][1]},
        recipe(
            '{"bold": said("b"), "italic": said("i")}',
            f'box = soup.find(class_="{parts[place]}")',
            'said = lambda tag: " ".join("".join(e.get_text() for e in box.find_all(tag)).split())',
            parser="html5lib",
        ),
        constraints=AS_BROWSER,
    )


@kind("hard", "what two parsers make of the same flaws")
def parser_differences(d: Rng) -> TaskDraft:
    part = d.pick(PARTS)
    n, depth, outer = d.between(12, 40), 0, 0
    rows = []
    for _ in range(n):
        closed = d.chance(0.6)
        outer += depth == 0  # html.parser lets paragraphs nest; html5lib begins a new one
        depth += 1 - closed
        if closed and depth and d.chance(0.7):
            rows.append(f"<p>{d.invented()}</p></p>")
            depth -= 1
        else:
            rows.append(f"<p>{d.invented()}" + ("</p>" if closed else ""))
    strays = sum(row.endswith("</p></p>") for row in rows)
    return TaskDraft(
        f'Paragraphs of the element "{part}" (its id) are closed badly. How many direct children of it are <p> '
        "elements when the page is read with html.parser, and how many with html5lib?",
        record(html_parser=integer(), html5lib=integer()),
        f'<div id="{part}">\n' + "\n".join(rows) + "\n</div>",
        {"html_parser": outer, "html5lib": n + strays},  # html5lib makes an empty paragraph of a stray </p>
        recipe(
            '{"html_parser": count("html.parser"), "html5lib": count("html5lib")}',
            f'box = lambda parser: make_soup(parser=parser).find(id="{part}")',
            'count = lambda parser: len(box(parser).find_all("p", recursive=False))',
        ),
    )
