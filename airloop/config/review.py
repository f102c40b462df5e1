"""All mistakes of a configuration in one round: after each correction the rest is looked at as if it had been made, so
that what a correction leads to is told with it, and the corrections together load."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pydantic import ValidationError

from airloop.config.config import Config
from airloop.config.conflict import Conflict
from airloop.config.environments import check_environments, none_named
from airloop.config.foreign_flags import foreign_flags
from airloop.config.given_keys import check_given_keys, note_given_keys
from airloop.config.lengths import fold_lengths
from airloop.config.losses import check_losses
from airloop.config.mistakes import explain, explain_conflict, missing_template
from airloop.config.sources import Mistake, Settings, take_out
from airloop.config.translate import is_whole, translate

# Corrections may lead to others, as a section that was moved and has a key of another tool; never to many.
ROUNDS = 6


def review(settings: Settings, *, environments: bool) -> tuple[Config | None, list[Mistake]]:
    """The config, if it has no mistakes, and these. The settings are corrected on the way."""
    note_given_keys(settings)
    # A file that only names a model is a part of others; one that says how to train it, too, is a run.
    whole = is_whole(settings.tree) and bool({"max_steps", "trainer", "orchestrator"} & settings.tree.keys())
    lengths = fold_lengths(settings)
    # A run of an earlier version was sampled at the shortest of its lengths, whatever else its config says.
    found = [*settings.mistakes, *(lengths if environments else [])]
    for mistake in itertools.chain(foreign_flags(settings), missing_template(settings)):
        found.append(mistake)
        settings.correct(mistake)
    found += translate(settings, environments=environments)
    if environments:
        found += [*check_given_keys(settings), *check_losses(settings)]
    config = _by_schema(settings, found)
    _together(settings, found)
    if environments:
        found += check_environments(settings)
        refused = any(key.startswith("orchestrator.env") for mistake in found for key in mistake.keys)
        if settings.files and whole and not refused and not _names_one(settings):
            found.append(none_named(settings))
    return (None if found else config), found


def _names_one(settings: Settings) -> bool:
    orchestrator = settings.tree.get("orchestrator")
    return isinstance(orchestrator, dict) and bool(orchestrator.get("env"))


def _by_schema(settings: Settings, found: list[Mistake]) -> Config | None:
    for _ in range(ROUNDS):
        try:
            return Config.model_validate(settings.tree, context=[])
        except ValidationError as error:
            details = {detail["loc"]: detail for detail in error.errors(include_url=False)}
        mistakes = [explain(detail, settings) for detail in details.values()]
        _note(dict.fromkeys(mistakes), settings, found)
        for loc, mistake in zip(details, mistakes, strict=True):
            if not mistake.at:  # what lacks something goes as a whole
                take_out(settings.tree, loc[:-1])
    return None


def _note(mistakes: Iterable[Mistake], settings: Settings, found: list[Mistake]) -> None:
    for mistake in mistakes:
        settings.correct(mistake)
        if mistake not in found:
            found.append(mistake)


def _together(settings: Settings, found: list[Mistake]) -> None:
    """What keys must not say together. A complaint about a key that the user has yet to decide on says nothing."""
    open_keys = {key for mistake in found if not mistake.changes for key in mistake.keys}
    for _ in range(ROUNDS):
        conflicts: list[Conflict] = []
        try:
            Config.model_validate(settings.tree, context=conflicts)
        except ValidationError:
            return  # nothing sensible is left to check
        told = [explain_conflict(c, settings) for c in conflicts if not open_keys & {*c.keys}]
        if all(mistake in found for mistake in told):
            return
        _note(told, settings, found)
