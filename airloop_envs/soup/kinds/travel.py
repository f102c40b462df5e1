"""Tasks over several pages: what leads on is read from the page one is on."""

from __future__ import annotations

from airloop_envs.soup.answers import array, integer, number, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import SolutionStep
from airloop_envs.soup.task_kind import TaskDraft, follow, kind, recipe
from airloop_envs.soup.words import CITIES, code, money, people, phrase, product, products, rare, sentence


def hrefs(d: Rng, folder: str, n: int) -> list[str]:
    """Addresses that cannot be guessed."""
    return [f"/{folder}/{d.hexadecimal(8)}" for _ in range(n)]


@kind("expert", "find an entry, then read its page")
def search_then_detail(d: Rng) -> TaskDraft:
    names = products(d, d.between(4, 6))
    links = hrefs(d, "item", len(names))
    facts = [(rare(d), code(d)) for _ in names]
    place = d.below(len(names))
    rows = "\n".join(
        f'<li class="hit"><a href="{href}">{name}</a><p>{sentence(d)}</p></li>'
        for name, href in zip(names, links, strict=True)
    )
    details = {
        href: f'<h1>{name}</h1>\n<p>{sentence(d)}</p>\n<dl class="facts"><dt>Keeper</dt><dd>{keeper}</dd>'
        f"<dt>Shelf</dt><dd>{shelf}</dd></dl>"
        for name, href, (keeper, shelf) in zip(names, links, facts, strict=True)
    }
    return TaskDraft(
        f'The first page lists items that link to their own pages. Which keeper and which shelf has "{names[place]}"?',
        record(keeper=text(), shelf=text()),
        f'<ul class="hits">{rows}</ul>',
        {"keeper": facts[place][0], "shelf": facts[place][1]},
        (
            SolutionStep(None, recipe('{"href": link["href"]}', f'link = soup.find("a", string="{names[place]}")')),
            follow(
                '{"keeper": values[0], "shelf": values[1]}',
                'values = [dd.get_text(strip=True) for dd in soup.find("dl", class_="facts").find_all("dd")]',
            ),
        ),
        more=details,
    )


@kind("expert", "an entry found by its facts, then its page")
def filter_then_detail(d: Rng) -> TaskDraft:
    names = products(d, d.between(4, 6))
    links, amounts = hrefs(d, "ware", len(names)), d.numbers(1000, 99_999, len(names))
    word, choose = d.pick((("cheapest", min), ("most expensive", max)))
    place = amounts.index(choose(amounts))
    makers, codes = [rare(d) for _ in names], [code(d) for _ in names]
    rows = "\n".join(
        f'<div class="ware"><b>{money(amount, "$")}</b> {name} <a href="{href}">more</a></div>'
        for name, href, amount in zip(names, links, amounts, strict=True)
    )
    return TaskDraft(
        f"The first page lists wares with their prices. Open the page of the {word} one: which maker and which code "
        "does it give?",
        record(maker=text(), code=text()),
        rows,
        {"maker": makers[place], "code": codes[place]},
        (
            SolutionStep(
                None,
                recipe(
                    '{"href": best.a["href"]}',
                    'price = lambda w: float(w.b.get_text().strip("$").replace(",", ""))',
                    f'best = {choose.__name__}(soup.find_all(class_="ware"), key=price)',
                ),
            ),
            follow(
                '{"maker": soup.find(id="maker").get_text(strip=True), "code": soup.find("kbd").get_text(strip=True)}'
            ),
        ),
        more={
            href: f'<h1>{name}</h1><p>{sentence(d)}</p><p>Maker: <span id="maker">{maker}</span></p><kbd>{number}</kbd>'
            for name, href, maker, number in zip(names, links, makers, codes, strict=True)
        },
    )


@kind("expert", "a list over several pages")
def pagination(d: Rng) -> TaskDraft:
    n = d.between(3, 4)
    links = ["/", *(f"/list?page={i}&key={d.hexadecimal(6)}" for i in range(2, n + 1))]
    lists = [[(product(d), d.between(500, 99_999)) for _ in range(d.between(4, 7))] for _ in range(n)]
    dearest = max(amount for entries in lists for _, amount in entries)
    bound = min(d.between(200, 600), dearest // 100 - 1)
    mains = []
    for place, entries in enumerate(lists):
        rows = "\n".join(f"<li><b>{name}</b> <i>{money(amount, '$')}</i></li>" for name, amount in entries)
        onward = f'<a rel="next" href="{links[place + 1].replace("&", "&amp;")}">Next</a>' if place + 1 < n else ""
        mains.append(f'<ul class="list">{rows}</ul>\n<p class="pager">Page {place + 1} {onward}</p>')
    read = (
        'rows = [(li.b.get_text(strip=True), float(li.i.get_text().strip("$").replace(",", "")))'
        ' for li in soup.find("ul", class_="list").find_all("li")]',
        f"names = [name for name, price in rows if price > {bound}]",
    )
    onward = '{"href": soup.find("a", rel="next")["href"], "names": names}'
    steps = [SolutionStep(None, recipe(onward, *read)), *(follow(onward, *read) for _ in range(n - 2))]
    steps.append(follow('[x for s in SEEN for x in s["names"]] + names', *read))
    return TaskDraft(
        f"A list goes on over several pages (the link marked as next leads on). Name all its entries that cost more "
        f"than ${bound}, from all pages.",
        array(text("a name"), "in any order"),
        mains[0],
        [name for entries in lists for name, amount in entries if amount > bound * 100],
        tuple(steps),
        more=dict(zip(links[1:], mains[1:], strict=True)),
        unordered=True,
    )


@kind("expert", "a chain of links")
def link_chain(d: Rng) -> TaskDraft:
    hops = d.between(2, 3)
    right, wrong = hrefs(d, "room", hops), hrefs(d, "room", hops)
    word, value = d.pick(("onward", "forward", "clue", "trail")), code(d)
    codes = [code(d) for _ in range(hops)]

    def room(place: int, final: str) -> str:
        links = []
        if place < hops:
            links = d.shuffled(
                [
                    f'<a class="{word}" href="{right[place]}">{phrase(d)}</a>',
                    f'<a class="{word}-old" href="{wrong[place]}">{phrase(d)}</a>',
                    f'<a href="{wrong[place]}">{phrase(d)}</a>',
                ]
            )
        return f"<p>{sentence(d)}</p>\n<p>{' '.join(links)}</p>" + (
            f"\n<p>Code: <kbd>{final}</kbd></p>" if final else ""
        )

    pages = {href: room(place + 1, value if place == hops - 1 else "") for place, href in enumerate(right)}
    pages |= {href: room(hops, decoy) for href, decoy in zip(wrong, codes, strict=True)}
    onward = (f'{{"href": soup.find("a", class_="{word}")["href"]}}',)
    middle = [follow(*onward) for _ in range(hops - 1)]
    return TaskDraft(
        f'Follow the link of class "{word}" from page to page until there is none. Which code (a <kbd> element) does '
        "the last page show?",
        text("the code"),
        room(0, ""),
        value,
        (SolutionStep(None, recipe(*onward)), *middle, follow('soup.find("kbd").get_text(strip=True)')),
        more=pages,
    )


@kind("expert", "a comparison of pages")
def page_comparison(d: Rng) -> TaskDraft:
    names = products(d, 3)
    links = hrefs(d, "offer", 3)
    amounts = d.numbers(1000, 99_999, 3)
    word, choose = d.pick((("least", min), ("most", max)))
    best = amounts.index(choose(amounts))
    rows = "\n".join(f'<li><a class="offer" href="{h}">Offer {i + 1}</a></li>' for i, h in enumerate(links))
    pages = {
        href: f'<h1>{name}</h1>\n<p>{sentence(d)}</p><p class="cost">{money(amount, "$")}</p>'
        f'<p class="was">before: {money(amount + d.between(100, 9000), "$")}</p>'
        for href, name, amount in zip(links, names, amounts, strict=True)
    }
    read = (
        'price = float(soup.find(class_="cost").get_text().strip("$ ").replace(",", ""))',
        'mine = {"name": soup.h1.get_text(strip=True), "price": price}',
    )

    def onward(place: int) -> SolutionStep:
        return follow(f'{{"href": SEEN[0]["all"][{place}], **mine}}', *read)

    last = follow(
        f'{choose.__name__}([*offers, mine], key=lambda o: o["price"])',
        *read,
        'offers = [{"name": s["name"], "price": s["price"]} for s in SEEN[1:]]',
    )
    first = recipe(
        '{"href": links[0], "all": links}', 'links = [a["href"] for a in soup.find_all("a", class_="offer")]'
    )
    return TaskDraft(
        f"The first page links to three offers. Which one costs {word} now? Give its name (its page's main heading) "
        "and its price.",
        record(name=text(), price=number("without currency sign")),
        f"<h1>{phrase(d)}</h1>\n<ul>{rows}</ul>",
        {"name": names[best], "price": amounts[best] / 100},
        (SolutionStep(None, first), onward(1), onward(2), last),
        more=pages,
    )


@kind("expert", "a number from one page used on another")
def cross_reference(d: Rng) -> TaskDraft:
    names = people(d, d.between(5, 8))
    rooms = d.numbers(100, 999, len(names))
    place = d.below(len(names))
    link, *decoys = hrefs(d, "plan", 2)
    rows = "\n".join(f"<tr><td>{n}</td><td>{r}</td></tr>" for n, r in zip(names, rooms, strict=True))
    towns, phones = [d.pick(CITIES) for _ in rooms], d.numbers(20000, 99999, len(rooms))

    def plan(numbers: list[int]) -> str:
        entries = [
            f'<div class="room" data-room="{r}"><b>{t}</b> <span>{p}</span></div>'
            for r, t, p in zip(rooms, towns, numbers, strict=True)
        ]
        return f"<h1>{phrase(d)}</h1>\n" + "\n".join(d.shuffled(entries))

    old = plan(d.numbers(20000, 99999, len(rooms)))
    return TaskDraft(
        f"The first page's table gives everyone's room; the page behind its link \"Current plan\" gives every room's "
        f"building and telephone. Where is {names[place]}, and on which number?",
        record(building=text(), telephone=integer()),
        f'<p><a href="{decoys[0]}">Old plan</a> <a href="{link}">Current plan</a></p>\n<table>{rows}</table>',
        {"building": towns[place], "telephone": phones[place]},
        (
            SolutionStep(
                None,
                recipe(
                    '{"href": link["href"], "room": room}',
                    f'room = soup.find("td", string="{names[place]}").find_next("td").get_text(strip=True)',
                    'link = soup.find("a", string="Current plan")',
                ),
            ),
            follow(
                '{"building": box.b.get_text(strip=True), "telephone": int(box.span.get_text())}',
                'box = soup.find(attrs={"data-room": SEEN[0]["room"]})',
            ),
        ),
        more={link: plan(phones), decoys[0]: old},
    )
