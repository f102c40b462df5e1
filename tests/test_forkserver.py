"""Processes that are forked from one that has imported everything: like new ones, and gone with who started them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import warm_process
from support.warm_process import Process

from airloop.forkserver import CannotFork, Forked, ForkServer, SharedServer


def gone(pid: int) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_forked_process_has_its_own_words_files_environment_and_exit_code() -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['AIR_MARK'], os.getcwd()); sys.exit('no more')"
    done = warm_process.run(["a", "b c"], code=code, env={"AIR_MARK": "x" * 100_000})
    assert done.stdout == f"['a', 'b c'] {'x' * 100_000} {os.getcwd()}\n"
    assert (done.returncode, done.stderr) == (1, "no more\n")
    assert [warm_process.run([], code=f"import sys; sys.exit({n})").returncode for n in (0, 7)] == [0, 7]
    raised = warm_process.run([], code="1 / 0")
    assert raised.returncode == 1 and "ZeroDivisionError" in raised.stderr
    killed = warm_process.run([], code="import os; os.kill(os.getpid(), 9)")
    assert killed.returncode == -signal.SIGKILL


def test_a_forked_process_computes_with_as_many_threads_as_it_is_told() -> None:
    """Libraries read OMP_NUM_THREADS when they are loaded, which was before."""
    for threads in ("1", "2"):
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        assert (
            warm_process.run([], code="import torch; print(torch.get_num_threads())", env=env).stdout == f"{threads}\n"
        )


def test_a_forked_process_has_the_temporary_folder_of_its_own_environment(tmp_path: Path) -> None:
    """Asked for once, Python remembers it: here a module asks while the server imports it."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    assert warm_process.run([], code="import tempfile; print(tempfile.gettempdir())", env=env).stdout == f"{tmp_path}\n"


def test_codes_of_many_that_end_at_once_are_all_told() -> None:
    several = [Process([n], code="import sys; sys.exit(int(sys.argv[1]))") for n in range(20)]
    time.sleep(0.5)
    assert [process.wait() for process in several] == list(range(20))
    assert [process.poll() for process in several] == list(range(20))


def test_a_process_id_that_comes_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some 30,000 processes on the machine. The first one's end was heard, and nobody had asked for it."""
    server = ForkServer(["json"])
    first = server.start("time:sleep", [], [0, 1, 2], os.environ)
    told = [{"pid": first.pid, "code": 17}, {"started": first.pid}]
    with monkeypatch.context() as patched:
        patched.setattr(server, "_hear", lambda: told.pop(0))
        patched.setattr(server, "_readable", lambda _: False)
        again = server.start("time:sleep", [], [0, 1, 2], os.environ)
        assert again.pid == first.pid and again.poll() is None and first.poll() == 17
    server.close()


def test_a_process_with_threads_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy's library has them after its import on a machine of several cores."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(CannotFork, match="it has 2 threads"):
        ForkServer(["support.with_a_thread"])


def test_where_nothing_can_be_forked_it_is_said_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, where a process is given no open socket either."""
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(CannotFork, match="forks no processes"):
        ForkServer(["json"])


def test_what_was_forked_ends_with_who_asked_for_it() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from airloop.forkserver import ForkServer\n"
        "from support.warm_process import Process\n"
        "server = ForkServer(['support.warm_process'])\n"
        "print(Process([], code='import time; time.sleep(600)', server=server).pid, flush=True)\n"
        "import time; time.sleep(600)"
    )
    tests = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", code, tests], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        asking.kill()
    assert gone(pid)


def test_a_server_that_is_killed_takes_what_it_forked_with_it_and_says_so() -> None:
    server = ForkServer(["json"])
    sleeping = server.start("time:sleep", [], [0, 1, 2], os.environ)  # ends at once: sleep wants a number
    assert sleeping.wait(60) == 1
    os.kill(server._pid, signal.SIGKILL)
    forked = Forked(server, 1 << 22)
    assert forked.wait(60) == -signal.SIGKILL and forked.poll() == -signal.SIGKILL
    server.close()


def test_what_is_forked_ends_with_who_asked_even_if_that_has_not_read_all_it_was_told() -> None:
    """The connection is then reset, not closed."""
    code = (
        "import os, select\n"
        "from airloop.forkserver import ForkServer\n"
        "server = ForkServer(['json'])\n"
        "waits = server.start('signal:pause', [], [0, 1, 2], os.environ)\n"
        "server.start('time:time', [], [0, 1, 2], os.environ)\n"
        "print(waits.pid, flush=True)\n"
        "select.select([server._socket], [], [], 60)\n"  # the other's exit code is there
        "os._exit(0)"
    )
    done = warm_process.run([], code=code)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert gone(int(done.stdout))


def test_a_server_that_a_clean_process_forks_holds_none_of_its_files(tmp_path: Path) -> None:
    """A run's lock must be free as soon as the process that held it is gone."""
    lock = tmp_path / "lock"
    code = (
        "import fcntl, os, sys, time\n"
        "from airloop.forkserver import ForkServer, is_clean\n"
        "assert is_clean()\n"
        "held = open(sys.argv[1], 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n"
        "server = ForkServer(['sys'])\n"
        "pid = server._pid\n"
        "files = f'/proc/{pid}/fd'\n"
        "print(pid, {os.readlink(f'{files}/{fd}') == sys.argv[1] for fd in os.listdir(files)})\n"
        "held.close()\n"
        "with open(sys.argv[1]) as again: fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "server.close()"
    )
    done = warm_process.run([lock], code=code)
    assert done.returncode == 0 and "True" not in done.stdout, done
    assert gone(int(done.stdout.split()[0]))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_server_that_dies_at_its_start_is_started_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What killed it need not be there for ever; a library's threads are."""
    (tmp_path / "dies_once.py").write_text(
        f"import os, pathlib\nseen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "first = not seen.exists()\nseen.touch()\nif first: os._exit(9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    server = SharedServer(["dies_once"])
    forked = server.start("os:getpid", [0, 1, 2], os.environ)
    assert forked is not None and forked.wait() == 0 and not server.cannot
    with_threads = SharedServer(["support.with_a_thread"])
    assert with_threads.start("os:getpid", [0, 1, 2], os.environ) is None and "2 threads" in with_threads.cannot
