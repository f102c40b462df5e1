"""Attacks on the score: by what is handed in, by the code that is called, by the requests for grading."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import asyncio
import re
import time

import pytest
from support.attack_arena import HONEST, Episodes, write

from airloop.rollout.episode import run_episode

DILEMMA = "prisonersDilemma"
OPTIMUM = 2.5  # far above what can be had against this opponent


def strategy(body: str, before: str = "") -> str:
    return write(
        "strategy.py",
        f"{before}\ndef row_strategy(history):\n" + "\n".join(f"    {line}" for line in body.splitlines()),
    )


# --- what a strategy returns, and does ------------------------------------------------------------------------------

TRICK = """
class Trick(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __index__(self): return 1
    def __repr__(self): return "0"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "value",
    [
        "True", "1.0", "float('nan')", "'0'", "None", "[0]", "10**6000", "-1", "2", "lambda: 0", "type",
        "__import__('numpy').int64(1)", "__import__('numpy').array([0])", "bytes(1)", "{0: 0}", "complex(0)",
        "(lambda x: [x := [x] for _ in range(100000)][-1])(0)", "'x' * (80 << 20)", "1 if history else 1/0", "exit(0)",
        "__import__('os')._exit(0)", "__import__('os').kill(__import__('os').getpid(), 9)", "[0] * 10**7",
    ],
)  # fmt: skip
def test_a_move_that_is_none_has_no_score(episodes: Episodes, value: str) -> None:
    played = episodes.play(DILEMMA, strategy(f"return {value}", TRICK), "submit")
    assert played.ending == "done" and "score" not in played.metrics and played.metrics["scored"] == 0


def test_a_number_that_only_says_it_is_one_counts_as_its_value(episodes: Episodes) -> None:
    assert episodes.score(DILEMMA, strategy("return Trick(0)", TRICK), "submit") < OPTIMUM


FRAMES = """
import gc, json, os, socket, struct, threading
wires = [s for s in gc.get_objects() if isinstance(s, socket.socket)]
def frame(value, kind=b"r"):
    data = kind + json.dumps(value).encode()
    return struct.pack("=I", len(data)) + data
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "before",
    [
        "for w in wires: w.sendall(frame([0] * 1000))",
        "for w in wires: w.sendall(frame([0] * 1000) * 50)",
        "for w in wires: w.sendall(b'\\xff' * 100000)",
        "for w in wires: w.sendall(struct.pack('=I', 0))",
        "for w in wires: w.shutdown(2)",
        "for w in wires: w.sendall(frame(['Score', '9'], b'e') * 2)",
        "for w in wires: w.sendall(frame({'t': 'object', 'v': 1, 'class': 'x', 'callable': True}) * 3)",
        "for w in wires: w.sendall(frame({'t': 'array', 'v': 'AAAA', 'dtype': 'O', 'shape': [9]}) * 3)",
        "for w in wires: w.sendall(frame({'t': 'x'}) * 3)",
        "for w in wires: w.sendall(struct.pack('=I', 200000) + b'r' + b'[' * 199999)",
        "s = socket.socket(socket.AF_UNIX); s.connect('/run/agent_link')",
        "[threading.Thread(target=lambda: [w.sendall(frame(0)) for w in wires for _ in range(10**6)], daemon=True).start() for _ in range(9)]",
        "import sys; sys.modules['__main__'].answer = lambda r: b'r[' + b'0,' * 999 + b'0]'",
        "import sys; sys.modules['__main__'].HEAD = struct.Struct('=Q')",
        "os.fork()",
        "os.fork() or os.setsid() or [os.fork() for _ in range(3)] and __import__('time').sleep(99)",
    ],
)  # fmt: skip
def test_speaking_on_the_wire_changes_nothing_but_ones_own_answers(episodes: Episodes, before: str) -> None:
    text = f"{FRAMES}\ntry:\n    {before}\nexcept OSError: pass"
    played = episodes.play(DILEMMA, strategy("return 0", text), "submit")
    assert played.ending == "done", played.error
    assert played.metrics.get("score", 0.0) < episodes.usual + 0.05


@pytest.mark.slow
def test_a_strategy_that_never_answers_is_given_up(episodes: Episodes) -> None:
    grader = episodes.env._running.places.grader  # type: ignore[union-attr]
    patience, grader.call_s = grader.call_s, 1.0
    try:
        started = time.monotonic()
        played = episodes.play(DILEMMA, strategy("import time; time.sleep(99)"), "submit")
    finally:
        grader.call_s = patience
    assert played.ending == "done" and "score" not in played.metrics and time.monotonic() - started < 60


@pytest.mark.long
@pytest.mark.parametrize("name", ["matches.py", "verdict.py", "target.py", "agent_code.py", "agent_link.py", "evaluate.py", "random.py",
                                  "matches/__init__.py", "numpy.py", "json/__init__.py", "sitecustomize.py"])  # fmt: skip
def test_a_module_of_the_evaluations_name_is_not_the_evaluations(episodes: Episodes, name: str) -> None:
    evil = 'import json, os\nprint(json.dumps({"Score": 2.9}), flush=True)\nos._exit(0)\n'
    make = f"mkdir -p $(dirname {name}); rm -f {name}; " + write(name, evil)
    played = episodes.play(DILEMMA, HONEST, make, "submit")
    assert played.metrics.get("score", 0.0) < OPTIMUM


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "LD_PRELOAD=/home/agent/workspace/e.so",
        "PYTHONPATH=/home/agent/workspace",
        "PYTHONSTARTUP=e.py",
        "BASH_ENV=e.sh",
    ],
)
def test_variables_of_the_shell_do_not_reach_the_grader(episodes: Episodes, line: str) -> None:
    evil = write("e.py", "print('{\"Score\": 2.9}')") + "\ncp e.py json.py; echo 'echo 2.9; exit' > e.sh"
    played = episodes.play(DILEMMA, HONEST, evil, f"export {line}", "submit")
    assert played.ending == "done" and played.metrics.get("score", 0.0) < OPTIMUM


# --- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        "ln -s /etc/passwd submission.csv",
        "ln -s data/test.csv submission.csv",
        "mkfifo submission.csv",
        "mkdir submission.csv",
        "ln -s /dev/zero submission.csv",
        "ln -s /proc/1/mem submission.csv",
        "ln -s submission.csv submission.csv",
        "truncate -s 60M submission.csv",
        "head -c 3M /dev/urandom > submission.csv",
        "yes , | head -c 20M | tr -d '\\n' > submission.csv",
        "yes '' | head -c 20M > submission.csv",
        "printf 'PassengerId,Survived\\n1,\"' > submission.csv; head -c 5M /dev/zero | tr '\\0' x >> submission.csv",
        "printf 'PassengerId,Survived\\n=cmd|calc,=1+1\\n' > submission.csv",
        "printf 'PassengerId,Survived\\n\\0,1\\n' > submission.csv",
        "printf '\\xef\\xbb\\xbf\\xff\\xfe' > submission.csv",
        "sed 's/$/,1,1/' data/test.csv > submission.csv",
        "(echo PassengerId,Survived; for i in 1 2; do tail -n +2 data/test.csv | cut -d, -f1 | sed 's/$/,1/'; done) > submission.csv",
        "(echo PassengerId,Survived; tail -n +2 data/test.csv | cut -d, -f1 | sed 's/$/,True/') > submission.csv",
    ],
)
def test_a_table_that_is_none_has_no_score(episodes: Episodes, make: str) -> None:
    played = episodes.play("titanic", make, "validate", "submit")
    assert played.ending != "infra_error", played.error
    assert "score" not in played.metrics


def test_the_error_of_a_table_tells_no_answer(episodes: Episodes) -> None:
    """Line by line wrong in turn: the complaint is the same whatever the answer is."""
    make = "(echo PassengerId,Survived; tail -n +2 data/test.csv | cut -d, -f1 | sed 's/$/,7/') > submission.csv"
    seen = episodes.seen(episodes.play("titanic", make, "validate", "submit"))
    assert "answers" not in seen and len(re.findall(r"'7'", seen)) <= 2


def test_a_table_swapped_while_it_is_graded_has_one_score(episodes: Episodes) -> None:
    swap = """(while :; do cp a submission.csv; cp b submission.csv; ln -sf /etc/passwd submission.csv; rm -f submission.csv; done) 2>/dev/null &"""
    make = "cut -d, -f1 data/test.csv | sed '1s/.*/PassengerId,Survived/;1!s/$/,0/' > a; sed '1!s/0$/1/' a > b"
    played = episodes.play("titanic", f"{make}; {swap} sleep 0.1", "validate", "validate", "submit")
    assert played.ending == "done" and played.metrics.get("score", 0.0) < 0.8


# --- names, depth, loss: what must not end a run --------------------------------------------------------------------


def test_a_name_that_is_no_text_does_not_end_the_run(episodes: Episodes) -> None:
    played = episodes.play(DILEMMA, HONEST, r"touch $'\xff\xfe.txt'; cp strategy.py $'\xff.py'", "submit")
    assert played.ending == "done"


@pytest.mark.parametrize("depth", ["1500, 1", "200, 100"])
@pytest.mark.parametrize("end", ["submit", "true"])
def test_deep_directories_do_not_end_the_run(episodes: Episodes, depth: str, end: str) -> None:
    deep = f'python -c \'import os\nd, n = {depth}\nfor i in range(d): os.mkdir("d" * n); os.chdir("d" * n)\''
    played = episodes.play(DILEMMA, HONEST, deep, end)
    assert played.ending != "infra_error", played.error


def test_ten_thousand_files_do_not_hide_the_submission(episodes: Episodes) -> None:
    played = episodes.play(DILEMMA, HONEST, 'python -c \'for i in range(11000): open(f"aa{i}", "w")\'', "submit")
    assert played.ending == "done"


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        pytest.param("exec sleep 99", marks=pytest.mark.slow),
        "rm -rf ~",
        pytest.param("kill -STOP $$", marks=pytest.mark.slow),
        "ulimit -f 0; exec 1>&-",
    ],
)
def test_a_spoilt_sandbox_ends_in_a_score_or_none(episodes: Episodes, command: str) -> None:
    played = episodes.play(DILEMMA, HONEST, command, "submit")
    assert played.ending in ("done", "max_turns"), played.error


@pytest.mark.parametrize(
    "text",
    [
        "CURRENT_FILE=$(head -c 90000 /dev/zero | tr '\\0' x)",
        "mkdir -p $(printf 'd%.0s' {1..200})/{a,b}; cd d*; PWD=$(head -c 50000 /dev/zero | tr '\\0' y)",
    ],
)
def test_the_status_line_is_not_a_way_around_the_limit_on_output(episodes: Episodes, text: str) -> None:
    played = episodes.play(DILEMMA, text, "true")
    longest = max(len(o.text) for turn in played.turns for o in turn.observations)
    assert longest < episodes.env.args.observation_chars + 1000


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_thousand_requests_cost_one_grading(episodes: Episodes) -> None:
    started = time.monotonic()
    played = episodes.play(DILEMMA, HONEST, "for i in {1..1000}; do validate; done", "submit", seconds=100)
    assert played.ending == "done" and time.monotonic() - started < 60


@pytest.mark.slow
def test_requests_with_ever_new_submissions_are_bounded(episodes: Episodes) -> None:
    """What changes all the time is new at every request: one command must not buy a hundred gradings."""
    grader = episodes.env._running.places.grader  # type: ignore[union-attr]
    count, real = 0, grader.grade

    async def counted(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        return await real(*args, **options)  # type: ignore[arg-type]

    grader.grade = counted  # type: ignore[method-assign,assignment]
    try:
        churn = '(while :; do echo "# $RANDOM$RANDOM" >> strategy.py; sleep 0.02; done) &'
        episodes.play(DILEMMA, f"{HONEST}; {churn} for i in {{1..60}}; do validate; done", seconds=100, deadline_s=15)
    finally:
        grader.grade = real  # type: ignore[method-assign]
    assert count <= 20


def test_the_quality_of_code_is_not_what_the_agent_says_it_is(episodes: Episodes) -> None:
    """It is paid only with an improvement, so there is one."""
    forge = "python3() { echo 1.0; }; for name in a b c; do echo 'def (:' > $name.py; done"
    better = HONEST.replace("return 0", "return 1")
    played = episodes.play(DILEMMA, better, forge, weights={"headroom": 1.0, "code_quality": 1.0})
    assert played.metrics["improved"] == 1 and 0 < played.rewards["code_quality"] < 0.5


# --- time -----------------------------------------------------------------------------------------------------------

IGNORE = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
HIDDEN_TIME = """
import json, os, time
from starter import solve as honest
def solve(num_vars, clauses):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(honest(num_vars, clauses)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read())
    time.sleep(0.002)
    return answer
"""


@pytest.fixture(scope="module")
def starters_time(all_episodes: Episodes) -> float:
    return all_episodes.score("3SATTime", "echo >> solver.py", "submit")


@pytest.mark.long
@pytest.mark.parametrize("ignore", ["", IGNORE], ids=["zombie", "gone"])
def test_work_in_a_child_nobody_waits_for_is_counted(episodes: Episodes, starters_time: float, ignore: str) -> None:
    """It ends as a zombie, or (with SIGCHLD ignored) as nothing: its time is in no living process."""
    hidden = episodes.score("3SATTime", "cp solver.py starter.py", write("solver.py", ignore + HIDDEN_TIME), "submit")
    assert hidden > 0.7 * starters_time


BACKWARDS = """
import os, time
from starter import solve as honest
burners, done = [], [0]
def burn():
    for _ in range(2):
        child = os.fork()
        if child == 0:
            end = time.process_time() + 1.5
            while time.process_time() < end: pass
            time.sleep(60)
        burners.append(child)
    time.sleep(4)
burn()
def solve(num_vars, clauses):
    if burners:
        os.kill(burners.pop(), 9)
        time.sleep(0.02)
    return honest(num_vars, clauses)
"""


@pytest.mark.long
@pytest.mark.parametrize("ignore", ["", IGNORE], ids=["zombie", "gone"])
def test_time_does_not_run_backwards(episodes: Episodes, ignore: str) -> None:
    """What burnt time before it was asked and ends while it is asked takes that time with it."""
    copied = "cp solver.py starter.py"
    played = episodes.play("3SATTime", copied, write("solver.py", ignore + BACKWARDS), "submit")
    assert played.metrics.get("score", 9.0) > 1.0, played.metrics


TELL = """
import base64
from starter import solve as honest
bits, count = [], [0]
def solve(num_vars, clauses):
    found = honest(num_vars, clauses)
    bits.append("0" if found is None else "1")
    count[0] += 1
    if count[0] == 30:
        raise ValueError("seen:" + "".join(bits) + repr(clauses)[:150])
    return found
"""


@pytest.mark.long
def test_an_error_does_not_carry_hidden_instances_out(episodes: Episodes) -> None:
    """What code saw in grading, told by its own error: with it the next version knows the answers by heart."""
    played = episodes.play("3SATTime", "cp solver.py starter.py", write("solver.py", TELL), "validate")
    assert "seen:" not in episodes.seen(played)


# --- side by side ---------------------------------------------------------------------------------------------------


def test_two_sessions_of_one_task_do_not_meet(episodes: Episodes) -> None:
    from support.attack_arena import Script

    async def work() -> list[str]:
        async def one(name: str) -> str:
            leave = f"echo {name} > {name}; cp {name} /tmp; cp {name} /dev/shm; export ME={name}; sleep 1"
            look = "ls . /tmp /dev/shm; cat /tmp/* /dev/shm/*; ps ax -o args | grep -c sleep"
            script = Script([HONEST, leave, look, "submit"])
            played = await run_episode(episodes.env, episodes.tasks[DILEMMA], script, id=name, seed=0, max_turns=4)
            return episodes.seen(played)

        return await asyncio.gather(one("romeo"), one("juliet"))

    romeo, juliet = episodes.arena.do(work())
    assert "romeo" in romeo and "juliet" not in romeo and "romeo" not in juliet
