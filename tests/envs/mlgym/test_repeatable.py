"""Strategies without chance and memory are asked once for the same history; all others every time."""

from __future__ import annotations

import importlib.util
import random
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.grading_lab import make_task, open_lab

from airloop_envs.mlgym import agent_worker
from airloop_envs.mlgym.spec import Yardstick


def loaded(directory: Path, text: str) -> Any:
    path = directory / f"strategy_{random.getrandbits(64)}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REPEATABLE = {
    "a constant": "def f(h):\n    return 1",
    "a list": "def f(h):\n    return [40, 40, 40, 0, 0, 0]",
    "the last move": "def f(h):\n    return h[-1][1] if h else 0",
    "counting": "def f(h):\n    ones = sum(their for mine, their in h)\n    return 1 if 2 * ones > len(h) else 0",
    "a helper and a constant": """
        LIMIT = 3
        def late(h, after=LIMIT):
            return len(h) > after
        def f(h):
            return int(late(h))
        """,
    "recursion, an inner function, math": """
        import math
        def f(h):
            def depth(n):
                return 0 if n == 0 else depth(n - 1)
            try:
                h.append((0, math.floor(0.5)))
            except ValueError as error:
                return 1
            return depth(len(h))
        """,
    "another function uses chance": "import random\ndef g():\n    return random.random()\ndef f(h):\n    return 0",
}
NOT = {
    "chance": "import random\ndef f(h):\n    return random.random() < 0.5",
    "chance by a name": "from random import random\ndef f(h):\n    return random() < 0.5",
    "chance by a helper": "import random\ndef g():\n    return random.random()\ndef f(h):\n    return g()",
    "chance that is called like something inside": """
        import random
        def f(h):
            g = [random for random in h]
            return random.random()
        """,
    "an import inside": "def f(h):\n    import random\n    return random.random()",
    "a list of the module": "seen = []\ndef f(h):\n    seen.append(1)\n    return len(seen) % 2",
    "a list as a default": "def f(h, seen=[]):\n    seen.append(1)\n    return len(seen) % 2",
    "an attribute": "def f(h):\n    f.n = getattr(f, 'n', 0) + 1\n    return f.n % 2",
    "a global": "n = 0\ndef f(h):\n    global n\n    n += 1\n    return n % 2",
    "somebody else's global": "n = 0\ndef g():\n    global n\n    n += 1\ndef f(h):\n    return n",
    "the clock": "import time\ndef f(h):\n    return int(time.time()) % 2",
    "numpy": "import numpy as np\ndef f(h):\n    return np.random.rand() < 0.5",
    "a closure": "def make(n):\n    def f(h):\n        n.append(1)\n        return len(n)\n    return f\nf = make([])",
    "a decorator": "import functools\n@functools.cache\ndef g(n):\n    return n\ndef f(h):\n    return g(1)",
    "an object": "class F:\n    def __call__(self, h):\n        return 1\nf = F()",
    "an address": "def f(h):\n    return id(h) % 2",
    "written twice": "def f(h):\n    return 0\nif True:\n    def f(h):\n        return hash(object())",
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATABLE)
def test_code_without_chance_and_memory_is_recognised(tmp_path: Path, name: str) -> None:
    assert agent_worker.is_repeatable(loaded(tmp_path, REPEATABLE[name]).f)


USES_NONE = ("a constant", "a list", "another function uses chance")


def test_who_looks_at_no_argument_is_recognised(tmp_path: Path) -> None:
    found = [name for name, text in REPEATABLE.items() if not agent_worker.uses_arguments(loaded(tmp_path, text).f)]
    assert tuple(found) == USES_NONE


@pytest.mark.parametrize("name", NOT)
def test_all_other_code_is_called_every_time(tmp_path: Path, name: str) -> None:
    assert not agent_worker.is_repeatable(loaded(tmp_path, NOT[name]).f)


EVALUATE = """
import json
import agent_link
import strategy
total = sum(strategy.row_strategy([(0, n % 3)]) for n in range(3000))
kept = len(agent_link.link().kept)
strategy.LIMIT = 0
total += 10_000 * sum(strategy.row_strategy([(0, 2)]) for _ in range(10))
print(json.dumps({"Score": total + kept / 10}))
"""
CASES = {
    "def row_strategy(h):\n    return 1": 103_000.1,  # one answer for all
    "LIMIT = 2\ndef row_strategy(h):\n    return int(h[-1][1] >= LIMIT)": 101_000.3,  # three histories were asked for
    "import itertools\nLIMIT = 0\nn = itertools.count()\ndef row_strategy(h):\n    return next(n) % 2": 51_500.0,
}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_what_repeats_is_asked_once_in_real_sandboxes_until_something_is_set(tmp_path: Path) -> None:
    files = {"evaluate.py": EVALUATE, "strategy.py": ""}
    task = make_task(tmp_path, "PythonSubmissionTasks", files)
    with open_lab() as lab:
        for code, expected in CASES.items():
            grade = lab.grade(task, lab.attempt(task, "true", {"strategy.py": code}))
            assert grade.scores is not None and grade.scores["Score"] == pytest.approx(expected), grade


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_where_the_score_is_a_time_every_call_is_made(tmp_path: Path) -> None:
    files = {"evaluate.py": EVALUATE.replace("Score", "Time"), "strategy.py": ""}
    task = make_task(tmp_path, "PythonSubmissionTasks", files, yardstick=Yardstick("Time", "down", None, None))
    with open_lab() as lab:
        grade = lab.grade(task, lab.attempt(task, "true", {"strategy.py": next(iter(CASES))}))
        assert grade.scores is not None and grade.scores["Time"] == 103_000.0  # of which none was kept
