"""JSON schemas of answers, and the words for them: the words are made from the schema, so they cannot differ."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def text(about: str = "") -> Schema:
    return {"type": "string"} | ({"description": about} if about else {})


def integer(about: str = "") -> Schema:
    return {"type": "integer"} | ({"description": about} if about else {})


def number(about: str = "") -> Schema:
    return {"type": "number"} | ({"description": about} if about else {})


def nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def array(items: Schema, about: str = "") -> Schema:
    return {"type": "array", "items": items} | ({"description": about} if about else {})


def record(**fields: Schema) -> Schema:
    """An object with exactly these keys."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def mapping(values: Schema, about: str) -> Schema:
    """An object whose keys are found on the page."""
    return {"type": "object", "additionalProperties": values, "description": about}


_NAMES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}


def in_words(schema: Schema) -> str:
    return "The answer is " + _words(schema, "") + "."


def _words(schema: Schema, indent: str) -> str:
    kind = schema["type"]
    about = f", {schema['description']}" if schema.get("description") else ""
    if kind == "array":
        return f"a list{about}; each item is {_words(schema['items'], indent)}"
    if kind == "object" and "properties" not in schema:
        return f"an object{about}; each value is {_words(schema['additionalProperties'], indent)}"
    if kind == "object":
        inner = indent + "  "
        lines = [f"{inner}- {key}: {_words(value, inner)}" for key, value in schema["properties"].items()]
        return f"an object with exactly these keys{about}:\n" + "\n".join(lines)
    if isinstance(kind, list):
        return f"{_NAMES[kind[0]]}, or null where there is none{about}"
    return f"{_NAMES[kind]}{' (a JSON string)' if kind == 'string' else ''}{about}"
