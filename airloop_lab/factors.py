"""What differs between the runs of a hypothesis: the base and its variants, from the text alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.errors import AirError
from airloop_lab.faults import find_fault
from airloop_lab.hypothesis_file import WHOLE, Written, flat, line, lists, shown

BASE, CHANGED = "base", "changed"
GRID_KEYS = 2


@dataclass(frozen=True)
class Variant:
    """One side: the base, or the base with something changed."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # keys of the config; `config` is a whole one
    fault: str = ""

    @property
    def whole(self) -> str:
        """The name of the set or config that it has, if its change is one."""
        return str(self.settings.get(WHOLE, ""))

    @property
    def slug(self) -> str:
        """In a run's name."""
        parts = [value if key == WHOLE else f"{_last(key)}-{shown(value)}" for key, value in self.settings.items()]
        long = self.name if self.name in (BASE, CHANGED) else "-".join(parts)
        return re.sub(r"[^A-Za-z0-9]+", "-", long).strip("-")[:80]

    @property
    def text(self) -> str:
        """What is changed, in words."""
        if self.fault:
            return f"the fault {self.fault!r}: {find_fault(self.fault).text}"
        return ", ".join(line(key, value) for key, value in self.settings.items()) or "nothing"


def variants_of(name: str, written: Written) -> tuple[Variant, ...]:
    """The base first."""
    kinds = {"change": written.change, "vary": written.vary, "grid": written.grid}
    given = [f"[{kind}]" for kind, table in kinds.items() if table is not None]
    if len(given) != 1:
        has = f"both {' and '.join(given)}" if given else "neither [change] nor [vary] nor [grid]"
        raise AirError(f"{name} has {has}.", "a hypothesis has [change] with one thing, a sweep [vary] or [grid].")
    if written.is_sweep:
        _check_rule_of_sweep(name, written)
        found = _varied(name, written) if written.vary is not None else _crossed(name, written)
    else:
        found = (Variant(BASE), _change(name, written))
    _check_sets(name, written, found)
    return found


def _change(name: str, written: Written) -> Variant:
    assert written.change is not None
    if written.exploratory:
        raise AirError(f"{name}: a hypothesis decides, so it cannot be exploratory.", "exploratory = false")
    if written.rule.prediction is None:
        raise AirError(
            f"{name}: [rule] has no prediction, so nothing could decide.",
            'prediction = "higher" or "lower", or "same" with a margin',
        )
    if written.rule.prediction == "same" and not written.rule.margin:
        raise AirError(f'{name}: "same" to no margin can never be shown.', "margin = 0.1, or what does not matter.")
    things = flat(written.change)
    if len(things) != 1:
        raise AirError(
            f"{name}: [change] names {len(things)} things ({', '.join(things) or 'nothing'}); with more than one, no "
            "verdict says which it was.",
            _one_of(things),
        )
    ((key, value),) = things.items()
    if key == "fault":
        return Variant(CHANGED, fault=find_fault(str(value)).name)
    return Variant(CHANGED, {key: value})


def _one_of(things: Mapping[str, Any]) -> str:
    """How several things become one: by leaving some out, or by a name for all of them."""
    if not things or "fault" in things or WHOLE in things:
        return "keep one; what both sides share belongs to [both]."
    lines = "\n".join(f"    {line(key, value)}" for key, value in things.items())
    return (
        "keep one, and put what both sides share into [both]; or ask about all of them as one thing:\n"
        f'    [change]\n    {WHOLE} = "changed"\n    [sets.changed]\n{lines}'
    )


def _check_rule_of_sweep(name: str, written: Written) -> None:
    if written.rule.prediction is not None:
        raise AirError(f"{name}: a sweep ranks and predicts nothing.", "leave prediction out, or take [change].")
    if written.rule.margin or written.rule.base_gain is not None:
        raise AirError(f"{name}: a sweep decides nothing, so margin and base_gain say nothing.", "leave them out.")


def _values(name: str, table: Mapping[str, Any], kind: str) -> dict[str, list[Any]]:
    things = lists(table)
    if "fault" in things:
        raise AirError(f"{name}: [{kind}] has a fault.", "it has config keys, with lists; a fault is a [change].")
    if not things:
        raise AirError(f"{name}: [{kind}] has no key.", "it has config keys, with lists.")
    if wrong := [key for key, values in things.items() if not isinstance(values, list) or not values]:
        value = things[wrong[0]]
        fix = line(wrong[0], [value]) if value != [] else f"leave {wrong[0]} out, or name its values."
        if kind == "grid":  # of one value there is nothing to cross
            fix = f"name two or more values of {wrong[0]}, of which the first is the base's."
        raise AirError(f"{name}: [{kind}] {line(wrong[0], value)} is no list of values.", fix)
    for key, values in things.items():
        if twice := [v for i, v in enumerate(values) if v in values[:i]]:
            once = [v for i, v in enumerate(values) if v not in values[:i]]
            fix = line(key, once) if kind == "vary" or len(once) > 1 else f"name another value of {key}."
            raise AirError(f"{name}: [{kind}] has {line(key, twice[0])} twice.", fix)
    return things


def _varied(name: str, written: Written) -> tuple[Variant, ...]:
    assert written.vary is not None
    found = [
        Variant(str(v) if key == WHOLE else line(key, v), {key: v})
        for key, values in _values(name, written.vary, "vary").items()
        for v in values
    ]
    return (Variant(BASE), *found)


def _crossed(name: str, written: Written) -> tuple[Variant, ...]:
    """Every combination. The first of each is the base: so it is known from the text which cell that is."""
    assert written.grid is not None
    things = _values(name, written.grid, "grid")
    if len(things) != GRID_KEYS:
        raise AirError(
            f"{name}: [grid] has {len(things)} {'key' if len(things) == 1 else 'keys'} ({', '.join(things)}).",
            f"a grid has {GRID_KEYS}; [vary] tries the values of any number of keys, one at a time.",
        )
    if short := [key for key, values in things.items() if len(values) < 2]:
        raise AirError(
            f"{name}: [grid] {line(short[0], things[short[0]])} has one value, so there is nothing to cross.",
            "give it another: the first of each key is the base; or take [vary].",
        )
    found = [dict(zip(things, values, strict=True)) for values in itertools.product(*things.values())]
    base, *others = found
    return (Variant(BASE, base), *(Variant(_cell(settings), settings) for settings in others))


def _cell(settings: Mapping[str, Any]) -> str:
    """Short, unless the last parts of two keys are the same."""
    short = [_last(key) for key in settings]
    names = short if len({*short}) == len(short) else [*settings]
    return ", ".join(line(key, value) for key, value in zip(names, settings.values(), strict=True))


def _check_sets(name: str, written: Written, found: tuple[Variant, ...]) -> None:
    used = {variant.whole for variant in found}
    if idle := [key for key in written.sets if key not in used]:
        raise AirError(
            f"{name}: [sets.{idle[0]}] is used nowhere.",
            f'name it in [change], [vary] or [grid], as in {WHOLE} = ["{idle[0]}"], or leave it out.',
        )
    if empty := [key for key, table in written.sets.items() if not flat(table)]:
        raise AirError(f"{name}: [sets.{empty[0]}] changes nothing.", "give it keys of the config.")


def _last(key: str) -> str:
    return key.rpartition(".")[2]
