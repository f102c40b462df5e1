"""Keys that stand in a config: a run writes its config down, so they are refused, and shown nowhere meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airloop.config import keys
from airloop.config.sources import KeyPath, Mistake, Settings
from airloop.text.keys import ARGUMENT, FORM, LONGEST, find_keys, is_key, keys_in_address, note_keys, without_keys

_WHY = "a run writes its config down, in its directory, to W&B and into a model card"


def note_given_keys(settings: Settings) -> None:
    """So that no error shows them."""
    for path, text in _texts(settings.tree, ()):
        name = next(part for part in reversed(path) if isinstance(part, str))  # of a list of keys, the list's
        note_keys(*keys_in_address(text), text if ARGUMENT.search(name) or FORM.fullmatch(text) else None)


def check_given_keys(settings: Settings) -> Iterator[Mistake]:
    """A key by its argument's name, by being in an address, or as a variable of the environment has it."""
    known = find_keys()  # not by an episode's form: a folder may have such a name
    for path, text in _texts(settings.tree, ()):
        found = next((form for form in known if form in text), None)
        if found is None:
            continue
        origin, about = settings.origin(path), frozenset([keys.dotted(*path)])
        place = f"{without_keys(origin.place)}: " if origin else ""
        if keys_in_address(text):
            problem = f"{place}an address in {keys.dotted(*path)} holds a password or a key, and {_WHY}."
            fix = "leave it out of the address; inference.vllm.api_key_env names the variable that has a server's key"
        else:
            which = f" (the value of {known[found]})" if known[found] else ""
            problem = f"{place}{keys.dotted(*path)} holds a key{which}, and {_WHY}."
            fix = 'delete it here, export it, and let the environment read the variable: os.environ["JUDGE_API_KEY"]'
        yield Mistake(problem, fix, about, choice=True)


def _texts(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Those in tables and lists that are no mere words, each by its path."""
    if isinstance(node, str) and (is_key(node) or len(node) > LONGEST):
        yield path, node
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from _texts(value, (*path, key))
