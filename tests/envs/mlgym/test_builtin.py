"""The built-in research tasks: their evaluations, their data, their measured scores and their researchers."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.chat.actions import parse
from airloop.errors import AirError
from airloop.types import Message
from airloop_envs.mlgym import data, measure
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.data import BUILTIN, TASKS, fmnist_directory, prepare, split_rows
from airloop_envs.mlgym.measure import evaluate, game_value, grader_workspace, recorded, scores_of, variants
from airloop_envs.mlgym.researchers import LEVELS, NAMES, researcher
from airloop_envs.mlgym.researchers.games import ALWAYS_0, ALWAYS_1, KIND_FIRST, TURNS
from airloop_envs.mlgym.researchers.work import read_score
from airloop_envs.mlgym.spec import TaskSpec

GAMES = ("prisonersDilemma", "battleOfSexes", "blotto")
TABLES = {"titanic": ("PassengerId", "Survived"), "regressionKaggleHousePrice": ("Id", "SalePrice")}
TURNS_A_TASK = 8

needs_pictures = pytest.mark.skipif(
    not (fmnist_directory() / "train-images-idx3-ubyte.gz").is_file(),
    reason="Fashion-MNIST is not there: apt-get install dataset-fashion-mnist, or set AIR_FMNIST",
)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def spec_of(key: str, variant: int = 0) -> TaskSpec:
    return replace(load_task(BUILTIN, key), builtin=True, variant=variant)


def workspace(key: str, directory: Path, variant: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    grader_workspace(key, variant, directory)
    return directory


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- games ----------------------------------------------------------------------------------------------

BLOTTO_BEST = "def row_strategy(history):\n    return [3, 3, 3, 30, 40, 41]\n"
HALF = "import random\n\ndef row_strategy(history):\n    return random.randrange(2)\n"
BEST = {"prisonersDilemma": KIND_FIRST[1], "battleOfSexes": TURNS[1], "blotto": BLOTTO_BEST}


@pytest.mark.parametrize("key", GAMES)
def test_starter_and_best_reply_score_what_is_recorded(key: str, tmp_path: Path) -> None:
    spec, facts = spec_of(key), recorded(key, 0)
    folder = workspace(key, tmp_path)
    assert scores_of(folder)["Score"] == pytest.approx(facts.baseline["Score"], abs=5 * spec.yardstick.noise)
    (folder / "strategy.py").write_text(BEST[key])
    assert scores_of(folder)["Score"] == pytest.approx(facts.reference, abs=5 * spec.yardstick.noise)
    assert spec.yardstick.optimum and facts.reference - facts.baseline["Score"] > 40 * spec.yardstick.noise


@pytest.mark.long
@pytest.mark.parametrize("key", ["prisonersDilemma", "battleOfSexes"])
def test_the_evaluation_agrees_with_the_exact_value_and_is_as_quiet_as_it_says(key: str, tmp_path: Path) -> None:
    folder = workspace(key, tmp_path)
    (folder / "strategy.py").write_text(HALF)
    scores = [scores_of(folder)["Score"] for _ in range(10)]
    target = runpy.run_path(str(BUILTIN / "data" / key / "target.py"))
    exact = game_value(target["chance_of_zero"], target["PAYOFFS"], lambda history: 0.5)
    noise = spec_of(key).yardstick.noise
    assert np.mean(scores) == pytest.approx(exact, abs=5 * noise / np.sqrt(10))
    assert np.std(scores) < 2 * noise
    assert len(set(scores)) > 1  # no seed of ours that an agent could know


def test_game_value_of_known_games() -> None:
    dilemma = ((3, 0), (5, 1))
    assert game_value(lambda h: 1.0, dilemma, None, rounds=6) == pytest.approx(5)
    assert game_value(lambda h: 1.0, dilemma, lambda h: 0.0, rounds=6) == pytest.approx(3)
    # Against tit for tat one cooperates up to the last round.
    value = game_value(lambda h: float(not h or h[-1][0] == 0), dilemma, None, rounds=6)
    assert value == pytest.approx((5 * 3 + 5) / 6)


@given(st.lists(st.integers(0, 120), min_size=5, max_size=5))
def test_no_allocation_beats_the_recorded_optimum(cuts: list[int]) -> None:
    force = np.diff([0, *sorted(cuts), 120])
    assert blotto_result(force) <= recorded("blotto", 0).reference + 1e-9


def blotto_result(force: np.ndarray) -> float:
    """Written again, without the evaluation's code."""
    from itertools import permutations

    forces = runpy.run_path(str(BUILTIN / "data/blotto/target.py"))["FORCES"]
    total = 0.0
    for weight, theirs in forces:
        orders = np.array(sorted(set(permutations(theirs))))
        total += weight * float(np.sign(np.sign(force - orders).sum(1)).mean())
    return total


BAD_MOVES = ["2", "-1", "True", "1.0", "'1'", "None", "[0]"]
BAD_FORCES = [
    "[20] * 5",
    "[20] * 7",
    "[21] * 6",
    "[-20, 40, 20, 20, 30, 30]",
    "[20.0] * 6",
    "[True] + [24] * 4 + [23]",
    "7",
]


@pytest.mark.parametrize(
    ("key", "answer"), [*(("prisonersDilemma", a) for a in BAD_MOVES), *(("blotto", a) for a in BAD_FORCES)]
)
def test_a_wrong_move_is_a_sentence(key: str, answer: str, tmp_path: Path) -> None:
    folder = workspace(key, tmp_path)
    (folder / "strategy.py").write_text(f"def row_strategy(history):\n    return {answer}\n")
    done = evaluate(folder)
    assert done.returncode == 1 and done.stdout.startswith("row_strategy returned") and not done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def row_strategy(history):\n    return nothing\n", "row_strategy failed: NameError"),
        ("def strategy(history):\n    return 0\n", "strategy.py cannot be used: AttributeError"),
        ("def row_strategy(history)\n    return 0\n", "strategy.py cannot be used: SyntaxError"),
    ],
)
def test_code_that_fails_is_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    folder = workspace("battleOfSexes", tmp_path)
    (folder / "strategy.py").write_text(text)
    done = evaluate(folder)
    assert done.returncode == 1 and done.stdout.startswith(said) and not done.stderr


@pytest.mark.parametrize("key", GAMES)
def test_calls_go_in_batches_where_that_is_offered(key: str, tmp_path: Path) -> None:
    folder = workspace(key, tmp_path)
    move = "[20] * 6" if key == "blotto" else "0"
    (folder / "strategy.py").write_text(
        "class Proxy:\n    def __call__(self, history):\n        raise RuntimeError('one by one')\n"
        f"    def many(self, arguments):\n        return [{move} for (history,) in arguments]\n\n"
        "row_strategy = Proxy()\n"
    )
    assert "Score" in scores_of(folder)


def test_a_strategy_that_changes_its_history_changes_only_its_copy(tmp_path: Path) -> None:
    folder = workspace("battleOfSexes", tmp_path)
    cheat = (
        "import random\n\ndef row_strategy(history):\n    random.seed(0)\n    history.append((0, 0))\n    return 0\n"
    )
    (folder / "strategy.py").write_text(cheat)
    changed = scores_of(folder)["Score"]
    (folder / "strategy.py").write_text(ALWAYS_0[1])
    assert changed == pytest.approx(scores_of(folder)["Score"], abs=0.05)


# --- tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TABLES)
def test_the_agents_files_tell_nothing_of_the_answers(key: str) -> None:
    id_column, target = TABLES[key]
    prepared = prepare(key, 0)
    assert prepared.agent and prepared.answers
    assert {path.name for path in prepared.agent.iterdir()} == {"train.csv", "test.csv"}
    train, test = read_rows(prepared.agent / "train.csv"), read_rows(prepared.agent / "test.csv")
    answers = {row[id_column]: row[target] for row in read_rows(prepared.answers / "answers.csv")}
    assert target in train[0] and target not in test[0] and set(train[0]) - set(test[0]) == {target}
    assert {row[id_column] for row in test} == set(answers) and not {row[id_column] for row in train} & set(answers)
    # The order tells nothing: neither of the target nor, since another draw has other rows there, of the source.
    values = np.array([float(answers[row[id_column]]) for row in test])
    assert abs(np.corrcoef(np.arange(len(values)), values)[0, 1]) < 0.12
    other = prepare(key, 1)
    assert (
        other.agent and other.agent.joinpath("test.csv").read_text() != prepared.agent.joinpath("test.csv").read_text()
    )


@pytest.mark.parametrize("key", TABLES)
def test_a_draw_has_the_whole_table_once_and_keeps_its_proportions(key: str) -> None:
    target = TABLES[key][1]
    seen = []
    for variant in (0, 100):
        prepared = prepare(key, variant)
        assert prepared.agent and prepared.answers
        train = [float(row[target]) for row in read_rows(prepared.agent / "train.csv")]
        test = [float(row[target]) for row in read_rows(prepared.answers / "answers.csv")]
        assert np.mean(train) == pytest.approx(np.mean(test), rel=0.03)
        seen.append(sorted(train + test))
    assert seen[0] == seen[1]


@pytest.mark.long
@pytest.mark.parametrize("key", ["titanic", pytest.param("3SATTime", marks=pytest.mark.slow)])
def test_preparing_again_gives_the_same_bytes(key: str) -> None:
    first = prepare(key, 3)
    assert first.agent
    before = {path.name: path.read_bytes() for path in first.agent.parent.rglob("*") if path.is_file()}
    shutil.rmtree(first.agent.parent)
    again = prepare(key, 3)
    assert again == first and again.agent
    assert {path.name: path.read_bytes() for path in again.agent.parent.rglob("*") if path.is_file()} == before


@given(st.integers(2, 300), st.integers(1, 5), st.integers(0, 99), st.data())
def test_a_split_takes_no_row_twice_and_a_fair_share_of_each_stratum(
    n: int, kinds: int, seed: int, draw: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    strata = rng.integers(kinds, size=n)
    train = draw.draw(st.integers(1, n - 1))
    first, rest = split_rows(strata, train, n - train, rng)
    assert len(first) == train and sorted([*first, *rest]) == list(range(n))
    for kind in range(kinds):
        assert abs((strata[first] == kind).sum() - (strata == kind).sum() * train / n) <= 2


def test_the_gender_rule_and_the_sample_score_what_they_should(tmp_path: Path) -> None:
    folder = workspace("titanic", tmp_path)
    subprocess.run([sys.executable, "baseline.py"], cwd=folder, check=True)
    assert scores_of(folder) == recorded("titanic", 0).baseline
    shutil.copy(BUILTIN / "data/titanic/sample_submission.csv", folder / "submission.csv")
    assert scores_of(folder)["accuracy"] < recorded("titanic", 0).baseline["accuracy"] - 0.1


@pytest.mark.parametrize("key", TABLES)
def test_the_hidden_rows_are_two_halves_alike_and_the_same_every_time(key: str) -> None:
    target = TABLES[key][1]
    prepared = prepare(key, 0)
    assert prepared.answers and prepared.agent
    rows = read_rows(prepared.answers / "answers.csv")
    parts = {half: [row for row in rows if row["half"] == half] for half in (data.VALIDATE, data.FINAL)}
    assert abs(len(parts["validate"]) - len(parts["final"])) <= 1 and sum(map(len, parts.values())) == len(rows)
    means = [np.mean([float(row[target]) for row in part]) for part in parts.values()]
    assert means[0] == pytest.approx(means[1], rel=0.03)
    assert "half" not in (prepared.agent / "test.csv").read_text()[:2000]
    # Neither an id nor a place says which half a row is in.
    place = np.array([row["half"] == "final" for row in rows])
    assert abs(np.corrcoef(np.arange(len(rows)), place)[0, 1]) < 0.12


def test_what_is_done_to_the_half_that_validate_shows_changes_no_score(tmp_path: Path) -> None:
    folder = workspace("titanic", tmp_path)
    truth = read_rows(folder / "answers" / "answers.csv")
    sample = {line.split(",")[0]: "0" for line in titanic_lines()[1:]}
    before = write_and_grade(folder, sample)
    known = {row["PassengerId"]: row["Survived"] for row in truth if row["half"] == "validate"}
    after = write_and_grade(folder, {**sample, **known})
    assert after["validate"]["accuracy"] == 1.0 and after["final"] == before["final"]


def write_and_grade(folder: Path, answers: dict[str, str]) -> dict[str, dict[str, float]]:
    lines = [f"{key},{value}\n" for key, value in answers.items()]
    (folder / "submission.csv").write_text("PassengerId,Survived\n" + "".join(lines))
    return measure.halves_of(folder)


def titanic_lines() -> list[str]:
    return (BUILTIN / "data/titanic/sample_submission.csv").read_text().splitlines()


SPOILT = {
    "columns": lambda lines: ["PassengerId,survived", *lines[1:]],
    "a column more": lambda lines: [f"{line},1" for line in lines],
    "missing": lambda lines: lines[:-1],
    "twice": lambda lines: [*lines, lines[1]],
    "unknown id": lambda lines: [*lines[:-1], "1,0"],
    "label": lambda lines: [*lines[:-1], "1309,2"],
    "half": lambda lines: [*lines[:-1], "1309,0.5"],
    "empty cell": lambda lines: [*lines[:-1], "1309,"],
    "short line": lambda lines: [*lines[:-1], "1309"],
    "empty": lambda lines: [""],
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_submission_is_a_sentence(how: str, tmp_path: Path) -> None:
    folder = workspace("titanic", tmp_path)
    (folder / "submission.csv").write_text("\n".join(SPOILT[how](titanic_lines())))
    done = evaluate(folder)
    assert done.returncode == 1 and done.stdout.startswith("submission.csv") and not done.stderr


def test_a_submission_that_is_no_text_is_a_sentence(tmp_path: Path) -> None:
    folder = workspace("titanic", tmp_path)
    (folder / "submission.csv").write_bytes(b"\xff\xfe\x00PassengerId")
    done = evaluate(folder)
    assert done.returncode == 1 and "cannot be read" in done.stdout and not done.stderr


def test_the_order_of_a_submission_does_not_matter(tmp_path: Path) -> None:
    folder = workspace("titanic", tmp_path)
    header, *lines = titanic_lines()
    mixed = [f"{line.split(',')[0]},{i % 2}" for i, line in enumerate(lines)]
    (folder / "submission.csv").write_text("\n".join([header, *mixed]))
    in_order = scores_of(folder)
    (folder / "submission.csv").write_text("\n".join([header, *random.Random(0).sample(mixed, len(mixed))]))
    assert scores_of(folder) == in_order


@pytest.mark.parametrize("price", ["nan", "inf", "-inf", "1e300", "dear"])
def test_prices_are_finite_numbers(price: str, tmp_path: Path) -> None:
    folder = workspace("regressionKaggleHousePrice", tmp_path)
    lines = (BUILTIN / "data/regressionKaggleHousePrice/sample_submission.csv").read_text().splitlines()
    (folder / "submission.csv").write_text("\n".join(lines))
    assert scores_of(folder)["r2"] == pytest.approx(0, abs=0.02)
    (folder / "submission.csv").write_text("\n".join([*lines[:-1], f"2930,{price}"]))
    done = evaluate(folder)
    assert done.returncode == 1 and "SalePrice" in done.stdout and not done.stderr


# --- pictures and formulas ------------------------------------------------------------------------------


@needs_pictures
def test_pictures_are_prepared_without_labels_and_scored(tmp_path: Path) -> None:
    prepared = prepare("imageClassificationFMnist", 0)
    assert prepared.agent
    train, test = np.load(prepared.agent / "train.npz"), np.load(prepared.agent / "test.npz")
    assert set(test) == {"images", "ids"} and test["images"].shape == (1000, 28, 28)
    assert np.bincount(train["labels"]).tolist() == [600] * 10
    folder = workspace("imageClassificationFMnist", tmp_path)
    shutil.copy(BUILTIN / "data/imageClassificationFMnist/sample_submission.csv", folder / "submission.csv")
    assert scores_of(folder)["accuracy"] == pytest.approx(0.1)
    (folder / "submission.csv").write_text((folder / "submission.csv").read_text().replace("7,0\n", "7,10\n"))
    assert "from 0 to 9" in evaluate(folder).stdout


def test_missing_pictures_are_an_error_with_the_ways_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_FMNIST", str(tmp_path))
    with pytest.raises(AirError, match="apt-get install dataset-fashion-mnist"):
        prepare("imageClassificationFMnist", 77)


@pytest.mark.long
def test_solvers_are_timed_beside_the_starter_and_wrong_answers_cost(tmp_path: Path) -> None:
    folder = workspace("3SATTime", tmp_path)
    starter = scores_of(folder)
    assert starter["Correct"] == 30 and starter["Time"] == pytest.approx(2, rel=0.3)
    (folder / "solver.py").write_text("def solve(num_vars, clauses):\n    clauses.clear()\n    return None\n")
    hopeless = scores_of(folder)
    assert hopeless["Time"] == pytest.approx(30 - hopeless["Correct"], abs=0.1) and 5 < hopeless["Correct"] < 25
    (folder / "solver.py").write_text("def solve(num_vars, clauses):\n    return 'yes'\n")
    done = evaluate(folder)
    assert done.returncode == 1 and done.stdout.startswith("solve returned") and not done.stderr


# --- scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TASKS)
def test_every_task_that_is_offered_leaves_room(key: str) -> None:
    stick = spec_of(key).yardstick
    for split in ("train", "eval"):
        assert variants(key, split)
        for variant in variants(key, split):
            facts = recorded(key, variant)
            gain = facts.reference - facts.baseline[stick.metric]
            assert (gain if stick.direction == "up" else -gain) > measure.HEADROOM
    if key not in GAMES:
        assert not set(variants(key, "train")) & set(variants(key, "eval"))


def test_what_was_not_measured_is_said() -> None:
    with pytest.raises(AirError, match="has not been measured"):
        recorded("titanic", 55)
    with pytest.raises(AirError, match="no built-in task"):
        prepare("titanics", 0)


@pytest.mark.parametrize("key", TASKS)
def test_tasks_are_short_and_hide_what_grades_them(key: str) -> None:
    spec = spec_of(key)
    assert len(spec.description.split()) <= 130 and not spec.warnings
    visible = {path.name for path in spec.starter_code} - set(spec.secret_files)
    assert visible <= {"strategy.py", "baseline.py", "solver.py"} and set(spec.evaluation_paths) <= set(
        spec.secret_files
    )


# --- researchers ----------------------------------------------------------------------------------------


def play(
    spec: TaskSpec, name: str, seed: int, home: Path, max_turns: int = TURNS_A_TASK
) -> tuple[list[str], list[float]]:
    """A sandbox without walls: bash in a directory without the secret files. All replies, and all scores."""
    agent_home, grader_home = home / "agent", home / "grader"
    agent_home.mkdir(parents=True)
    for path in spec.starter_code:
        if path.name not in spec.secret_files:
            shutil.copy(path, agent_home)
    if (prepared := prepare(spec.key, spec.variant)).agent:
        (agent_home / "data").symlink_to(prepared.agent)
    workspace(spec.key, grader_home, spec.variant)
    agent = researcher(name, spec, seed, max_turns)
    messages = [Message(role="user", content=spec.description)]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    scores: list[float] = []
    for _ in range(max_turns):
        messages.append(asyncio.run(agent.reply(messages, [])))
        (action,), note = parse(messages[-1]["content"], "command")
        assert not note
        if action.text.strip() in ("validate", "submit"):
            seen = grade(spec, agent_home, grader_home)
            scores += [score] if (score := read_score(seen, spec.yardstick.metric)) is not None else []
            if action.text.strip() == "submit":
                break
        else:
            done = subprocess.run(["bash", "-c", action.text], cwd=agent_home, env=env, capture_output=True, text=True)
            seen = done.stdout + done.stderr
        messages.append(Message(role="user", content=seen))
    return [message["content"] for message in messages if message["role"] == "assistant"], scores


def grade(spec: TaskSpec, agent_home: Path, grader_home: Path) -> str:
    for name in ("submission.csv", "strategy.py", "solver.py"):
        if (agent_home / name).exists():
            shutil.copy(agent_home / name, grader_home)
    done = evaluate(grader_home)
    if done.returncode:
        return done.stdout
    found = json.loads(done.stdout)
    return f"valid submission: x\nbaseline: {{}}\nscore: {found.get(data.VALIDATE, found)}"


@pytest.mark.long
@pytest.mark.parametrize("key", GAMES)
def test_researchers_of_the_games_score_by_their_level(key: str, tmp_path: Path) -> None:
    spec, facts = spec_of(key), recorded(key, 0)
    ends: dict[str, list[float]] = {}
    for level in LEVELS:
        for seed in range(5):
            replies, scores = play(spec, level, seed, tmp_path / f"{level}{seed}")
            assert replies[-1].endswith("```bash\nsubmit\n```") and scores
            ends.setdefault(level, []).append(scores[-1])
    baseline = facts.baseline["Score"]
    assert np.mean(ends["novice"]) < baseline + 0.1 < np.mean(ends["senior"]) + 0.1
    assert np.mean(ends["junior"]) < np.mean(ends["senior"]) < np.mean(ends["oracle"])
    assert min(ends["oracle"]) > facts.reference - 5 * spec.yardstick.noise
    assert min(ends["senior"]) > baseline


@pytest.mark.long
def test_researchers_of_titanic_score_by_their_level(tmp_path: Path) -> None:
    spec = spec_of("titanic")
    ends = {level: play(spec, level, 1, tmp_path / level)[1][-1] for level in LEVELS}
    baseline = recorded("titanic", 0).baseline["accuracy"]
    assert ends["novice"] <= baseline < ends["oracle"] and ends["senior"] > baseline


def test_a_novice_mends_its_mistake(tmp_path: Path) -> None:
    spec = spec_of("prisonersDilemma")
    seed = next(s for s in range(200) if "import" not in first_reply(spec, s) and "random." in first_reply(spec, s))
    replies, scores = play(spec, "novice", seed, tmp_path)
    assert "mend" in replies[2] and len(scores) == 2  # one validate that worked, and submit


def first_reply(spec: TaskSpec, seed: int) -> str:
    return asyncio.run(researcher("novice", spec, seed, TURNS_A_TASK).reply([], []))["content"]


@pytest.mark.long
def test_of_two_drafts_the_better_one_is_submitted(tmp_path: Path) -> None:
    spec = spec_of("blotto")
    for seed in range(40):
        replies, scores = play(spec, "demo", seed, tmp_path / f"{seed}")
        assert scores[-1] == pytest.approx(max(scores), abs=0.05)
        if any("earlier one was better" in reply for reply in replies):
            return
    pytest.fail("no demonstration had a second thought that was worse")


@pytest.mark.parametrize("key", TASKS)
def test_demonstrations_are_seeded_short_and_various(key: str) -> None:
    spec = spec_of(key)
    texts = [asyncio.run(researcher("demo", spec, seed, 4).reply([], []))["content"] for seed in range(60)]
    again = [asyncio.run(researcher("demo", spec, seed, 4).reply([], []))["content"] for seed in range(60)]
    assert texts == again and len(set(texts)) >= (6 if key == "3SATTime" else 15)
    assert max(len(text) for text in texts) < (2600 if key == "3SATTime" else 900)
    for text in texts:
        (action,), note = parse(text, "command")
        assert action.kind == "command" and not note and "EOF" in action.text


@pytest.mark.parametrize("key", TASKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_researcher_ends_in_time(key: str, name: str) -> None:
    agent = researcher(name, spec_of(key), 0, 3)
    messages = [Message(role="user", content="Traceback")]
    for _ in range(3):
        messages += [asyncio.run(agent.reply(messages, [])), Message(role="user", content="Traceback")]
    assert ("submit" in messages[-2]["content"]) == (name != "noop")


@pytest.mark.long
def test_always_defecting_is_good_and_opening_kindly_better() -> None:
    target = runpy.run_path(str(BUILTIN / "data/prisonersDilemma/target.py"))
    defect = game_value(target["chance_of_zero"], target["PAYOFFS"], lambda history: 1.0)
    kind = game_value(target["chance_of_zero"], target["PAYOFFS"], lambda history: float(bool(history)))
    assert "return 1" in ALWAYS_1[1] and defect == pytest.approx(2.64)
    assert kind == pytest.approx(recorded("prisonersDilemma", 0).reference)
