"""Sandboxes of a task, what is collected from them, and scores of tables and models. Real sandboxes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fixture_checkout import write_checkout
from support.grading_lab import Lab, make_task, open_lab

from airloop.errors import AirError, InfraError
from airloop.sandbox.base import Backend, Image, Result, Sandbox, Snapshot
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.pool import Pool
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.grading import Grade, Grader, Submission, judge
from airloop_envs.mlgym.spec import Dataset, TaskSpec
from airloop_envs.mlgym.submissions import other_than
from airloop_envs.mlgym.workspace import agent_image, grader_image

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def houses(root: Path) -> TaskSpec:
    return load_task(root, "regressionKaggleHousePrice")


# --- sandboxes -------------------------------------------------------------------------------------------------


def test_the_agent_sees_no_secret_and_the_grader_everything(lab: Lab, houses: TaskSpec) -> None:
    agent = lab.shown(agent_image(houses)).split()
    assert agent == ["./baseline.py", "./data/test.csv", "./data/train.csv", "./evaluate.py"]
    assert "./data/prices.csv" in lab.shown(grader_image(houses)).split()


def test_secrets_hidden_behind_links_second_data_sets_and_answers(lab: Lab, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first / "deep", first / "answers", second):
        directory.mkdir(parents=True)
    (first / "train.csv").write_text("train")
    (first / "deep/seen.csv").write_text("seen")
    (first / "deep/truth.csv").write_text("truth")
    (first / "alias.csv").symlink_to(first / "deep/truth.csv")
    (first / "answers/a.csv").write_text("truth")
    (second / "more.csv").write_text("more")
    sets = tuple(Dataset(d.name, "", str(d), True, d) for d in (first, second))
    starter = {"evaluate.py": "", "lib/inner.py": "", "submission.csv": "old", "lib/secret.py": "truth"}
    spec = make_task(tmp_path, "CSVSubmissionTasks", starter, datasets=sets, answers=first / "answers",
                     secret_files=("truth.csv", "secret.py"))  # fmt: skip
    agent = lab.shown(agent_image(spec)).split()
    assert agent == [
        "./data/deep/seen.csv", "./data/second/more.csv", "./data/train.csv", "./evaluate.py", "./lib/inner.py",
    ]  # fmt: skip
    assert "truth" not in lab.shown(agent_image(spec), "cat $(find . -type f)")
    write = "for f in data/train.csv data/second/x evaluate.py; do : >>$f && echo written; done 2>/dev/null"
    assert lab.shown(agent_image(spec), write) == ""
    grader = lab.shown(grader_image(spec)).split()
    assert {"./answers/a.csv", "./data/deep/truth.csv", "./data/second/more.csv", "./lib/secret.py"} <= {*grader}
    assert "./submission.csv" not in grader


def test_a_secret_among_too_many_files_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(501):
        (data / f"{number}.png").touch()
    (data / "truth.csv").touch()
    spec = make_task(tmp_path, "CSVSubmissionTasks", {"evaluate.py": ""}, secret_files=("truth.csv",),
                     datasets=(Dataset("data", "", "data", True, data),))  # fmt: skip
    with pytest.raises(AirError, match="directory of their own"):
        agent_image(spec)


# --- tables -------------------------------------------------------------------------------------------------


def test_a_table_is_scored(lab: Lab, houses: TaskSpec) -> None:
    submission = lab.attempt(houses, "python baseline.py")
    assert submission is not None and submission.path == "submission.csv"
    assert list(submission.files) == [submission.path]
    grade = lab.grade(houses, submission)
    assert grade.error == "" and grade.scores is not None and list(grade.scores) == ["rmse", "r2"]
    assert lab.attempt(houses, "python baseline.py").digest == submission.digest


def test_an_untouched_workspace_has_no_table(lab: Lab, houses: TaskSpec, tmp_path: Path) -> None:
    """D15: one that somebody left in the starter code is not this attempt's."""
    (tmp_path / "submission.csv").write_text("id,price\n")
    stale = replace(houses, starter_code=(*houses.starter_code, tmp_path / "submission.csv"))
    for spec in (houses, stale):
        assert (found := lab.attempt(spec, "true")) is None
        assert lab.grade(spec, found).error == "submission_not_found"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "KeyError"),
        ("id,price\n121,cheap\n", "ValueError: could not convert"),
        ("\0\0\0", "line contains NUL|KeyError"),
    ],
)
def test_a_malformed_table_is_told_why(lab: Lab, houses: TaskSpec, content: str, said: str) -> None:
    grade = lab.grade(houses, Submission("submission.csv", {"submission.csv": content.encode()}, "x"))
    assert (grade.scores, grade.error) == (None, "evaluation_failed")
    assert any(part in grade.text for part in said.split("|")), grade.text
    assert "prices.csv" not in grade.text and "Traceback" not in grade.text and "File " not in grade.text


def test_only_the_table_reaches_the_grader(lab: Lab, houses: TaskSpec) -> None:
    fake = "raise SystemExit(print('{\"r2\": 1.0}'))"
    command = "python baseline.py; mkdir sklearn; touch sklearn/__init__.py x.pth; ln -s /etc/passwd link.csv"
    command += "; rm -f evaluate.py; echo 'print(1)' >evaluate.py"
    submission = lab.attempt(houses, command, dict.fromkeys(["numpy.py", "json.py", "sitecustomize.py"], fake))
    assert submission is not None and list(submission.files) == ["submission.csv"]
    grade = lab.grade(houses, submission)
    assert grade.scores is not None and grade.scores["r2"] < 0.9


def test_a_table_that_is_a_link_is_what_the_agents_sandbox_sees(lab: Lab, houses: TaskSpec) -> None:
    submission = lab.attempt(houses, "ln -s data/test.csv submission.csv")
    assert submission is not None and submission.files["submission.csv"].startswith(b"id,area")
    assert lab.attempt(houses, "ln -s /dev/zero submission.csv") is None


def test_a_directory_is_no_table(lab: Lab, houses: TaskSpec) -> None:
    assert lab.attempt(houses, "mkdir submission.csv") is None


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        ("print('hello'); print('{\"Score\": 1}')", "evaluation_format_error"),
        ("print('{\"Score\": NaN}')", "evaluation_format_error"),
        ("print('{\"Score\": 1e999}')", "evaluation_format_error"),
        ("print('{\"Score\": true}')", "evaluation_format_error"),
        ("print('{}')", "evaluation_format_error"),
        ("print('[1]')", "evaluation_format_error"),
        ("pass", "evaluation_format_error"),
        ("print('x' * (2 << 20))", "evaluation_format_error"),
        ("while True: print('x' * 100000)", "evaluation_format_error"),
        ("print('{\"Score\": 1}'); raise SystemExit(3)", "evaluation_failed"),
        ("import time; time.sleep(60)", "evaluation_timeout"),
        ("import os; os.kill(os.getpid(), 9)", "evaluation_failed"),
        ("import sys; print('  {\"Score\": 1}  '); print('warning', file=sys.stderr)", ""),
    ],
)  # fmt: skip
def test_what_counts_as_a_score(lab: Lab, tmp_path: Path, printed: str, error: str) -> None:
    spec = make_task(tmp_path, "CSVSubmissionTasks", {"evaluate.py": printed})
    started = time.monotonic()
    grade = lab.grade(spec, Submission("submission.csv", {"submission.csv": b""}, "x"), timeout=3.0)
    assert grade.error == error, grade
    assert grade.scores == (None if error else {"Score": 1.0})
    assert time.monotonic() - started < 50


def test_the_agent_is_not_told_where_the_answers_are(tmp_path: Path) -> None:
    spec = make_task(tmp_path, "CSVSubmissionTasks", {}, secret_files=("truth.csv",), answers=tmp_path)
    trace = (
        'Traceback (most recent call last):\n  File "evaluate.py", line 3, in <module>\n    secret = open(1)\n'
        "FileNotFoundError: [Errno 2] '/home/agent/workspace/answers/labels.csv' or data/truth.csv\n"
    )
    text = judge(spec, Result(trace, 1, "/", 0.1), "", 1.0, 0.1).text
    assert text == "The evaluation failed: FileNotFoundError: [Errno 2] '(hidden)' or (hidden)"
    assert len(judge(spec, Result("x" * 10_000, 1, "/", 0.1), "", 1.0, 0.1).text) < 1000


def test_tables_from_a_pool(lab: Lab, houses: TaskSpec) -> None:
    submission = lab.attempt(houses, "python baseline.py")

    async def grade() -> list[Grade]:
        pool = Pool(Bubblewrap(), standby=1)
        grader = Grader(pool)
        try:
            return await asyncio.gather(*(grader.grade(houses, submission) for _ in range(3)))
        finally:
            await pool.close()

    assert len({str(g.scores) for g in lab.run(grade())}) == 1


class Failing(Backend):
    """The machine fails `times` times, then works."""

    name = "failing"

    def __init__(self, backend: Backend, times: int) -> None:
        self.backend, self.times = backend, times

    async def start(self, image: Image | Snapshot) -> Sandbox:
        self.times -= 1
        if self.times >= 0:
            raise InfraError("no machine")
        return await self.backend.start(image)

    def protections(self) -> dict[str, str]:
        return {}

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


def test_only_the_machine_is_an_infrastructure_error_and_it_is_tried_twice(lab: Lab, houses: TaskSpec) -> None:
    submission = lab.attempt(houses, "python baseline.py")
    once = Grader(Failing(lab.backend, 1))
    assert lab.run(once.grade(houses, submission)).scores is not None
    with pytest.raises(InfraError):
        lab.run(Grader(Failing(lab.backend, 2)).grade(houses, submission))


# --- models -------------------------------------------------------------------------------------------------


def test_a_model_is_scored_by_a_fresh_evaluation(lab: Lab, root: Path) -> None:
    spec = load_task(root, "pointsModel")
    assert lab.attempt(spec, "true") is None
    fake = "raise SystemExit(print('{\"accuracy\": 1.0}'))"
    command = "mkdir out; cd out; python ../baseline/train.py; cd ..; rm -f evaluate.py; echo 'print(1)' >evaluate.py"
    submission = lab.attempt(spec, command, {"numpy.py": fake, "json.py": fake})
    assert submission is not None and submission.path == "out/config.yaml"
    assert "evaluate.py" not in submission.files and not any(name.startswith("data/") for name in submission.files)
    grade = lab.grade(spec, submission)
    assert grade.scores == {"accuracy": pytest.approx(0.66)}, grade


def test_errors_of_a_model_do_not_carry_answers(lab: Lab, root: Path) -> None:
    spec = load_task(root, "pointsModel")
    submission = lab.attempt(spec, "echo 'weights: data/held_out.csv' >config.yaml")
    grade = lab.grade(spec, submission)
    assert grade.error == "evaluation_failed" and "ValueError (its text is not shown" in grade.text, grade


def test_an_unchanged_config_is_no_model(lab: Lab, tmp_path: Path) -> None:
    files = {"evaluate.py": "print('{\"Score\": 1}')", "src/config.yaml": "a: 1", "src/train.py": ""}
    spec = make_task(tmp_path, "ModelSubmissionTasks", files)
    assert lab.attempt(spec, "true") is None
    assert lab.attempt(spec, "echo 1 >weights").path == "src/config.yaml"
    assert lab.attempt(spec, "echo 1 >weights; echo 1 >z.yaml").path == "z.yaml"


def test_a_workspace_too_large_to_grade_is_told(lab: Lab, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airloop_envs.mlgym.submissions.LARGEST_WORKSPACE", 1 << 20)
    spec = load_task(root, "pointsModel")
    submission = lab.attempt(spec, "head -c 900000 /dev/zero >a.yaml; cp a.yaml b.bin")
    assert submission is not None and "larger than 1 MB" in submission.problem
    grade = lab.grade(spec, submission)
    assert grade.error == "evaluation_failed" and grade.text == submission.problem
    assert "2001 files" in lab.attempt(spec, "touch a.yaml; for i in $(seq 1999); do : >$i; done").problem


@pytest.mark.long
def test_a_language_model_is_scored_by_torchrun(lab: Lab, root: Path) -> None:
    if "torch" in lab.backend.interpreter.missing:
        pytest.skip("torch is not installed")
    spec = load_task(root, "letterModel")
    submission = lab.attempt(spec, "python baseline.py")
    assert submission is not None and submission.path == "" and set(submission.files) == {"baseline.py", "model.json"}
    grade = lab.grade(spec, submission)
    assert grade.scores == {"val_loss": pytest.approx(2.6472, abs=1e-3)}, grade


@given(st.text(min_size=1, alphabet="dat/abx"))
def test_patterns_for_all_but_one_name(text: str) -> None:
    name = text.replace("/", "_")
    assert any(Path(name).match(pattern) for pattern in other_than("data")) == (name != "data")
