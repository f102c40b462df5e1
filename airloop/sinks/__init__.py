"""The places for metrics besides metrics.jsonl: a new one is a file here and its line in the table.

Each file has the section by which a config asks for its sink, and the sink. Nothing else knows one by its name.
"""

from __future__ import annotations

from pkgutil import resolve_name

from airloop.sinks.base import Logged, Sink, SinkSpec

__all__ = ["SINKS", "Logged", "Sink", "SinkSpec"]

_FILES = (
    "airloop.sinks.wandb_sink:WANDB",
    "airloop.sinks.tensorboard_sink:TENSORBOARD",
)
# By their sections' names; they are read with the config's keys: what takes time to import is imported by `open`.
SINKS: dict[str, SinkSpec] = {spec.name: spec for spec in map(resolve_name, _FILES)}
