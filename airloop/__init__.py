"""air: reinforcement learning for language-model agents.

`import airloop` imports nothing slow and sets nothing; each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airloop.version import __version__

if TYPE_CHECKING:
    from airloop.api import evaluate, train
    from airloop.config import Config, load_config
    from airloop.engine.base import Engine, Sampling
    from airloop.envs.base import Environment, Session
    from airloop.errors import AirError, InfraError
    from airloop.runs.run import Run
    from airloop.types import Action, Agent, Message, Observation, Score, Task

__all__ = [
    "Action",
    "Agent",
    "AirError",
    "Config",
    "Engine",
    "Environment",
    "InfraError",
    "Message",
    "Observation",
    "Run",
    "Sampling",
    "Score",
    "Session",
    "Task",
    "__version__",
    "evaluate",
    "load_config",
    "train",
]
_PLACES = {
    "airloop.api": ("evaluate", "train"),
    "airloop.config": ("Config", "load_config"),
    "airloop.engine.base": ("Engine", "Sampling"),
    "airloop.envs.base": ("Environment", "Session"),
    "airloop.errors": ("AirError", "InfraError"),
    "airloop.runs.run": ("Run",),
    "airloop.types": ("Action", "Agent", "Message", "Observation", "Score", "Task"),
}


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(place), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
