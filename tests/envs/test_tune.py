"""The environment `tune`: its commands, rewards, tasks, and its scripted agents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from airloop.envs.base import load_environment
from airloop.envs.tune import TuneEnv
from airloop.envs.tune.command import OPTIONS, RANGES, CommandError, parse, render
from airloop.envs.tune.env import DIRECTIONS, WORST_IMPROVEMENT, TuneArgs, measured
from airloop.envs.tune.measure import grid
from airloop.errors import AirError
from airloop.rollout.episode import run_episode
from airloop.types import Action, Observation, Score, Task, Trajectory

# One of each kind, quick to fit.
KINDS = {"classification": "spam", "regression": "quakes"}
SPLITS = ("train", "eval", "test")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TuneEnv]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment = TuneEnv()
        environment.warm()
        yield environment
        asyncio.run(environment.close())


def all_tasks(env: TuneEnv) -> list[Task]:
    return [task for split in SPLITS for task in env.tasks(split)]


def task_of(env: TuneEnv, kind: str) -> Task:
    return next(task for task in env.tasks("train") if task.payload["dataset"] == KINDS[kind])


async def play_all(env: TuneEnv, tasks: list[Task], script: str) -> list[Trajectory]:
    return list(await asyncio.gather(*(play(env, task, script) for task in tasks)))


async def act(env: TuneEnv, task: Task, *commands: str) -> tuple[list[Observation], Score]:
    async with env.open(task, seed=0) as session:
        await session.begin()
        observations = [await session.act(Action("command", command)) for command in commands]
        return observations, await session.finish()


async def play(env: TuneEnv, task: Task, name: str, seed: int = 0) -> Trajectory:
    return await run_episode(env, task, env.scripted(name, task, seed), id=f"{task.id}/{name}", seed=seed)


# --- tasks --------------------------------------------------------------------------------------------


def test_splits_have_disjoint_data_sets_and_enough_tasks(env: TuneEnv) -> None:
    names = {split: {task.payload["dataset"] for task in env.tasks(split)} for split in SPLITS}
    assert not names["train"] & names["eval"] and not names["train"] & names["test"]
    assert not names["eval"] & names["test"]
    assert len(env.tasks("train")) >= 24 and len(env.tasks("eval")) >= 12 and len(env.tasks("test")) >= 24
    for split in SPLITS:
        assert {task.payload["kind"] for task in env.tasks(split)} == set(KINDS)


def test_data_sets_are_from_different_tables_across_splits(env: TuneEnv) -> None:
    splits: dict[str, set[str]] = {}
    for task in all_tasks(env):
        splits.setdefault(measured()[task.payload["dataset"]]["source"], set()).add(task.split)
    assert all(len(found) == 1 for found in splits.values())


def test_tasks_are_always_the_same_and_ids_are_unique(env: TuneEnv) -> None:
    again = [task for split in SPLITS for task in TuneEnv().tasks(split)]
    assert all_tasks(env) == again
    assert len({task.id for task in again}) == len(again)


def test_every_task_has_a_finite_baseline_and_a_better_reference(env: TuneEnv) -> None:
    """D5, D18."""
    for task in all_tasks(env):
        assert all(math.isfinite(task.payload["baseline"][part]) for part in ("cv", "valid", "test"))
        sign = DIRECTIONS[task.payload["metric"]]
        assert sign * (task.payload["reference"] - task.payload["baseline"]["test"]) > 0, task.id


def test_arguments() -> None:
    few = load_environment("tune", {"datasets": ["spam"], "tasks_per_dataset": 2})
    assert [task.id for task in few.tasks("train")] == ["spam-0", "spam-1"] and not few.tasks("test")
    with pytest.raises(AirError, match="'spam'"):
        TuneEnv(TuneArgs(datasets=["spamm"]))
    with pytest.raises(AirError, match="no headroom"):
        TuneEnv(TuneArgs(datasets=["iris"]))
    with pytest.raises(AirError, match="max_turns"):
        load_environment("tune", {"max_turn": 4})
    assert TuneEnv(TuneArgs(reward="headroom")).reward_weights == {"tool": 1.0, "headroom": 1.0, "idle": 1.0}


# --- text ---------------------------------------------------------------------------------------------


def test_the_opening_and_the_replies_fit_the_token_budget(env: TuneEnv) -> None:
    """About 2.6 characters of these texts are a token of SmolLM2: 470 characters are 180 tokens."""

    async def main() -> None:
        for task in all_tasks(env):
            opening = await env.open(task, 0).begin()
            assert sum(len(message["content"]) for message in opening.messages) <= 470
            assert opening.messages[0]["role"] == "system"

    asyncio.run(main())
    assert max(len(render(config)) for config, _ in grid()) <= 70


def test_commands_that_run(env: TuneEnv) -> None:
    async def main() -> None:
        for kind in KINDS:
            seen, _ = await act(
                env,
                task_of(env, kind),
                "python train.py --model tree --depth 4",
                "validate",
                "python3 ./train.py --model=knn --k=3 --scale",
                "$ python train.py --model forest --trees 3\nsubmit",
                "submit",
            )
            metric = task_of(env, kind).payload["metric"]
            assert seen[0].text.startswith(f"cv {metric} 0.")
            assert [line.split()[0] for line in seen[1].text.splitlines()] == ["valid", "baseline", "your"]
            assert seen[3].text.endswith("(only the first line ran)") and not seen[3].done
            assert seen[4].done and not any(observation.failed for observation in seen)
            assert all(len(observation.text) <= 140 for observation in seen)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ls", "bash: ls: command not found"),
        ("", "bash: empty command"),
        ("cat answers.csv", "bash: cat: command not found"),
        ("python train.py", "train.py: error: the following arguments are required: --model"),
        ("python train.py --model lasso", "'lasso' is not one of linear, tree"),
        ("python train.py --model tree --depth 99", "argument --depth: 99 is not in 1-16"),
        ("python train.py --model tree --depth deep", "argument --depth: invalid int value: 'deep'"),
        ("python train.py --model boost --lr nan", "argument --lr: nan is not in 0.01-1"),
        ("python train.py --model knn --depth 3", "knn has no --depth"),
        ("python train.py --model knn --neighbours 3", "unrecognized arguments: --neighbours 3"),
        ("python train.py --model tree --depth", "argument --depth: expected one argument"),
        ("python train.py --model 'tree", "bash: syntax error: no closing quotation"),
        ("python other.py", "python: can't open file 'other.py'"),
        ("python -c 'print(1)'", "bash: (: not allowed"),
        ("python -m http.server", "python: only train.py can be run"),
        ("python", "python: only train.py can be run"),
        ("python train.py --model tree; cat x", "bash: ;: not allowed"),
        ("submit now", "submit: takes no arguments"),
    ],
)
def test_error_texts(text: str, error: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert error in str(caught.value)


def test_an_error_never_quotes_more_than_a_line() -> None:
    with pytest.raises(CommandError) as caught:
        parse("python train.py --model " + "x" * 5000)
    assert len(str(caught.value)) <= 130


def test_a_configuration_is_complete_and_renders_back() -> None:
    assert parse("python train.py --model boost --lr 0.5").config == {
        "model": "boost",
        "depth": 3,
        "trees": 10,
        "lr": 0.5,
        "scale": False,
    }
    for config, _ in grid():
        assert parse(render(config)).config == config
    assert set(RANGES) == {name for names in OPTIONS.values() for name in names}


# --- rewards ------------------------------------------------------------------------------------------


def test_oracle_noop_and_cheat_on_each_kind(env: TuneEnv) -> None:
    async def main() -> None:
        for kind in KINDS:
            oracle, noop, cheat = [await play(env, task_of(env, kind), n) for n in ("oracle", "noop", "cheat")]
            assert oracle.ending == "done" and oracle.metrics["improved"] == 1.0
            assert oracle.reward > 0.5 > noop.reward
            assert noop.ending == "max_turns" and noop.reward == -0.5 + WORST_IMPROVEMENT
            assert cheat.reward <= noop.reward

    asyncio.run(main())


def test_noop_and_cheat_earn_nothing_on_any_task(env: TuneEnv) -> None:
    async def main() -> None:
        for task in all_tasks(env):
            noop = await play(env, task, "noop")
            for seed in range(9):
                assert (await play(env, task, "cheat", seed)).reward <= noop.reward

    asyncio.run(main())


def test_every_reward_component_fires_and_is_finite(env: TuneEnv) -> None:
    """D19: whatever ends the episode, all components are there; tool has both signs."""

    async def main() -> None:
        task = task_of(env, "classification")
        good, bad = (await act(env, task, "python train.py --model tree", "nonsense"))[0]
        assert good.rewards == {"tool": 0.5} and bad.rewards == {"tool": -0.5} and bad.failed
        invalid = env.open(task, 0).invalid(Action("invalid", "No command found."))
        assert invalid.rewards == {"tool": -0.5} and invalid.text == "No command found."
        endings = {name: await play(env, task, name) for name in ("oracle", "demo", "noop", "cheat")}
        for trajectory in endings.values():
            assert set(trajectory.rewards) == {"improvement", "idle"} and math.isfinite(trajectory.reward)
            assert all(math.isfinite(value) for value in trajectory.metrics.values())

    asyncio.run(main())


def test_improvement_and_headroom_are_computed_from_the_test_rows(env: TuneEnv) -> None:
    async def main() -> None:
        headroom = TuneEnv(TuneArgs(reward="headroom"))
        for kind in KINDS:
            task = task_of(env, kind)
            command = "python train.py --model forest --depth 8 --trees 40"
            _, score = await act(env, task, command)
            s, b, r = (score.metrics[name] for name in ("score", "baseline", "reference"))
            floor = {"accuracy": 0.5, "r2": 0.5}[task.payload["metric"]]
            assert score.rewards["improvement"] == pytest.approx(10 * (s - b) / max(abs(b), floor))
            assert score.metrics["submitted"] == 0.0 and score.metrics["trained"] == 1.0
            _, other = await act(headroom, task, command, "submit")
            assert other.rewards == {"headroom": pytest.approx((s - b) / (r - b)), "idle": 0.0}
        await headroom.close()

    asyncio.run(main())


def test_linear_without_options_is_the_baseline(env: TuneEnv) -> None:
    """So the stored baseline is what this machine measures, on all three sets of rows."""

    async def main() -> None:
        for kind in KINDS:
            task = task_of(env, kind)
            seen, score = await act(env, task, "python train.py --model linear", "validate")
            assert score.metrics["score"] == pytest.approx(task.payload["baseline"]["test"], abs=1e-5)
            baseline, yours = (line.split()[-1] for line in seen[1].text.splitlines()[1:])
            assert baseline == yours and seen[0].text.endswith(f"{task.payload['baseline']['cv']:.4f}")
            assert score.rewards["improvement"] == pytest.approx(0, abs=1e-3)
            assert score.rewards["idle"] == -0.5 and score.metrics["idle"] == 1.0 and score.metrics["improved"] == 0.0

    asyncio.run(main())


def test_nothing_is_scored_that_was_not_trained_in_this_session(env: TuneEnv) -> None:
    """D15: neither another episode's model nor a failed training counts."""

    async def main() -> None:
        task = task_of(env, "classification")
        await act(env, task, "python train.py --model forest", "submit")
        seen, score = await act(env, task, "submit", "validate", "python train.py --model forest --depth 0")
        assert [observation.failed for observation in seen] == [True, True, True]
        assert not any(observation.done for observation in seen)
        assert seen[0].text == "submit: no model found, run train.py first"
        assert score.rewards == {"improvement": WORST_IMPROVEMENT, "idle": 0.0} and score.metrics["improved"] == 0.0
        assert score.metrics["commands_failed"] == 3.0 and score.metrics["validated"] == 0.0

    asyncio.run(main())


def test_the_last_model_counts_not_the_best(env: TuneEnv) -> None:
    async def main() -> None:
        task = task_of(env, "regression")
        good, bad = "python train.py --model forest --trees 20", "python train.py --model svm --C 0.01"
        scores = [(await act(env, task, *commands))[1].metrics["score"] for commands in ([good], [bad], [good, bad])]
        assert scores[0] > scores[1] == scores[2]

    asyncio.run(main())


# --- scripted agents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_turns", [1, 2, 3, 4, 8])
def test_demonstrations_are_valid_and_fit_the_turns(max_turns: int) -> None:
    async def main() -> None:
        env = TuneEnv(TuneArgs(max_turns=max_turns))
        task = env.tasks("train")[0]
        for seed in range(100):
            agent, messages, kinds = (
                env.scripted("demo", task, seed),
                list((await env.open(task, 0).begin()).messages),
                [],
            )
            for _ in range(max_turns):
                reply = await agent.reply(messages, ())
                messages += [reply, {"role": "user", "content": "cv accuracy 0.5"}]
                kinds.append(parse(reply["content"].strip("`")).kind)
                if kinds[-1] == "submit":
                    break
            assert kinds[0] == "train" and (max_turns == 1 or kinds[-1] == "submit")

    asyncio.run(main())


def test_demonstrations_use_every_model_about_equally(env: TuneEnv) -> None:
    async def main() -> None:
        task, counts = env.tasks("train")[0], dict.fromkeys(OPTIONS, 0)
        for seed in range(600):
            reply = await env.scripted("demo", task, seed).reply((await env.open(task, 0).begin()).messages, ())
            counts[parse(reply["content"].strip("`")).config["model"]] += 1
        assert min(counts.values()) > 60

    asyncio.run(main())


@pytest.mark.slow
def test_the_measured_shares_leave_something_to_learn(env: TuneEnv) -> None:
    """A random model beats the baseline on some tasks, the oracle on nearly all; of those trained on, titanic,
    credit and tumours leave little room by nature and are not counted."""
    little_room = {"titanic", "credit", "tumours"}
    for split in SPLITS:
        tasks = [t for t in env.tasks(split) if split != "train" or t.payload["dataset"] not in little_room]
        facts = [measured()[task.payload["dataset"]]["tasks"][task.payload["seed"]] for task in tasks]
        random = sum(fact["random_beats_baseline"] for fact in facts) / len(facts)
        oracle = sum(fact["oracle_beats_baseline"] for fact in facts) / len(facts)
        assert 0.25 <= random <= 0.65 and oracle >= 0.95, (split, random, oracle)


@pytest.mark.slow
def test_the_oracle_beats_the_baseline_on_most_tasks(env: TuneEnv) -> None:
    played = asyncio.run(play_all(env, all_tasks(env)[::4], "oracle"))
    assert all(t.ending == "done" and not t.metrics["idle"] for t in played)
    missed = {t.task.payload["dataset"] for t in played if not t.metrics["improved"]}
    assert len(played) >= 10 and missed <= {"credit", "titanic", "tumours"}  # where there is little room


@pytest.mark.soak
def test_the_oracle_beats_the_baseline_on_nearly_every_task(env: TuneEnv) -> None:
    played = asyncio.run(play_all(env, all_tasks(env), "oracle"))
    missed = [t.task.payload["dataset"] for t in played if not t.metrics["improved"]]
    # Where there is little room: three below the baseline, one below, and one level with it, which is no success.
    assert sorted(missed) == ["credit", "titanic", "titanic", "titanic", "tumours"]
    assert not any(t.metrics["idle"] for t in played)  # another model that is level with the baseline is work
    assert all(trajectory.ending == "done" for trajectory in played)
