"""transformers without scikit-learn and SciPy: to be imported before it, for a command that starts half a second to a
second earlier, of some eight.

transformers takes a curve of scikit-learn's for assisted decoding and an assignment of SciPy's for losses of object
detection. Both are imported with every language model, and bring pandas and SciPy's statistics along. We use neither,
so these two parts are told that they are not installed; to everybody else they are.
"""

from __future__ import annotations

import transformers.utils as found

_NAMES = ("is_sklearn_available", "is_scipy_available")
_real = {name: getattr(found, name) for name in _NAMES if hasattr(found, name)}
try:
    for _name in _real:
        setattr(found, _name, lambda: False)
    import transformers.generation.utils
    import transformers.modeling_utils  # noqa: F401
finally:
    for _name, _function in _real.items():
        setattr(found, _name, _function)
