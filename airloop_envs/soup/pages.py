"""A page: head, header, the task's part among boilerplate, footer; sometimes with the flaws of real pages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airloop_envs.soup.boilerplate import BLOCKS, ONCE, Classes, cookies, footer, menu
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.styles import STYLES, Style
from airloop_envs.soup.words import CITIES, phrase, sentence

# Share of pages with flawed boilerplate. A task's own part is flawed only where its kind is about that.
FLAWED = {"primer": 0.0, "easy": 0.15, "medium": 0.3, "hard": 0.4, "expert": 0.4}


@dataclass(frozen=True, slots=True)
class Frame:
    """The look that all pages of a task share. `size` is the length in characters to fill up to."""

    rng: Rng
    style: Style
    site: str
    size: int
    flawed: bool
    bare: bool  # a first page for beginners: hardly any boilerplate

    def page(self, main: str, share: int, head: str, tail: str, lang: str, rtl: bool) -> str:
        """`share`: how many pages divide the length among them."""
        classes = Classes(self.style)
        opening, closing = self.style.wrapper
        room = self.size // share - len(main) - len(head) - len(tail) - 900
        before, after = self._filling(classes, room)
        direction = ' dir="rtl"' if rtl else ""
        parts = [
            self.style.doctype,
            f'<html lang="{lang}"{direction}>\n<head>\n<meta charset="utf-8">',
            f"<title>{phrase(self.rng)} | {self.site}</title>",
            *([] if self.bare else self._head_extras()),
            *([head] if head else []),
            "</head>\n<body>",
            f'<header class="{classes("header")}"><a href="/" class="{classes("logo")}">{self.site}</a>',
            menu(self.rng, classes),
            "</header>",
            *before,
            opening,
            main,
            closing,
            *after,
            footer(self.rng, classes, self.site),
            *([] if self.bare else [cookies(self.rng, classes), self._analytics()]),
            *([tail] if tail else []),
            "</body>\n</html>\n",
        ]
        return "\n".join(parts)

    def _filling(self, classes: Classes, room: int) -> tuple[list[str], list[str]]:
        """Boilerplate of about `room` characters, a third of it before the task's part."""
        blocks: list[str] = []
        kinds = list(self.style.blocks)
        while room > 0:
            kind = self.rng.pick(kinds)
            block = BLOCKS[kind](self.rng, classes)
            if kind in ONCE:
                kinds.remove(kind)
            if self.flawed and self.rng.chance(0.5):
                block = spoil(self.rng, block)
            blocks.append(block)
            room -= len(block) + 1
        cut = self.rng.below(len(blocks) * 2 // 3 + 1)
        before, after = blocks[:cut], blocks[cut:]
        if self.style.columns and len(after) > 3:
            side = after[: len(after) // 3]
            after = [f'<aside class="{classes("side")}">', *side, "</aside>", *after[len(after) // 3 :]]
        return before, after

    def _head_extras(self) -> list[str]:
        d, prefix = self.rng, self.style.prefix
        rules = " ".join(f".{prefix}-{d.invented(2)} {{ margin: {d.below(40)}px; }}" for _ in range(d.between(1, 4)))
        return [
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<link rel="stylesheet" href="/static/{prefix}.{d.hexadecimal(8)}.css">',
            f"<style>{rules}</style>",
        ]

    def _analytics(self) -> str:
        d = self.rng
        return (
            f'<script src="/static/bundle.{d.hexadecimal(8)}.js" defer></script>\n'
            f'<script>var visits = visits || []; visits.push(["{d.hexadecimal(12)}", {d.below(10**6)}]);</script>'
        )


def frame(d: Rng, level: str, size: tuple[int, int]) -> Frame:
    style = d.pick(STYLES)
    site = f"{d.pick(CITIES)} {d.pick(style.site)}"
    return Frame(d, style, site, d.between(*size), d.chance(FLAWED[level]), level == "primer")


def spoil(d: Rng, block: str) -> str:
    """One of the flaws of real pages. The block is one <div> or <aside>, and a stray or missing tag inside it ends
    with it in every parser, so what follows the block is read as if it had been sound."""
    flaw = d.below(5)
    if flaw == 0:
        return re.sub(r"</(li|p)>", "", block)  # end tags that HTML lets one leave out
    if flaw == 1:
        return re.sub(r'(class|rel|loading)="([\w-]+)"', r"\1=\2", block)  # attributes without quotes
    if flaw == 2:
        return re.sub(r"<(/?)(p|h2|h3|ul|li|span|strong)\b", lambda tag: tag[0].upper(), block)
    if flaw == 3:
        return block.replace("<p>", "</span><p>", 1)  # an end tag without a beginning
    return f"<!-- {sentence(d)} -->" + block.replace("</a>", "</a><br></br>", 1)
