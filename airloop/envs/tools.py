"""Tools from typed functions: what the agent may call, with which arguments, and what calls it.

    class Shop(ToolSession):
        def prompt(self) -> str:
            return "Which shelf has tea?"

        @tool
        def look(self, shelf: Annotated[int, "from 1 on"], closely: bool = False) -> str:
            "Says what is on a shelf."
            return ...

The schema is that of the function's types, the description its docstring. Arguments are checked against the types
before it is called: what is wrong with them is the tool's answer, never an exception.
"""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from airloop.envs.base import Opening, Session
from airloop.errors import AirError
from airloop.types import Action, Message, Observation

F = TypeVar("F", bound=Callable[..., Any])
MARK = "_airloop_tool"
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Tool:
    """A function that the agent may call by its name."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """What it takes, as a model that checks it. Made when it is first asked for: types may be defined below it."""
        hints = get_type_hints(self.function, include_extras=True)
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name == "self" and not fields:
                continue
            if parameter.kind not in BY_NAME:
                raise self._wrong(f"takes {parameter}, and arguments go by name", f"name them: {name}: str, …")
            if name not in hints:
                raise self._wrong(f"does not say of what type {name!r} is", f"{name}: str, or whatever it is.")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (_described(hints[name]), default)
        return create_model(self.name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """As an OpenAI client and chat templates take it."""
        parameters = _without_titles(self.arguments.model_json_schema())
        parameters.setdefault("properties", {})
        parameters.pop("description", None)
        about = inspect.getdoc(self.function) or ""
        return {"type": "function", "function": {"name": self.name, "description": about, "parameters": parameters}}

    async def call(self, arguments: Mapping[str, Any], *owner: Any) -> Observation:
        """What it gives for these arguments. What it raises is a defect of its own, as of any session."""
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            return Observation(self._refusal(error), failed=True)
        given = self.function(*owner, **{name: getattr(checked, name) for name in type(checked).model_fields})
        return _observation(await given if inspect.isawaitable(given) else given)

    def _refusal(self, error: ValidationError) -> str:
        told = []
        for detail in error.errors(include_url=False):
            name = ".".join(str(part) for part in detail["loc"])
            what = {"missing": "is missing", "extra_forbidden": "is not known"}.get(detail["type"], detail["msg"])
            told.append(f"{name}: {what}" if what == detail["msg"] else f"{name} {what}")
        takes = ", ".join(self.arguments.model_fields) or "nothing"
        return f"{self.name} was not called: {'; '.join(told)}. It takes {takes}."

    def _wrong(self, what: str, fix: str) -> AirError:
        code = inspect.unwrap(self.function).__code__
        return AirError(f"The tool {self.name} ({code.co_filename}:{code.co_firstlineno}) {what}.", fix)


def tool(function: F) -> F:
    """Lets the agent call this method of a ToolSession. It stays the function that it is.

    @tool
    def add(self, a: float, b: float) -> str:
        "The sum of two numbers."
        return str(a + b)
    """
    setattr(function, MARK, Tool(function))
    return function


def tools_of(owner: object) -> dict[str, Tool]:
    """The tools of an object, in the order of their definition, by their names; a subclass may define one anew."""
    names = dict.fromkeys(name for kind in reversed(type(owner).__mro__) for name in vars(kind))
    found = {name: getattr(getattr(type(owner), name, None), MARK, None) for name in names}
    return {made.name: made for made in found.values() if isinstance(made, Tool)}


class ToolSession(Session):
    """An episode whose actions are calls of the methods marked with @tool. `prompt` and `finish` must be given; a tool
    that returns Observation(text, done=True) ends it. One that defines `answer(text)` also takes a reply that calls no
    tool. Its environment has action_format = "tools"."""

    @abstractmethod
    def prompt(self) -> str | Sequence[Message]:
        """What the agent is told first: a text of the user's, or messages."""

    def answer(self, text: str) -> Observation | None:
        """What a reply without a call does: by default it ends the episode, where a subclass defines this."""
        raise NotImplementedError

    def plain_reply(self, text: str) -> Action | None:
        own = type(self).answer
        return Action("text", text=text) if own is not ToolSession.answer and not hasattr(own, MARK) else None

    async def begin(self) -> Opening:
        said = self.prompt()
        messages = (Message(role="user", content=said),) if isinstance(said, str) else tuple(said)
        return Opening(messages, tuple(found.schema for found in tools_of(self).values()))

    async def act(self, action: Action) -> Observation:
        if action.kind == "text":
            given: Any = self.answer(action.text)
            given = await given if inspect.isawaitable(given) else given
            return Observation("", done=True) if given is None else _observation(given)
        known = tools_of(self)
        if action.name not in known:
            return Observation(f"There is no tool {action.name!r}. Known: {', '.join(known) or 'none'}.", failed=True)
        return await known[action.name].call(action.arguments, self)


def _described(hint: Any) -> Any:
    """Annotated[int, "from 1 on"]: a text beside a type is its description."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *more = get_args(hint)
    return Annotated[kind, *(Field(description=one) if isinstance(one, str) else one for one in more)]


def _without_titles(schema: Any) -> Any:
    """Of no use to a model that reads them, and a fifth of the prompt. A property may be called "title"."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            kept[name] = {key: _without_titles(one) for key, one in value.items()}
        elif name in ("default", "const", "enum", "examples"):
            kept[name] = value
        elif not (name == "title" and isinstance(value, str)):
            kept[name] = _without_titles(value)
    return kept


def _observation(given: Any) -> Observation:
    if isinstance(given, Observation):
        return given
    if given is None or isinstance(given, str):
        return Observation(given or "")
    if isinstance(given, BaseModel):
        return Observation(given.model_dump_json())
    return Observation(json.dumps(given, ensure_ascii=False, default=str))
