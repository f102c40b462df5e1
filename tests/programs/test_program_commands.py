"""Agents that are commands in sandboxes: what they are told, what they reach, how they end, and who scores them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.endpoint_world import CHAT, Recorded, trained_is_sampled
from support.program_runs import program_run

from airloop.config import load_config
from airloop.doctor.case import Case
from airloop.doctor.examine import examine
from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.programs.command import oom_kills
from airloop.programs.env import ProgramEnv
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.episode import EpisodeDefect
from airloop.rollout.sampler import Sampler
from airloop.runs.run import Run
from airloop.training import start
from airloop.types import Trajectory
from airloop.watch.display.display import Display

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
AGENT = '''
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request

def ask(text, url=None):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request((url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions", body, head)
    return json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"]

def answer():
    task = json.loads(os.environ["AIR_TASK"])
    said = ask(task["word"])
    print("said", said, flush=True)
    open("answer.txt", "w").write(said)

def told():
    """All that it is told of its task."""
    ask("x")
    task = open(os.environ["AIR_TASK_FILE"]).read()
    facts = {"env": dict(os.environ), "file": json.loads(task), "same": task == os.environ.get("AIR_TASK")}
    json.dump(facts, open("facts.json", "w"))

def fails(): answer(); sys.exit(3)
def temporary(): answer(); sys.exit(75)
def killed(): answer(); os.kill(os.getpid(), signal.SIGKILL)
def sleeps(): answer(); time.sleep(100)
def at_once(): sys.exit("no luck " + os.environ["OPENAI_API_KEY"])
def silent(): pass
def ends_its_shell(): answer(); os.kill(os.getppid(), signal.SIGKILL); time.sleep(100)
def leaves_a_process():
    answer()
    subprocess.Popen(["sleep", "98765.4321"], start_new_session=True)

def looks_around():
    """Whatever of the sandbox outside it can get at."""
    ask("x")
    found = {}
    for name, url in json.loads(os.environ["AIR_TASK"])["urls"].items():
        try:
            ask("y", url)
            found[name] = 200
        except urllib.error.HTTPError as error:
            found[name] = error.code
        except OSError as error:
            found[name] = 0
    json.dump(found, open("found.json", "w"))

def speaks_elsewhere():
    """In the other of two episodes, by its own key."""
    ask("x")
    time.sleep(1)
    task, (front, own, back) = json.loads(os.environ["AIR_TASK"])["id"], os.environ["OPENAI_BASE_URL"].rsplit("/", 2)
    _, policy, began, place = own.split("_")
    day, clock = began.split("T")
    ids = [f"t{i}_{policy}_{day}T{int(clock) + s:06d}_{j}-0" for i in range(8) for s in range(-3, 4) for j in (0, 1)]
    codes = []
    for id in ids:
        try:
            if id != own:
                ask("y", f"{front}/{id}/{back}")
                codes.append(200)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
    ask("z")
    json.dump({"ids": ids, "codes": codes}, open(f"tried-{task}.json", "w"))

def looks_for_secrets():
    ask("x")
    names, texts = [], []
    for place, folders, files in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(place, f) not in ("/sys", "/usr")]
        names += files
        for file in files:
            path = os.path.join(place, file)
            if os.path.isfile(path) and (file == "environ" or not path.startswith("/proc")):
                try:
                    texts.append(open(path, errors="replace").read(1 << 20))
                except OSError:
                    pass
    wanted = ["planted-" + "judge-key", "only the " + "scorer", "answer-no-" + "4711"]
    json.dump({"names": names, "texts": [w for w in wanted if any(w in t for t in texts)]}, open("seen.json", "w"))

def sets_traps():
    answer()
    os.symlink("/etc/passwd", "link"); os.symlink("/", "root"); os.mkfifo("pipe"); os.link("answer.txt", "second")
    os.makedirs("a/b"); open("a/b/file", "w").write("kept"); open("odd\\nname", "w").write("1")

def fills_its_disk(): answer(); [os.truncate(os.open(f"holes{i}", os.O_CREAT | os.O_WRONLY), 6 << 20) for i in range(9)]
def makes_many(): answer(); [open(f"f{i}", "w").close() for i in range(20100)]

globals()[sys.argv[1]]()
'''
SCORER = """
import json, os, pathlib
SECRET = "only the scorer"

def score(task, workspace, output):
    assert isinstance(workspace, pathlib.Path) and workspace.is_dir()
    right = (workspace / "answer.txt").read_text() == "yes" and "said yes" in output
    return {"score": float(right), "knows": float(task.get("answer") == "answer-no-4711")}

def facts(task, workspace):
    return float((workspace / "facts.json").exists())

def copied(task, workspace):
    found = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*"))
    assert not any(path.is_symlink() for path in workspace.rglob("*"))
    return float(found == ["a", "a/b", "a/b/file", "agent.py", "answer.txt", "odd\\nname", "second"])

def alone(task, workspace):
    lines = [(p / "cmdline").read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*") if (p / "cmdline").exists()]
    return float(not any(b"98765.4321" in line for line in lines))

def keep(task, workspace):
    target = pathlib.Path(task["keep"])
    for path in workspace.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    return float(os.environ.get("JUDGE_API_KEY") == "planted-judge-key")

def raises(task, workspace): return 1 / 0
def nothing(task, workspace): pass
def offline(task, workspace): raise ConnectionError("the judge is away")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(textwrap.dedent(AGENT))
    (tmp_path / "score.py").write_text(SCORER)
    return tmp_path


class Played:
    """One or more episodes of a command, by a scripted engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Recorded(lambda prompt, seed: "yes")

    def env(self, mode: str, scorer: str = "score", rows: Any = None, **args: Any) -> ProgramEnv:
        rows = rows or [{"word": f"w{i}", "answer": "answer-no-4711"} for i in range(20)]
        (self.folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
        given = {
            "tasks": str(self.folder / "tasks.jsonl"),
            "command": ["python", "agent.py", mode],
            "files": str(self.folder / "agent"),
            "scorer": f"{self.folder / 'score.py'}:{scorer}" if scorer else "",
            "hidden": ["answer"] if "answer" in rows[0] else [],
        }
        made = load_environment("program", {**given, **args})
        assert isinstance(made, ProgramEnv)
        return made

    def play(self, env: ProgramEnv, count: int = 1, **more: Any) -> list[Trajectory]:
        saved: list[Trajectory] = []
        settings = RolloutSettings(Sampling(max_tokens=200), 1, retries=0, **more)
        sampler = Sampler(self.engine, CHAT, {"program": env}, settings, lambda t, _: saved.append(t))

        async def work() -> None:
            try:
                await sampler.evaluate(env.tasks("train")[:count])
            finally:
                await env.close()

        asyncio.run(work())
        return saved


@pytest.fixture
def played(folder: Path) -> Played:
    return Played(folder)


def test_a_command_is_an_agent_and_another_scores_it(played: Played) -> None:
    (one,) = played.play(played.env("answer"))
    assert (one.ending, one.reward, one.error) == ("done", 1.0, "")
    assert one.metrics["exit_code"] == 0.0 and one.metrics["crashed"] == 0.0 and one.metrics["knows"] == 1.0
    assert one.metrics["seconds_scoring"] > 0
    trained_is_sampled(played.engine, one)


def test_episodes_side_by_side_have_sandboxes_of_their_own(played: Played) -> None:
    all_of_them = played.play(played.env("answer"), 6)
    assert [t.reward for t in all_of_them] == [1.0] * 6
    trained_is_sampled(played.engine, *all_of_them)


def test_it_is_told_its_task_and_no_answer(played: Played, tmp_path: Path) -> None:
    rows = [{"word": "w", "answer": "answer-no-4711", "keep": str(tmp_path), "n": i} for i in range(3)]
    played.play(played.env("told", "keep", rows))
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["same"] and set(facts["file"]) == {"word", "keep", "n"}
    env = facts["env"]
    assert env["OPENAI_BASE_URL"].startswith("http://127.0.0.1:") and env["ANTHROPIC_API_KEY"] == env["OPENAI_API_KEY"]
    assert int(env["AIR_SEED"]) >= 0 and float(env["AIR_SECONDS"]) > 0
    assert not set(env) & set(os.environ) - {"HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PATH", "PWD", "SHLVL",
                                             "PAGER", "TMPDIR", "_", "OLDPWD", "NO_PROXY", "no_proxy",
                                             "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MPLBACKEND"}  # fmt: skip


def test_a_long_task_is_in_a_file_alone(played: Played, tmp_path: Path) -> None:
    rows = [{"word": "é" * 100_000, "keep": str(tmp_path), "n": i} for i in range(3)]
    played.play(played.env("told", "keep", rows))
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["file"]["word"] == "é" * 100_000 and "AIR_TASK" not in facts["env"]


@pytest.mark.parametrize(
    ("mode", "ending", "reward", "crashed", "error"),
    [
        ("fails", "done", 1.0, 1.0, "code 3; it printed last: said yes"),
        ("sleeps", "deadline", 1.0, 0.0, ""),
        ("ends_its_shell", "done", 1.0, 1.0, "killed"),
        ("temporary", "infra_error", 0.0, None, "code 75"),
        (
            "at_once",
            "infra_error",
            0.0,
            None,
            "before it had asked anything: it ended with code 1; it printed last: no luck …",
        ),
        ("silent", "infra_error", 0.0, None, "without having asked"),
    ],
)
def test_every_ending_of_a_command_is_told(
    played: Played, mode: str, ending: str, reward: float, crashed: float | None, error: str
) -> None:
    env = played.env(mode, "alone" if mode in ("at_once", "silent") else "score")
    (one,) = played.play(env, deadline_s=10.0 if mode == "sleeps" else 60.0)
    assert (one.ending, one.reward, one.metrics.get("crashed")) == (ending, reward, crashed) and error in one.error


def test_who_kills_himself_is_scored_for_what_he_has_done(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever expects a bad score would have his episode taken back."""
    if oom_kills() is None:
        pytest.skip("this kernel does not say how often it has killed for want of memory")
    # The kernel counts for the whole machine, where other tests have some killed for want of memory on purpose.
    monkeypatch.setattr("airloop.programs.command.oom_kills", lambda: 0)
    (one,) = played.play(played.env("killed"))
    assert one.ending == "done" and one.metrics["crashed"] == 1.0 and "killed from inside" in one.error


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_it_reaches_its_own_episode_and_nothing_else(played: Played, tmp_path: Path, listening: int) -> None:
    """Neither other ports of this machine's loopback, nor outside, nor another episode by its own key."""
    urls = {
        "host's port": f"http://127.0.0.1:{listening}/v1",
        "host by name": f"http://localhost:{listening}/v1",
        "outside": "http://192.0.2.1/v1",
        "resolved": "http://example.com/v1",
        "other episode": "http://127.0.0.1:3129/e/other/v1",
        "no episode": "http://127.0.0.1:3129/v1",
        "path tricks": "http://127.0.0.1:3129/e/x/../other/v1",
    }
    rows = [{"urls": urls, "keep": str(tmp_path), "n": i} for i in range(3)]
    (one,) = played.play(played.env("looks_around", "keep", rows))
    assert one.ending == "done", one.error
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {
        **dict.fromkeys(("host's port", "host by name", "outside", "resolved"), 0),
        **dict.fromkeys(("other episode", "no episode"), 401),
        "path tricks": 404,
    }
    assert one.metrics["requests"] == 1.0


def test_it_cannot_speak_in_another_episode_that_is_played_beside_it(played: Played, tmp_path: Path) -> None:
    """Whose address it can guess: all but its key is known."""
    rows = [{"id": f"t{i}", "keep": str(tmp_path)} for i in range(8)]
    both = played.play(played.env("speaks_elsewhere", "keep", rows), 2, max_concurrent=2)
    assert [t.ending for t in both] == ["done", "done"] and [len(t.turns) for t in both] == [2, 2]
    for one, other in (both, both[::-1]):
        found = json.loads((tmp_path / f"tried-{one.task.id}.json").read_text())
        assert other.id in found["ids"] and set(found["codes"]) == {401}


@pytest.mark.long
def test_neither_the_scorer_nor_its_secrets_are_there(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "planted-judge-key")
    rows = [{"keep": str(tmp_path), "answer": "answer-no-4711", "n": i} for i in range(3)]
    (one,) = played.play(played.env("looks_for_secrets", "keep", rows))
    assert one.reward == 1.0, one.error  # the scorer had its key
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "agent.py" in seen["names"] and not {"score.py", "tasks.jsonl"} & set(seen["names"]) and seen["texts"] == []


def test_what_lies_in_the_workspace_cannot_lead_the_scorer_astray(played: Played) -> None:
    (one,) = played.play(played.env("sets_traps", "copied"))
    assert one.reward == 1.0 and one.error == ""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fills_its_disk", "makes_many"])
def test_a_workspace_that_cannot_be_copied_is_its_agents_ending(played: Played, mode: str) -> None:
    (one,) = played.play(played.env(mode, disk_mb=10 if mode == "fills_its_disk" else 200))
    assert one.ending == "done" and one.reward == 0.0 and one.metrics["crashed"] == 1.0 and "sandbox" in one.error


def test_nothing_of_the_agents_runs_when_it_is_scored(played: Played) -> None:
    (one,) = played.play(played.env("leaves_a_process", "alone"))
    assert one.reward == 1.0


@pytest.mark.parametrize(("scorer", "said"), [("raises", "ZeroDivisionError"), ("nothing", "must be a number")])
def test_a_scorer_that_fails_stops_the_run(played: Played, scorer: str, said: str) -> None:
    with pytest.raises(EpisodeDefect, match=said) as defect:
        played.play(played.env("answer", scorer))
    assert len(defect.value.trajectory.turns) == 1 and "scorer" in str(defect.value)


def test_a_judge_that_is_away_is_no_score(played: Played) -> None:
    (one,) = played.play(played.env("answer", "offline"))
    assert one.ending == "infra_error" and "the scorer: ConnectionError: the judge is away" in one.error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"scorer": ""}, "scorer"),
        ({"command": [], "function": ""}, "there is no command"),
        ({"function": "x.py:f"}, "leave one out"),
        ({"image": "x", "packages": ["numpy"]}, "Python of its image"),
        ({"files": "absent"}, "no folder or file"),
        ({"hidden": ["anser"]}, "no row has one"),
        ({"container_runtime": "runsc"}, "no image"),
        ({"sandbox": "container"}, "name its image"),
        ({"sandbox": "bubblewrap", "image": "x"}, "leave out image"),
    ],
)
def test_what_cannot_be_is_told(played: Played, args: dict[str, Any], said: str) -> None:
    with pytest.raises(AirError, match=said):
        played.env("answer", **args).tasks("train")


def test_a_scorer_that_agents_could_read_is_refused(played: Played, folder: Path) -> None:
    shutil.copy(folder / "score.py", folder / "agent" / "score.py")
    with pytest.raises(AirError, match="agents are shown"):
        played.env("answer", scorer="score", files=str(folder))


def test_the_doctor_looks_for_the_program_and_for_answers(played: Played) -> None:
    env = played.env("answer", command=["absent-program"], hidden=[])
    (lack,) = asyncio.run(env.check_sandbox())
    assert "absent-program" in lack.what and not env.lacks()
    assert [trouble.severity for trouble in env.check_answers()] == ["warn"]
    env = played.env("answer")
    assert not asyncio.run(env.check_sandbox()) and not list(env.check_answers())


def test_packages_that_are_named_can_be_imported(played: Played, tmp_path: Path) -> None:
    source = tmp_path / "agent" / "agent.py"
    source.write_text("import httpx\n" + source.read_text())
    (one,) = played.play(played.env("answer", packages=["httpx"]))
    assert one.reward == 1.0, one.error
    (one,) = played.play(played.env("answer", "alone"))
    assert one.ending == "infra_error" and "No module named 'httpx'" in one.error


def test_another_interpreter_is_there_with_its_packages(played: Played, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "own", symlinks=True)
    (site,) = (tmp_path / "own" / "lib").glob("python*/site-packages")
    (site / "only_there.py").write_text("ANSWER = 'yes'\n")
    source = tmp_path / "agent" / "agent.py"
    source.write_text("import only_there\n" + source.read_text())
    (one,) = played.play(played.env("answer", python=str(tmp_path / "own" / "bin" / "python")))
    assert one.reward == 1.0, one.error


ARGS = (
    '{ command = ["python", "agent.py", "answer"], files = "agent", scorer = "score.py:length", tasks = "rows.jsonl" }'
)
CONFIG = program_run("program", ARGS)
KEY = re.compile(rb"air-[\w-]{43}")  # of an episode
LENGTH = """
def length(task, workspace):
    text = (workspace / "answer.txt").read_text()
    return sum(letter.islower() for letter in text) / max(len(text), 1)
"""


@pytest.fixture
def late_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes longer than it is waited for, as beside many others it may."""
    late = tmp_path / "bin" / "bwrap"
    late.parent.mkdir()
    late.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("bwrap")} "$@"\n')
    late.chmod(0o755)
    monkeypatch.setenv("PATH", f"{late.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["bubblewrap.backend", "bubblewrap.sandbox"])
def test_a_sandbox_that_starts_late_is_not_taken_for_one_that_cannot(
    waits: str, late_bwrap: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: neither where one is tried nor where one is looked into; whatever else is wrong is a failure as before."""
    (folder / "score.py").write_text(LENGTH)
    (folder / "rows.jsonl").write_text(json.dumps({"word": "w"}))
    (folder / "run.toml").write_text(CONFIG)
    monkeypatch.setattr(f"airloop.sandbox.{waits}.START_S", 0.1)
    with Case(load_config(["@", str(folder / "run.toml")])) as case:
        results = examine(case, ("fast",), ["sandbox_works", "sandboxes_are_whole"])
    found = [finding for result in results for finding in result.findings]
    assert {finding.verdict for finding in found} <= {"pass", "not judged"}, found
    assert any("did not start a sandbox within 0.1 s" in finding.seen for finding in found)


@pytest.mark.long
def test_a_run_of_commands_is_a_run_like_any_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the TOML; the doctor looks; the ledger is whole."""
    (folder / "score.py").write_text(LENGTH)
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"word": f"w{i}"}) for i in range(40)))
    (folder / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(folder.parent)
    config = load_config(["@", str(folder / "run.toml"), "--output_dir", str(folder / "out")])
    with Case(config) as case:
        results = examine(case, ("fast",), ["sandbox_works", "sandboxes_are_whole", "answers_are_hidden"])
    assert [finding.verdict for result in results for finding in result.findings] == ["pass"] * 3
    done = start(config, Display(quiet=True))
    played = Run.open(done.run.path).finished(1)
    assert len(played) == 8 and all(t.branches and t.metrics["exit_code"] == 0.0 for t in played.values())
    assert not any(KEY.search(path.read_bytes()) for path in Path(done.run.path).rglob("*") if path.is_file())
