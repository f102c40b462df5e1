"""Reading a checkout of MLGym, what is found wrong in it, and the yardsticks of its tasks."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.fixture_checkout import write_checkout

from airloop.errors import AirError
from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.checkout import KEYS as TASK_KEYS
from airloop_envs.mlgym.checkout import find_root, load_checkout, load_task
from airloop_envs.mlgym.spec import TaskSpec

KEYS = [
    "broken", "hubPictures", "letterModel", "oddMetric", "pointsModel", "prisonersDilemma",
    "regressionKaggleHousePrice", "titanic",
]  # fmt: skip
RUNNABLE = {"letterModel", "pointsModel", "prisonersDilemma", "regressionKaggleHousePrice", "titanic"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A checkout that a test may spoil."""
    return write_checkout(tmp_path)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for hypothesis: two tasks, and the good text of the first."""
    root = write_checkout(tmp_path_factory.mktemp("spoiled"))
    for key in set(KEYS) - {"titanic", "pointsModel"}:
        (root / f"configs/tasks/{key}.yaml").unlink()
    shutil.copy(root / "configs/tasks/titanic.yaml", root / "good.yaml")
    return root


def change(root: Path, task: str, /, **values: Any) -> Path:
    """Sets keys of a task's YAML; ... removes one."""
    file = root / "configs/tasks" / f"{task}.yaml"
    data = yaml.safe_load(file.read_text()) | values
    file.write_text(yaml.safe_dump({key: value for key, value in data.items() if value is not ...}))
    return file


def problem(task: TaskSpec) -> str:
    assert len(task.problems) == 1, task.problems
    return task.problems[0]


# --- finding ----------------------------------------------------------------------------------------------


def test_every_task_is_listed_whatever_is_wrong_with_others(root: Path) -> None:
    tasks = load_checkout(root)
    assert [task.key for task in tasks] == KEYS
    assert {task.key for task in tasks if task.runnable} == RUNNABLE
    assert {task.key: task.entry_point for task in tasks if task.runnable} == {
        "letterModel": "LMSubmissionTasks",
        "pointsModel": "ModelSubmissionTasks",
        "prisonersDilemma": "PythonSubmissionTasks",
        "regressionKaggleHousePrice": "CSVSubmissionTasks",
        "titanic": "CSVSubmissionTasks",
    }


def test_root_from_the_argument_then_the_variable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    assert find_root(None) is None
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root))
    assert find_root(None) == root
    assert find_root(str(root)) == root
    monkeypatch.setenv("AIR_MLGYM_ROOT", str(root / "nowhere"))
    assert find_root(str(root)) == root
    with pytest.raises(AirError, match=r"AIR_MLGYM_ROOT=.*there is no directory"):
        find_root(None)


@pytest.mark.parametrize("wrong", ["configs", "configs/tasks", ".."])
def test_a_directory_beside_the_checkout_names_the_right_one(root: Path, wrong: str) -> None:
    with pytest.raises(AirError) as caught:
        find_root(str(root / wrong))
    assert "is no MLGym checkout: there is no configs/tasks/*.yaml in" in caught.value.problem
    assert caught.value.fix == f"write {root}."


def test_A8_nothing_depends_on_the_working_directory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    found = find_root(root.name)
    assert found is not None and found.is_absolute()
    before = load_checkout(found)
    monkeypatch.chdir(tmp_path)
    assert load_checkout(found) == before
    for task in before:
        files = task.workspace_files()
        assert all(path.is_absolute() and path.is_file() for path in files.values())
        assert not task.runnable or task.evaluation_paths[0] in files


@pytest.mark.parametrize(
    "name", ["titanic", "titanic.yaml", "tasks/titanic.yaml", "configs/tasks/titanic.yaml", "titanicSurvival"]
)
def test_a_task_is_found_by_file_or_id(root: Path, name: str) -> None:
    assert load_task(root, name).key == "titanic"


@pytest.mark.parametrize(
    ("name", "meant"), [("titanik", "titanic"), ("PrisonersDilema.yaml", "prisonersDilemma"), ("TITANIC", "titanic")]
)
def test_an_unknown_task_names_the_nearest(root: Path, name: str, meant: str) -> None:
    with pytest.raises(AirError) as caught:
        load_task(root, name)
    assert caught.value.fix.startswith(f"did you mean {meant}") and "Known: broken, hubPictures" in caught.value.fix


def test_same_file_name_in_two_folders(own: Path) -> None:
    folder = own / "configs/tasks/more"
    folder.mkdir()
    shutil.copy(own / "configs/tasks/titanic.yaml", folder)
    keys = [task.key for task in load_checkout(own)]
    assert "titanic" in keys and "more/titanic" in keys
    assert load_task(own, "tasks/more/titanic.yaml").id == "titanicSurvival"
    with pytest.raises(AirError, match="Several tasks have the id"):
        load_task(own, "titanicSurvival")


# --- what is in a task --------------------------------------------------------------------------------------


def test_description_gets_the_data_sets_texts_and_keeps_other_braces(root: Path, own: Path) -> None:
    assert load_task(root, "titanic").description.endswith(
        "TITANIC:\nPassengers of a ship. train.csv has the column Survived, test.csv has not.\n\n"
    )
    assert "both cooperate {3, 3}" in load_task(root, "prisonersDilemma").description
    letters = load_task(root, "letterModel").description
    assert '{"previous letter": {"letter": probability}}' in letters and "LETTERS:\nText." in letters
    change(own, "titanic", description='Print {{"a": 1}}. {dataset_docs}')
    assert load_task(own, "titanic").description.startswith('Print {"a": 1}. TITANIC:')
    change(own, "titanic", description="A stray } and {dataset_docs}")
    assert load_task(own, "titanic").description.startswith("A stray } and TITANIC:")


def test_absent_and_null_keys_have_their_defaults(own: Path) -> None:
    houses = load_task(own, "regressionKaggleHousePrice")
    assert houses.training_timeout == 3600 and houses.requirements is None and not houses.evaluation_read_only
    change(own, "titanic", task_entrypoint=..., evaluation_paths=..., secret_files=None, name=..., id=...)
    task = load_task(own, "titanic")
    assert task.runnable and task.entry_point == "CSVSubmissionTasks" and task.evaluation_paths == ("evaluate.py",)
    assert (task.id, task.name) == ("titanic", "titanic") and task.evaluation_read_only


def test_workspace_has_starter_code_and_data_and_hides_secrets(root: Path, own: Path) -> None:
    points = load_task(root, "pointsModel")
    assert set(points.workspace_files()) == {
        "evaluate.py", "baseline/train.py", "data/train.csv", "data/held_out.csv",
    }  # fmt: skip
    assert set(points.workspace_files()) - set(points.visible_files()) == {"data/held_out.csv"}
    change(own, "titanic", dataset_configs=["datasets/titanic.yaml", "datasets/houses.yaml"])
    two = load_task(own, "titanic")
    assert two.data_directories() == (("data", own / "data/titanic"), ("data/data", own / "data/houses/data"))
    assert two.workspace_files()["data/data/prices.csv"] == own / "data/houses/data/prices.csv"


@pytest.mark.parametrize("secret", ["ground_truth.csv", "data/ground_truth.csv", "data/titanic/ground_truth.csv"])
def test_secret_files_may_be_named_from_workspace_data_or_checkout(own: Path, secret: str) -> None:
    change(own, "titanic", secret_files=[secret])
    task = load_task(own, "titanic")
    assert "data/ground_truth.csv" not in task.visible_files() and "data/test.csv" in task.visible_files()
    assert task.exposed == ()


def test_the_opponent_of_a_known_game_is_secret_even_undeclared(own: Path) -> None:
    change(own, "prisonersDilemma", secret_files=...)
    assert load_task(own, "prisonersDilemma").secret_files == ("target.py",)
    file = change(own, "prisonersDilemma", id="myGame", baseline_scores=[{"Score": 1.0}])
    task = load_task(own, str(file.rename(file.with_stem("myGame")).stem))
    assert any("target.py is what evaluate.py scores against" in warning for warning in task.warnings)


def test_the_form_people_write(own: Path) -> None:
    """A byte-order mark, anchors, folded text, tabs between tokens, keys nobody knows."""
    file = own / "configs/tasks/titanic.yaml"
    text = file.read_text().replace("baseline_paths: []", "x-common: &script evaluate.py\nbaselin_paths:\t[]")
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("  - evaluate.py", "  - *script").encode())
    task = load_task(own, "titanic")
    assert task.runnable and task.evaluation_paths == ("evaluate.py",)
    assert any("tabs" in warning for warning in task.warnings)
    assert any("'x-common' is not known" in warning for warning in task.warnings)
    assert any("'baselin_paths'" in w and "did you mean baseline_paths?" in w for w in task.warnings)


# --- what is wrong with a task ------------------------------------------------------------------------------


def test_broken_yaml_is_a_row_with_its_line(root: Path) -> None:
    task = load_task(root, "broken")
    assert "broken.yaml:3 is not valid YAML" in problem(task) and task.yardstick.metric == ""


@pytest.mark.parametrize(
    "content", [b"", b"- a\n- b\n", b"just text", b"\xff\xfe\x00bad", b"? [a]\n: b\n{", b"a: *no", b"a: 2020-13-45"]
)
def test_any_broken_file_is_a_row(own: Path, content: bytes) -> None:
    (own / "configs/tasks/broken.yaml").write_bytes(content)
    assert "broken.yaml" in problem(load_task(own, "broken"))
    assert len(load_checkout(own)) == len(KEYS)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task_entrypoint": "CsvSubmissionTask"}, "write CSVSubmissionTasks"),
        ({"training_timeout": -5}, "write a number of seconds above 0"),
        ({"training_timeout": "soon"}, "write a number of seconds above 0"),
        ({"evaluation_read_only": "yes please"}, "write true or false"),
        ({"starter_code": {"a": 1}}, "write a list of at most 1000 names"),
        ({"baseline_scores": "0.7"}, "write a list with one `metric: number` mapping"),
        ({"description": ...}, "has no description"),
        ({"evaluation_paths": ["data/titanic/evaluate.py"]}, "write evaluation_paths: [evaluate.py]"),
        ({"dataset_configs": ["datasets/titanik.yaml"]}, "configs/datasets/titanik.yaml cannot be read"),
        ({"starter_code": ["data/titanic/evaluate.py", "data/titanic/gone.py"]}, "gone.py is not there"),
        ({"use_generic_conda": False}, "requirements_path"),
        ({"air": {"direction": "sideways"}}, "air.direction = 'sideways'"),
    ],
)
def test_a_wrong_value_is_told_with_its_correction(own: Path, values: dict[str, Any], said: str) -> None:
    change(own, "titanic", **values)
    task = load_task(own, "titanic")
    assert not task.runnable and any(said in one for one in task.problems), task.problems


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([".", "..", "data"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(TASK_KEYS)), ODD, max_size=4), ODD)
def test_no_value_of_any_key_hides_the_other_tasks(spoiled: Path, values: dict[str, Any], data_path: Any) -> None:
    good = yaml.safe_load((spoiled / "good.yaml").read_text())
    (spoiled / "configs/tasks/titanic.yaml").write_text(yaml.safe_dump(good | values))
    (spoiled / "configs/datasets/points.yaml").write_text(yaml.safe_dump({"data_path": data_path}))
    assert [task.key for task in load_checkout(spoiled)] == ["pointsModel", "titanic"]


def test_missing_data_says_how_to_get_it(own: Path) -> None:
    shutil.rmtree(own / "data/houses/data")
    said = problem(load_task(own, "regressionKaggleHousePrice"))
    assert str(own / "data/houses/data") in said and "AIR_MLGYM_ROOT" in said
    (own / "data/points/data/train.csv").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert f"git -C {own} lfs pull" in problem(load_task(own, "pointsModel"))


def test_hub_data_is_found_in_the_cache_or_the_command_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    task = load_task(root, "hubPictures")
    assert "hf download --repo-type dataset example-org/air-test-pictures" in problem(task)
    assert task.datasets[0].directory is None and task.datasets[0].missing == problem(task)
    snapshot = tmp_path / "datasets--example-org--air-test-pictures/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "pictures.bin").write_bytes(b"1")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("abc")
    task = load_task(root, "hubPictures")
    assert task.runnable and task.datasets[0].directory == snapshot and task.data_directories() == ()


def test_evaluation_that_is_not_python(own: Path) -> None:
    (own / "data/titanic/evaluate.py").write_text("print 'accuracy'\n")
    assert "evaluate.py is not valid Python" in problem(load_task(own, "titanic"))


def test_D5_every_baseline_is_there_or_can_be_measured(own: Path) -> None:
    houses = load_task(own, "regressionKaggleHousePrice")
    assert houses.runnable and houses.yardstick.baseline is None and "measured once" in houses.yardstick.how
    change(own, "regressionKaggleHousePrice", baseline_paths=[])
    said = problem(load_task(own, "regressionKaggleHousePrice"))
    assert "no baseline r2" in said and "regressionKaggleHousePrice = { baseline = 0.5 }" in said
    overrides = {"regressionKaggleHousePrice": {"baseline": 0.5}}
    assert load_task(own, "regressionKaggleHousePrice", overrides).yardstick.baseline == 0.5
    change(own, "titanic", baseline_scores=[{"Accuracy": None}])
    assert "no baseline accuracy" in problem(load_task(own, "titanic"))
    change(own, "prisonersDilemma", baseline_scores=None, baseline_paths=None)
    assert load_task(own, "prisonersDilemma").runnable


@pytest.mark.filterwarnings("error")
def test_advice_of_python_on_a_checkouts_code_is_not_for_our_log(own: Path) -> None:
    file = own / "data/titanic/evaluate.py"
    file.write_text('ESCAPED = "\\s"\n' + file.read_text())
    assert load_task(own, "titanic").runnable


# --- what a task gives away ---------------------------------------------------------------------------------


def test_D16_titanics_truth_is_readable_and_a_rule(root: Path) -> None:
    task = load_task(root, "titanic")
    assert task.runnable and task.exposed == ("data/ground_truth.csv",)
    said = "\n".join(task.warnings)
    assert "evaluate.py reads data/ground_truth.csv, and so can the agent" in said
    assert "Survived follows from Sex alone, female → 1, male → 0 (columns of data/test.csv; all 60 rows)" in said
    assert "data/ground_truth.csv equals the sample submission" in said


def test_D16_real_labels_outside_the_agents_sandbox_are_left_in_peace(root: Path) -> None:
    for name in ("regressionKaggleHousePrice", "pointsModel", "letterModel", "prisonersDilemma"):
        assert load_task(root, name).warnings == (), name


def flip_one_label(root: Path) -> None:
    file = root / "data/titanic/ground_truth.csv"
    rows = list(csv.reader(file.open()))
    rows[5][1] = str(1 - int(rows[5][1]))
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(rows)


def test_D16_is_found_by_looking_at_the_data_not_at_the_name(own: Path) -> None:
    flip_one_label(own)
    said = "\n".join(load_task(own, "titanic").warnings)
    assert "follows from" not in said and "equals the sample" not in said and "so can the agent" in said


def test_D16_a_threshold_is_a_rule_too(own: Path) -> None:
    data = own / "data/titanic"
    test = list(csv.DictReader((data / "test.csv").open()))
    lines = ["PassengerId,Survived", *(f"{row['PassengerId']},{int(float(row['Fare']) > 40)}" for row in test[::-1])]
    (data / "ground_truth.csv").write_text("\n".join(lines) + "\n")
    assert "Survived follows from a threshold on Fare alone" in "\n".join(load_task(own, "titanic").warnings)


@pytest.mark.parametrize(
    "opening",
    [
        'open("data/ground_truth.csv")',
        'open(os.path.join(HERE, "data", "ground_truth.csv"))',
        'open(Path("data") / "ground_truth.csv")',
        'open(f"{HERE}/ground_{kind}.csv")',
        'open("/home/agent/workspace/data/ground_truth.csv")',
        'pd.read_csv("./data/ground_truth.csv")',
    ],
)
def test_D16_however_the_script_opens_it(own: Path, opening: str) -> None:
    (own / "data/titanic/evaluate.py").write_text(
        f'"""Reads no train.csv."""\nrows = {opening}\nx = open("test.csv")\n'
    )
    assert load_task(own, "titanic").exposed == ("data/ground_truth.csv",)


# --- metrics ------------------------------------------------------------------------------------------------


def test_D18_a_baseline_spelled_otherwise_is_found_and_told(root: Path) -> None:
    task = load_task(root, "titanic")
    assert task.yardstick.metric == "accuracy" and task.yardstick.baseline == 0.76555
    assert any("spells the metric 'Accuracy', the evaluation 'accuracy'" in warning for warning in task.warnings)


def test_D18_r2_counts_for_house_prices_though_rmse_comes_first(root: Path) -> None:
    stick = load_task(root, "regressionKaggleHousePrice").yardstick
    assert (stick.metric, stick.direction) == ("r2", "up")
    measured = {"rmse": 30340.11, "r2": 0.87999}
    assert metrics.pick(measured, stick.metric) == 0.87999
    assert metrics.yardstick("regressionKaggleHousePrice", "x", [measured]).baseline == 0.87999


def test_D18_an_unknown_metric_is_asked_for_with_the_line_to_write(root: Path) -> None:
    said = problem(load_task(root, "oddMetric"))
    assert 'args = { metrics = { oddMetric = { metric = "wobble", direction = "up" } } }' in said
    told = load_task(root, "oddMetric", {"oddMetric": {"metric": "wobble", "direction": "down"}})
    assert told.runnable and told.yardstick.direction == "down" and told.yardstick.baseline == 3.2


def test_D18_the_user_may_say_another_metric_and_is_warned_of_an_odd_direction(own: Path) -> None:
    change(own, "regressionKaggleHousePrice", baseline_scores=[{"rmse": 30340.11, "r2": 0.87999}])
    task = load_task(own, "regressionKaggleHousePrice", {"regressionKaggleHousePrice.yaml": {"metric": "rmse"}})
    assert (task.yardstick.direction, task.yardstick.baseline) == ("down", 30340.11)
    assert task.yardstick.reference is None  # 0.931 is an r2
    odd = {"regressionKaggleHousePrice": {"metric": "rmse", "direction": "up"}}
    assert any("against its usual direction" in w for w in load_task(own, "regressionKaggleHousePrice", odd).warnings)


def test_the_yaml_may_say_it_and_the_user_wins(own: Path) -> None:
    change(own, "oddMetric", air={"metric": "wobble", "direction": "up", "reference": 9.0, "how": "a search"})
    stick = load_task(own, "oddMetric").yardstick
    assert (stick.reference, stick.how) == (9.0, "a search")
    assert load_task(own, "oddMetric", {"oddMetric": {"direction": "down"}}).yardstick.direction == "down"


def test_a_mistake_in_the_users_overrides_is_the_users(root: Path) -> None:
    with pytest.raises(AirError, match=r"metrics\.titanic\.direktion"):
        load_task(root, "titanic", {"titanic": {"direktion": "up"}})
    names = [name for task in load_checkout(root) for name in (task.key, task.id)]
    metrics.check_overrides({"titanicSurvival": {"direction": "up"}, "titanic.yaml": {}}, names)
    with pytest.raises(AirError, match="did you mean titanic"):
        metrics.check_overrides({"titanick": {"direction": "up"}}, names)


# --- the fixture itself -------------------------------------------------------------------------------------


def evaluate(task: TaskSpec, workspace: Path, *commands: str) -> dict[str, float]:
    """The task's files in a plain directory, its commands, and the scores in their output."""
    for name, source in task.workspace_files().items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, workspace / name)
    env = {"PATH": os.environ["PATH"]}
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command.split()], cwd=workspace, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.mark.parametrize(
    ("name", "commands", "tolerance"),
    [
        ("prisonersDilemma", ["evaluate.py"], 0.03),
        ("pointsModel", ["baseline/train.py", "evaluate.py --config_fname config.yaml"], 1e-9),
        ("letterModel", ["baseline.py", "evaluate.py"], 1e-3),
    ],
)
def test_fixture_scripts_give_their_baselines(
    root: Path, tmp_path: Path, name: str, commands: list[str], tolerance: float
) -> None:
    task = load_task(root, name)
    scores = evaluate(task, tmp_path, *commands)
    assert metrics.pick(scores, task.yardstick.metric) == pytest.approx(task.yardstick.baseline, abs=tolerance)


def test_fixture_houses_and_titanic(root: Path, tmp_path: Path) -> None:
    houses = evaluate(
        load_task(root, "regressionKaggleHousePrice"), tmp_path / "houses", "baseline.py",
        "evaluate.py --submission_file submission.csv",
    )  # fmt: skip
    assert list(houses) == ["rmse", "r2"] and 0.7 < houses["r2"] < 0.9
    titanic = load_task(root, "titanic")
    scores = evaluate(titanic, tmp_path / "titanic", "evaluate.py --submission_file data/sample_submission.csv")
    assert scores == {"accuracy": 1.0}
