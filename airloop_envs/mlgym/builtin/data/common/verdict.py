"""How an evaluation ends: one JSON object (of tables one for each half of the hidden rows), or a sentence that says
what is wrong with the submission."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


class Invalid(Exception):
    """What the agent handed in cannot be scored, and why."""


def report(evaluate: Callable[[], Mapping[str, Any]]) -> None:
    try:
        scores = evaluate()
    except Invalid as error:
        print(error)
        sys.exit(1)
    print(json.dumps(scores, allow_nan=False))
