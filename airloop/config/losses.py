"""The loss and the advantage that a config names by their files: whether they are there, and whether they work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airloop.config.mistakes import explain_conflict, head
from airloop.config.rules import loss_conflicts
from airloop.config.sources import KeyPath, Mistake, Settings, at
from airloop.errors import AirError
from airloop.learn.losses import find_loss
from airloop.own_code import is_file_id

_LOSS: KeyPath = ("trainer", "loss")


def check_losses(settings: Settings) -> Iterator[Mistake]:
    """Imports the files. What a loss of the user's own brings along is put beside what the config says of it."""
    loss = at(settings.tree, *_LOSS)
    if not isinstance(loss, dict):
        return
    try:
        if _is_file(loss.get("type")):
            spec = find_loss(loss["type"])
            yield from [explain_conflict(conflict, settings) for conflict in loss_conflicts(spec, loss)]
            own = spec.defaults if loss.get("advantage") is None else spec.clips
            loss |= {key: value for key, value in own.items() if loss.get(key) is None}
    except AirError as error:
        yield _refused("type", loss["type"], error, settings)
    try:
        if _is_file(loss.get("advantage")):
            from airloop.learn.custom_losses import load_advantage

            load_advantage(loss["advantage"])
    except AirError as error:
        yield _refused("advantage", loss["advantage"], error, settings)


def _is_file(name: Any) -> bool:
    return isinstance(name, str) and is_file_id(name)


def _refused(key: str, value: str, error: AirError, settings: Settings) -> Mistake:
    path: KeyPath = (*_LOSS, key)
    place = head(path, value, settings.origin(path))
    return Mistake(f"{place}: {error.problem}", error.fix, frozenset([f"trainer.loss.{key}"]), choice=True)
