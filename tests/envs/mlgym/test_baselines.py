"""Baselines that a task does not name: measured once, in the real sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from support.fixture_checkout import write_checkout

from airloop.errors import AirError
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.pool import Pool
from airloop_envs.mlgym import baselines
from airloop_envs.mlgym.baselines import Baselines, Measurement
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.grading import Grader
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.workspace import Sandboxes

T = TypeVar("T")
HOUSES = "regressionKaggleHousePrice"


class Counted(Baselines):
    measured_times = 0

    async def measure(self, spec: TaskSpec) -> Measurement:
        self.measured_times += 1
        return await super().measure(spec)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkout(tmp_path)


def with_baselines(use: Callable[[Counted], Awaitable[T]]) -> T:
    async def run() -> T:
        pool = Pool(Bubblewrap(), standby=0)
        try:
            return await use(Counted(pool, Grader(pool), Sandboxes()))
        finally:
            await pool.close()

    return asyncio.run(run())


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_all_who_ask_share_one_measurement_and_it_is_kept(root: Path, own_cache: Path) -> None:
    spec = load_task(root, HOUSES)
    assert spec.yardstick.baseline is None and baselines.known(spec) is None

    async def ask(own: Counted) -> tuple[list[float], int]:
        return list(await asyncio.gather(*(own.of(spec) for _ in range(5)))), own.measured_times

    values, times = with_baselines(ask)
    assert times == 1 and len({*values}) == 1 and 0.5 < values[0] < 0.95
    (file,) = (own_cache / "mlgym/baselines").glob("*.json")
    kept = json.loads(file.read_text())
    assert kept["scores"]["r2"] == values[0] and "rmse" in kept["scores"] and kept["command"] == "python baseline.py"
    assert kept["date"].startswith("20") and baselines.known(load_task(root, HOUSES)) == values[0]

    async def ask_again(own: Counted) -> tuple[float, int]:
        return await own.of(load_task(root, HOUSES)), own.measured_times

    assert with_baselines(ask_again) == (values[0], 0)


def test_other_files_are_another_baseline(root: Path) -> None:
    first = baselines.cache_file(load_task(root, HOUSES))
    assert baselines.cache_file(load_task(root, HOUSES)) == first
    change(root / "data/houses/baseline.py", "mean_price *", "1.01 * mean_price *")
    second = baselines.cache_file(load_task(root, HOUSES))
    with (root / "data/houses/data/prices.csv").open("a") as file:
        file.write("\n")
    third = baselines.cache_file(load_task(root, HOUSES))
    change(root / f"configs/tasks/{HOUSES}.yaml", "training_timeout: null", "training_timeout: 7")
    assert len({first, second, third, baselines.cache_file(load_task(root, HOUSES))}) == 4


def test_a_file_that_was_cut_is_measured_again(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"scores": 3}', '{"scores": {"r2": "x"}}'):
        (tmp_path / "b.json").write_text(text)
        assert baselines.read(tmp_path / "b.json") is None


def test_starter_code_is_its_own_baseline(root: Path) -> None:
    game = root / "data/prisonersDilemma"
    change(root / "configs/tasks/prisonersDilemma.yaml", "baseline_scores:\n  - Score: 2.3716\n", "")
    change(root / "configs/tasks/prisonersDilemma.yaml", "baseline_paths:\n  - evaluate.py\n", "")
    change(game / "evaluate.py", "10_000, 10", "20, 10")
    (game / "strategy.py").write_text("def row_strategy(history):\n    return 1\n")
    (game / "target.py").write_text("def target_column_strategy(history):\n    return 0\n")
    spec = load_task(root, "prisonersDilemma")
    assert baselines.command_line(spec, Sandboxes()) == "" and not spec.problems
    assert with_baselines(lambda own: own.of(spec)) == 5.0


@pytest.mark.long
def test_models_are_trained_as_the_task_says(root: Path) -> None:
    for key, named in (("letterModel", 2.6472), ("pointsModel", 0.66)):
        spec = load_task(root, key)
        found = with_baselines(lambda own, spec=spec: own.measure(spec))  # type: ignore[misc]
        assert found.scores[spec.yardstick.metric] == pytest.approx(named, abs=1e-3)
        assert found.command.startswith("torchrun " if key == "letterModel" else "python baseline/train.py")


def test_a_baseline_that_is_named_runs_nothing(root: Path) -> None:
    assert with_baselines(lambda own: own.of(load_task(root, "titanic"))) == 0.76555


@pytest.mark.parametrize(
    ("script", "said", "fix"),
    [
        (
            "print('so far')\nimport no_such_boosting.core",
            "No module named 'no_such_boosting'",
            "install no_such_boosting",
        ),
        ("import time\nprint('starts', flush=True)\ntime.sleep(60)", "took longer than 2 s", "say its score"),
        ("print('all done')", "left no submission:\n    all done", "baseline = 0.5"),
        ("open('submission.csv', 'w').write('nonsense')", "could not be scored", "baseline = 0.5"),
    ],
)
def test_a_baseline_that_cannot_be_had_says_why_and_is_not_tried_twice(
    root: Path, own_cache: Path, script: str, said: str, fix: str
) -> None:
    (root / "data/houses/baseline.py").write_text(script)
    change(root / f"configs/tasks/{HOUSES}.yaml", "training_timeout: null", "training_timeout: 2")
    spec = load_task(root, HOUSES)

    async def ask(own: Counted) -> tuple[list[BaseException | float], int]:
        return await asyncio.gather(own.of(spec), own.of(spec), return_exceptions=True), own.measured_times

    errors, times = with_baselines(ask)
    assert times == 1 and len({str(error) for error in errors}) == 1
    error = errors[0]
    assert isinstance(error, AirError) and said in error.problem and fix in error.fix
    assert f"The baseline of task {HOUSES} cannot be measured" in error.problem
    assert not list(own_cache.rglob("baselines/*.json"))
