"""`@reward`: a reward function of one reply, which `prompts` and TRL both can call.

@reward(weight=0.5)
def short(reply: str) -> float:
    return float(len(reply) < 200)

@reward
def correct(reply, answer):            # `answer`: the row's column of that name
    return float(answer in reply)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from airloop.errors import AirError

WEIGHT = "airloop_weight"
REPLY, PROMPT = "reply", "prompt"
KEYWORD = inspect.Parameter.KEYWORD_ONLY


@overload
def reward(function: Callable[..., Any]) -> Callable[..., Any]: ...
@overload
def reward(*, weight: float = 1.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def reward(function: Callable[..., Any] | None = None, *, weight: float = 1.0) -> Any:
    """Makes a function of one reply a reward function in TRL's form. It takes `reply` (the text) and, by their names,
    `prompt` and columns of the row; it gives a number, or None where it does not apply, and may be async. `weight` is
    its weight unless the config says another.

        @reward(weight=0.2)
        def polite(reply):
            return float("please" in reply)
    """
    return _made(function, weight) if function is not None else lambda one: _made(one, weight)


def weight_of(function: Callable[..., Any]) -> float:
    return float(getattr(function, WEIGHT, 1.0))


def is_reward(value: object) -> bool:
    return callable(value) and hasattr(value, WEIGHT)


def _made(one: Callable[..., Any], weight: float) -> Callable[..., Any]:
    parameters = inspect.signature(one).parameters
    if REPLY not in parameters:
        place = f"{one.__code__.co_filename}:{one.__code__.co_firstlineno}"
        raise AirError(
            f"The reward function {one.__name__} ({place}) takes no {REPLY!r}.",
            f"def {one.__name__}({REPLY}, answer): … , or leave @reward out where it takes prompts and completions.",
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def calls(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> Iterator[Any]:
        offered = {**columns, PROMPT: prompts}
        wanted = offered if takes_all else {name: offered[name] for name in parameters if name in offered}
        for i, completion in enumerate(completions):
            yield one(**{REPLY: _text(completion)}, **{name: values[i] for name, values in wanted.items()})

    async def batch_async(prompts: Any, completions: Any, **columns: Any) -> list[Any]:
        return await asyncio.gather(*calls(prompts, completions, columns))

    def batch(prompts: Any, completions: Any, **columns: Any) -> list[Any]:
        return list(calls(prompts, completions, columns))

    made = functools.update_wrapper(batch_async if inspect.iscoroutinefunction(one) else batch, one)
    # As TRL's form would be written: whoever calls it learns by its parameters which columns it needs.
    own = [p.replace(kind=KEYWORD) for n, p in parameters.items() if n not in (REPLY, PROMPT) and p.kind in _NAMED]
    rest = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    given = [inspect.Parameter(name, KEYWORD) for name in ("prompts", "completions")]
    made.__signature__ = inspect.Signature([*given, *own, *rest])  # type: ignore[attr-defined]
    setattr(made, WEIGHT, weight)
    return made


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, KEYWORD)


def _text(completion: Any) -> str:
    """Of a completion as text, or as messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
