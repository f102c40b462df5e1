"""Errors a user can act on, and the one that means the machinery failed rather than the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class AirError(Exception):
    """What was seen and why, then what to change. The command line prints it without a traceback."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem if not fix else f"{problem}\n  fix: {fix}")
        self.problem = problem
        self.fix = fix


class Stopped(AirError):
    """Ended by Ctrl-C, with everything saved: says how to go on."""


class InfraError(Exception):
    """Infrastructure trouble (a dead worker, a lost sandbox, a lost server): never a reward.

    The sampler retries the episode and, if that does not help, drops and counts it.
    """


@dataclass(frozen=True)
class MissingRequirement:
    """Something that episodes need and that is not there: what was seen, as a sentence, and the line that mends it."""

    what: str
    fix: str


@dataclass(frozen=True)
class TaskProblem:
    """What an environment finds wrong with its own tasks, as the doctor tells it. "note": said, not wrong."""

    severity: Literal["fail", "warn", "note"]
    seen: str
    why: str = ""
    fix: str = ""
    id: str = ""  # of the failure catalogue
