"""The run's names of its environments, in records of versions that wrote down an environment's id in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airloop.types import Trajectory


def names_by_id(entries: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of (id, name): the names of ids. An id that several have says nothing of which it was, and is left out, as is one
    that is itself a name."""
    known = list(entries)
    often, taken = Counter(id for id, _ in known), {name for _, name in known}
    return {id: name for id, name in known if often[id] == 1 and id not in taken}


def with_run_name(trajectory: Trajectory, names: Mapping[str, str]) -> Trajectory:
    name = names.get(trajectory.task.env)
    return replace(trajectory, task=replace(trajectory.task, env=name)) if name else trajectory
