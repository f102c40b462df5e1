"""A hypothesis and the config of each of its runs. What its file holds: hypothesis_file.py."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airloop.config import Config, load_config
from airloop.errors import AirError
from airloop.shipped import name_of, shipped
from airloop_lab.factors import Variant, variants_of
from airloop_lab.hypothesis_file import WHOLE, Written, flags, flat, line

# What `air lab run` sets itself, for both sides alike.
FLAG = re.compile(r"--([\w.]+)[ =]('[^']*'|[^\s,;:]+)")  # a value with spaces is quoted as for a shell
OWN_KEYS = ("seed", "output_dir", "logbook.goal", "logbook.parent")


@dataclass(frozen=True)
class Hypothesis:
    name: str
    written: Written
    variants: tuple[Variant, ...]  # the base first
    folder: Path  # of the file, where its config may lie

    @property
    def is_sweep(self) -> bool:
        return self.written.is_sweep

    @property
    def base(self) -> Variant:
        return self.variants[0]

    @property
    def changed(self) -> tuple[Variant, ...]:
        return self.variants[1:]

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)

    def holding(self, settings: dict[str, Any]) -> Hypothesis:
        """The same with more in [both]."""
        written = self.written.model_copy(update={"both": {**flat(self.written.both), **settings}})
        return replace(self, written=written)

    def settings(self, variant: Variant) -> dict[str, Any]:
        """The config keys that a variant has beside its file's."""
        own = {key: value for key, value in variant.settings.items() if key != WHOLE}
        chosen = flat(self.written.sets.get(variant.whole, {}))
        chosen.pop(WHOLE, None)
        return {**flat(self.written.both), **chosen, **own}

    def config(self, variant: Variant, seed: int = 0, output_dir: str = "outputs") -> Config:
        own = {"seed": seed, "output_dir": output_dir}
        argv = ["@", str(self.config_file(variant)), *flags({**self.settings(variant), **own})]
        try:
            return load_config(argv)
        except AirError as error:
            problem, fix = as_lines(error.problem), as_lines(error.fix)
            raise AirError(f"{self.name}, {variant.name}: {problem}", fix) from None

    def config_file(self, variant: Variant) -> Path:
        """Beside the hypothesis or here; or the one that comes with air, for one that was copied or has moved."""
        chosen = self.written.sets.get(variant.whole, {WHOLE: variant.whole})
        name = str(chosen.get(WHOLE) or self.written.config)
        known = name_of(name)
        places = [self.folder / name, Path(name).expanduser(), *([shipped(known)] if known else [])]
        found = [p for p in places if p.is_file()]
        if not found:
            sets = f" and no [sets.{name}]" if name == variant.whole else ""
            close = difflib.get_close_matches(name, self.written.sets, 1, 0.5)
            meant = f'did you mean "{close[0]}"? Else ' if close else ""
            raise AirError(
                f"{self.name}: its config {name!r} is neither beside it nor here{sets}.",
                f"{meant}name a TOML of `air train`, such as arith or ./my.toml; {self.folder} is looked in first.",
            )
        return found[0].resolve()


def as_lines(text: str) -> str:
    """What is said of flags, said of lines: a hypothesis has no flags."""

    def in_toml(flag: re.Match[str]) -> str:
        key, value = flag[1], flag[2]
        if "." not in key and key not in Config.model_fields:
            return flag[0]
        with contextlib.suppress(json.JSONDecodeError):
            return line(key, json.loads(value.strip("'")))
        return line(key, value.strip("'"))

    return FLAG.sub(in_toml, text)


def make_hypothesis(name: str, written: Written, folder: Path) -> Hypothesis:
    """From the text alone: the config may have changed since, or be gone."""
    found = Hypothesis(name, written, variants_of(name, written), folder)
    for variant in found.variants:
        if own := [key for key in OWN_KEYS if key in found.settings(variant)]:
            raise AirError(f"{name} sets {own[0]}, which `air lab run` sets for every run.", f"leave {own[0]} out.")
    return found
