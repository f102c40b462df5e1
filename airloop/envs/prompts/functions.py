"""Reward functions in the form that TRL gave them: `def correct(prompts, completions, answer, **columns)` takes lists
and returns a list of numbers, with None where it does not apply; it may be `async`.

Each is called with lists of one, as soon as a reply is there. An `async` one runs in a loop of its own, which is the
same for the whole process: a client that it keeps open belongs to one loop. Any other is called as TRL calls it: in the
run's own thread, where it may set an alarm, one at a time, and as if no loop were running, so that it may run one. What
a function raises, or returns that is no number, is told with its line and the row, and is never a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.envs.prompts.reward import is_reward, weight_of
from airloop.errors import AirError, InfraError
from airloop.own_code import check_file, is_file_id, line_of, load_module, split_id
from airloop.text.spelling import misspelt

FORM = "define it as `def {}(prompts, completions, **columns): return [number, …]` (docs/environments.md)."
IDS = "completion_ids"
GIVEN = ("prompts", "completions", IDS)
# What TRL's trainer gives besides: there is no such object here.
TRAINERS = ("trainer_state", "log_extra", "log_metric", "environments")
# Metrics that every episode has already; what is measured under the same name would be lost.
MEASURED = ("reward", "turns", "invalid_actions", "sampled_tokens", "length_stops", "cached_share")
TRIAL_S = 120.0  # for an async function on one reply: a judge behind a URL may be slow
SHOWN = 60  # characters of a reply in a sentence


@dataclass(frozen=True)
class Reply:
    """What functions are asked about. `prompt` is text or messages, and the completion then has the same form."""

    prompt: str | Sequence[Mapping[str, Any]]
    text: str
    ids: tuple[int, ...] | None  # None: the agent is no model of ours
    columns: Mapping[str, Any]
    where: str  # "row 12 of rows.jsonl"

    @property
    def completion(self) -> str | list[dict[str, str]]:
        return self.text if isinstance(self.prompt, str) else [{"role": "assistant", "content": self.text}]

    @property
    def shown(self) -> str:
        text = self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…"
        return f"{self.where}, reply {text!r}"


@dataclass(frozen=True)
class RewardFunction:
    name: str
    path: Path
    function: Callable[..., Any] = field(repr=False)

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @property
    def weight(self) -> float:
        """What it counts unless the config says otherwise."""
        return weight_of(self.function)

    @property
    def takes_all(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())

    @property
    def reads_ids(self) -> bool:
        """Whether it cannot be asked about a reply without tokens."""
        return IDS in self.parameters and self.parameters[IDS].default is inspect.Parameter.empty

    @property
    def place(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        own = code is not None and code.co_filename == str(self.path)
        return f"{self.path}:{code.co_firstlineno}" if own and code else str(self.path)

    async def score(self, reply: Reply) -> float | None:
        """InfraError for whatever is no number and not None."""
        given = self._call(reply)
        if inspect.isawaitable(given):
            try:
                given = await asyncio.wrap_future(_elsewhere(given))
            except (Exception, SystemExit) as error:
                raise self._raised(error, reply) from error
        return self._number(given, reply)

    def try_on(self, reply: Reply) -> float | None:
        """The same at once, outside of any loop."""
        given = self._call(reply)
        if inspect.isawaitable(given):
            future = _elsewhere(given)
            try:
                given = future.result(TRIAL_S)
            except (Exception, SystemExit) as error:
                future.cancel()
                raise self._raised(error, reply) from error
        return self._number(given, reply)

    def _call(self, reply: Reply) -> Any:
        offered: dict[str, Any] = {name: [value] for name, value in reply.columns.items()}
        offered |= {"prompts": [reply.prompt], "completions": [reply.completion]}
        if reply.ids is not None:
            offered[IDS] = [list(reply.ids)]
        if not self.takes_all:
            offered = {name: value for name, value in offered.items() if name in self.parameters}
        try:
            with _no_loop():
                return self.function(**offered)
        except (Exception, SystemExit) as error:
            raise self._raised(error, reply) from error

    def _raised(self, error: BaseException, reply: Reply) -> InfraError:
        line = line_of(error, self.path)
        place = f"{self.path}{line}" if line else _last_place(error) or self.place
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return InfraError(f"The reward function {self.name} raised {said} ({place}), for {reply.shown}.")

    def _number(self, given: Any, reply: Reply) -> float | None:
        def wrong(what: str) -> InfraError:
            return InfraError(f"The reward function {self.name} returned {what} ({self.place}), for {reply.shown}.")

        listed = given.tolist() if hasattr(given, "tolist") else given  # an array or a tensor
        if not isinstance(listed, list | tuple):
            raise wrong(f"{_kind(given)}, not a list with one number for each completion")
        if len(listed) != 1:
            raise wrong(f"{len(listed)} rewards for 1 completion")
        value = listed[0].item() if hasattr(listed[0], "item") else listed[0]
        if value is None:
            return None
        if not isinstance(value, int | float):
            raise wrong(f"{_kind(value)}, not a number")
        if not math.isfinite(value):
            raise wrong(f"{value}, where a reward is a finite number, or None if the function does not apply")
        return float(value)


def load_functions(ids: Sequence[str]) -> tuple[RewardFunction, ...]:
    """Found and imported, not yet called. AirError says what is wrong with a file or a name."""
    found: dict[str, RewardFunction] = {}
    for function in (function for file_id in ids for function in _load(file_id)):
        if function.name in MEASURED:
            raise AirError(
                f"The reward function {function.name} ({function.place}) has the name of a metric of every episode.",
                f"give it another in its file: my_{function.name} = {function.name}",
            )
        if function.name in found:
            other = found[function.name].path
            raise AirError(
                f"Two reward functions are called {function.name!r} ({other} and {function.path}): the name is that of "
                "the reward component.",
                "rename one of them.",
            )
        found[function.name] = function
    return tuple(found.values())


def _load(file_id: str) -> list[RewardFunction]:
    """The function that is named, or all that are marked with @reward in a file that is."""
    name = split_id(file_id)[2]
    if not is_file_id(file_id):
        raise AirError(f"The reward {file_id!r} names no file.", 'write it like "./rewards.py:correct".')
    path = check_file(file_id, "reward function", "correct the path: in a TOML it is relative to the TOML's folder.")
    module = load_module(path)
    own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
    found = getattr(module, name, None) if name else None
    if callable(found):
        return [RewardFunction(name, path, found)]
    marked = [RewardFunction(key, path, value) for key, value in vars(module).items() if is_reward(value)]
    if marked and not name:
        return marked
    if found is not None:
        raise AirError(f"{path}:{name} is a {type(found).__name__}, not a function.", FORM.format(name))
    unmarked = f"{file_id!r} names no function of the file, and none is marked with @airloop.reward."
    problem = f"{path} has no function {name!r}." if name else unmarked
    near = misspelt(name, own) or (own[0] if len(own) == 1 else None)
    hint = f"did you mean {path}:{near}?" if near else f"it has: {', '.join(own)}." if own else FORM.format(name or "f")
    raise AirError(problem, hint)


def check_parameters(function: RewardFunction, columns: Sequence[str], source: str) -> None:
    """Whatever it must be given is there."""
    said = f"The reward function {function.name} ({function.place})"
    for name, parameter in function.parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise AirError(f"{said} takes {name!r} by its place only, and all is given by name.", "leave out the `/`.")
        if parameter.default is not parameter.empty or name in (*GIVEN, *columns):
            continue
        if name in TRAINERS:
            raise AirError(
                f"{said} needs {name!r}, an object of TRL's trainer that is not here.",
                f"give it a default ({name}=None) and do without; every reward is logged by itself.",
            )
        near = misspelt(name, [*columns, *GIVEN])
        raise AirError(
            f"{said} needs {name!r}, and {source} has no such column.",
            f"{f'did you mean {near!r}? ' if near else ''}There are {', '.join([*GIVEN, *columns])}.",
        )


@contextlib.contextmanager
def _no_loop() -> Iterator[None]:
    """Functions written for TRL may call asyncio.run, which is refused wherever a loop is running."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward functions", daemon=True).start()
    return loop


def _elsewhere(work: Any) -> Future[Any]:
    async def wait() -> Any:
        return await work

    return asyncio.run_coroutine_threadsafe(wait(), _loop())


def _last_place(error: BaseException) -> str:
    """Where it happened, if that is in none of the user's own files."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__} ({str(value)[:SHOWN]!r})"
