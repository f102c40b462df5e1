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
    from airloop.envs.base import EnvArgs, Environment, Opening, Session
    from airloop.envs.prompts.reward import reward
    from airloop.envs.tools import ToolSession, tool
    from airloop.errors import AirError, InfraError
    from airloop.frames import LoadedRun, load_run
    from airloop.runs.run import Run
    from airloop.types import Action, Agent, Message, Observation, Score, Task

__all__ = [
    "Action",
    "Agent",
    "AirError",
    "Config",
    "Engine",
    "EnvArgs",
    "Environment",
    "InfraError",
    "LoadedRun",
    "Message",
    "Observation",
    "Opening",
    "Run",
    "Sampling",
    "Score",
    "Session",
    "Task",
    "ToolSession",
    "__version__",
    "evaluate",
    "load_config",
    "load_run",
    "reward",
    "tool",
    "train",
]
_PLACES = {
    "airloop.api": ("evaluate", "train"),
    "airloop.config": ("Config", "load_config"),
    "airloop.engine.base": ("Engine", "Sampling"),
    "airloop.envs.base": ("EnvArgs", "Environment", "Opening", "Session"),
    "airloop.envs.prompts.reward": ("reward",),
    "airloop.envs.tools": ("ToolSession", "tool"),
    "airloop.errors": ("AirError", "InfraError"),
    "airloop.frames": ("LoadedRun", "load_run"),
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
