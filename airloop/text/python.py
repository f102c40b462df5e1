"""Python that others wrote, read without running it."""

from __future__ import annotations

import ast
import warnings


def parse_python(code: str | bytes) -> ast.Module:
    """Its syntax tree; SyntaxError, ValueError, RecursionError or MemoryError where it is none.

    Python's advice on the code, such as that of an escape it does not know, is its author's and not for our log.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)
