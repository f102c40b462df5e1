"""What stands on real pages around what one looks for: menus, adverts, comments, footers, cookie notices.

Boilerplate uses no table, form field, JSON-LD, h1, time, address, blockquote, mark, cite, kbd, dl, svg, canvas or
object, so that a task's own part is the only place of these unless its kind puts decoys there. Sizes are what
fills a page to its level's length.
"""

from __future__ import annotations

from collections.abc import Callable

from airloop_envs.soup.rng import Rng
from airloop_envs.soup.styles import Style
from airloop_envs.soup.words import TOPICS, cents, money, person, phrase, product, prose, sentence, slug

Block = Callable[[Rng, "Classes"], str]


class Classes:
    """Class names in a style's own manner."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def __call__(self, name: str) -> str:
        if self.style.joiner:
            return f"{self.style.prefix}{self.style.joiner}{name}"
        return self.style.prefix + name.title().replace("-", "")


def menu(d: Rng, c: Classes) -> str:
    items = d.sample(c.style.menu, d.between(4, len(c.style.menu)))
    links = "".join(f'<li class="{c("nav-item")}"><a href="/{slug(item)}/">{item}</a></li>' for item in items)
    return f'<nav class="{c("nav")}" aria-label="Main"><ul>{links}</ul></nav>'


def cards(d: Rng, c: Classes) -> str:
    made = []
    for _ in range(d.between(2, 4)):
        name = product(d)
        made.append(
            f'<div class="{c("card")}" data-ref="{d.between(10000, 99999)}">'
            f'<a href="/item/{slug(name)}"><img src="/img/{slug(name)}.jpg" alt="{name}" loading="lazy"></a>'
            f'<h3 class="{c("card-title")}">{name}</h3>'
            f'<span class="{c("card-price")}">{money(cents(d), "$")}</span></div>'
        )
    return f'<div class="{c("cards")}"><h2>{phrase(d)}</h2>\n' + "\n".join(made) + "\n</div>"


def article(d: Rng, c: Classes) -> str:
    parts = [f"<p>{prose(d, d.between(2, 4))}</p>" for _ in range(d.between(1, 3))]
    return f'<div class="{c("text")}"><h2>{phrase(d)}</h2>\n' + "\n".join(parts) + "\n</div>"


def teasers(d: Rng, c: Classes) -> str:
    made = "".join(
        f'<li class="{c("teaser")}"><a href="/{d.pick(TOPICS)}/{d.between(1000, 99999)}">{phrase(d)}</a>'
        f"<p>{sentence(d)}</p></li>\n"
        for _ in range(d.between(2, 4))
    )
    return f'<div class="{c("teasers")}"><ul>\n{made}</ul></div>'


def reviews(d: Rng, c: Classes) -> str:
    made = "".join(
        f'<div class="{c("review")}"><strong>{person(d)}</strong> '
        f'<span class="{c("stars")}" title="{d.between(1, 5)} of 5">&#9733;</span><p>{sentence(d)}</p></div>\n'
        for _ in range(d.between(1, 3))
    )
    return f'<div class="{c("reviews")}">\n{made}</div>'


def comments(d: Rng, c: Classes) -> str:
    made = "".join(
        f'<div class="{c("comment")}" id="{c.style.prefix}-c{d.between(100000, 999999)}">'
        f'<div class="{c("comment-head")}"><a href="/member/{d.between(100, 9999)}">{person(d)}</a> wrote</div>'
        f'<div class="{c("comment-body")}"><p>{prose(d, d.between(1, 3))}</p></div></div>\n'
        for _ in range(d.between(1, 3))
    )
    return f'<div class="{c("comments")}">\n{made}</div>'


def tags(d: Rng, c: Classes) -> str:
    links = " ".join(
        f'<a class="{c("tag")}" href="/tag/{topic}" rel="tag">{topic}</a>' for topic in d.sample(TOPICS, 5)
    )
    return f'<div class="{c("tags")}">{links}</div>'


def contents(d: Rng, c: Classes) -> str:
    entries = [phrase(d) for _ in range(d.between(3, 6))]
    rows = "".join(f'<li><a href="#{c.style.prefix}-{slug(entry)}">{entry}</a></li>' for entry in entries)
    return f'<div class="{c("toc")}"><strong>On this page</strong><ol>{rows}</ol></div>'


def listing(d: Rng, c: Classes) -> str:
    lines = "\n".join(f"{d.invented(2)} = {d.invented(2)}({d.between(0, 255)})" for _ in range(d.between(3, 7)))
    return f'<div class="{c("example")}"><p>{sentence(d)}</p><pre><code>{lines}</code></pre></div>'


def notices(d: Rng, c: Classes) -> str:
    made = "".join(
        f'<div class="{c("notice")}"><h3>{phrase(d)}</h3><p>{prose(d, 2)} '
        f'<a href="/notice/{d.between(1000, 9999)}">Read the notice</a></p></div>\n'
        for _ in range(d.between(1, 3))
    )
    return f'<div class="{c("notices")}">\n{made}</div>'


def features(d: Rng, c: Classes) -> str:
    made = "".join(f'<div class="{c("tile")}"><h3>{phrase(d)}</h3><p>{sentence(d)}</p></div>\n' for _ in range(3))
    return f'<div class="{c("tiles")}">\n{made}</div>'


def footnotes(d: Rng, c: Classes) -> str:
    notes = "".join(
        f'<li id="{c.style.prefix}-n{i}">{person(d)}: <i>{phrase(d)}</i>, p. {d.between(1, 400)}.</li>\n'
        for i in range(1, d.between(3, 6))
    )
    return f'<div class="{c("notes")}"><h3>Notes</h3><ol>\n{notes}</ol></div>'


def advert(d: Rng, c: Classes) -> str:
    return (
        f'<aside class="{c("ad")}" data-slot="{d.hexadecimal(6)}"><span class="{c("ad-label")}">Advertisement</span>'
        f'<a href="/out?to={d.hexadecimal(10)}" rel="sponsored nofollow">{phrase(d)}: {sentence(d)}</a></aside>'
    )


def newsletter(d: Rng, c: Classes) -> str:
    return (
        f'<div class="{c("newsletter")}"><h3>News by letter</h3><p>{sentence(d)}</p>'
        f'<a class="{c("button")}" href="/subscribe">Subscribe</a></div>'
    )


def cookies(d: Rng, c: Classes) -> str:
    return (
        f'<div class="{c("cookies")}" role="dialog" hidden><p>This site keeps small files on your device. '
        f'{sentence(d)}</p><a href="#" class="{c("button")}">Agree</a></div>'
    )


def footer(d: Rng, c: Classes, site: str) -> str:
    links = "".join(f'<a href="/{word}">{word.title()}</a> ' for word in ("imprint", "privacy", "terms", "contact"))
    return f'<footer class="{c("footer")}"><p>{links}</p><p>&copy; {d.between(2009, 2023)} {site}</p></footer>'


BLOCKS: dict[str, Block] = {
    "cards": cards,
    "article": article,
    "teasers": teasers,
    "reviews": reviews,
    "comments": comments,
    "tags": tags,
    "contents": contents,
    "listing": listing,
    "notices": notices,
    "features": features,
    "advert": advert,
    "newsletter": newsletter,
    "footnotes": footnotes,
}
ONCE = ("contents", "tags", "newsletter", "footnotes")  # what a page has at most once; every style has others too
