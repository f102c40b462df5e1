"""Which tasks there are: those that come with air, and those of a checkout."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from airloop.errors import AirError
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.checkout import find_root, load_checkout, load_task
from airloop_envs.mlgym.data import BUILTIN, located, prepare
from airloop_envs.mlgym.fields import cannot_run, sentence
from airloop_envs.mlgym.measure import recorded, variants
from airloop_envs.mlgym.metrics import check_overrides, pick
from airloop_envs.mlgym.spec import TaskSpec

log = logging.getLogger("airloop.envs.mlgym.library")  # among the environments': a run shows them


class Library:
    """Tasks by name. A checkout's stands before ours of the same name, unless `source` says otherwise."""

    def __init__(self, args: MlgymArgs) -> None:
        self.args = args
        self.root = find_root(args.mlgym_root) if args.source != "builtin" else None
        if args.source == "checkout" and self.root is None:
            raise AirError(
                'source = "checkout" needs an MLGym checkout.', "set mlgym_root, or the variable AIR_MLGYM_ROOT."
            )
        if args.metrics:
            theirs = [name for spec in (load_checkout(self.root) if self.root else ()) for name in (spec.key, spec.id)]
            check_overrides(args.metrics, [*theirs, *builtin_keys()])
        self._specs: dict[tuple[str, int], TaskSpec] = {}
        self._keys: dict[str, tuple[Path, str]] = {}

    def chosen(self) -> Sequence[TaskSpec]:
        """Those the config names, each fit to run; otherwise an error that says what is missing."""
        specs = [self.known(name, self.variant(name, 0, "train")) for name in self.args.task_configs]
        for spec in specs:
            if spec.problems:
                raise cannot_run(spec.key, spec.problems[0])
        return specs

    def variant(self, name: str, example: int, split: str) -> int:
        """Our own tasks draw their rows anew for each example, and from other draws where they are held out."""
        root, key = self.locate(name)
        if root != BUILTIN:
            return 0
        offered = variants(key, "train" if split == "train" else "eval")
        if split != "train" and len(offered) > 1:  # two halves: what is looked at often, and what is kept for the end
            offered = offered[::2] if split == "eval" else offered[1::2]
        return offered[example % len(offered)]

    def spec(self, name: str, variant: int) -> TaskSpec:
        """A task to be opened: its data is made now, if it was not yet."""
        found = self.known(name, variant)
        if found.builtin and not found.problems:
            prepare(found.key, variant)
        return found

    def known(self, name: str, variant: int) -> TaskSpec:
        """What there is to say of a task before it is opened. Making its data takes seconds, and is not needed."""
        root, key = self.locate(name)
        if (key, variant) not in self._specs:
            found = self.builtin(key, variant) if root == BUILTIN else load_task(root, key, self.args.metrics)
            for warning in found.warnings if variant == 0 else ():
                log.warning("task %s: %s", key, warning)
            self._specs[key, variant] = found
        return self._specs[key, variant]

    def locate(self, name: str) -> tuple[Path, str]:
        """Where a task of this name comes from, and its key there."""
        if name not in self._keys:
            places = [self.root] if self.root else []
            places += [BUILTIN] if self.args.source != "checkout" else []
            errors = []
            for place in places:
                try:
                    self._keys[name] = (place, load_task(place, name, self.args.metrics).key)
                    break
                except AirError as error:
                    errors.append(error)
            else:
                raise errors[-1]
        return self._keys[name]

    def builtin(self, key: str, variant: int = 0) -> TaskSpec:
        """One of ours, with the place of its data and the yardstick of one draw of its rows."""
        spec = load_task(BUILTIN, key, self.args.metrics)
        try:
            data = located(key, variant)
        except AirError as error:
            return replace(spec, builtin=True, variant=variant, problems=(sentence(error),))
        found = recorded(key, variant)
        return replace(
            spec,
            builtin=True,
            variant=variant,
            datasets=tuple(replace(d, directory=data.agent, missing="") for d in spec.datasets),
            answers=data.answers,
            yardstick=replace(
                spec.yardstick, baseline=pick(found.baseline, spec.yardstick.metric), reference=found.reference
            ),
            baseline_scores=(found.baseline,),
            problems=(),
        )


@lru_cache
def builtin_keys() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (BUILTIN / "configs" / "tasks").glob("*.yaml")))


@contextmanager
def without_warnings() -> Iterator[None]:
    """A run logs what is odd about its tasks; where tasks are listed it stands in what is printed."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
