"""An agent's function in processes of its own: what it gives, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from airloop.errors import AirError, InfraError
from airloop.programs.workers import WORKER, Workers
from airloop.rollout.program import LostConnection, ProgramCrashed

AT = {"OPENAI_BASE_URL": "http://127.0.0.1:1/e/x/v1", "OPENAI_API_KEY": "air-0123456789", "AIR_SEED": "5"}
PROGRAM = """
    import os, signal, subprocess, sys, time
    AT_IMPORT = os.environ.get("OPENAI_BASE_URL")

    def number(task): return task["x"] * 2
    def several(task): return {"right": True, "length": 3}
    async def later(task): return 0.5
    def client(task, client): return float(callable(client.chat.completions.create))
    async def later_client(task, client): return float(callable(client.chat.completions.create))
    def at_import(task): return float(AT_IMPORT == os.environ["OPENAI_BASE_URL"] and AT_IMPORT is not None)
    def apart(task):
        import builtins
        builtins.COUNT = getattr(builtins, "COUNT", 0) + 1
        return builtins.COUNT
    def nothing(task): return None
    def infinite(task): return float("inf")
    def endless(task): return 10**400
    def wrong(task): return task["absent"]
    def offline(task): raise ConnectionError("no way")
    class InfraError(Exception): pass
    def says_so(task): raise InfraError("my judge is away")
    def leaves(task): print("so long"); sys.exit(3)
    def temporary(task): sys.exit(75)
    def segfault(task): os.kill(os.getpid(), signal.SIGSEGV)
    def tool_times_out(task): raise TimeoutError("a tool of mine")
    def wrapped(task):
        try: raise ConnectionError("no way")
        except ConnectionError as error: raise RuntimeError("gave up") from error
    def tells_keys(task): raise ValueError(os.environ["OPENAI_API_KEY"] + " and " + os.environ["JUDGE_API_KEY"])
    def draws(task):
        import random
        return random.random()
    def escapes(task):
        child = subprocess.Popen(["sleep", "100"], start_new_session=True)
        return child.pid
    def named(task, *, client=None): return float(client is not None)
    def killed(task): os.kill(os.getpid(), signal.SIGKILL)
    def hard_exit(task): print("last words", flush=True); os._exit(9)
    def prints(task): print("x" * 100000); return 1
    def slow_pid(task): time.sleep(0.3); return os.getpid()
    def sleeps(task):
        child = subprocess.Popen(["sleep", "100"])
        open(task["file"], "w").write(f"{os.getpid()} {child.pid}")
        time.sleep(100)
    def orphan(task):
        child = subprocess.Popen(["sleep", "100"])
        return child.pid
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(PROGRAM))
    made: list[Workers] = []

    def workers(function: str) -> Workers:
        made.append(Workers(path, function))
        return made[-1]

    yield workers
    for one in made:
        one.close()


def outcome(workers: Workers, **task: Any) -> Any:
    return asyncio.run(workers.run(task, AT))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return True


def test_scores_of_every_form(program: Any) -> None:
    assert outcome(program("number"), x=2) == 4.0
    assert outcome(program("several")) == {"right": 1.0, "length": 3.0}
    assert outcome(program("later")) == 0.5
    assert outcome(program("client")) == outcome(program("later_client")) == 1.0


def test_the_address_is_there_when_the_file_is_imported(program: Any) -> None:
    """Many programs make their client at the top of the file."""
    assert outcome(program("at_import")) == 1.0


def test_every_episode_has_a_process_of_its_own(program: Any) -> None:
    workers = program("apart")

    async def many() -> list[Any]:
        return await asyncio.gather(*(workers.run({}, AT) for _ in range(6)))

    assert asyncio.run(many()) == [1.0] * 6
    assert asyncio.run(many()) == [1.0] * 6  # in another event loop, too


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("nothing", AirError, "must be a number"),
        ("infinite", AirError, "is inf"),
        ("endless", AirError, "must be a number"),
        ("absent", AirError, "no function 'absent'"),
        ("wrong", ProgramCrashed, r"KeyError: 'absent' \(line 18\)"),
        ("leaves", ProgramCrashed, r"sys.exit\(3\)"),
        ("hard_exit", ProgramCrashed, "code 9 .* last words"),
        ("offline", LostConnection, "no way"),
        ("temporary", InfraError, "75"),
        ("killed", InfraError, "was killed"),
        ("segfault", ProgramCrashed, "signal 11"),
        ("tool_times_out", ProgramCrashed, "TimeoutError"),
        ("says_so", InfraError, "my judge"),
        ("wrapped", LostConnection, "RuntimeError: gave up"),
        ("tells_keys", ProgramCrashed, "ValueError: … and …"),
    ],
)
def test_H18_every_failure_is_somebodys(
    program: Any, function: str, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-planted-here")
    with pytest.raises(kind, match=said):
        outcome(program(function))


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text("import no_such_library\ndef solve(task): return 1\n")
    workers = Workers(path, "solve")
    try:
        with pytest.raises(AirError, match=r"cannot be imported: ModuleNotFoundError.*\(line 1\)"):
            outcome(workers)
    finally:
        workers.close()


def test_H18_processes_are_forked_ahead_and_one_that_is_killed_is_missed_by_nobody(program: Any) -> None:
    workers = program("slow_pid")

    def children() -> list[int]:
        pid = workers._process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def at_once(count: int) -> set[float]:
        return set(await asyncio.gather(*(workers.run({"x": 1}, AT) for _ in range(count))))

    assert len(asyncio.run(at_once(6))) == 6
    wait_until(lambda: len(children()) == 6)  # as many as there were at once
    ahead = children()
    assert asyncio.run(at_once(6)) == set(map(float, ahead))  # each for one episode only
    wait_until(lambda: len(set(children()) - set(ahead)) == 6)
    killed = children()[:3]
    for pid in killed:
        os.kill(pid, 9)
    wait_until(lambda: not set(killed) & set(children()))
    assert len(asyncio.run(at_once(8))) == 8
    workers.close()
    wait_until(lambda: all(gone(pid) for pid in ahead))


def test_H18_what_is_printed_does_not_stop_it(program: Any) -> None:
    assert outcome(program("prints")) == 1.0


def test_cancelled_it_leaves_nobody_behind(program: Any, tmp_path: Path) -> None:
    workers, file = program("sleeps"), tmp_path / "pids"

    async def cancelled() -> None:
        task = asyncio.ensure_future(workers.run({"file": str(file)}, AT))
        await asyncio.to_thread(wait_until, lambda: file.exists() and len(file.read_text().split()) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    wait_until(lambda: all(gone(int(pid)) for pid in file.read_text().split()))


def test_what_an_episode_leaves_running_ends_with_it(program: Any) -> None:
    pid = int(outcome(program("orphan")))
    wait_until(lambda: gone(pid))


def test_what_leaves_the_episodes_group_ends_with_it_too(program: Any) -> None:
    pid = int(outcome(program("escapes")))
    wait_until(lambda: gone(pid))


def test_episodes_draw_by_their_seeds_and_a_client_may_be_asked_for_by_name(program: Any) -> None:
    assert outcome(program("draws")) == outcome(program("draws"))
    assert outcome(program("named")) == 1.0


def test_the_users_own_key_is_not_there_when_libraries_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "eager.py").write_text("import os\nKEY = os.environ.get('OPENAI_API_KEY')\n")
    (tmp_path / "agent").mkdir()
    path = tmp_path / "agent" / "agent.py"
    path.write_text("import eager\ndef solve(task): return float(eager.KEY != 'the-users-own')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    monkeypatch.setenv("OPENAI_API_KEY", "the-users-own")
    workers = Workers(path, "solve")
    try:
        assert outcome(workers) == 1.0
    finally:
        workers.close()


def test_killed_with_its_run_it_leaves_nobody_behind(tmp_path: Path) -> None:
    """Episodes are ending all the while: to tell of one fails then, which must not keep the others alive."""
    path = tmp_path / "agent.py"
    path.write_text(
        "import os, time\n"
        "def solve(task):\n"
        "    open(task['folder'] + f'/{os.getpid()}', 'w').close()\n"
        "    time.sleep(0.05 if task['i'] % 2 else 100)\n"
        "    return 1\n"
    )
    folder = tmp_path / "pids"
    folder.mkdir()
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom airloop.programs.workers import Workers\n"
        f"w = Workers(Path({str(path)!r}), 'solve')\n"
        "async def many():\n"
        f"    await asyncio.gather(*(w.run({{'i': i, 'folder': {str(folder)!r}}}, {{}}) for i in range(16)))\n"
        "asyncio.run(many())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: len(list(folder.iterdir())) == 16)
    process.kill()
    process.wait()
    wait_until(lambda: all(gone(int(file.name)) for file in folder.iterdir()))


def test_closed_it_ends_its_episodes(program: Any, tmp_path: Path) -> None:
    workers, file = program("sleeps"), tmp_path / "pids"

    async def closed() -> None:
        task = asyncio.ensure_future(workers.run({"file": str(file)}, AT))
        await asyncio.to_thread(wait_until, lambda: file.exists() and len(file.read_text().split()) == 2)
        workers.close()
        with pytest.raises(InfraError):
            await task

    asyncio.run(closed())
    wait_until(lambda: all(gone(int(pid)) for pid in file.read_text().split()))


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text("def solve(task): return 1\n")
    with pytest.raises(AirError, match="cannot be started"):
        outcome(Workers(path, "solve", str(tmp_path / "no-python")))


def test_a_process_with_threads_is_not_forked_but_started_anew(tmp_path: Path) -> None:
    """A library that starts a thread when it is imported would leave a fork with locks that nobody opens."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (tmp_path / "agent").mkdir()
    path = tmp_path / "agent" / "agent.py"
    path.write_text("import os, threaded\ndef solve(task): return float(len(task['long']))\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "library")}
    order = '{"id": "1", "task": {"long": "%s"}, "env": {}}\n' % ("x" * 200_000)
    command = [sys.executable, str(WORKER), str(path), "solve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(order.encode())
        process.stdin.flush()
        ready, ended = process.stdout.readline(), process.stdout.readline()
        process.stdin.close()
    assert b'"forks": false' in ready and b'"score": 200000.0' in ended


def wait_until(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
