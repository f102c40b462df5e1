"""The three tools: what the model is told of them, and how its calls are checked.

A call is checked by the same model that its schema is made from, so what is described is what is accepted.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airloop.types import Action

Prompt = Literal["full", "short"]
MOST = 5  # documents a search may show


class Call(BaseModel):
    """Numbers in quotes are numbers; anything else that is not as described is told to the agent."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)
    example: ClassVar[Mapping[str, Any]]


class Retrieve(Call):
    """Search the documents of this question. Shows the best matches with their ids."""

    example: ClassVar[Mapping[str, Any]] = {"query": "birthplace of Ada Lovelace"}
    query: Annotated[str, Field(min_length=1, description="What to look for: names and key words.")]
    top_n: Annotated[int | None, Field(ge=1, description="How many documents to show.")] = None


class GetDocument(Call):
    """Show one document in full."""

    example: ClassVar[Mapping[str, Any]] = {"id": 3}
    id: Annotated[int, Field(description="The document's id, as a search shows it in [brackets].")]


class Complete(Call):
    """Give the final answer. This ends the task."""

    example: ClassVar[Mapping[str, Any]] = {"final_answer": "London", "cited_doc_ids": [3, 7]}
    reasoning: Annotated[str, Field(description="How the documents lead to the answer, briefly.")] = ""
    final_answer: Annotated[str, Field(description="The answer alone: a name, a date, a few words.")]
    cited_doc_ids: Annotated[list[int], Field(description="Ids of the documents that the answer rests on.")]


CALLS: Mapping[str, type[Call]] = {"retrieve_documents": Retrieve, "get_document": GetDocument, "complete": Complete}


class BadCall(Exception):
    """`str()` is a sentence for the agent: what was wrong, and what is right."""


def schemas(prompt: Prompt, top_n: int, max_top_n: int) -> tuple[Mapping[str, Any], ...]:
    """As chat templates take them. "short" leaves out what the names already say."""
    return tuple(_schema(name, call, prompt, top_n, max_top_n) for name, call in CALLS.items())


def _schema(name: str, call: type[Call], prompt: Prompt, top_n: int, max_top_n: int) -> Mapping[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for key, field in call.model_fields.items():
        kind = {str: {"type": "string"}, list[int]: {"type": "array", "items": {"type": "integer"}}}
        properties[key] = dict(kind.get(field.annotation, {"type": "integer"}))  # type: ignore[call-overload]
        if key == "top_n":
            properties[key] |= {"maximum": max_top_n}
        if prompt == "full":
            properties[key]["description"] = field.description
            if key == "top_n":
                properties[key]["description"] += f" By default {top_n}."
        if field.is_required():
            required.append(key)
    about = " ".join((call.__doc__ or "").split())
    function = {
        "name": name,
        "description": about if prompt == "full" else about.split(".")[0] + ".",
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    return {"type": "function", "function": function}


def read_call(action: Action, max_top_n: int) -> Call:
    kind = CALLS.get(action.name)
    if kind is None:
        near = difflib.get_close_matches(action.name, CALLS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BadCall(f"There is no tool {action.name[:60]!r}.{hint} The tools are {', '.join(CALLS)}.")
    try:
        call = kind.model_validate(dict(action.arguments))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadCall(f"{action.name}: {_problem(first)} {_form(action.name, kind)}") from None
    if isinstance(call, Retrieve) and (call.top_n or 0) > max_top_n:
        raise BadCall(f"{action.name}: top_n is at most {max_top_n}. {_form(action.name, kind)}")
    return call


def _problem(error: Mapping[str, Any]) -> str:
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{name!r} is missing."
    if error["type"] == "extra_forbidden":
        return f"there is no argument {name[:60]!r}."
    return f"{name!r}: {error['msg']}."


def _form(name: str, kind: type[Call]) -> str:
    return f"Write {as_json(name, kind.example)}"


def as_json(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def as_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in Hermes form, which every parser setting but "json" reads."""
    return f"<tool_call>\n{as_json(name, arguments)}\n</tool_call>"
