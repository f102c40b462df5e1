"""One length, `seq_len`: what an episode may grow to, prompt and replies, as it is sampled and trained.

Files of prime-rl and of earlier runs say it in up to four keys. They are read as one, and refused where they contradict
each other.
"""

from __future__ import annotations

from typing import Any

from airloop.config.mistakes import correction
from airloop.config.schema import SEQ_LEN
from airloop.config.sources import KeyPath, Mistake, Settings, at, parse_path, take_out

OURS, SAMPLED, ENGINE, TRAINED = (
    "seq_len",
    "orchestrator.seq_len",
    "inference.model.max_model_len",
    "trainer.model.seq_len",
)


def fold_lengths(settings: Settings) -> list[Mistake]:
    """Put `seq_len` in the place of the others. What a flag says replaces what files say, whichever of the keys each
    has."""
    paths = {key: parse_path(key) for key in (OURS, SAMPLED, ENGINE, TRAINED)}
    present = [path for path in paths.values() if _is_there(path, settings)]
    if not {*present} - {paths[OURS]}:
        return []
    given = {key: value for key, path in paths.items() if (value := at(settings.tree, *path)) is not None}
    said = {key: value for key, value in given.items() if _is_flag(paths[key], settings)} or given
    key, length = _governing(said, given)
    found = _contradictions(said, length, paths, settings)
    origin = settings.origin(paths[key]) if key in given else None
    for path in present:
        settings.forget(path)
        take_out(settings.tree, path)
    settings.tree[OURS] = length
    if origin is not None:
        settings.origins[paths[OURS]] = origin
    return found


def _is_there(path: KeyPath, settings: Settings) -> bool:
    section = at(settings.tree, *path[:-1])
    return isinstance(section, dict) and path[-1] in section


def _is_flag(path: KeyPath, settings: Settings) -> bool:
    origin = settings.origin(path)
    return origin is not None and bool(origin.flag)


def _governing(said: dict[str, Any], given: dict[str, Any]) -> tuple[str, Any]:
    """The key that says how long an episode may be sampled, and its value; what is no number is left to the schema.
    A flag that only bounds it bounds what the files say."""
    for key, value in said.items():
        if not _is_number(value):
            return key, value
    base = said if {SAMPLED, OURS} & said.keys() else given
    key = SAMPLED if SAMPLED in base else OURS
    length = base.get(key, SEQ_LEN)
    if not _is_number(length):
        return key, length
    return (ENGINE, said[ENGINE]) if said.get(ENGINE, length) < length else (key, length)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _contradictions(said: dict[str, Any], length: Any, paths: dict[str, KeyPath], settings: Settings) -> list[Mistake]:
    if not all(map(_is_number, said.values())):
        return []
    lines = " and ".join(f"{key} = {value}" for key, value in said.items())
    places = dict.fromkeys(origin.place for key in said if (origin := settings.origin(paths[key])) is not None)
    where, flags = ", ".join(places), all(_is_flag(paths[key], settings) for key in said)
    if said.get(OURS, length) != length:
        problem = f"{where}: {lines} are lengths of the same episodes, which have one."
        fix = correction({}, as_flags=flags, instead="write that one as seq_len, and delete the others", choice=True)
        return [Mistake(problem, fix, frozenset(said), "A4", choice=True)]
    if said.get(TRAINED, length) < length:
        problem = f"{where}: episodes may grow to {length} tokens, but {TRAINED} = {said[TRAINED]} is less: what is "
        problem += "sampled is trained, so there is one length for both."
        changes = {OURS: length}
        return [Mistake(problem, correction(changes, as_flags=flags), frozenset(said), "A4", paths[TRAINED], changes)]
    return []
