"""`air tasks list` and `air tasks check` for research tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fixture_checkout import write_checkout

from airloop.eval import tasks


@pytest.fixture(autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    cache = tmp_path_factory.getbasetemp() / "air_cache"  # the built-in tasks' data, made once for all tests
    shutil.rmtree(cache / "mlgym/baselines", ignore_errors=True)
    monkeypatch.setenv("AIR_CACHE", str(cache))
    monkeypatch.setattr(tasks, "cached_tokenizer", lambda: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkout(tmp_path)


def test_environments_alone_and_with_their_tasks(air: Any) -> None:
    code, text, _ = air("tasks")
    assert code == 0 and "arith: " in text and "mlgym: " in text and "battleOfSexes" not in text
    code, text, _ = air("tasks", "list")
    assert code == 0 and "79 train, 13 eval, 8 test" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("prisonersDilemma"))
    assert row.split()[1:] == ["air", "code", "none", "needed", "Score", "↑", "2.3707", "2.678", "ready"]


def test_a_checkouts_tasks_are_listed_before_ours(air: Any, root: Path) -> None:
    code, text, errors = air("tasks", "list", "--mlgym-root", root, "--json")
    assert code == 0 and not errors
    rows = next(row for row in json.loads(text) if row["id"] == "mlgym")["catalogue"]
    theirs = {row["key"]: row for row in rows if row["source"] == "checkout"}
    assert len(theirs) == 8 and rows.index(theirs["titanic"]) < 8
    assert theirs["titanic"]["warnings"] and theirs["titanic"]["runnable"] and theirs["titanic"]["baseline"] == 0.76555
    houses = theirs["regressionKaggleHousePrice"]
    assert houses["baseline"] is None and houses["metric"] == "r2" and houses["reference"] == 0.931
    assert theirs["hubPictures"]["data"] == "on the hub" and "hf download" in theirs["hubPictures"]["get_data"][0]
    assert theirs["broken"]["problems"] and not theirs["broken"]["runnable"]
    ours = {row["key"]: row for row in rows if row["source"] == "air"}
    assert ours["titanic"]["shadowed"] and not ours["blotto"]["shadowed"]
    assert air("tasks", "list", "--arg", f"mlgym_root={root}", "--json")[1] == text  # the flag is the older word for it
    code, text, _ = air("tasks", "list", "mlgym", "--arg", f"mlgym_root={root}")
    assert code == 0 and "ready, 4 warnings" in text and "1 problem" in text and "measured" in text
    assert "the checkout's is used" in text and "args.mlgym_root" in text


def test_an_argument_that_no_listed_environment_has_is_refused(air: Any) -> None:
    code, _, problem = air("tasks", "list", "arith", "--arg", "max_numbr=9")
    assert code == 1 and "has an argument 'max_numbr'" in problem and "did you mean 'max_number'?" in problem
    assert air("tasks", "list", "arith", "gsm8k", "--arg", "max_number=9")[0] == 0  # gsm8k has none of that name


def test_a_check_runs_the_baseline_and_validates_it(air: Any, root: Path) -> None:
    code, text, _ = air("tasks", "check", "regressionKaggleHousePrice", "--mlgym-root", root)
    assert code == 0, text
    assert "r2, higher is better; baseline 0.78753, reference 0.931" in text and "measured once" in text
    assert "validated: the baseline, `python baseline.py`: {'rmse': 36693" in text
    for step in ("starting the sandbox", "measuring the baseline", "running the baseline", "validating"):
        assert f"  {step}: " in text
    assert "sandbox, network: " in text and "characters" in text and text.endswith("It can be run.\n")


@pytest.mark.long
def test_a_game_is_checked_by_its_starter_code_where_the_baseline_is_its_evaluation(air: Any, root: Path) -> None:
    """As MLGym's games have it; the evaluation needs the opponent, which the agent's sandbox has not."""
    code, text, _ = air("tasks", "check", "prisonersDilemma", "--mlgym-root", root)
    assert code == 0 and "validated: the starter code as it is: {'Score': " in text, text


def test_what_is_odd_about_a_task_is_said(air: Any, root: Path) -> None:
    code, text, errors = air("tasks", "check", "titanic.yaml", "--mlgym-root", root, "--json")
    told = json.loads(text)
    assert code == 0 and told["runnable"] and told["score"] == 1.0 and "sample submission" in told["tried"]
    assert len(told["warnings"]) == 5 and "ground_truth.csv" in told["warnings"][0] and not errors
    assert "learns their labels: it gets at most 10 gradings" in told["warnings"][4]
    assert told["protections"]["files"] and told["prompt_characters"] > 1000


def test_a_task_that_cannot_be_run_exits_with_one_and_says_the_way(air: Any, root: Path) -> None:
    code, text, _ = air("tasks", "check", "hubPictures", "--mlgym-root", root)
    assert code == 1 and "problem: " in text and "hf download" in text and "It cannot be run." in text
    code, text, _ = air("tasks", "check", "oddMetric", "--mlgym-root", root, "--json")
    assert code == 1 and "direction" in json.loads(text)["problems"][0]
    code, _, problem = air("tasks", "check", "titanik", "--mlgym-root", root)
    assert code == 1 and "did you mean titanic" in problem
    code, _, problem = air("tasks", "check", "arith")
    assert code == 1 and "air tasks show arith" in problem
    code, _, problem = air("tasks", "check", "titanic", "--source", "mine")
    assert code == 1 and "auto, builtin, checkout" in problem
    code, _, problem = air("tasks", "check", "titanic", "--mlgym-root", root / "data")
    assert code == 1 and str(root) in problem


@pytest.mark.slow
def test_a_baseline_that_fails_is_a_problem_of_the_task(air: Any, root: Path) -> None:
    (root / "data/houses/baseline.py").write_text("import no_such_boosting\n")
    code, text, _ = air("tasks", "check", "regressionKaggleHousePrice", "--mlgym-root", root)
    assert code == 1 and "No module named 'no_such_boosting'" in text and "install no_such_boosting" in text
    (root / "data/points/baseline/train.py").write_text("raise SystemExit('it is broken')\n")
    code, text, _ = air("tasks", "check", "pointsModel", "--mlgym-root", root)
    assert code == 1 and "failed in the agent's sandbox:\nit is broken" in text


@pytest.mark.slow
def test_a_baseline_that_is_not_what_the_yaml_says_is_told(air: Any, root: Path) -> None:
    script = root / "data/points/baseline/train.py"
    script.write_text(script.read_text().replace("[1.0, 0.0, 0.0]", "[1.0, 1.2, -0.2]"))
    code, text, _ = air("tasks", "check", "pointsModel", "--mlgym-root", root)
    assert code == 0 and "warning: The baseline is 0.66" in text and "running it here gives 0.87" in text
