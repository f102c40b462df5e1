"""A checkout from somebody else cannot show an agent files of this machine, nor keep anybody waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fixture_checkout import write_checkout

from airloop.errors import AirError
from airloop.sandbox.base import Result
from airloop_envs.mlgym.checkout import load_checkout, load_task
from airloop_envs.mlgym.grading import told
from airloop_envs.mlgym.leaks import fits
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.workspace import agent_image, grader_image

SECRET = b"the owner's key"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of the machine's owner, beside the checkout."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "id").write_bytes(SECRET)
    return tmp_path / "home"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkout(tmp_path)


def change(file: Path, **values: Any) -> None:
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


def shown(task: TaskSpec) -> bytes:
    """Everything that the agent's or the grader's sandbox would hold, whether or not the task may be run."""
    seen = [b""]
    for image in (agent_image(task), grader_image(task)):
        seen += [content for _, content, _ in image.files]
        for source, _ in image.binds:
            place = Path(source)
            files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
            seen += [path.read_bytes() for path in files]
    return b"".join(seen)


def starter(name: str) -> Callable[[Path, Path], str]:
    def attack(root: Path, home: Path) -> str:
        said = name.format(home=home)
        change(root / "configs/tasks/titanic.yaml", starter_code=["data/titanic/evaluate.py", said])
        return f"titanic.yaml: starter_code names {said!r}"

    return attack


def starter_link(root: Path, home: Path) -> str:
    (root / "data/titanic/extra").symlink_to(home / ".ssh")
    return starter("data/titanic/extra")(root, home)


def link_in_starter(root: Path, home: Path) -> str:
    (root / "data/titanic/src/deep").mkdir(parents=True)
    (root / "data/titanic/src/deep/notes").symlink_to(home / ".ssh/id")
    starter("data/titanic/src")(root, home)
    return "starter_code names 'data/titanic/src', which holds the link deep/notes"


def data(name: str) -> Callable[[Path, Path], str]:
    def attack(root: Path, home: Path) -> str:
        said = name.format(home=home)
        change(root / "configs/datasets/titanic.yaml", data_path=said, is_local=home.name == "home")
        return f"titanic.yaml: data_path names {said!r}"

    return attack


def data_hub(root: Path, home: Path) -> str:
    """Not said to be local, and a directory all the same."""
    data("{home}/.ssh")(root, home)
    change(root / "configs/datasets/titanic.yaml", is_local=False)
    return "data_path names"


def link_in_data(root: Path, home: Path) -> str:
    (root / "data/titanic/more").symlink_to(home / ".ssh")
    return "data_path names 'data/titanic', which holds the link more"


def parent_link(root: Path, home: Path) -> str:
    (root / "data/away").symlink_to(home)
    return data("data/away/.ssh")(root, home)


def sample(root: Path, home: Path) -> str:
    change(root / "configs/tasks/titanic.yaml", sample_submission=str(home / ".ssh/id"))
    return "titanic.yaml: sample_submission names"


def requirements(root: Path, home: Path) -> str:
    change(root / "configs/tasks/titanic.yaml", requirements_path="../home/.ssh/id")
    return "titanic.yaml: requirements_path names"


def data_config(root: Path, home: Path) -> str:
    (home / "data.yaml").write_text("name: x\ndata_path: data/titanic\nis_local: true\n")
    change(root / "configs/tasks/titanic.yaml", dataset_configs=["../../home/data.yaml"])
    return "titanic.yaml: dataset_configs names 'configs/../../home/data.yaml'"


def task_link(root: Path, home: Path) -> str:
    (root / "configs/tasks/titanic.yaml").rename(home / "theirs.yaml")
    (root / "configs/tasks/titanic.yaml").symlink_to(home / "theirs.yaml")
    return "titanic.yaml is a link out of the checkout"


def history(root: Path, home: Path) -> str:
    (root / ".git").mkdir()
    (root / ".git/config").write_bytes(SECRET)
    return starter(".")(root, home)


def history_by_name(root: Path, home: Path) -> str:
    history(root, home)
    return starter("data/../.git/config")(root, home)


def history_by_link(root: Path, home: Path) -> str:
    history(root, home)
    (root / "data/titanic/more").symlink_to(root / ".git/config")
    change(root / "configs/tasks/titanic.yaml", starter_code=["data/titanic/evaluate.py"])
    return "data_path names 'data/titanic', which holds the link more"


ATTACKS = {
    "absolute": starter("{home}/.ssh"),
    "one file": starter("{home}/.ssh/id"),
    "parent": starter("../home/.ssh"),
    "parent in the middle": starter("data/titanic/../../../home/.ssh"),
    "link": starter_link,
    "link below": link_in_starter,
    "data": data("{home}/.ssh"),
    "data above": data("../home/.ssh"),
    "data not local": data_hub,
    "link in data": link_in_data,
    "linked parent": parent_link,
    "sample": sample,
    "requirements": requirements,
    "data set's file": data_config,
    "task's file": task_link,
    "whole checkout": history,
    "history": history_by_name,
    "link to history": history_by_link,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_D28_a_task_cannot_bring_files_of_this_machine_into_a_sandbox(name: str, root: Path, home: Path) -> None:
    says = ATTACKS[name](root, home)
    task = load_task(root, "titanic")
    assert any(says in problem for problem in task.problems), task.problems
    assert SECRET not in shown(task)
    others = {spec.key for spec in load_checkout(root) if spec.runnable}
    assert {"pointsModel", "prisonersDilemma"} <= others


def test_a_directory_that_the_user_names_may_hold_data(root: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "data/points/data").rename(home / "points")
    (root / "data/points/data").symlink_to(home / "points")
    assert any("AIR_MLGYM_DATA" in problem for problem in load_task(root, "pointsModel").problems)
    monkeypatch.setenv("AIR_MLGYM_DATA", os.pathsep.join(("/nowhere", str(home / "points"))))
    task = load_task(root, "pointsModel")
    assert task.runnable and b"x,y,kind" in shown(task)


def test_links_within_a_checkout_and_paths_with_dots_are_fine(root: Path) -> None:
    (root / "data/titanic/again.csv").symlink_to("train.csv")
    change(root / "configs/tasks/titanic.yaml", starter_code=["./data/points/../titanic/evaluate.py"])
    task = load_task(root, "titanic")
    assert task.runnable and [path.name for path in task.starter_code] == ["evaluate.py"]


# --- files that keep one waiting ------------------------------------------------------------------------------


def laughs(levels: int = 12) -> str:
    """Ten times as large on every line: its text is short, what it says would fill any memory."""
    lines = ["l0: &l0 [lol]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def merges(levels: int = 12) -> str:
    lines = ["l0: &l0 {a: 1}"]
    lines += [f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 10)}]}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases": f"{laughs()}starter_code: *l11\n",
    "an alias of another kind": f"{laughs()}id: *l11\n",
    "a split": f"{laughs()}train_split: *l11\n",
    "merges": merges(),
    "itself": "starter_code: &a [*a]\n",
    "keys": f"{laughs()}? *l11\n: 1\n",
    "depth": "starter_code: " + "[" * 50_000 + "\n",
    "depth of blocks": "- " * 50_000 + "\n",
    "depth of keys": "{a: " * 50_000 + "\n",
    "depth with tabs": "starter_code:\t" + "[" * 50_000 + "\n",
    "a long number": f"training_timeout: 0x{'f' * 1_000_000}\n",
    "digits": f"training_timeout: {'9' * 1_000_000}\n",
    "sixties": f"training_timeout: 1{':59' * 100_000}\n",
    "size": "description: |\n" + "  word word word word\n" * 200_000,
}


@pytest.mark.parametrize("where", ["configs/tasks/titanic.yaml", "configs/datasets/titanic.yaml"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_yaml_file_that_would_grow_without_end_is_named_within_a_second(name: str, where: str, root: Path) -> None:
    (root / where).write_text(BOMBS[name])
    began = time.process_time()
    task = load_task(root, "titanic")
    assert time.process_time() - began < 1
    assert task.problems and all(len(problem) < 1000 for problem in (*task.problems, *task.warnings))


def test_plain_aliases_are_read(root: Path) -> None:
    file = root / "configs/tasks/titanic.yaml"
    file.write_text(file.read_text() + "benchmark_name: &a games\nsecret_files: [*a, *a]\n")
    task = load_task(root, "titanic")
    assert task.runnable and "games" in task.secret_files


SLOW = [
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "a*a*a*a*a*a*a*b",
    "a?" * 40 + "a" * 40,
    "(.*)*x",
    "((a{1,9}){1,9}){1,9}b",
    "(?x)#[\n(a+)+$#]",
]


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_would_take_for_ever_is_refused_within_a_second(pattern: str, root: Path) -> None:
    for number in range(20):
        (root / "data/titanic" / ("a" * 200 + f"!{number}")).write_text("")
    change(root / "configs/datasets/titanic.yaml", train_split={"name": "train", "file_regex": pattern})
    began = time.process_time()
    task = load_task(root, "titanic")
    assert time.process_time() - began < 1
    assert any("titanic.yaml: train_split: file_regex" in problem for problem in task.problems), task.problems


def test_usual_patterns_are_matched_as_before() -> None:
    assert fits(r".*train.*\.csv", "my_train_1.csv") and fits(r"(train|valid)_\d+\.(csv|tsv)(\.gz)?", "valid_12.tsv.gz")
    assert fits("./data/fineweb_train*", "./data/fineweb_train_01.bin") and not fits(r"test\d+", "train1")


def test_a_script_with_an_endless_name_or_a_deep_expression_is_named_within_a_second(root: Path) -> None:
    script = root / "data/titanic/evaluate.py"
    said = script.read_text()
    script.write_text(f"NAME = '{'a' * 200_000}/b.csv'\n{said}")
    began = time.process_time()
    assert load_task(root, "titanic").runnable
    for deep in (
        "(" * 50_000,
        "-" * 200_000 + "1",
        "x" + ".a" * 50_000,
        "[" * 150 + "1" + "]" * 150,
        "a" + "+a" * 90_000,
    ):
        script.write_text(f"{said}\n{deep}\n")
        load_task(root, "titanic")
    assert time.process_time() - began < 3


def test_a_long_line_of_an_evaluation_is_told_within_a_second(root: Path) -> None:
    task = load_task(root, "regressionKaggleHousePrice")
    said = f"{'a' * 300_000}\nno 'x/data/prices.csv', no y_answers/z and no /w/answers/truth.csv"
    began = time.process_time()
    assert told(task, Result(said, 1, "/", 0.0), "").startswith("a" * 100)
    assert time.process_time() - began < 1
    assert (
        told(task, Result(said.partition("\n")[2], 1, "/", 0.0), "") == "no '(hidden)', no y_answers/z and no (hidden)"
    )


def test_a_bomb_in_one_task_leaves_the_others_to_be_listed(root: Path) -> None:
    (root / "configs/tasks/titanic.yaml").write_text(BOMBS["aliases"])
    specs = {spec.key: spec for spec in load_checkout(root)}
    assert not specs["titanic"].runnable and specs["pointsModel"].runnable
    with pytest.raises(AirError, match="no task 'nothing'"):
        load_task(root, "nothing")
