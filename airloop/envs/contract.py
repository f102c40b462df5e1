"""What an environment of somebody's own gives, looked at where it comes from: what is no opening, no observation, no
score or no task is a sentence with the method's name, and numbers of any library are numbers."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airloop.envs.base import Environment, Opening, Session
from airloop.errors import AirError
from airloop.types import Action, Observation, Score, Task

T = TypeVar("T")
FORMS: dict[type, str] = {
    Opening: 'async def begin(self): return Opening((Message(role="user", content="…"),))',
    Observation: "async def act(self, action): return Observation(text, done=True)",
    Score: 'async def finish(self): return Score({"correct": 1.0}, {"correct": 1.0})',
}


# What is read of each: whatever has these will do.
READ: dict[type, tuple[str, ...]] = {
    Opening: ("messages", "tools"),
    Observation: ("text", "rewards", "done"),
    Score: ("rewards", "metrics"),
}


class WrongEnvironment(AirError):
    """Its author's to mend: no trouble of the machinery, and no defect of ours."""


def open_session(env: Environment[Any], task: Task, seed: int) -> Session:
    made = env.open(task, seed)
    if inspect.iscoroutine(made):
        made.close()
    if not hasattr(made, "__aenter__") or not hasattr(made, "begin"):
        raise WrongEnvironment(
            f"open() of {_name(env)} gave {_kind(made)}, not a Session.",
            "write: def open(self, task, seed): return MySession()",
        )
    return made


async def begin_session(session: Session) -> Opening:
    opening = await _awaited(session.begin(), "begin", session, Opening)
    wrong = [message for message in opening.messages if not isinstance(message, Mapping) or "role" not in message]
    if isinstance(opening.messages, str) or wrong:
        raise WrongEnvironment(
            f"begin() of {_name(session)} gave an Opening whose messages are {_kind(opening.messages)}"
            f"{f' with {_kind(wrong[0])}' if wrong else ''}, not messages with role and content.",
            f"write: {FORMS[Opening]}",
        )
    return opening


async def act_in(session: Session, action: Action) -> Observation:
    found = await _awaited(session.act(action), "act", session, Observation)
    if not found.rewards or not isinstance(found, Observation):
        return found
    return replace(found, rewards=_numbers(found.rewards, "the reward", "act", session))


async def score_session(session: Session) -> Score:
    found = await _awaited(session.finish(), "finish", session, Score)
    rewards = _numbers(found.rewards, "the reward", "finish", session)
    metrics = _numbers(found.metrics, "the metric", "finish", session)
    return replace(found, rewards=rewards, metrics=metrics) if isinstance(found, Score) else Score(rewards, metrics)


def list_tasks(env: Environment[Any], split: str) -> Sequence[Task]:
    """AirError for a split that it does not have: a misspelt name would give no tasks, or, where an environment makes
    them, tasks of no split that anything else has."""
    if split not in env.splits:
        near = difflib.get_close_matches(split, env.splits, n=1)
        named = ", ".join(map(repr, (*env.splits, split)))
        raise AirError(
            f"{env.name or _name(env)} has no tasks in the split {split!r}: there is no such split.",
            f"did you mean {near[0]!r}? It has {', '.join(env.splits)}."
            if near
            else f"It has {', '.join(env.splits)}. A class of your own that has it says so: `splits = ({named})`.",
        )
    found: Any = env.tasks(split)
    found = list(found) if isinstance(found, Iterator) else found
    listed = hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, Mapping | str)
    wrong = [one for one in found if not isinstance(one, Task)][:1] if listed else []
    if listed and not wrong:
        return found
    given = _kind(found) + (f" with {_kind(wrong[0])}" if wrong else "")
    raise WrongEnvironment(
        f"tasks({split!r}) of {_name(env)} gave {given}, not a list of tasks.",
        'write: def tasks(self, split): return [Task(self.name, "1", split, {"question": "…"})]',
    )


async def _awaited(given: Awaitable[T], method: str, session: Session, wanted: type[T]) -> T:
    found: Any = await given if inspect.isawaitable(given) else given
    if not inspect.isawaitable(given) or not all(hasattr(found, name) for name in READ[wanted]):
        plain = "" if inspect.isawaitable(given) else " without being async"
        raise WrongEnvironment(
            f"{method}() of {_name(session)} gave {_kind(found)}{plain}, where {wanted.__name__} is awaited.",
            f"write: {FORMS[wanted]}",
        )
    return found


def _numbers(given: Any, what: str, method: str, session: Session) -> dict[str, float]:
    """numpy's and torch's too."""
    if not isinstance(given, Mapping):
        raise WrongEnvironment(
            f"{method}() of {_name(session)} gave {_kind(given)} for its {what.split()[1]}s, not numbers by name.",
            'write a dict: {"correct": 1.0}',
        )
    found = {}
    for name, value in given.items():
        try:
            if isinstance(value, str):
                raise TypeError
            found[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise WrongEnvironment(
                f"{method}() of {_name(session)}: {what} {name!r} is {_kind(value)}, not a number.",
                f"write float(…), or leave {name!r} out where there is none.",
            ) from None
    return found


def _name(thing: object) -> str:
    return type(thing).__name__


def _kind(value: object) -> str:
    kind = type(value).__name__
    return "None" if value is None else f"an {kind}" if kind[0] in "aeiouAEIOU" else f"a {kind}"
