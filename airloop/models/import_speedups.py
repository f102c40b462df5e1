"""transformers without scikit-learn and SciPy, and without a second look at all its files: to be imported before it,
for a command that starts one to two seconds earlier, of some eight.

transformers takes a curve of scikit-learn's for assisted decoding and an assignment of SciPy's for losses of object
detection. Both are imported with every language model, and bring pandas and SciPy's statistics along. We use neither,
so these two parts are told that they are not installed; to everybody else they are.

It reads its two thousand files of models to know what each has to offer, and reads them all once more for the package
that they are in: that is told what was found the first time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers.utils as found
from transformers.utils import import_utils

_NAMES = ("is_sklearn_available", "is_scipy_available")
_real = {name: getattr(found, name) for name in _NAMES if hasattr(found, name)}
_structure = getattr(import_utils, "define_import_structure", None)
_MODELS, _PREFIX = Path(found.__file__).parents[1] / "models", "models."


def read_once(path: Any, prefix: str | None = None) -> Any:
    """As transformers.utils.import_utils.define_import_structure, which remembers what it was asked for before."""
    assert _structure is not None
    if prefix is not None or Path(path) != _MODELS / "__init__.py":
        return _structure(path, prefix=prefix) if prefix is not None else _structure(path)
    # As transformers/__init__.py has asked, which puts what lies beside the models into the same answer.
    known = _structure(_MODELS, prefix="models")
    return {
        needs: {name.removeprefix(_PREFIX): objects for name, objects in files.items() if name.startswith(_PREFIX)}
        for needs, files in known.items()
    }


try:
    for _name in _real:
        setattr(found, _name, lambda: False)
    if _structure is not None:
        import_utils.define_import_structure = read_once
    import transformers.generation.utils
    import transformers.modeling_utils
    import transformers.models  # noqa: F401
finally:
    for _name, _function in _real.items():
        setattr(found, _name, _function)
    if _structure is not None:
        import_utils.define_import_structure = _structure
