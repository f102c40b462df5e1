"""The viewer as text: enough to work over ssh, and safe to print whatever an agent has written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.made_runs import HOSTILE, alarm, episode, record, save, start_run
from support.tiny_runs import tiny_run

from airloop.errors import AirError
from airloop.types import Action
from airloop_view.text import show

# All that may be in what is printed: line ends, and signs that a terminal shows as they are.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs; of the first, a step with a group, an evaluation and an alarm."""
    root = tmp_path / "outputs"
    run, _ = start_run(root), start_run(root, "exp1.1-arith-1115", "stopped")
    steps = []
    for step in range(12):
        line = {"kind": "train", "step": step, "reward": step / 10, "learner": {"entropy": 2 - step / 10, "lr": 1e-4}}
        steps.append(line | {"metrics": {"correct": step / 12}, "rollout": {"groups": 2}, "rewards": [step / 10]})
    reward = {"mean": 0.5, "low": 0.25, "high": 0.75}
    steps.append({"kind": "eval", "step": 0, "name": "before", "split": "test", "episodes": 4, "reward": reward})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    rows = []
    for place, reward_of in enumerate((0.0, 1.0)):
        name = f"0-1_pi0_20261115T000000_0-{place}"
        said = ["I think.\n```\nls -la\n```", "the answer is seven"]
        commands = [Action("command", "ls -la"), Action("text", "the answer is seven")]
        made = episode(
            name, said, seen=["train.py  data.csv"], actions=commands, reward=reward_of, started=place + 1.8e9
        )
        save(run / "trajectories/step_0000", made)
        rows.append({"id": name, "reward": reward_of, "advantage": 2.0 * place - 1, "fate": "trained", "tokens": {}})
    record(run, 0, rows)
    save(run / "evaluations/before", episode("0-1_pi0_20261115T000000_9-0", ["held out words"]))
    alarm(run, "raised", 0)
    return root


def test_runs_are_a_table(runs: Path) -> None:
    text = show(runs)
    lines = text.splitlines()
    heads = next(line for line in lines if line.startswith("run "))
    assert heads.split()[:3] == ["run", "status", "steps"]
    row = next(line for line in lines if line.startswith("exp1.0-arith-1115"))
    assert "completed" in row and "12/4" in row and "→" in row and "▁" in row and "F1" in row
    assert any(line.startswith("exp1.1-arith-1115") and "stopped" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_a_run_has_curves_evaluations_and_alarms(runs: Path) -> None:
    for text in (show(runs, run="exp1.0"), show(runs / "exp1.0-arith-1115")):
        assert re.search(r"\n  reward +▁.*█ +0 → 1\.1", text) and re.search(r"\n  entropy +█", text)
        assert re.search(r"before +test +4 +0\.500 \[0\.250, 0\.750\]", text)
        assert "F1 entropy gone, step 1 (note): 0.01 nats" in text and "fix: raise it" in text
        assert "(1 to 12; 0: before the first)" in text and "\n  lr " not in text  # what does not move is no curve


def test_steps_are_counted_as_everywhere(runs: Path) -> None:
    text = show(runs, run="exp1.0", step=1)
    assert "exp1.0-arith-1115, step 1: 2 episodes" in text
    assert re.search(r"0-1_pi0_20261115T000000_0-1 +1\.000 +1\.000 +done +\+1\.000 +trained +2", text)
    assert "before/0-1_pi0" in show(runs, run="exp1.0", step=0)
    assert "step 5: 0 episodes" in show(runs, run="exp1.0", step=5)


def test_an_episode_reads_as_a_conversation(runs: Path) -> None:
    text = show(runs, id="0-1_pi0_20261115T000000_0-1")
    places = [text.index(word) for word in ("What is 0+1?", "I think.", "train.py  data.csv", "the answer is seven")]
    assert places == sorted(places)
    assert text.count("train.py  data.csv") == 1  # said by the environment, not repeated as the next message
    assert text.count("ls -la") == 1  # part of the reply
    assert "reward 1.000 (correct 1), ended: done, 2 turns in 1 s" in text
    assert "its group: 2 episodes, mean 0.500 ± 0.500" in text and "Trained with advantage +1" in text
    assert "alarm at this step: F1 entropy gone" in text and "earned in this turn: valid 1" in text
    assert "previous: --run exp1.0-arith-1115 --id 0-1_pi0_20261115T000000_0-0" in text and "\nnext:" not in text


def test_words_are_found_in_all_runs(runs: Path) -> None:
    assert "2 episodes" in show(runs, find="seven") and "0 episodes" in show(runs, find="eight")
    assert "before/" in show(runs, find='"held out"') and "1 episodes" in show(runs, find='"held out"')
    assert "0 episodes" in show(runs, run="exp1.1", find="seven")
    assert "1 episodes" in show(runs, run="exp1.0", step=0, find="words")


@pytest.mark.parametrize("name", HOSTILE)
def test_what_an_agent_wrote_is_shown_never_obeyed(name: str, tmp_path: Path) -> None:
    bad = HOSTILE[name]
    run = start_run(tmp_path / "outputs")
    made = episode(
        "e1", [bad, bad], prompt=bad, task=f"t{bad}", seen=[bad], actions=[Action("command", bad)], error=bad
    )
    save(run / "trajectories/step_0000", made)
    (run / "status.json").write_text(
        json.dumps({"status": "failed", "why": bad, "wandb_url": bad, "sink_urls": {bad: bad}})
    )
    line = {"kind": "train", "step": 0, "reward": 1.0, "task": {bad: {"reward": 1.0, "episodes": 2}}}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line | {"step": s, "reward": s}) + "\n" for s in range(3)))
    for text in (show(tmp_path / "outputs"), show(run), show(run, step=1), show(run, id="e1"), show(run, find="e")):
        assert CONTROL.search(text) is None
        text.encode()


def test_a_line_of_megabytes_and_an_endless_output_are_cut(tmp_path: Path) -> None:
    run = start_run(tmp_path / "outputs")
    made = episode("e1", ["x" * 3_000_000, "done"], seen=["row\n" * 100_000])
    save(run / "trajectories/step_0000", made)
    text = show(run, id="e1")
    assert len(text) < 60_000 and len(re.findall(r"… [\d,]+ more characters", text)) == 2
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("content", ["", "{", "[]", "nonsense", '{"schema_version": 99}', "[" * 100_000])
def test_a_file_that_is_no_episode_says_so(content: str, tmp_path: Path) -> None:
    run = start_run(tmp_path / "outputs")
    (run / "trajectories/step_0000").mkdir(parents=True)
    (run / "trajectories/step_0000/broken.json").write_text(content)
    assert "unreadable" in show(run, step=1)
    assert "ended: unreadable" in show(run, id="broken")


def test_a_real_run_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run()
    page = show(run)
    assert "completed" in page and "\n  reward " in page and "held-out reward" in page
    first = next(path.stem for path in sorted((run / "trajectories/step_0001").glob("*.json")))
    assert "assistant" in show(run, id=first) and "step 2" in show(run, id=first)
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert max(map(len, show(run, step=2).splitlines())) <= int(columns)


def test_mlgyms_own_files_can_be_read(tmp_path: Path) -> None:
    step = {"thought": "look around", "action": "ls\n", "observation": "train.csv", "response": "look around\nls"}
    history = [{"role": "system", "content": "You are a researcher."}, {"role": "user", "content": "Do it."}]
    data = {"trajectory": [step], "history": history, "info": {"exit_status": "submitted"}, "environment": "titanic"}
    (tmp_path / "one.traj").write_text(json.dumps(data))
    for place in (tmp_path, tmp_path / "one.traj"):
        assert "1 episodes" in show(place)
    text = show(tmp_path, id="one")
    assert "look around" in text and "train.csv" in text


def air_agents(directory: Path, **other: Any) -> Path:
    """As air-agent saved an episode: of each turn the whole prompt and the completion, and nothing of ours."""
    first = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Beat the baseline."}]
    reply = {"role": "assistant", "content": "open baseline.py"}
    seen = {"role": "user", "content": "[File: baseline.py (12 lines total)]"}
    steps = [
        {"prompt": first, "completion": [reply], "reward": None, "response": "ChatCompletion(id=1)"},
        {"prompt": [*first, reply, seen], "completion": [{"role": "assistant", "content": "submit"}], "reward": None},
    ]
    data = {
        "task": "titanic",
        "example_id": 3,
        "policy_step": 12,
        "trajectory": steps,
        "metrics": {"baseline_score": 0.76, "final_score": 0.83, "improvement": 0.07, "validation_history": [[1, 0.8]]},
        "info": {"exit_reason": "submit"},
        "timestamp": "20260206_031502",
    }
    path = directory / "titanic_pi12_20260206_031502.json"
    path.write_text(json.dumps({**data, **other}, indent=2))
    return path


def test_episodes_of_air_agent_show_their_turns(tmp_path: Path) -> None:
    directory = tmp_path / "trajectories_exp1.2"
    directory.mkdir()
    file = air_agents(directory)
    (directory / "notes.json").write_text("{}")  # no episode, and not taken for one
    for place in (tmp_path, directory, file):
        listed = show(place)
        assert "1 episodes" in listed and "open baseline.py" in listed and "done" in listed
    text = show(directory, id=file.stem)
    order = ["You are an agent.", "Beat the baseline.", "open baseline.py", "baseline.py (12 lines", "turn 2", "submit"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert text.count("12 lines total") == 1 and "improvement 0.07" in text and "task titanic" in text


def test_episodes_of_air_agent_that_hold_text_or_printed_messages(tmp_path: Path) -> None:
    steps = [
        {"prompt": "Beat it.", "completion": "ls"},
        {
            "prompt": ["role='assistant' content='ls'", "role='user' content='a.py'"],
            "completion": ["role='assistant'?"],
        },
        {"prompt": None, "completion": [{"role": "assistant", "content": None, "tool_calls": [{"name": "run"}]}, 7]},
    ]
    text = show(tmp_path, id=air_agents(tmp_path, trajectory=steps, info=None, metrics=[]).stem)
    for words in ("Beat it.", "content='a.py'", "role='assistant'?", '"run"', "turn 3"):
        assert words in text


def test_wrong_questions_have_answers(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for asked, words in (
        (lambda: show(tmp_path / "nowhere"), "There is nothing at"),
        (lambda: show(tmp_path / "empty"), "There are no runs"),
        (lambda: show(runs, run="exp9"), r"There is no run 'exp9' here(.|\n)*exp1.0-arith-1115"),
        (lambda: show(runs, run="exp1"), "Several runs begin with 'exp1'"),
        (lambda: show(runs, step=1), r"Which run's step(.|\n)*--run"),
        (lambda: show(runs, id="nobody"), "There is no episode 'nobody'"),
        (lambda: show(runs, id="0-1_pi0"), r"2 episodes are called so|3 episodes are called so"),
    ):
        with pytest.raises(AirError, match=words):
            asked()


def test_plain_where_it_is_piped_and_coloured_on_a_terminal(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in show(runs)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b[1mrun " in show(runs)
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in show(runs)
    os.close(ours)


def test_a_run_whose_name_is_a_control_code_is_named_safely(tmp_path: Path) -> None:
    for name in ("exp1.0-\x1b[31mred-1115", "exp1.1-\x1b]0;x\x07-1115"):
        save(start_run(tmp_path, name) / "trajectories/step_0000", episode("a_0-0"))
    for question in ({"run": "other"}, {"run": "exp1"}, {"step": 1}, {"id": "a"}):
        with pytest.raises(AirError) as error:
            show(tmp_path, **question)
        assert not CONTROL.search(str(error.value)) and "\\x1b" in str(error.value)
