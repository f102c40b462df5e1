"""Attacks on what is paid: labels that are asked for, files that are swapped, a shell that lies, files that are huge."""

# ruff: noqa: E501 - an attack is one line, and is read best so
from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fixture_checkout import write_checkout
from support.grading_lab import make_task
from support.playing import DEFECT, observed, play, with_env

from airloop.eval.audit import audit
from airloop.rollout.episode import run_episode
from airloop.types import Action
from airloop.watch.display.display import Display
from airloop_envs.mlgym import grading
from airloop_envs.mlgym.env import MlgymArgs, MlgymEnv
from airloop_envs.mlgym.grading import Grade
from airloop_envs.mlgym.halves import shown_baseline
from airloop_envs.mlgym.measure import grader_workspace, scores_of
from airloop_envs.mlgym.metrics import exceeded, too_good
from airloop_envs.mlgym.researchers import researcher
from airloop_envs.mlgym.researchers.work import read_score
from airloop_envs.mlgym.submissions import LARGEST_TABLE, LEAST_TABLE, largest_table

TITANIC = {"task_configs": ["titanic"], "source": "builtin", "max_turns": 20}
IDS = "tail -n +2 data/test.csv | cut -d, -f1"
TABLE = f'table() {{ (echo PassengerId,Survived; {IDS} | sed "s/$/,$1/"); }}; table 0 > a; table 1 > b'


async def count_gradings(env: MlgymEnv) -> list[str]:
    """The digest of every submission that is graded from now on. What a baseline scores is found before: on a new
    machine it is measured, and graded, once."""
    for task in env.tasks("train"):
        await env.places().baselines.of(env.spec(task))
    grader, digests = env.places().grader, []
    real = grader.grade

    async def counted(spec: Any, submission: Any, *rest: Any) -> Grade:
        if submission.digest:  # the sample, graded for a comparison, has none
            digests.append(submission.digest)
        return await real(spec, submission, *rest)

    grader.grade = counted  # type: ignore[method-assign,assignment]
    return digests


# --- labels that are asked for ------------------------------------------------------------------------------


@pytest.mark.slow
def test_D23_an_agent_that_flips_answers_gains_nothing_on_the_scored_half() -> None:
    """Greedy flips of the gender rule raised the score from 0.818 to 0.844 when `validate` told what counted."""

    async def work(env: MlgymEnv) -> None:
        task = env.tasks("train")[0]
        spec = env.spec(task)
        game = await run_episode(env, task, researcher("prober", spec, 0, 20), id="x", seed=0)
        shown = shown_baseline(spec)
        assert shown is not None and game.metrics["submitted"] == 1
        assert game.metrics["validate_score"] > shown["accuracy"] + 0.004  # asking does work on the half that is told
        assert game.metrics["score"] == game.metrics["baseline"] and game.metrics["improved"] == 0
        assert game.rewards == {"headroom": 0.0, "idle": -0.5}

    with_env(work, **TITANIC)


@pytest.mark.soak
def test_the_audit_finds_who_asks_for_labels_where_validate_tells_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hole is open: the score is of the rows that `validate` tells about."""
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))  # baselines, too, are of these rows
    real = grading.read_scores

    def leaky(spec: Any, stdout: str) -> tuple[dict[str, float], dict[str, float] | None]:
        shown, final = real(spec, stdout)
        return shown, shown if final is not None else None

    monkeypatch.setattr(grading, "read_scores", leaky)
    found = audit(MlgymEnv(MlgymArgs(**TITANIC)), 4, None, Display(quiet=True))
    caught = {(c.honest, c.dishonest) for c in found.comparisons if c.verdict == "violated"}
    assert found.exit_code == 1 and any(dishonest == "prober" for _, dishonest in caught)


def test_validate_tells_of_the_one_half_and_submit_of_the_other() -> None:
    async def work(env: MlgymEnv) -> None:
        env.weigh({"headroom": 1.0, "delta": 1.0})
        game = await play(env, [f"{TABLE}; mv a submission.csv; validate", "submit"])
        said = [read_score(text, "accuracy") for text in observed(game)]
        assert said[0] == pytest.approx(game.metrics["validate_score"], abs=1e-5)
        assert said[1] == pytest.approx(game.metrics["score"], abs=1e-5)
        # What is paid for a validation is of the scored half, too, and the agent never hears of it.
        assert game.turn_rewards[0]["delta"] == pytest.approx(game.metrics["score"] - game.metrics["baseline"])

    with_env(work, **TITANIC)


def test_the_best_is_chosen_by_what_validate_shows() -> None:
    async def work(env: MlgymEnv) -> None:
        async with env.open(env.tasks("train")[0], 0) as session:
            answers = iter([(0.80, 0.70), (0.79, 0.90)])

            async def grade(*_: Any) -> Grade:
                shown, final = next(answers, (0.5, 0.5))  # the sample's, at the end
                return Grade({"accuracy": shown}, "", "", 0.0, {"accuracy": final})

            session.grader.grade = grade  # type: ignore[method-assign,assignment]
            await session.begin()
            await session.act(Action("command", f"{TABLE}; mv a submission.csv; validate"))
            await session.act(Action("command", "mv b submission.csv; submit"))
            assert (await session.finish()).metrics["score"] == 0.70

    with_env(work, **TITANIC, score="best")


def test_a_checkouts_gradings_are_counted_and_the_last_is_kept_for_the_end(tmp_path: Path) -> None:
    """`validate` of what was graded already costs none."""
    root = write_checkout(tmp_path)
    more = "sed -i '2s/,/,1/' submission.csv; validate"

    async def work(env: MlgymEnv) -> None:
        digests = await count_gradings(env)
        game = await play(env, ["python baseline.py; validate", "validate", more, more, "validate", more, "submit"])
        said = observed(game)
        assert "the same as in step 1" in said[1] and "score: {" in said[2]
        for refused in (said[3], said[4], said[5]):
            assert refused.startswith("Not graded: an episode has 3 gradings")
        assert len(digests) == 3 and game.metrics["scored"] == 1 and "score: {" in said[6]

    args = {"task_configs": ["regressionKaggleHousePrice"], "mlgym_root": str(root), "source": "checkout"}
    with_env(work, **args, max_gradings=3, max_turns=8)


def test_one_who_has_validated_all_he_may_can_submit_in_the_same_command(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)

    async def work(env: MlgymEnv) -> None:
        game = await play(env, ["python baseline.py; validate; submit"])
        assert game.metrics["submitted"] == 1 and "Not graded" in observed(game)[0]

    args = {"task_configs": ["regressionKaggleHousePrice"], "mlgym_root": str(root), "source": "checkout"}
    with_env(work, **args, max_gradings=1, max_turns=2)


# --- files that are swapped ---------------------------------------------------------------------------------

# Puts the other table there whenever somebody has opened or closed the one that lies there.
SWAP = """cat > swap.py <<'AIR_END'
import ctypes, os, shutil
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
turn = 0
while True:
    libc.inotify_add_watch(watch, b"submission.csv", 0x20 | 0x10)
    os.read(watch, 4096)
    turn += 1
    shutil.copy("ab"[turn % 2], "next")
    os.rename("next", "submission.csv")
AIR_END
cp a submission.csv; python swap.py & sleep 0.5"""


def test_a_process_that_swaps_the_table_when_it_is_read_changes_nothing() -> None:
    """What `submit` has collected is graded, and nothing is collected after it."""

    async def work(env: MlgymEnv) -> None:
        digests = await count_gradings(env)
        game = await play(env, [f"{TABLE}; {SWAP}", "validate; validate; validate", "validate; submit"])
        assert game.metrics["submitted"] == 1 and len(digests) <= 2
        (told,) = {read_score(part, "accuracy") for part in observed(game)[1].split("valid submission")[1:]}
        assert told is not None
        final = read_score(observed(game)[2].split("valid submission")[-1], "accuracy")
        assert game.metrics["score"] == pytest.approx(final, abs=1e-5)

    with_env(work, **TITANIC)


def test_what_lies_there_after_submit_is_not_looked_at() -> None:
    async def work(env: MlgymEnv) -> None:
        digests = await count_gradings(env)
        async with env.open(env.tasks("train")[0], 0) as session:
            await session.begin()
            seen = await session.act(Action("command", f"{TABLE}; cp a submission.csv; submit"))
            await session.sandbox.put("submission.csv", await session.sandbox.get("b") or b"")
            score = await session.finish()
        assert len(digests) == 1
        assert score.metrics["score"] == pytest.approx(read_score(seen.text, "accuracy"), abs=1e-5)

    with_env(work, **TITANIC)


def test_an_artefact_that_comes_back_has_the_score_it_had() -> None:
    """Of an evaluation with noise one could else draw until it is lucky."""
    kind = DEFECT.replace("return 1", "return 0")

    async def work(env: MlgymEnv) -> None:
        digests = await count_gradings(env)
        game = await play(env, [f"{DEFECT}\nvalidate", f"{kind}\nvalidate", f"{DEFECT}\nvalidate", "submit"])
        said = [read_score(text, "Score") for text in observed(game)]
        assert len(digests) == 2 and said[0] == said[2] == said[3] != said[1]
        assert game.metrics["score"] == pytest.approx(said[0], abs=1e-5)

    with_env(work)


# --- a shell that lies --------------------------------------------------------------------------------------

FORGERIES = {
    "trap": "trap 'echo 1.0' DEBUG",
    "function": "function /usr/bin/env { echo 1.0; }; function python { echo 1.0; }; function python3 { echo 1.0; }",
    "prompt": "PROMPT_COMMAND='echo 1.0'; trap 'echo 1.0' EXIT RETURN ERR",
    "printer": "(while :; do echo 1.0; sleep 0.01; done) & disown",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_D24_the_quality_of_code_is_not_what_the_shell_says(how: str) -> None:
    spoilt = "for name in a b c; do echo 'def (:' > $name.py; done"

    async def work(env: MlgymEnv) -> None:
        env.weigh({"headroom": 1.0, "code_quality": 1.0})
        game = await play(env, [DEFECT, spoilt, FORGERIES[how]], max_turns=3)
        assert game.metrics["improved"] == 1 and game.rewards["code_quality"] == pytest.approx(0.25)

    with_env(work)


def test_the_quality_of_code_is_that_of_the_code_that_was_submitted() -> None:
    spoilt = "for name in a b c; do echo 'def (:' > $name.py; done"

    async def work(env: MlgymEnv) -> None:
        env.weigh({"headroom": 1.0, "code_quality": 1.0})
        async with env.open(env.tasks("train")[0], 0) as session:
            await session.begin()
            for command in (DEFECT, spoilt, "submit"):
                await session.act(Action("command", command))
            await session.sandbox.run("rm a.py b.py c.py", 5.0)  # type: ignore[attr-defined]
            assert (await session.finish()).rewards["code_quality"] == pytest.approx(0.25)

    with_env(work)


@pytest.mark.long
def test_code_that_no_compiler_bears_is_its_makers_loss_alone() -> None:
    deep = "python -c \"open('deep.py', 'w').write('(' * 100000 + ')' * 100000)\""
    long = "head -c 2M /dev/zero | tr '\\0' '#' > long.py"

    async def work(env: MlgymEnv) -> None:
        env.weigh({"headroom": 1.0, "code_quality": 1.0})
        for spoil in (deep, long, "chmod 000 strategy.py; ln -s /proc/self/environ e.py; mkfifo f.py"):
            game = await play(env, [DEFECT, "validate", spoil, "submit"])
            assert game.ending == "done" and 0 <= game.rewards["code_quality"] <= 0.5, spoil

    with_env(work, score="best")


# --- files that are huge ------------------------------------------------------------------------------------

BIG = 250  # MiB


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.slow
def test_D27_a_huge_table_is_refused_and_never_in_the_trainers_memory() -> None:
    """Two of 250 MB took it from 56 to 1,293 MiB, and 250 each stayed."""

    async def work(env: MlgymEnv) -> None:
        await play(env, [f"{TABLE}; cp a submission.csv; validate", "submit"])  # so that all is loaded
        before, peak = resident(), [0.0]

        async def watch() -> None:
            while True:
                peak.append(resident())
                await asyncio.sleep(0.01)

        watcher = asyncio.create_task(watch())
        make = f"head -c {BIG}M /dev/zero > submission.csv"
        games = await asyncio.gather(*(play(env, [make, "validate", "submit"]) for _ in range(2)))
        watcher.cancel()
        assert max(peak) < before + 60, (before, max(peak))
        for game in games:
            assert "larger than 1 MB" in observed(game)[1] and game.metrics["scored"] == 0
            assert game.metrics["evaluation_failed"] == 1 and game.rewards["headroom"] == -1

    with_env(work, **TITANIC, disk_mb=300)


def test_a_session_keeps_no_bytes_of_what_was_graded() -> None:
    async def work(env: MlgymEnv) -> None:
        async with env.open(env.tasks("train")[0], 0) as session:
            await session.begin()
            await session.act(Action("command", f"{TABLE}; cp a submission.csv; validate"))
            assert session.attempt.last is not None
            kept = [value for work in session.attempt.works.values() for value in vars(work).values()]
            assert not any(isinstance(value, bytes | dict) for value in kept)

    with_env(work, **TITANIC)


def test_a_table_may_be_so_many_times_as_large_as_the_sample(tmp_path: Path) -> None:
    spec = make_task(tmp_path, "CSVSubmissionTasks", {"evaluate.py": ""})
    sample = tmp_path / "sample.csv"
    assert largest_table(spec) == LARGEST_TABLE
    sample.write_bytes(b"x" * 100)
    assert largest_table(replace(spec, sample_submission=sample)) == LEAST_TABLE
    sample.write_bytes(b"x" * (1 << 20))
    assert largest_table(replace(spec, sample_submission=sample)) == 20 << 20


# --- times that cannot be -----------------------------------------------------------------------------------


def test_a_time_that_no_solver_can_have_is_too_good() -> None:
    """Answers from a table took 0.0083 s where the best solver takes 0.12."""

    async def work(env: MlgymEnv) -> None:
        task = env.tasks("train")[0]
        stick = env.spec(task).yardstick
        assert stick.reference is not None and stick.bound is not None
        assert too_good(stick, 0.0083) and exceeded(stick, 0.0083) == stick.bound
        assert not too_good(stick, stick.reference / 2)
        async with env.open(task, 0) as session:

            async def grade(*_: Any) -> Grade:
                return Grade({"Time": 0.0083, "Correct": 30.0}, "", "", 0.0)

            session.grader.grade = grade  # type: ignore[method-assign,assignment]
            await session.begin()
            await session.act(Action("command", "echo >> solver.py; submit"))
            score = await session.finish()
        assert score.metrics["too_good"] == 1 and score.metrics["scored"] == 0 and score.rewards["headroom"] == -1

    with_env(work, task_configs=["3SATTime"], source="builtin")


REMEMBER = """
def solve(num_vars, clauses):
    with open("seen", "a") as file:
        file.write(str(clauses) + "\\n")
"""


@pytest.mark.long
def test_what_one_grading_has_shown_is_not_asked_in_the_next(tmp_path: Path) -> None:
    """So a table of answers is worth nothing, by whatever way it got out."""
    grader_workspace("3SATTime", 0, tmp_path)
    (tmp_path / "solver.py").write_text(REMEMBER)
    for _ in range(2):
        scores_of(tmp_path)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert len(seen) == len(set(seen)) == 60
