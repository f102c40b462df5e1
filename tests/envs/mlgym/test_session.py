"""An episode of mlgym from its opening to its score, in the real sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.playing import DEFECT, GAME, observed, play, with_env

from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.types import Message
from airloop_envs.mlgym import rewards
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.prompts import shorten


@pytest.mark.libraries
def test_write_validate_submit() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, [DEFECT, "validate", "submit"])
        assert game.ending == "done"
        assert game.metrics["submitted"] == 1 and game.metrics["improved"] == 1
        assert game.metrics["score"] == pytest.approx(2.64, abs=0.03)
        said = observed(game)[1]
        order = [said.index(part) for part in ("valid submission: strategy.py", "baseline: {'Score': 2.37", "score: {")]
        assert order == sorted(order)
        assert game.rewards["headroom"] == pytest.approx(0.88, abs=0.1)
        assert game.rewards["idle"] == 0 and not any(game.turn_rewards)
        assert game.reward == pytest.approx(game.rewards["headroom"])

    with_env(work)


def test_state_lasts_and_every_observation_ends_in_the_status() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(
            env, ["mkdir d && cd d && X=5", "echo $X; pwd", "create a.py", "edit 1:1\nx = 1\nend_of_edit", "echo bye"]
        )
        said = observed(game)
        assert "5\n/home/agent/workspace/d" in said[1]
        assert said[1].endswith("[step 2, 4 left; open file: none; directory: ~/workspace/d]")
        assert said[3].endswith("[step 4, 2 left; open file: ~/workspace/d/a.py; directory: ~/workspace/d]")
        assert "[File: /home/agent/workspace/d/a.py (1 lines total)]" in said[3]

    with_env(work, prompt="full", max_turns=6)


def test_the_end_of_turns_scores_what_is_there() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, [DEFECT, "echo one", "echo two"], max_turns=3)
        assert game.ending == "max_turns"
        assert game.metrics["autosubmitted"] == 1 and game.metrics["improved"] == 1
        nothing = await play(env, ["ls"], max_turns=2)
        assert nothing.metrics["scored"] == 0 and nothing.rewards["headroom"] == -1

    with_env(work)


def test_giving_up_earns_nothing_whatever_was_done_before() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, [DEFECT, "validate", "exit_forfeit"])
        assert game.ending == "done" and game.rewards["headroom"] == -1 and game.metrics["validated"] == 1

    with_env(work)


@pytest.mark.long
def test_the_best_or_the_last_score_counts() -> None:
    worse = DEFECT.replace("return 1", "return 0")

    async def last(env: MlgymEnv) -> None:
        assert (await play(env, [DEFECT, "validate", worse, "submit"])).metrics["improved"] == 0

    async def best(env: MlgymEnv) -> None:
        assert (await play(env, [DEFECT, "validate", worse, "submit"])).metrics["improved"] == 1

    with_env(last)
    with_env(best, score="best")


def test_a_command_is_stopped_at_its_time_and_the_shell_goes_on() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, ["X=1; sleep 60", "echo still $X", "python -c 'import time; time.sleep(60)'", "echo on"])
        said = observed(game)
        assert "[stopped after 1 s" in said[0] and game.turns[0].observations[0].failed
        assert said[1].startswith("still 1")
        assert "[stopped after 2 s" in said[2]
        assert said[3].startswith("on")

    with_env(work, command_timeout_s=1, training_timeout_s=2, max_turns=4)


def test_long_output_is_cut_in_the_middle_and_progress_bars_go() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, ["seq 1 100000", r"printf '\r 10%%|#   |\r 99%%|### | 9/10\rdone\n'"])
        first, second = observed(game)[:2]
        assert first.startswith("1\n2\n") and "100000\n[" in first and len(first) < 1500
        assert "left out" in first
        assert second.startswith("done")

    with_env(work, observation_chars=1000, max_turns=2)


def test_ending_ones_own_sandbox_is_the_agents_own_loss() -> None:
    async def work(env: MlgymEnv) -> None:
        game = await play(env, [DEFECT, "kill -9 -1", "echo back", "submit"])
        assert game.metrics["improved"] == 1  # its first process cannot be killed from inside

    with_env(work)


def test_components_are_chosen_by_name_and_unknown_ones_refused() -> None:
    async def work(env: MlgymEnv) -> None:
        env.weigh(dict.fromkeys(rewards.COMPONENTS, 1.0))
        game = await play(env, [DEFECT, "validate", "submit"])
        assert set(game.rewards) == set(rewards.EPISODE_COMPONENTS)
        assert game.rewards["improvement"] == pytest.approx(10 * (game.metrics["score"] - 2.3707) / 2.3707, abs=0.01)
        assert game.rewards["tier"] in (0.75, 1.0) and game.rewards["validated"] == 1
        assert game.rewards["code_quality"] == 1.0 and [t["tool"] for t in game.turn_rewards] == [0.5, 0.5, 0.5]
        assert game.turn_rewards[1]["delta"] == pytest.approx(game.metrics["score"] - 2.3707, abs=0.001)
        assert env.group_rewards([game, game])[0] == {"percentile": 0.5}
        with pytest.raises(AirError, match="did you mean 'headroom'"):
            env.weigh({"headrom": 1.0})

    with_env(work)


@pytest.mark.long
def test_the_starters_own_work_costs_whoever_hands_it_in() -> None:
    """By its bytes, but for comments and files that nobody calls; an attempt of one's own costs nothing."""
    worse = DEFECT.replace("return 1", "return 0")
    remark = "printf '\\n# mine now\\n\\n' >> strategy.py"
    for line, idle in (("submit", 1), (remark, 1), ("echo 1 > notes.txt", 1), (worse, 0), (DEFECT, 0)):

        async def work(env: MlgymEnv, line: str = line, idle: int = idle) -> None:
            game = await play(env, [line, "submit"])
            assert (game.metrics["idle"], game.rewards["idle"]) == (idle, -0.5 * idle), (line, game.metrics)
            assert not (game.metrics["idle"] and game.metrics["improved"])

        with_env(work)


IDS = "tail -n +2 data/test.csv | cut -d, -f1"
ZEROS = f"(echo PassengerId,Survived; {IDS} | sed 's/$/,0/') > submission.csv"
OWN = f"(echo PassengerId,Survived; {IDS} | sed 's/$/,0/; 2s/0$/1/; 5s/0$/1/; 9s/0$/1/') > submission.csv"


@pytest.mark.slow
def test_a_table_that_is_the_baselines_or_the_samples_is_nobodys_work(tmp_path: Path) -> None:
    """By its bytes or by its score: the same answers in another order are the same work."""

    async def work(env: MlgymEnv) -> None:
        task = env.tasks("train")[0]
        spec = env.spec(task)
        ids = [line.partition(",")[0] for line in (spec.data_directories()[0][1] / "test.csv").read_text().splitlines()]
        sample = tmp_path / "sample.csv"
        sample.write_text("".join(f"{id},{0 if i else 'Survived'}\n" for i, id in enumerate(ids)))
        env.spec = lambda task: replace(spec, sample_submission=sample)  # type: ignore[method-assign]
        copied = f"cat << 'EOF' > submission.csv\n{sample.read_text()}\nEOF"
        shuffled = f"{ZEROS}; (head -1 submission.csv; tail -n +2 submission.csv | tac) > s; mv s submission.csv"
        # Where nothing is handed in, that is priced by having no score.
        for line, idle in (("python baseline.py", 1), (copied, 1), (shuffled, 1), (OWN, 0), ("ls", 0)):
            game = await play(env, [line, "submit"])
            assert game.rewards["idle"] == -0.5 * idle and game.metrics["idle"] == idle, (line[:60], observed(game))
            assert game.metrics["scored"] == (line != "ls"), observed(game)

    with_env(work, task_configs=["titanic.yaml"])


def test_percentiles_rank_and_share_ties() -> None:
    assert rewards.percentiles([3.0, None, 1.0, 2.0]) == [1.0, 0.0, pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert rewards.percentiles([1.0, 1.0]) == [0.5, 0.5]
    assert rewards.percentiles([1.0]) == [0.0]


def test_old_observations_become_notes_in_batches() -> None:
    long = "x" * 200
    messages = [Message(role="system", content=long), Message(role="user", content=long)]
    for i in range(7):
        messages += [Message(role="assistant", content=f"r{i}"), Message(role="user", content=f"{i}{long}")]
    shaped = shorten(messages, 3)
    notes = [m["content"].startswith("[an earlier") for m in shaped[2:] if m["role"] == "user"]
    assert notes == [True] * 3 + [False] * 4
    assert [m["content"] for m in shaped if m["role"] == "assistant"] == [f"r{i}" for i in range(7)]
    assert shorten(messages, 0) == messages and shaped[:2] == messages[:2]
    earlier = shorten(messages[:-2], 3)
    assert earlier == shaped[: len(earlier)]  # from turn to turn mostly the same, so little is read anew


def test_examples_are_draws_and_held_out_ones_are_others() -> None:
    env = load_environment("mlgym", {"task_configs": ["titanic", GAME], "num_examples_per_task": 3})
    train, held_out = env.tasks("train"), env.tasks("eval")
    assert [t.id for t in train[:4]] == ["titanic-0", f"{GAME}-0", "titanic-1", f"{GAME}-1"]
    assert {t.family for t in train} == {"titanic", GAME}
    draws = {t.payload["variant"] for t in train if t.family == "titanic"}
    others = {t.payload["variant"] for s in ("eval", "test") for t in env.tasks(s) if t.family == "titanic"}
    assert len(draws) == 3 and not draws & others
    assert len({t.id for s in ("train", "eval", "test") for t in env.tasks(s)}) == 18
    assert len(held_out) == 6


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"task_configs": ["titanik"]}, "did you mean titanic"),
        ({"trajectory_dir": "x"}, "output_dir"),
        ({"save_trajectories": False}, "every trajectory"),
        ({"sandbox": "container"}, "container_image"),
        ({"source": "checkout"}, "AIR_MLGYM_ROOT"),
        ({"metrics": {"titanik": {"metric": "accuracy", "direction": "up"}}}, "titanik"),
    ],
)
def test_wrong_arguments_are_refused_with_the_correction(
    args: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    with pytest.raises((AirError, ValueError), match=said):
        load_environment("mlgym", args).tasks("train")


def test_a_run_in_another_event_loop_starts_its_own_sandboxes() -> None:
    env = MlgymEnv(MlgymArgs(task_configs=[GAME], prompt="short", standby=0))

    async def once() -> float:
        return (await play(env, [DEFECT, "submit"])).metrics["improved"]

    assert asyncio.run(once()) == 1
    assert asyncio.run(once()) == 1
    env.abandon()
