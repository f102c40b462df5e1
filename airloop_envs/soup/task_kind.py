"""What a task kind makes, before the page around it exists; and the register of kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airloop_envs.soup.answers import Schema
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import FOLLOW, Limit, SolutionStep

EXACT = "Give text exactly as the page has it, without white space around it."


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """A task without its page: `main` is the part of the page that the task is about, and `more` the same of
    further pages by href. `code` is the oracle's: one program, or the steps through several pages."""

    query: str
    schema: Schema
    main: str
    answer: Any
    code: str | tuple[SolutionStep, ...]
    constraints: str = EXACT
    more: Mapping[str, str] = field(default_factory=dict)
    head: str = ""  # for <head>: styles, JSON-LD
    tail: str = ""  # after the footer: scripts
    lang: str = "en"
    right_to_left: bool = False
    limit: Limit | None = None
    forbidden: tuple[str, ...] = ()
    unordered: bool = False


Maker = Callable[[Rng], TaskDraft]


@dataclass(frozen=True, slots=True)
class Kind:
    """`rng_name`: kinds that share it draw the same random numbers, and so share every prompt, seed by seed."""

    name: str
    level: str
    about: str
    make: Maker
    rng_name: str
    size: tuple[int, int]  # characters a page is filled up to, drawn evenly; a task's own part may be larger
    twin: str = ""  # the kind with the same prompts whose pages can, or cannot, be read


# Pages are as long as their level's: the medians (tests check them) are at most 5, 5, 10, 30 and 60 thousand.
SIZES = {
    "primer": (900, 2600),
    "easy": (2000, 5200),
    "medium": (4500, 11000),
    "hard": (14000, 36000),
    "expert": (20000, 60000),
}

_kinds: dict[str, Kind] = {}
KINDS: Mapping[str, Kind] = MappingProxyType(_kinds)


def kind(
    level: str, about: str, rng_name: str = "", size: tuple[int, int] | None = None, twin: str = ""
) -> Callable[[Maker], Maker]:
    """Registers a maker under its function's name."""

    def register(make: Maker) -> Maker:
        name = make.__name__
        if name in _kinds:
            raise ValueError(f"Two task kinds are named {name!r}.")
        _kinds[name] = Kind(name, level, about, make, rng_name or name, size or SIZES[level], twin)
        return make

    return register


def recipe(result: str, *lines: str, parser: str = "") -> str:
    """A program that prints the JSON of the expression `result` after `lines`, with the page parsed as `soup`."""
    soup = f'soup = make_soup(parser="{parser}")' if parser else "soup = make_soup()"
    return "\n".join(["import json", soup, *lines, f"print(json.dumps({result}, ensure_ascii=False))"])


def follow(result: str, *lines: str) -> SolutionStep:
    """A step on the page whose href the step before printed."""
    return SolutionStep(FOLLOW, recipe(result, *lines))
