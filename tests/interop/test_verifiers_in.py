"""Environments of verifiers as they are, of both of its interfaces: tasks, episodes, rewards, and all that can fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.interop_world import both_at_once, call, interpreter, one_by_one
from support.verifiers_world import CHAT, HERE, NULL, OURS, alone, opened, play, play_all, theirs

from airloop.errors import AirError
from airloop.types import Trajectory
from airloop.verifiers.env import VerifiersEnv

pytestmark = pytest.mark.interop
WORDS: dict[str, tuple[str, dict[str, Any]]] = {"v0": ("first_v0.py", {}), "v1": ("second_v1.py", CHAT)}
both = pytest.mark.parametrize("version", ["v0", "v1"])


def words(version: str, **args: Any) -> VerifiersEnv:
    file, own = WORDS[version]
    return opened(version, OURS / file, **own, **args)


def asked(prompt: str) -> str:
    return re.findall(r"Say (\w+)\.", prompt)[-1]


def says_it(prompt: str, seed: int) -> str:
    """Unless it has an e."""
    word = asked(prompt)
    return "I would rather not." if "e" in word else word


def guesses(prompt: str, seed: int) -> str:
    """Halves what is left."""
    low, high = 0, 15
    for guess, hint in re.findall(r"assistant\n(\d+)<.*?(Higher|Lower)", prompt, re.DOTALL):
        low, high = (int(guess) + 1, high) if hint == "Higher" else (low, int(guess) - 1)
    return str((low + high) // 2)


def ends(played: list[Trajectory]) -> list[tuple[str, str, float]]:
    return [(t.ending, t.error, t.reward) for t in played]


# --- tasks -------------------------------------------------------------------------------------------------------


@both
def test_tasks_have_names_that_stay_and_one_split_each(version: str) -> None:
    env, again = words(version), words(version, eval_share=0.2)
    found = {split: {t.id: t for t in env.tasks(split)} for split in ("train", "eval", "test")}
    assert sum(map(len, found.values())) == 12 and all(found.values())
    assert {t.id for s in found for t in again.tasks(s)} == {id for ids in found.values() for id in ids}
    assert env.reward_weights == {"correct": 1.0, "brief": 0.5}
    assert set(env.components) >= {"correct", "brief", "letters"} and env.max_turns == 64
    if version == "v0":  # its own evaluation, also of what is in both
        asked_in_test = {task.payload["answer"] for task in found["test"].values()}
        assert asked_in_test == {"gnu", "hen", "ibis", "jay", "kiwi", "lark"}


def test_a_row_before_makes_no_other_task() -> None:
    few, more = words("v1", max_tasks=6), words("v1", taskset={"reverse": True})
    ids = [{t.id for s in ("train", "eval", "test") for t in env.tasks(s)} for env in (few, more)]
    assert len(ids[0]) == 6 and ids[0] < ids[1]


def test_tasks_without_end_are_counted() -> None:
    endless = opened("v1", OURS / "endless_v1.py", **CHAT)
    with pytest.raises(AirError, match="max_tasks"):
        endless.tasks("train")
    assert len(endless.host.rows(20)["train"]) == 20


# --- episodes ----------------------------------------------------------------------------------------------------


@both
def test_rewards_are_those_that_the_library_makes_by_itself(version: str, tmp_path: Path) -> None:
    """In v1 by a program that the library starts, where ours stays in the environment's process."""
    played = play(words(version, max_tasks=4), says_it)
    assert {t.ending for t in played} == {"done"} and not any(t.error for t in played)
    args = {} if version == "v0" else {"agent": {"harness": {"id": "null"}, "runtime": HERE}}
    apart = alone(tmp_path, version, WORDS[version][0], args, [dict(t.task.payload) for t in played], says_it)
    for ours, its in zip(played, apart, strict=True):
        assert ours.reward == pytest.approx(its["whole"])
        assert {name: ours.metrics[name] for name in its if name != "whole"} == pytest.approx(
            {name: value for name, value in its.items() if name != "whole"}
        )
    assert {t.rewards["correct"] for t in played} == {0.0, 1.0} and all(t.metrics["letters"] > 0 for t in played)


@pytest.mark.parametrize(("speak", "turns"), [(one_by_one, 3), (both_at_once, 2)])
def test_tools_of_the_first_interface(speak: Callable[[str, int], str], turns: int) -> None:
    played = play(opened("v0", OURS / "first_v0.py", kind="tools"), speak)
    assert ends(played) == [("done", "", 1.0)] * 3
    assert [len(t.turns) for t in played] == [turns] * 3 and all(t.metrics["conversations"] == 1 for t in played)
    assert all(t.tools[0]["function"]["name"] == "look_up" for t in played)


def test_several_turns_of_the_first_interface() -> None:
    played = play(opened("v0", OURS / "first_v0.py", kind="turns"), guesses)
    assert sorted(len(t.turns) for t in played) == [2, 2, 4]
    assert all(t.metrics["num_turns"] == len(t.turns) and t.metrics["conversations"] == 1 for t in played)


def bumps(prompt: str, seed: int) -> str:
    done = prompt.count("count=")
    return call(re.findall(r'"name": "(\w*bump)"', prompt)[0]) if done < 3 else "<answer>done</answer>"


def echoes(prompt: str, seed: int) -> str:
    last = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    return last.rpartition("exact phrase: ")[2]


@pytest.mark.parametrize(
    ("name", "harness", "speak", "turns", "reward"),
    [
        ("echo_v1", NULL, echoes, 1, {"echoed": 1.0}),
        ("counter_tool_v1", NULL, bumps, 4, {"counted": 1.0}),
        ("counter_tool_v1", CHAT, bumps, 4, {"counted": 1.0}),
        ("echo_user_sim_v1", CHAT, echoes, 2, {"echoed": 1.0}),
    ],
)
def test_examples_of_the_second_interface(
    name: str, harness: dict[str, Any], speak: Callable[[str, int], str], turns: int, reward: dict[str, float]
) -> None:
    """A phrase to repeat, a tool with a state, and a user who speaks twice: of the library's own source."""
    env = opened("v1", theirs(name), **harness)
    played = play(env, speak)
    assert all(t.ending == "done" and not t.error and t.rewards == reward for t in played), ends(played)
    assert {len(t.turns) for t in played} == {turns}


def test_seats_of_one_episode() -> None:
    """Two agents at one task: what each makes of it is a metric, and the reward that of who is trained."""
    played = play(opened("v1", theirs("duet_v1"), a=CHAT["agent"], b=CHAT["agent"]), echoes)
    assert all(t.ending == "done" and t.reward == t.rewards["total"] == 1.0 for t in played), ends(played)
    assert all(len(t.turns) == 2 and t.metrics["echoed"] == t.metrics["duet"] == 1.0 for t in played)


def test_generators_of_reasoning_gym_by_the_librarys_own_adapter() -> None:
    env = opened("v0", OURS / "gym_v0.py", count=6, config={"min_terms": 2, "max_terms": 2, "max_digits": 1})

    def adds(prompt: str, seed: int) -> str:
        (sum,) = re.findall(r"(\d [+-] \d) =", prompt)
        return str(eval(sum))

    played = play(env, adds)
    assert played and all(t.rewards["check_answer_reward_func"] == 1.0 for t in played), ends(played)


def test_two_versions_side_by_side_in_one_run() -> None:
    """0.3.1 and 0.4.0 exclude each other in one interpreter."""
    envs = {"old": words("v0"), "new": words("v1")}
    played = play_all(envs, says_it)
    assert {t.task.env for t in played} == {"old", "new"} and all(t.ending == "done" for t in played)
    assert envs["old"].described["version"] == "0.3.1" and envs["new"].described["version"] == "0.4.0"


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "args", "ending", "error"),
    [
        ("v0", {"kind": "crash"}, "done", "a defect of the environment"),
        ("v0", {"kind": "infra"}, "infra_error", "its sandbox is lost"),
        ("v0", {"kind": "judged"}, "infra_error", "the judge does not answer"),
        ("v1", {"taskset": {"task": {"fails": True}}}, "infra_error", "a defect of the reward"),
        ("v1", {"agent": {"harness": {"id": "bash"}}}, "infra_error", "not authenticated"),
    ],
)
def test_failures_are_never_a_reward(version: str, args: dict[str, Any], ending: str, error: str) -> None:
    file, own = WORDS[version]
    for trajectory in play(opened(version, OURS / file, **{**own, **args}), says_it):
        assert (trajectory.ending, trajectory.reward) == (ending, 0.0) and error in trajectory.error
        assert trajectory.metrics.get("crashed", 0.0) == float(ending == "done")


def test_a_reward_function_that_fails_is_counted() -> None:
    """To the library it is 0, and only its log knows."""
    played = play(opened("v0", OURS / "first_v0.py", kind="brittle"), says_it)
    assert all(t.ending == "done" and t.metrics["reward_errors"] == 1.0 and t.rewards["brittle"] == 0 for t in played)


@both
def test_a_policy_that_says_nothing_has_ended_so(version: str) -> None:
    played = play(words(version), lambda prompt, seed: "")
    assert all(t.ending == "done" and t.rewards["correct"] == 0.0 for t in played), ends(played)


@pytest.mark.parametrize(
    ("version", "args", "said"),
    [
        ("v0", {"kind": "judge"}, "needs OPENAI_API_KEY"),
        ("v0", {"kind": "strange"}, "strange"),
        ("v1", {"taskset": {"colour": 3}}, "colour"),
    ],
)
def test_what_cannot_be_is_told_before_the_run(
    version: str, args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AirError, match=said):
        assert words(version, **args).reward_weights


def test_H18_a_judge_without_a_key_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_JUDGE_KEY", raising=False)
    judge = {"base_url": "https://judge.invalid/v1", "api_key_var": "MY_JUDGE_KEY"}
    env = words("v1", taskset={"task": {"judge": judge}})
    assert [lack.fix for lack in env.lacks()] == ["set MY_JUDGE_KEY"]
    env.abandon()
    monkeypatch.setenv("MY_JUDGE_KEY", "planted-here")
    del env.described  # the next process has the key
    assert not env.lacks()


def test_a_shell_wants_a_sandbox_and_is_warned_of_where_it_has_none() -> None:
    rented = opened("v1", OURS / "second_v1.py", agent={"harness": {"id": "bash"}})
    (lack,) = rented.lacks()
    assert "PRIME_API_KEY" in lack.what and '"null"' in lack.fix and not list(rented.check_tasks())
    free = opened("v1", OURS / "second_v1.py", agent={"harness": {"id": "bash"}, "runtime": HERE})
    (trouble,) = free.check_tasks()
    assert trouble.severity == "warn" and "'bash'" in trouble.seen and not free.lacks()


def test_a_reward_that_is_no_sum_of_functions_is_one_component() -> None:
    env = opened("v0", OURS / "first_v0.py", kind="own")
    assert env.reward_weights == {"total": 1.0}
    assert {t.reward for t in play(env, says_it)} == {7.0}
    whole = words("v0", whole=True)
    assert all(t.rewards == {"total": t.reward} and "correct" in t.metrics for t in play(whole, says_it))


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(AirError, match="no_such_environment"):
        assert opened("v0", "no-such-environment").reward_weights
    with pytest.raises(AirError, match=r"no_such_environment|no-such-environment"):
        assert opened("v1", "no-such-environment").reward_weights


@both
def test_all_ends_with_its_run(version: str, tmp_path: Path) -> None:
    """Killed in the midst of episodes: no worker, no agent's program, no tool is left."""
    import subprocess
    import sys

    code = (
        "import asyncio, json, sys\n"
        "from airloop.envs.base import load_environment\n"
        "from airloop.rollout.program import EpisodeEndpoint\n"
        "from airloop.serve.served_agent import ServedAgent\n"
        "class Slow:\n"
        "    async def reply(self, messages, tools):\n"
        "        print('asked', flush=True)\n"
        "        await asyncio.sleep(100)\n"
        "async def main():\n"
        "    env = load_environment(sys.argv[1], json.loads(sys.argv[2]))\n"
        "    async with EpisodeEndpoint() as endpoint:\n"
        "        await env.play(env.tasks('train')[0], 0, endpoint.open('one', ServedAgent(Slow())))\n"
        "asyncio.run(main())\n"
    )
    own = {} if version == "v0" else NULL
    args = json.dumps({"python": interpreter(f"verifiers-{version}"), **own})
    command = [sys.executable, "-c", code, f"verifiers:{OURS / WORDS[version][0]}", args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "MARK": str(tmp_path)}) as process:
        assert process.stdout is not None and process.stdout.readline() == b"asked\n"
        assert len(marked(tmp_path)) >= (2 if version == "v0" else 3)
        process.kill()
    end = time.monotonic() + 30
    while marked(tmp_path):
        assert time.monotonic() < end, marked(tmp_path)
        time.sleep(0.1)


def marked(folder: Path) -> list[int]:
    """Processes that have our mark in their variables."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_an_episode_that_is_cancelled_leaves_the_others(tmp_path: Path) -> None:
    from airloop.rollout.program import EpisodeEndpoint
    from airloop.serve.served_agent import ServedAgent

    class Slow:
        async def reply(self, messages: Any, tools: Any) -> Any:
            await asyncio.sleep(0.5 if "bee" in str(messages) else 100)
            return {"role": "assistant", "content": "bee"}

    async def cancelled() -> float:
        env = words("v0")
        by_word = {t.payload["answer"]: t for s in ("train", "eval", "test") for t in env.tasks(s)}
        async with EpisodeEndpoint() as endpoint:
            stays = asyncio.ensure_future(env.play(by_word["bee"], 0, endpoint.open("one", ServedAgent(Slow()))))
            goes = asyncio.ensure_future(env.play(by_word["cat"], 0, endpoint.open("two", ServedAgent(Slow()))))
            await asyncio.sleep(0.2)
            goes.cancel()
            score = await stays
        return score.rewards["correct"]

    assert asyncio.run(cancelled()) == 1.0
