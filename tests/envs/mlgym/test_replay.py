"""air replay: recorded episodes played again in the real sandbox.

The recordings are made by playing: the commands run in a session on the fixture checkout, and what they showed is
written in the form of MLGym's files.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fixture_checkout import write_checkout

from airloop.errors import AirError
from airloop.rollout.episode import run_episode
from airloop.runs.trajectory_file import to_json
from airloop.types import Action, Message, Task
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.metrics import yardstick
from airloop_envs.mlgym.older_files import older_files
from airloop_envs.mlgym.replay import ReplayOptions, _args, name_task
from airloop_envs.mlgym.replay_report import Compared, tolerance
from airloop_envs.mlgym.traj import RecordedStep, read_recording, read_view

HEADER = "# Copyright (c) the authors of this fixture.\n# Use it as you like.\n# No warranty.\n\n"
STATUS = re.compile(r"\n\[step \d+, .*\]$")
OURS = re.compile(r"valid submission: (.*)\nbaseline: (.*)\nscore: (.*)")

DEFECT = "edit 6:6\n    return 1\nend_of_edit"
GAME = ["ls -F", "open strategy.py", DEFECT, "validate", "python -c 'import strategy; print(1 + 1)'", "submit"]
FIT = """cat << 'EOF' > train.py
import csv
import numpy as np

def rows(name):
    return list(csv.DictReader(open(f"data/{name}.csv")))

def table(part):
    return np.array([[1.0, *(float(row[c]) for c in ("area", "rooms", "age"))] for row in part])

train, test = rows("train"), rows("test")
weights, *_ = np.linalg.lstsq(table(train), np.array([float(r["price"]) for r in train]), rcond=None)
with open("submission.csv", "w") as file:
    print("id,price", file=file)
    for row, price in zip(test, table(test) @ weights):
        print(f"{row['id']},{price}", file=file)
EOF"""


# --- recording ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path_factory.getbasetemp() / "air_cache"))
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture checkout with a short, predictable game."""
    found = write_checkout(tmp_path_factory.mktemp("checkout"))
    game = found / "data/prisonersDilemma"
    (game / "target.py").write_text(
        "def target_column_strategy(history):\n    return 0 if len(history) % 5 < 2 else 1\n"
    )
    evaluation = game / "evaluate.py"
    evaluation.write_text(evaluation.read_text().replace("10_000, 10", "20, 10"))
    return found


def play(root: Path, task: str, commands: Sequence[str]) -> tuple[list[dict[str, str]], list[dict[str, float]]]:
    """The steps of a `.traj`, and its scores."""

    async def played() -> tuple[list[dict[str, str]], list[dict[str, float]]]:
        env = MlgymEnv(MlgymArgs(task_configs=[task], mlgym_root=str(root), source="checkout", standby=0))
        steps, scores = [], []
        try:
            async with env.open(Task("mlgym", task, "train", {"task": task, "variant": 0}), 0) as session:
                await session.begin()
                for command in commands:
                    seen = await session.act(Action("command", command))
                    text = STATUS.sub("", seen.text)
                    if found := OURS.search(text):
                        scores.append(dict(session.attempt.grade.scores or {}))
                        text = "Exited (submit)" if seen.done else in_their_words(found)
                    steps.append(
                        {"action": command + "\n", "observation": text, "response": "", "thought": "", "state": ""}
                    )
        finally:
            await env.close()
        return steps, scores

    return asyncio.run(played())


def in_their_words(found: re.Match[str]) -> str:
    return (
        f"Your code produced a valid submission artefact at /home/agent/workspace/{found[1]}.\n"
        f"Baseline Score: {found[2]}\nEvaluation Score: {found[3]}"
    )


def write_traj(path: Path, steps: Sequence[Any], scores: Sequence[Any], status: str, **more: Any) -> Path:
    info = {"score": list(scores), "exit_status": status, "submission": "/home/agent/workspace/submission.csv"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"trajectory": list(steps), "info": info, "history": [], **more}))
    return path


@pytest.fixture(scope="module")
def game(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str]], list[dict[str, float]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.getbasetemp() / "air_cache"))
        steps, scores = play(root, "prisonersDilemma", GAME)
    assert scores == [{"Score": 2.6}, {"Score": 2.6}] and steps[1]["observation"].startswith("[File: ")
    return steps, scores


# --- MLGym's files ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_published_episode_gives_the_same_scores(air: Any, root: Path, game: Any, tmp_path: Path) -> None:
    path = write_traj(tmp_path / "model__prisonersDilemma__default/run_0.traj", *game, "submitted")
    code, text, _ = air("replay", path, "--mlgym-root", root)
    assert code == 0, text
    assert "task prisonersDilemma (checkout), 6 turns" in text and "all scores agree (2 of 2): Score (up)" in text
    assert "   4  validate" in text and "   6  submit" in text
    assert "5 standard errors of 0.006" in text and "header" not in text and "note:" not in text


@pytest.mark.long
@pytest.mark.slow
def test_files_that_had_no_header_there_have_none_in_the_replay(
    air: Any, root: Path, game: Any, tmp_path: Path
) -> None:
    """The edit says line 6, which with today's header is another line: the replay would break the file."""
    today = write_checkout(tmp_path)
    for name in ("strategy.py", "evaluate.py", "target.py"):
        old = (root / "data/prisonersDilemma" / name).read_text()
        (today / "data/prisonersDilemma" / name).write_text(HEADER + old)
    path = write_traj(tmp_path / "nameless.traj", *game, "submitted")
    code, text, _ = air("replay", path, "--mlgym-root", today, "--task", "prisonersDilemma", "--json", "--turns")
    told = json.loads(text)
    assert code == 0, text
    assert told["without_header"] == {"evaluate.py": 4, "strategy.py": 4} and told["agree"] and not told["notes"]
    assert told["turns"][2]["command"].startswith("edit 6:6") and "1:import random" in told["turns"][1]["here"]


@pytest.mark.slow
def test_scores_that_differ_are_shown_and_exit_with_one(air: Any, root: Path, game: Any, tmp_path: Path) -> None:
    steps, scores = [dict(step) for step in game[0]], game[1]
    steps[2]["observation"] = "Your proposed edit has introduced new syntax error(s)."
    path = write_traj(
        tmp_path / "t.traj", steps, [scores[0], {"Score": 2.1}], "submitted", environment="prisonersDilemma"
    )
    code, text, _ = air("replay", path, "--mlgym-root", root)
    assert code == 1 and "differs by 0.5 (noise 0.03)" in text and "1 of 2 scores agree" in text
    assert "turn 3: the edit was refused there and applied here" in text


@pytest.mark.long
@pytest.mark.slow
def test_an_episode_cut_off_is_submitted_for_the_agent(air: Any, root: Path, tmp_path: Path) -> None:
    """Training by a here-document, a failed command, and no `submit`: the last artefact is scored."""
    commands = ["cd data && ls", "cat missing.txt", "cd ..", FIT, "validate", "python train.py", "validate"]
    steps, scores = play(root, "regressionKaggleHousePrice", commands)
    assert "No submission" in steps[4]["observation"] and len(scores) == 1
    steps[4]["observation"] = "Submission artefact not found. Make one."
    ending = {"action": "exit_context", "observation": "Exited (exit_context)"}
    path = write_traj(
        tmp_path / "m__regression_kaggle_house_price" / "x.traj", [*steps, ending], [*scores, scores[-1]],
        "autosubmission (exit_context)",
    )  # fmt: skip
    code, text, _ = air("replay", path, "--mlgym-root", root)
    assert code == 0, text
    assert "same: no score in both" in text and "   7  end " in text and "3 of 3" in text
    assert "0.02 of the larger score" in text


def test_steps_that_were_not_run_there_are_not_run_here(root: Path, game: Any, tmp_path: Path) -> None:
    steps, scores = game
    late = {"action": "rm strategy.py", "observation": "Exited (max_steps)"}
    path = write_traj(tmp_path / "a.traj", [*steps[:4], late], scores, "autosubmission (max_steps)")
    recording = read_recording(path)
    assert len(recording.steps) == 4 and recording.final == {"Score": 2.6} and recording.final_known
    path = write_traj(tmp_path / "b.traj", [*steps[:3], {"action": "", "observation": ""}], [], "")
    assert len(read_recording(path).steps) == 3 and not read_recording(path).final_known


@pytest.mark.slow
def test_what_is_missing_here_and_what_was_stopped_is_said(air: Any, root: Path, tmp_path: Path) -> None:
    steps = [
        {"action": "python -c 'import no_such_boosting.core'", "observation": ""},
        {"action": "python -c 'import time; time.sleep(30)'", "observation": "done"},
        {"action": "exit_forfeit", "observation": "Exited (exit_forfeit)"},
    ]
    path = write_traj(tmp_path / "m__titanic.traj", steps, [], "exit_forfeit")
    code, text, told = air("replay", path, "--mlgym-root", root, "--timeout", 2.1)
    assert "the sandbox has no package no_such_boosting, wanted in turn 1" in text
    assert "turn 2 was stopped here after 2.1 s" in text and "turn 2 of 3: python -c" in told
    assert code == 0 and "3 turns" in text and "same: no score in both" in text


@pytest.mark.slow
def test_what_cannot_be_replayed_exits_with_two(air: Any, root: Path, game: Any, tmp_path: Path) -> None:
    path = write_traj(tmp_path / "nameless.traj", *game, "submitted")
    code, _, problem = air("replay", path, "--mlgym-root", root)
    assert code == 2 and "--task NAME" in problem
    code, _, problem = air("replay", path)
    assert code == 2 and "--mlgym-root DIR" in problem
    code, _, problem = air("replay", path, "--mlgym-root", root, "--task", "broken")
    assert code == 2 and "cannot be run" in problem
    for text in ("{", '{"a": 1}', '{"trajectory": [{"action": 3}]}'):
        (tmp_path / "bad.traj").write_text(text)
        code, _, problem = air("replay", tmp_path / "bad.traj", "--mlgym-root", root)
        assert code == 2 and "bad.traj" in problem
    assert air("replay", tmp_path / "none.traj")[0] == 2
    path = write_traj(tmp_path / "prisonersDilemma.traj", game[0][:2], [], "")
    code, text, _ = air("replay", path, "--mlgym-root", root)
    assert code == 2 and "no score to compare with" in text


# --- air's own ----------------------------------------------------------------------------------------------


class Script:
    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = list(commands)

    async def reply(self, messages: Sequence[Any], tools: Sequence[Any]) -> Message:
        command = self.commands.pop(0)
        return Message(role="assistant", content=f"So.\n```bash\n{command}\n```" if command else "Nothing.")


@pytest.mark.long
def test_our_own_trajectories_are_replayed_with_their_rewards(air: Any, root: Path, tmp_path: Path) -> None:
    async def episode() -> dict[str, Any]:
        env = MlgymEnv(MlgymArgs(task_configs=["prisonersDilemma"], mlgym_root=str(root), standby=0))
        env.weigh({"headroom": 1.0, "tool": 0.2, "delta": 1.0, "validated": 0.1, "code_quality": 0.1})
        try:
            task = env.tasks("train")[0]
            return to_json(await run_episode(env, task, Script([*GAME[:4], "", *GAME[4:]]), id="e", seed=0))
        finally:
            await env.close()

    data = asyncio.run(episode())
    data["rewards"]["headroom"] = -1.0  # which it was not
    path = tmp_path / "e.json"
    path.write_text(json.dumps(data))
    code, text, _ = air("replay", path, "--mlgym-root", root, "--json")
    rows = {row["what"]: row for row in json.loads(text)["compared"]}
    assert code == 1 and rows.pop("headroom")["verdict"].startswith("differs by 1.9")
    assert rows.keys() == {"validate", "submit", "tool", "delta", "validated", "code_quality"}
    assert all(row["same"] for row in rows.values()) and rows["submit"]["here"] == 2.6
    data["task"]["payload"] = {"index": 0}
    path.write_text(json.dumps(data))
    code, _, problem = air("replay", path, "--mlgym-root", root)
    assert code == 2 and "only those of mlgym can" in problem


ZEROS = "(echo PassengerId,Survived; tail -n +2 data/test.csv | cut -d, -f1 | sed 's/$/,0/') > submission.csv"


@pytest.mark.long
@pytest.mark.parametrize("score", ["last", "best"])
def test_a_table_of_ours_has_the_same_score_on_both_halves_again(air: Any, tmp_path: Path, score: Any) -> None:
    async def episode() -> dict[str, Any]:
        env = MlgymEnv(MlgymArgs(task_configs=["titanic"], source="builtin", standby=0, score=score))
        try:
            commands = ["python baseline.py; validate", f"{ZEROS}; validate", "submit"]
            return to_json(await run_episode(env, env.tasks("train")[0], Script(commands), id="e", seed=0))
        finally:
            await env.close()

    data = asyncio.run(episode())
    assert (data["metrics"]["score"] > 0.7) == (score == "best")
    path = tmp_path / "e.json"
    path.write_text(json.dumps(data))
    code, text, _ = air("replay", path, "--json")
    assert code == 0 and {row["what"] for row in json.loads(text)["compared"]} >= {"validate", "submit", "headroom"}


def test_a_replay_has_as_many_gradings_as_there_were(root: Path, game: Any, tmp_path: Path) -> None:
    steps = [{"action": "validate", "observation": ""}] * 30
    recording = read_recording(write_traj(tmp_path / "x.traj", steps, [], "submitted"))
    args = _args(recording, Task("mlgym", "x", "replay", {"task": "prisonersDilemma"}), ReplayOptions(str(root)))
    assert args.max_gradings > 31


# --- parts --------------------------------------------------------------------------------------------------


def shown(text: str, total: int | None = None) -> str:
    lines = text.split("\n")
    numbered = "\n".join(f"{i}:{line}" for i, line in enumerate(lines, 1))
    return f"[File: /home/agent/workspace/a.py ({total or len(lines)} lines total)]\n{numbered}"


BODY = "import os\n\n\ndef f():\n    return os.name"


@pytest.mark.parametrize("header", ["# one\n# two\n# three\n", HEADER, '"""One.\n\nTwo.\n"""\n', "\n\n# x\n"])
def test_a_header_is_found_by_the_first_view(header: str) -> None:
    step = RecordedStep(Action("command", "open a.py"), shown(BODY))
    found = older_files([step], {"a.py": (header + BODY + "\n").encode(), "b.py": (header + "x = 1\n").encode()})
    assert found.contents["a.py"] == (BODY + "\n").encode() and found.contents["b.py"] == b"x = 1\n"
    assert not found.notes


LINES = st.lists(st.sampled_from(["x = 1", "", "# note", "def f():", "    return 2"]), min_size=1, max_size=12)


@given(st.lists(st.sampled_from(["# licence", "#", ""]), max_size=5), LINES)
def test_whatever_the_header_the_file_becomes_the_one_that_was_shown(header: list[str], body: list[str]) -> None:
    old = "\n".join(body)
    today = "\n".join([*header, *body])
    found = older_files([RecordedStep(Action("command", "open a.py"), shown(old))], {"a.py": today.encode()})
    assert found.contents.get("a.py", today.encode()).decode() == old and not found.notes


def test_files_that_are_the_same_or_otherwise_different_stay(root: Path) -> None:
    step = RecordedStep(Action("command", "open a.py"), shown(BODY))
    assert not older_files([step], {"a.py": BODY.encode()}).contents
    other = older_files([step], {"a.py": b"import sys\n"})
    assert not other.contents and "is not the file of this checkout" in other.notes[0]
    written = RecordedStep(Action("command", "echo > a.py"), "")
    assert not older_files([written, step], {"a.py": b"import sys\n"}).notes
    assert not older_files(
        [RecordedStep(Action("command", "cat a.py"), shown(BODY))], {"a.py": b"# c\n" + BODY.encode()}
    ).cut


def test_views_of_any_form_are_read() -> None:
    view = read_view(
        "[File: /w/a.py (30 lines total)]\n(3 more lines above)\n4:a: b\n5:\n6:c  \n(24 more lines below)\n7:no"
    )
    assert view is not None and view.lines == {4: "a: b", 5: "", 6: "c"} and view.total == 30
    assert read_view("nothing opened") is None


def test_scores_are_read_from_text_and_from_info(tmp_path: Path) -> None:
    said = "Baseline Score: {'Score': 1}\nEvaluation Score: "
    texts = ["{'Score': np.float64(1.5)}", '{"Score": 2}', "{'Score': <odd>}"]
    steps = [{"action": "validate", "observation": said + text} for text in texts]
    scores = [{"Score": 1.5}, {"Score": 2.0}, {"Score": 3.0}]
    path = write_traj(tmp_path / "x.traj", steps, [*scores, {"Score": 4}], "submitted")
    recording = read_recording(path)
    assert [step.scores for step in recording.steps] == scores and recording.final == {"Score": 4.0}
    path = write_traj(tmp_path / "x.traj", steps, [], "submission_not_found (submit)")
    assert read_recording(path).final is None and read_recording(path).final_known


def test_the_task_is_named_by_the_likeliest_text() -> None:
    known = {
        "titanic": ("titanic", "titanicSurvival"),
        "3SATTime": ("3SATTime", "3SATTime"),
        "blotto": ("blotto", "b2"),
    }
    assert name_task(["MLGym_titanicSurvival", "blotto"], known) == "titanic"
    assert name_task(["run", "gpt4o__3sat_time__x", "blotto"], known) == "3SATTime"
    with pytest.raises(AirError, match="names several tasks"):
        name_task(["titanic-blotto1"], {"titanic": ("titanic",), "blotto1": ("blotto1",)})
    with pytest.raises(AirError, match="names a task that is known"):
        name_task(["x"], known)


def test_verdicts() -> None:
    game = tolerance(yardstick("blotto", "blotto"))
    assert tolerance(yardstick("blotto", "blotto"), 0.5)(0.2, 0.1) == 0.1
    assert Compared(1, "validate", 0.20, 0.229, game(0.2, 0.229)).same
    assert not Compared(1, "validate", 0.20, 0.24, game(0.2, 0.24)).same
    clock = tolerance(yardstick("3SATTime", "3SATTime"))
    assert Compared(1, "submit", 16.0, 6.0, clock(16.0, 6.0)).same
    assert not Compared(1, "submit", 16.0, 5.0, clock(16.0, 5.0)).same
    assert Compared(1, "end", None, None, 0.0).same and not Compared(1, "end", None, 1.0, 0.0).same
