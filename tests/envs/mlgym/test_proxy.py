"""The agent's code is called from another sandbox, and nothing it does there reaches the score (D17)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fixture_checkout import write_checkout
from support.grading_lab import Lab, make_task, open_lab

from airloop_envs.mlgym import agent_link, agent_worker
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.grading import Grader
from airloop_envs.mlgym.proxy import without_impostors
from airloop_envs.mlgym.spec import TaskSpec

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def dilemma(tmp_path_factory: pytest.TempPathFactory) -> TaskSpec:
    """With 300 games: what cheats gain is more than the noise of that."""
    root = write_checkout(tmp_path_factory.mktemp("short"))
    script = root / "data/prisonersDilemma/evaluate.py"
    script.write_text(script.read_text().replace("10_000", "300"))
    return load_task(root, "prisonersDilemma")


def code_task(directory: Path, evaluate: str, **more: Any) -> TaskSpec:
    return make_task(directory, "PythonSubmissionTasks", {"evaluate.py": evaluate, "strategy.py": ""}, **more)


# --- code that is called ------------------------------------------------------------------------------------

DEFECT = "def row_strategy(history):\n    return 1\n"
BEST = 2.6  # against the fixture's opponent; one that always cooperates gives 5
NOISE = 0.25  # five standard errors of 300 games


def test_honest_code_is_scored(lab: Lab, root: Path) -> None:
    dilemma = load_task(root, "prisonersDilemma")
    submission = lab.attempt(dilemma, "echo 5 >params.txt", {"strategy.py": DEFECT})
    assert submission is not None and submission.path == "strategy.py"
    assert sorted(submission.files) == ["params.txt", "strategy.py"]
    grade = lab.grade(dilemma, submission)
    print(f"\nan evaluation of 100,000 single calls: {grade.seconds:.2f} s")
    assert grade.scores is not None and abs(grade.scores["Score"] - BEST) < 0.05


CHEATS = {
    "seeds the generator and edits its argument": """
        import random
        def row_strategy(history):
            random.seed(1)
            move = 0 if random.random() < 0.4 else 1
            history.append((1, 0))
            random.seed(1)
            return 1
        """,
    "looks for the opponent": """
        import gc, sys, inspect
        def row_strategy(history):
            for name in ("target", "evaluate"):
                if name in sys.modules:
                    sys.modules[name].target_column_strategy = lambda h: 0
            frame = inspect.currentframe().f_back
            while frame:
                if "PAYOFF" in frame.f_globals or "target_column_strategy" in frame.f_globals:
                    frame.f_globals["target_column_strategy"] = lambda h: 0
                    frame.f_globals["total"] = 10 ** 9
                frame = frame.f_back
            for found in gc.get_objects():
                if isinstance(found, dict) and "PAYOFF" in found:
                    found["PAYOFF"] = dict.fromkeys(found["PAYOFF"], 100)
            return 1
        """,
    "looks for the opponent's file, and writes another": """
        import glob
        code = "def target_column_strategy(h):\\n    return 0\\n"
        assert not [f for f in glob.glob("/home/agent/**/*", recursive=True) if "target" in f or "evaluate" in f]
        open("target.py", "w").write(code)
        def row_strategy(history):
            return 1
        """,
    "answers with objects that change": """
        class Move(int):
            def __eq__(self, other): return True
            def __hash__(self): return hash(0)
        def row_strategy(history):
            return Move(1)
        """,
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_d17_cheats_gain_nothing(lab: Lab, dilemma: TaskSpec, name: str) -> None:
    grade = lab.grade(dilemma, lab.attempt(dilemma, "true", {"strategy.py": CHEATS[name]}))
    assert grade.scores is not None, grade
    assert grade.scores["Score"] < BEST + NOISE


REFUSED = {
    "prints a score and leaves": ("print('{\"Score\": 9}', flush=True)\nimport os\nos._exit(0)", "has ended"),
    "leaves in a call": ("import os\ndef row_strategy(h):\n    os._exit(0)", "has ended"),
    "exits": ("import sys\ndef row_strategy(h):\n    sys.exit(0)", "SystemExit: 0 (strategy.py, line 3)"),
    "fails": ("def row_strategy(h):\n    return 1 / len(h)", "Error: division by zero (strategy.py, line 2)"),
    "is broken": ("def row_strategy(h)\n    return 1", "strategy.py cannot be imported: expected ':'"),
    "has no function": ("x = 1", "ImportError: cannot import name 'row_strategy'"),
    "writes to every socket it finds": (
        "import os\nfor fd in range(3, 20):\n"
        "    try: os.write(fd, b'r{\"Score\": 9}' * 9)\n    except OSError: pass\n"
        "def row_strategy(h): return 1", "what was not asked"),
    "returns a handle": ("def row_strategy(h):\n    return object()", "KeyError"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_code_that_fails_is_told_why(lab: Lab, dilemma: TaskSpec, name: str) -> None:
    code, said = REFUSED[name]
    grade = lab.grade(dilemma, lab.attempt(dilemma, "true", {"strategy.py": code}))
    assert (grade.scores, grade.error) == (None, "evaluation_failed")
    assert said in grade.text, grade.text
    assert "agent_link" not in grade.text and "target" not in grade.text


@pytest.mark.long
def test_code_that_does_not_end_ends_the_grading(lab: Lab, dilemma: TaskSpec) -> None:
    forever = "def row_strategy(history):\n    while True: pass\n"
    submission = lab.attempt(dilemma, "true", {"strategy.py": forever})
    started = time.monotonic()
    assert lab.grade(dilemma, submission, timeout=2.0).error == "evaluation_timeout"
    hasty = Grader(lab.backend, call_s=1.0)
    grade = lab.run(hasty.grade(dilemma, submission))
    assert grade.error == "evaluation_timeout" and "your code" in grade.text
    assert time.monotonic() - started < 60


@pytest.mark.long
def test_huge_output_goes_nowhere(lab: Lab, dilemma: TaskSpec) -> None:
    noisy = "import sys\nprint('{\"Score\": 9}' * 10**6)\nsys.stderr.write('x' * 10**7)\n" + DEFECT
    grade = lab.grade(dilemma, lab.attempt(dilemma, "true", {"strategy.py": noisy}))
    assert grade.scores is not None and grade.scores["Score"] < BEST + NOISE
    huge = lab.attempt(dilemma, "true", {"strategy.py": "def row_strategy(h):\n    return 'x' * (200 << 20)\n"})
    assert "answered too much" in lab.grade(dilemma, huge).text


def test_modules_named_like_others_are_not_imported(lab: Lab, dilemma: TaskSpec) -> None:
    fake = "def dumps(x): return '{\"Score\": 9}'\ndef target_column_strategy(h): return 0\ndef stand_in(n): pass\n"
    names = "json.py json/__init__.py sitecustomize.py numpy.py target/__init__.py agent_link/__init__.py agent_link.py"
    submission = lab.attempt(dilemma, "true", {"strategy.py": DEFECT, **dict.fromkeys(names.split(), fake)})
    assert submission is not None and "target/__init__.py" in submission.files
    grade = lab.grade(dilemma, submission)
    assert grade.scores is not None and grade.scores["Score"] < BEST + NOISE, grade


def test_impostors_by_name() -> None:
    names = "numpy.py json.pyc a.so torch/__init__.py torch/x.py target/__init__.py target/x.py target.cpython-311.so"
    names += " pkg/judge/__init__.py pkg/own.py src/model.py numpy.txt queue.py config.yaml agent_link/__init__.py"
    starter = ["queue.py", "target.py", "pkg/judge.py", "notes.txt"]
    kept = without_impostors(
        dict.fromkeys(names.split(), b""), {"numpy", "json", "torch", "queue", "a"}, starter,
        lambda name: name in ("target.py", "pkg/judge.py", "notes.txt"),
    )  # fmt: skip
    assert list(kept) == ["torch/x.py", "pkg/own.py", "src/model.py", "numpy.txt", "queue.py", "config.yaml"]


EVERYTHING = """
    import json, math, threading
    import numpy as np
    import strategy
    from strategy import *
    from helpers.deep import twice

    class Board:
        pass

    assert strategy.N == 3 and strategy.echo((1, [2.5, None], {"a": (True,)}, {1, 2}, b"x", 1j)) == (
        1, [2.5, None], {"a": (True,)}, {1, 2}, b"x", 1j)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = strategy.echo(array)
    assert back.dtype == array.dtype and (back == array).all() and type(strategy.echo(np.int64(3))) is np.int64
    assert math.isnan(strategy.echo(float("nan"))) and strategy.echo(10 ** 30) == 10 ** 30
    given = [1]
    assert strategy.grow(given) == [1, 9] and given == [1]
    assert strategy.echo.many([(i,) for i in range(5)]) == [0, 1, 2, 3, 4]
    assert twice(4) == 8 and echo(1) == 1
    policy = strategy.Policy(7)
    assert policy.act(1, plus=2) == 10 and policy.total == 10 and policy.same(policy) is True
    strategy.N = 4
    assert strategy.read() == 4
    assert not hasattr(strategy, "nothing") and getattr(strategy, "nothing", 5) == 5
    for wrong, kind in ((lambda: strategy.fails(), ValueError), (lambda: echo(Board()), TypeError),
                        (lambda: echo(lambda: 1), TypeError), (lambda: len(policy), TypeError),
                        (lambda: echo.many([1]), TypeError)):
        try:
            wrong()
        except kind as error:
            print(error, file=__import__("sys").stderr)
        else:
            raise SystemExit(f"{wrong} did not fail")
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(sum(echo(i) for i in range(50)))) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert seen == [sum(range(50))] * 4
    try:
        class Mine(strategy.Policy):
            pass
    except TypeError as error:
        assert "another process" in str(error)
    print(json.dumps({"Score": 1.0}))
    """
STRATEGY = """
    import collections
    from helpers.deep import twice
    N = 3
    def echo(x): return x
    def grow(x):
        x.append(9)
        return x
    def read(): return N
    def fails(): raise ValueError("no such thing")
    class Policy:
        def __init__(self, n): self.n, self.total = n, 0
        def act(self, x, plus=0):
            self.total += self.n + x + plus
            return self.total
        def same(self, other): return other is self
    """


def test_modules_functions_objects_and_data_through_the_proxy(lab: Lab, tmp_path: Path) -> None:
    spec = code_task(tmp_path, EVERYTHING)
    submission = lab.attempt(spec, "true", {"strategy.py": STRATEGY, "helpers/deep.py": "def twice(x): return 2 * x"})
    grade = lab.grade(spec, submission)
    assert grade.scores == {"Score": 1.0}, grade


MANY = """
    import json, time, strategy
    started = time.perf_counter()
    for _ in range(10):
        assert strategy.row_strategy.many([([(0, 1)] * 5,)] * 10_000) == [1] * 10_000
    print(json.dumps({"Score": time.perf_counter() - started}))
    """


def test_many_calls_in_one_message_are_fast(lab: Lab, tmp_path: Path) -> None:
    spec = code_task(tmp_path, MANY)
    grade = lab.grade(spec, lab.attempt(spec, "true", {"strategy.py": DEFECT}))
    assert grade.scores is not None, grade
    print(f"\n10 times many() of 10,000: {grade.scores['Score']:.3f} s")
    assert grade.scores["Score"] < 10


CLOCK = """
    import json, strategy, time
    def used(function):
        before = strategy.cpu_seconds
        function()
        return strategy.cpu_seconds - before
    print(json.dumps({"burn": used(strategy.burn), "sleep": used(strategy.sleep), "child": used(strategy.child)}))
    """
BURNING = """
    import os, time
    def burn():
        end = time.process_time() + 0.3
        while time.process_time() < end: pass
    def sleep():
        time.sleep(0.3)
    def child():
        pid = os.fork()
        if pid == 0:
            end = time.process_time() + 0.3
            while time.process_time() < end: pass
            os._exit(0)
        os.waitpid(pid, 0)
    time.process_time_ns = time.perf_counter = lambda: 0
    cpu_seconds = 0.0
    """


def test_cpu_time_is_measured_from_outside(lab: Lab, tmp_path: Path) -> None:
    spec = code_task(tmp_path, CLOCK)
    grade = lab.grade(spec, lab.attempt(spec, "true", {"strategy.py": BURNING}))
    assert grade.scores is not None, grade
    # What is burnt and a call's own work, which takes longer where the core is shared. A child's is exact to 10 ms.
    assert 0.3 <= grade.scores["burn"] < 0.45
    assert 0.29 <= grade.scores["child"] < 0.45
    assert grade.scores["sleep"] < 0.1


def test_removed_code_has_no_score(lab: Lab, dilemma: TaskSpec) -> None:
    """The starter's version does not step in for it."""
    assert lab.attempt(dilemma, "rm strategy.py") is None
    grade = lab.grade(dilemma, lab.attempt(dilemma, "rm strategy.py; echo 'x = 1' >other.py"))
    assert grade.error == "evaluation_failed" and "No module named 'strategy'" in grade.text


# --- what crosses the wire ----------------------------------------------------------------------------------

KEYS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    KEYS | st.floats() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(KEYS),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float | complex) and a != a:
        return type(b) is type(a) and b != b
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def frame(answer: bytes) -> bytearray:
    return bytearray(agent_link.HEAD.pack(len(answer)) + answer)


@given(VALUES)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    agent_worker.objects[0] = lambda: value
    assert same(value, agent_link.read_answer(frame(agent_worker.answer(("call", 0, (), {})))))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.fixed_dictionaries(
        {"t": st.sampled_from(["tuple", "dict", "set", "bytes", "complex", "array", "object"]) | st.text(), "v": inner},
        optional={"dtype": st.sampled_from(["<f8", "O", "f8,f8", "U3", "(2,)i4"]), "shape": inner, "class": inner,
                  "callable": inner},
    ),
)  # fmt: skip


@given(st.binary() | st.builds(lambda v: json.dumps(v).encode(), JSON), st.sampled_from([b"r", b"R", b"C", b"e", b""]))
def test_any_answer_is_read_or_refused(body: bytes, kind: bytes) -> None:
    """Whatever the agent's process sends, the evaluation gets data or an AgentCodeError."""
    try:
        found = agent_link.read_answer(frame(kind + body))
    except agent_link.AgentCodeError:
        return
    plain = (int, float, str, bool, type(None), list, tuple, dict, set, bytes, complex, np.ndarray, np.generic)
    assert isinstance(found, (*plain, agent_link.AgentObject))
