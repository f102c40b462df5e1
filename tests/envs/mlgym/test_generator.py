"""A checkout's task whose data is made by a script of the checkout's own: that is said, it is done in a copy, and the
answers that the script writes are the grader's alone."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.fixture_checkout import write_checkout
from support.grading_lab import Lab, open_lab
from support.playing import observed, play, with_env

from airloop.files import cache_directory
from airloop.sandbox.bubblewrap.command import is_shown
from airloop_envs.mlgym import paths
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.env import MlgymArgs, MlgymEnv
from airloop_envs.mlgym.generator import find_generator
from airloop_envs.mlgym.grading import Submission
from airloop_envs.mlgym.workspace import agent_image

KEY = "regressionKaggleHousePrice"
SECRET = 918273  # the price of one house among the answers: wherever it is read, answers can be read
# As MLGym's own: run where it lies, it reads what lies beside it and writes to the directory above.
SCRIPT = """\
    import csv, os

    with open("./train.csv") as file:
        rows = list(csv.DictReader(file))
    os.makedirs("../data", exist_ok=True)

    def write(name, rows, columns):
        with open(f"../data/{name}", "w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    features = ["id", "area", "rooms", "age"]
    write("train.csv", rows[:120], [*features, "price"])
    write("test.csv", rows[120:], features)
    write("answer.csv", rows[120:], ["id", "price"])
    print("rows:", len(rows))
    """


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab() as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The fixture's house prices in the form of MLGym's: no data, and what makes it."""
    root = write_checkout(tmp_path)
    houses = root / "data/houses"
    with (houses / "data/prices.csv").open() as file:
        prices = {row["id"]: row["price"] for row in csv.DictReader(file)}
    prices["150"] = str(SECRET)
    rows = []
    for name in ("train.csv", "test.csv"):
        with (houses / "data" / name).open() as file:
            rows += [{"price": prices.get(row["id"]), **row} for row in csv.DictReader(file)]
    shutil.rmtree(houses / "data")
    (houses / "_helpers").mkdir()
    with (houses / "_helpers/train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "area", "rooms", "age", "price"])
        writer.writeheader()
        writer.writerows(rows)
    (houses / "_helpers/_generate_split.py").write_text(dedent(SCRIPT))
    evaluation = houses / "evaluate.py"
    evaluation.write_text(evaluation.read_text().replace("prices.csv", "answer.csv"))
    task = root / f"configs/tasks/{KEY}.yaml"
    task.write_text(task.read_text().replace("secret_files: [data/prices.csv]\n", ""))
    with (root / "configs/datasets/houses.yaml").open("a") as file:
        file.write("train_split: {name: train, file_regex: ./data/train*}\n")
        file.write("test_split: {name: test, file_regex: ./data/test*}\n")
    return root


def tree(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


# --- saying -----------------------------------------------------------------------------------------------


def test_the_command_that_makes_the_data_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, air: Any) -> None:
    (problem,) = load_task(root, KEY).problems
    assert f"`air tasks prepare {KEY} --mlgym-root {root}`" in problem
    assert f"`cd {root / 'data/houses/_helpers'} && python _generate_split.py`" in problem
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root))
    command = f"`air tasks prepare {KEY}`"
    assert command in load_task(root, KEY).problems[0]
    (trouble, _) = MlgymEnv(MlgymArgs(task_configs=[KEY])).check_tasks()  # what the doctor is told
    assert trouble.severity == "fail" and command in trouble.seen
    code, text, _ = air("tasks", "check", KEY)
    assert code == 1 and command in text
    code, text, _ = air("tasks", "list", "mlgym")
    assert code == 0 and f"the data of {KEY} is made from the checkout's own files by {command}" in text


def test_a_script_that_is_a_link_out_of_the_checkout_is_not_offered(root: Path, tmp_path: Path) -> None:
    helpers = root / "data/houses/_helpers"
    (tmp_path / "elsewhere.csv").write_text("id,price\n")
    (helpers / "more.csv").symlink_to(tmp_path / "elsewhere.csv")
    assert find_generator(root, helpers.parent / "data") is None
    assert "put the files into that directory" in load_task(root, KEY).problems[0]


# --- making -----------------------------------------------------------------------------------------------


def test_one_command_makes_the_data_and_leaves_the_checkout_as_it_is(air: Any, root: Path) -> None:
    before = tree(root)
    code, text, _ = air("tasks", "prepare", KEY, "--mlgym-root", root)
    assert code == 0, text
    assert "_helpers/_generate_split.py was run in a copy" in text and str(cache_directory()) in text
    assert "agents see: data/test.csv, data/train.csv\nhidden from them: data/answer.csv\n" in text
    assert tree(root) == before
    code, text, _ = air("tasks", "prepare", KEY, "--mlgym-root", root, "--json")
    told = json.loads(text)
    assert code == 0 and told["done"] == "nothing was missing" and told["hidden"] == ["data/answer.csv"]
    spec = load_task(root, KEY)
    assert spec.runnable and not spec.warnings and not spec.exposed
    code, text, _ = air("tasks", "check", KEY, "--mlgym-root", root)
    assert code == 0 and "validated: the baseline, `python baseline.py`: {'rmse'" in text


def test_data_of_another_script_or_source_is_made_anew(air: Any, root: Path) -> None:
    assert air("tasks", "prepare", KEY, "--mlgym-root", root)[0] == 0
    with (root / "data/houses/_helpers/train.csv").open("a") as file:
        file.write("181,100,4,10,250000\n")
    assert "air tasks prepare" in load_task(root, KEY).problems[0]


def test_what_a_script_says_that_fails_is_told(air: Any, root: Path) -> None:
    script = root / "data/houses/_helpers/_generate_split.py"
    script.write_text("raise SystemExit('the table has no column')\n")
    code, _, problem = air("tasks", "prepare", KEY, "--mlgym-root", root)
    assert code == 1 and "ended with exit code 1" in problem and "the table has no column" in problem
    script.write_text("print('nothing to do')\n")
    code, _, problem = air("tasks", "prepare", KEY, "--mlgym-root", root)
    assert code == 1 and "left no files in data/" in problem
    assert not load_task(root, KEY).runnable


@pytest.mark.long
def test_a_task_without_a_script_and_one_of_ours(air: Any, root: Path) -> None:
    code, _, problem = air("tasks", "prepare", "hubPictures", "--mlgym-root", root)
    assert code == 1 and "has no script that makes the data" in problem and "hf download" in problem
    code, text, _ = air("tasks", "prepare", "3SATTime", "--source", "builtin")
    assert code == 0 and "draws of its rows are in" in text and "agents see: data/instances.json" in text
    assert "answers/starter_solver.py" in text
    code, text, _ = air("tasks", "prepare", "blotto", "--source", "builtin")
    assert code == 0 and "it needs no data" in text


# --- hiding -----------------------------------------------------------------------------------------------

LOOK = (  # every file but the system's and Python's own, every name, every module
    f"grep -rls {SECRET} / --exclude-dir={{proc,sys,usr,site-packages}} 2>/dev/null",
    "find / \\( -name answer.csv -o -name '_generate_split*' \\) -not -path '/proc/*' 2>/dev/null",
    "cat data/answer.csv data/../_helpers/train.csv ../_helpers/train.csv /proc/1/cwd/data/answer.csv",
    'python -c "import _generate_split"',
    'python -c "import _helpers._generate_split"',
    "cat /proc/self/mountinfo /proc/mounts /proc/1/environ | tr '\\0' '\\n'",
)


@pytest.mark.parametrize("where", ["a copy", "the checkout"])
def test_answers_and_helpers_are_nowhere_in_the_agents_sandbox(air: Any, root: Path, lab: Lab, where: str) -> None:
    if where == "a copy":
        assert air("tasks", "prepare", KEY, "--mlgym-root", root)[0] == 0
    else:
        helpers = root / "data/houses/_helpers"
        subprocess.run([sys.executable, "_generate_split.py"], cwd=helpers, check=True, capture_output=True)
    spec = load_task(root, KEY)
    assert spec.runnable and "data/answer.csv" in spec.workspace_files()
    seen = [lab.shown(agent_image(spec), line) for line in LOOK]
    assert lab.shown(agent_image(spec)) == "./baseline.py\n./data/test.csv\n./data/train.csv\n./evaluate.py\n"
    assert seen[:2] == ["", ""] and seen[2].count("No such file") == 3 and "denied" in seen[2]
    assert all("ModuleNotFoundError" in text for text in seen[3:5])
    assert "answer" not in seen[5] and "_helpers" not in seen[5]
    # The grader has them: the truth itself is right to the last digit.
    answers = spec.workspace_files()["data/answer.csv"].read_bytes()
    assert str(SECRET).encode() in answers
    grade = lab.grade(spec, Submission("submission.csv", {"submission.csv": answers}, "x"))
    assert grade.scores == {"rmse": 0.0, "r2": 1.0}


def test_an_episode_cannot_hand_in_the_answers_by_a_link(air: Any, root: Path) -> None:
    assert air("tasks", "prepare", KEY, "--mlgym-root", root)[0] == 0

    async def work(env: MlgymEnv) -> None:
        game = await play(env, ["ln -s data/answer.csv submission.csv; validate", "python baseline.py", "submit"])
        assert "No submission found" in observed(game)[0] and game.metrics["score"] < 0.9

    with_env(work, task_configs=[KEY], mlgym_root=str(root))


def test_a_checkout_where_every_sandbox_looks_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_shown("/usr/local/MLGym") and is_shown("/usr/lib/x")
    assert not any(map(is_shown, ("/usr/src/app/MLGym", "/usr/share/x", "/usrlocal", "/tmp/x")))
    monkeypatch.setattr(paths, "is_shown", lambda place: True)
    assert any("Move it out of /usr" in problem for problem in load_task(root, "titanic").problems)
