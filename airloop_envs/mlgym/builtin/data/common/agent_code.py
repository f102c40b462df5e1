"""Calls into the agent's module. In grading the module is a proxy for a process that holds the agent's code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from verdict import Invalid


def agent_function(module: str, name: str) -> Callable[..., Any]:
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise Invalid(f"{module}.py cannot be used: {_said(error)}") from None


def results(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], where: str) -> list[Any]:
    """All calls in one message where the function offers that, one after the other where it does not."""
    many = getattr(function, "many", None)
    try:
        return list(many(list(arguments))) if many else [function(*a) for a in arguments]
    except Exception as error:
        raise Invalid(f"{where} failed: {_said(error)}") from None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
