"""Import this in tests of Triton kernels: without a GPU the interpreter runs them (conftest.py asks for it)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from triton.runtime import interpreter

_original = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    """Loop bounds are arrays of one element, which numpy from 2.4 on no longer takes for numbers by itself."""
    _original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patched
