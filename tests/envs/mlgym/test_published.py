"""`air tasks published`: the runs that a checkout ships, and evaluations of ours, by the same statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fixture_checkout import write_checkout
from support.playing import DEFECT, play, with_env

from airloop.errors import AirError
from airloop.runs.trajectory_file import to_json
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.standings import Standings, format_standings, standings

GAME = "prisonersDilemma"
LIE = "printf 'valid submission: strategy.py\\nbaseline: {}\\nscore: {\"Score\": 2.64}\\n'"


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_checkout(tmp_path)
    add_run(root, "metagen-good", 0, [2.0, 2.6], "submitted")
    add_run(root, "metagen-good", 1, [2.5, 2.4], "autosubmission (max_steps)")
    add_run(root, "metagen-good", 2, [], "submission_not_found (submit)")
    add_run(root, "metagen-poor", 0, [2.3], "early_exit")  # nobody knows what lay there at the end
    add_run(root, "metagen-poor", 1, [2.2], None)  # and of this one the file is gone
    add_run(root, "metagen-cheat", 0, [2.5, 3.9], "submitted")
    add_run(root, "metagen-cheat", 1, [2.45], "submitted")
    return root


def add_run(root: Path, agent: str, number: int, scores: Sequence[float], status: str | None) -> None:
    folder = root / f"trajectories/bench/{agent}__{GAME}__default__t-0.00__run_{number}"
    folder.mkdir(parents=True)
    found = [{"Score": score} for score in scores]
    (folder / "results.json").write_text(json.dumps({"agent": found, "baseline": {"Score": 2.37}}))
    if status is not None:
        info = {"exit_status": status, "score": found}
        (folder / f"{GAME}.traj").write_text(json.dumps({"environment": GAME, "trajectory": [], "info": info}))


def table(root: Path, *evaluations: object) -> Standings:
    (found,) = standings(root, [GAME], [str(name) for name in evaluations])
    return found


def test_best_and_mean_of_every_agent_over_the_runs_that_have_a_score(root: Path) -> None:
    found = table(root)
    assert (found.metric, found.baseline, found.reference, found.is_optimum) == ("Score", 2.3716, 2.6251, True)
    good, cheat, poor = found.rows
    assert [row.agent for row in found.rows] == ["good", "cheat", "poor"] and not any(row.ours for row in found.rows)
    assert good.runs == 3 and good.best is not None and good.final is not None
    assert (good.best.n, good.best.best, good.best.mean) == (2, 2.6, 2.55)
    assert good.best.error == pytest.approx(math.sqrt(0.005) / math.sqrt(2))
    assert (good.final.n, good.final.best, good.final.mean) == (2, 2.6, 2.5)
    # A score that cannot be takes all others of its run along.
    assert (cheat.withheld, cheat.runs) == (1, 2) and cheat.best is not None and cheat.best.best == 2.45
    assert cheat.best.error is None
    assert poor.unknown == 2 and poor.final is None and poor.best is not None and poor.best.n == 2


def test_the_table_in_markdown(root: Path, air: Any) -> None:
    code, text, _ = air("tasks", "published", GAME, "--mlgym-root", root)
    lines = text.splitlines()
    assert code == 0 and lines[0].startswith(f"### {GAME}: Score ↑ (baseline 2.3716, known optimum 2.6251, standard")
    assert lines[4] == "| good | 3 | 2.6 | 2.55 ± 0.05 (2) | 2.6 | 2.5 ± 0.1 (2) |"
    assert lines[6] == "| poor | 2 | 2.3 | 2.25 ± 0.05 (2) | – | – |"
    assert "cheat: 1 of 2 runs withheld, with a score that cannot be." in lines
    assert "poor: of 2 of 2 runs nobody wrote down what was handed in." in lines
    code, text, _ = air("tasks", "published", "--mlgym-root", root, "--json")
    told = json.loads(text)
    assert code == 0 and [entry["task"] for entry in told] == [GAME] and told[0]["rows"][0]["best"]["mean"] == 2.55


def save(place: Path, episodes: Sequence[Any]) -> None:
    place.mkdir(parents=True)
    for number, episode in enumerate(episodes):
        (place / f"{number}.json").write_text(json.dumps(to_json(episode)))


@pytest.mark.long
def test_our_evaluations_stand_beside_them(root: Path, tmp_path: Path) -> None:
    """What is counted was graded: a score that an agent prints is none."""
    played = []

    async def work(env: MlgymEnv) -> None:
        worse = "cat << 'EOF' > strategy.py\ndef row_strategy(history):\n    return 0\nEOF"
        played.append(await play(env, [f"{DEFECT}\nvalidate", f"{worse}\n{LIE}", "submit"]))
        played.append(await play(env, [LIE, "skip"]))

    with_env(work, mlgym_root=str(root))
    best, final = (played[0].metrics[name] for name in ("best_score", "final_score"))
    assert final < 2 < best < 2.64 and played[0].metrics["score"] == final
    assert "best_score" not in played[1].metrics and "final_score" not in played[1].metrics
    (tmp_path / "eval-x").mkdir()
    (tmp_path / "eval-x/evaluation.json").write_text("{}")
    save(tmp_path / "eval-x/episodes", played)
    run = tmp_path / "run"
    save(run / "evaluations/before", played[1:])
    save(run / "evaluations/after", played[:1])
    (run / "config.toml").write_text("")
    found = table(root, tmp_path / "eval-x", run)
    ours = {row.agent: row for row in found.rows if row.ours}
    assert list(ours) == [str(tmp_path / "eval-x"), f"{run}:before", f"{run}:after"] and not found.notes
    both = ours[str(tmp_path / "eval-x")]
    assert both.runs == 2 and both.best is not None and (both.best.n, both.best.best) == (1, best)
    assert both.final is not None and both.final.mean == final
    assert ours[f"{run}:before"].best is None and ours[f"{run}:after"].best == both.best
    assert list(row.agent for row in table(root, f"{run}:after").rows if row.ours) == [f"{run}:after"]
    assert f"| **{run}:after** | 1 | " in format_standings([found])


def test_airs_own_task_of_the_same_name_is_not_compared(root: Path, tmp_path: Path) -> None:
    played = []

    async def work(env: MlgymEnv) -> None:
        played.append(await play(env, [DEFECT, "submit"]))

    with_env(work, source="builtin")
    save(tmp_path / "run/evaluations/after", played)
    (tmp_path / "run/config.toml").write_text("")
    found = table(root, tmp_path / "run")
    assert not any(row.ours for row in found.rows)
    assert "1 episodes are of air's own prisonersDilemma" in found.notes[0]


def test_what_cannot_be_shown_is_said(root: Path, tmp_path: Path, air: Any) -> None:
    code, _, problem = air("tasks", "published")
    assert code == 1 and "--mlgym-root" in problem
    code, _, problem = air("tasks", "published", "titanic", "--mlgym-root", root)
    assert code == 1 and "no published runs of titanic" in problem
    code, _, problem = air("tasks", "published", "--mlgym-root", root, "--with", tmp_path / "nothing")
    assert code == 1 and "neither an evaluation nor a run" in problem
    (root / f"trajectories/bench/metagen-good__{GAME}__default__t-0.00__run_0/results.json").write_text("[1]")
    with pytest.raises(AirError, match=r"results\.json"):
        table(root)
