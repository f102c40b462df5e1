"""A run whose episodes programs play: killed in the middle of a step, it goes on to the same end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from support import warm_process
from support.killed_runs import first_difference, saved_episodes, what_happened
from support.program_runs import program_run
from support.warm_process import Process

from airloop.runs.run import Run

# While there is a file `hold`, only so many episodes as it says come to their end.
AGENT = """
import itertools, time
from pathlib import Path

HERE = Path(__file__).parent

def numbered():
    for number in itertools.count():
        try:
            (HERE / f"answered-{number}").open("x").close()
            return number
        except FileExistsError:
            pass

def solve(task, client):
    said = [{"role": "user", "content": f"say {task['word']}"}]
    text = client.chat.completions.create(model="m", messages=said).choices[0].message.content or " "
    hold = HERE / "hold"
    if hold.exists() and numbered() >= int(hold.read_text()):
        time.sleep(600)
    return sum(letter.islower() for letter in text) / max(len(text), 1)
"""
EVALUATED, STEP, BEGUN = 2, 8, 3  # episodes: of the evaluation before, of a step, and of the step that is killed


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({"word": f"w{i}"}) for i in range(20)))
    (tmp_path / "run.toml").write_text(program_run("./agent.py:solve", '{ tasks = "tasks.jsonl" }'))
    flags = ["--trainer.model.train", "lora", "--ckpt.interval", "1", "--output_dir", str(tmp_path / "killed")]
    return ["train", "--skip-proofs", "@", str(tmp_path / "run.toml"), *flags]


def killed_in_the_second_step(words: list[str], here: Path) -> Path:
    (here / "hold").write_text(f"{EVALUATED + STEP + BEGUN}")
    process, deadline = Process(words), time.monotonic() + 300
    while saved_episodes(here / "killed") < STEP + BEGUN:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (here / "hold").unlink()
    (place,) = (here / "killed").glob("exp*")
    assert len(Run.open(place).finished(1)) == BEGUN
    return place


@pytest.mark.long
def test_killed_in_the_middle_of_a_step_it_resumes_to_the_same_end(words: list[str], tmp_path: Path) -> None:
    words = [*words, "--deterministic", "true"]
    whole = warm_process.run([*words, "--output_dir", str(tmp_path / "whole")])
    assert whole.returncode == 0, whole.stderr
    wanted = what_happened(Run.open(next((tmp_path / "whole").glob("exp*"))))
    assert len({reward for _, _, _, reward, _ in wanted["episodes"]}) > 1, "something did happen"
    place = killed_in_the_second_step(words, tmp_path)
    resumed = warm_process.run(["train", "--skip-proofs", "--resume", str(place)])
    assert resumed.returncode == 0, resumed.stderr
    assert first_difference(Run.open(place), wanted) is None


@pytest.mark.long
def test_programs_that_had_ended_are_not_run_again(words: list[str], tmp_path: Path) -> None:
    """But where a run is deterministic: there a step is sampled whole."""
    place = killed_in_the_second_step(words, tmp_path)
    before = Run.open(place).finished(1)
    resumed = warm_process.run(["train", "--skip-proofs", "--resume", str(place)])
    assert resumed.returncode == 0, resumed.stderr
    run = Run.open(place)
    assert [line["rollout"]["reused"] for line in run.metrics("train")] == [0, BEGUN]
    after = run.finished(1)
    assert len(after) == STEP and {where: after[where] for where in before} == before
