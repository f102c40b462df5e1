"""Without Linux: nothing that a run of arith, or any list, needs is of one system; the rest says what there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airloop import locks
from airloop.config import load_config
from airloop.errors import AirError
from airloop.sandbox.bubblewrap import backend as bubblewrap

# Runs first in every Python started with this folder on its path: to our modules, what only Unix or Linux has is not
# there, whether or not somebody else has imported it; locks are Windows' (made here of what Unix has).
ELSEWHERE = """
import builtins, os, subprocess, sys, types
GONE = ("fcntl", "resource", "triton", "pwd", "grp", "termios", "tty", "pty")
LACKS = {
    "os": "sysconf fork forkpty killpg getuid geteuid getgid getegid getpgid setsid sched_getaffinity "
    "sched_setaffinity register_at_fork pread mkfifo getloadavg statvfs pidfd_open memfd_create pipe2 waitid "
    "WNOHANG fchmod chown uname O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC",
    "signal": "SIGKILL SIGHUP SIGCHLD SIGUSR1 SIGUSR2 SIGSTOP SIGCONT SIGALRM SIGPIPE SIGQUIT pthread_sigmask "
    "pthread_kill setitimer SIG_UNBLOCK pidfd_send_signal",
    "select": "select poll epoll",
    "socket": "AF_UNIX send_fds recv_fds",
    "subprocess": "",
}
class Popen(subprocess.Popen):
    def __init__(self, *words, pass_fds=(), **named):
        assert not pass_fds, "pass_fds not supported on Windows."
        super().__init__(*words, **named)
class Lacking(types.ModuleType):
    def __init__(self, module, without):
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _without=frozenset(without.split()))
    def __getattr__(self, name):
        if name == "Popen":
            return Popen
        if name in self.__dict__["_without"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["_module"], name)
    def __setattr__(self, name, value):
        setattr(self._module, name, value)
LACKING = {}
def locking(fd, mode, count):
    os.lockf(fd, os.F_TLOCK, count)
WINDOWS = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
def importing(name, globals=None, *rest, _import=builtins.__import__, **named):
    if ((globals or {}).get("__name__") or "").startswith("airloop"):
        if name.split(".")[0] in GONE:
            raise ImportError(f"No module named {name!r}", name=name)
        if name == "msvcrt":
            return WINDOWS
        if name in LACKS:
            if name not in LACKING:
                LACKING[name] = Lacking(_import(name), LACKS[name])
            return LACKING[name]
    return _import(name, globals, *rest, **named)
builtins.__import__ = importing
sys.modules["triton"] = None
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ELSEWHERE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])])])
    return {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"}


def run(env: dict[str, str], *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_the_blocks_block(elsewhere: dict[str, str], tmp_path: Path) -> None:
    code = "import fcntl; exec('import fcntl', {'__name__': 'airloop.x'})"
    done = run(elsewhere, "-c", code, cwd=tmp_path)
    assert done.returncode == 1 and "No module named 'fcntl'" in done.stderr
    code = "import os; os.fork; exec('import os; os.getcwd(); os.fork', {'__name__': 'airloop.x'})"
    done = run(elsewhere, "-c", code, cwd=tmp_path)
    assert done.returncode == 1 and "module 'os' has no attribute 'fork'" in done.stderr


LOOKED_AT = """
import sys
from airloop.cli import main
for words in [["log", "list"], ["compare", sys.argv[1]], ["view", "--text"]]:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


@pytest.mark.long
def test_arith_is_trained_and_looked_at_without_linux(elsewhere: dict[str, str], tmp_path: Path) -> None:
    short = ["--max_steps", 2, "--warmstart.steps", 5, "--orchestrator.eval.num_examples", 2]
    short += ["--orchestrator.batch_size", 16, "--orchestrator.eval.rollouts_per_example", 1]
    done = run(elsewhere, "-m", "airloop.cli", "train", "arith", *short, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads(done.stdout)
    assert made["steps"] == 2
    done = run(elsewhere, "-c", LOOKED_AT, made["run"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
def test_tune_is_played_without_linux(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Its models are fitted by processes that are started, not forked, and waited for without `select`."""
    words = ["tune", "--play", "oracle", "--n", 1, "--arg", "workers=1", "--arg", "cache=false", "--json"]
    done = run(elsewhere, "-m", "airloop.cli", "tasks", "show", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (played,) = json.loads(done.stdout)
    found = {name: played["metrics"][name] for name in ("trained", "submitted", "commands_failed")}
    assert (played["ending"], found) == ("done", {"trained": 1, "submitted": 1, "commands_failed": 0})


def test_every_environment_is_imported_without_linux(elsewhere: dict[str, str], tmp_path: Path) -> None:
    done = run(elsewhere, "-m", "airloop.cli", "tasks", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["problem"] for row in json.loads(done.stdout)] == [""] * 10


@pytest.mark.parametrize("windows", [False, True])
def test_a_lock_keeps_others_out_until_its_process_ends(
    windows: bool, elsewhere: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = elsewhere if windows else dict(os.environ)
    code = """
    import sys
    from pathlib import Path
    from airloop import locks
    assert (locks.fcntl is None) == (sys.argv[1] == "True")
    file = open("file.lock", "w")
    assert locks.take(file)
    print("held", flush=True)
    sys.stdin.read()
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(windows)]
    holder = subprocess.Popen(words, env=env, cwd=tmp_path, stdin=-1, stdout=-1, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        ask = "from airloop import locks; print(locks.take(open('file.lock', 'r+')))"
        assert run(env, "-c", ask, cwd=tmp_path).stdout == "False\n"
        holder.kill()
        holder.wait()
        assert run(env, "-c", ask, cwd=tmp_path).stdout == "True\n"
    finally:
        holder.kill()
        holder.wait()


def test_where_there_is_no_bubblewrap_the_container_is_named(
    air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("mlgym", "soup"):
        code, text, _ = air(
            *("doctor", "--skip-proofs", "--only", "D-sandbox", "--orchestrator.env.0.id", name, "--verbose")
        )
        assert code == 2 and "`bwrap`, which is not installed" in text and 'sandbox = "container"' in text
    for name in ("tune", "arith", "gsm8k", "musique"):
        assert air("doctor", "--skip-proofs", "--only", "D-sandbox", "--orchestrator.env.0.id", name)[0] == 0


def test_bubblewrap_is_not_to_be_installed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(AirError) as refused:
        bubblewrap.check()
    assert "is of Linux" in refused.value.problem and 'sandbox = "container"' in refused.value.fix


def test_a_macs_gpu_is_refused_by_name() -> None:
    with pytest.raises(AirError) as refused:
        load_config(["--model.device", "mps"])
    assert 'device = "mps" is not in this version' in str(refused.value) and "--model.device cpu" in str(refused.value)


def test_locks_in_this_process(tmp_path: Path) -> None:
    with locks.locked(tmp_path / "a" / ".lock"), (tmp_path / "a" / ".lock").open("w") as other:
        assert not locks.take(other) and not locks.take(other, shared=True)
    with (tmp_path / "a" / ".lock").open("w") as one, (tmp_path / "a" / ".lock").open("w") as two:
        assert locks.take(one, shared=True) and locks.take(two, shared=True)
