"""What is asked of the process of an environment of verifiers whose episodes are scored together: a scripted worker
answers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airloop.envs.base import load_environment
from airloop.errors import AirError, InfraError
from airloop.rollout.program import Address, ProgramCrashed
from airloop.types import Score, Task
from airloop.verifiers import host
from airloop.verifiers.env import VerifiersEnv

WORKER = """
import json, sys
kept, log = {}, open(LOG, "a")
described = {"interface": "v0", "version": "0", "components": {"good": 1.0, "rank": 0.5, "size": 0.0},
             "whole": False, "in_groups": ["rank"], "lacks": [], "unsafe": ""}
for line in sys.stdin:
    order = json.loads(line)
    what = order.get("do", "kill")
    says = order.get("row", {}).get("says")
    if says == "die":
        sys.exit(3)
    if says == "hang":
        continue
    print(what, *order.get("episodes", ()), file=log, flush=True)
    if what == "describe":
        result = {"described": described}
    elif what == "play":
        kept[order["keep"]] = order["row"]["says"]
        result = {"crash": "it fell"} if order["row"]["says"] == "crash" else {}
    elif what == "score" and all(id in kept for id in order["episodes"]):
        values = [{"good": 1.0, "rank": float(i), "size": 3.0} for i, _ in enumerate(order["episodes"])]
        wrong = "wrong" in kept.values()
        result = {"scores": [{"values": one, "reward": 1.0 + 0.5 * one["rank"] + wrong} for one in values]}
    else:
        result = {"infra": "gone"}
        [kept.pop(id, None) for id in order.get("episodes", ())]
    print(json.dumps({"id": order["id"], "code": 0, "result": result, "printed": ""}), flush=True)
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiersEnv]:
    (tmp_path / "worker.py").write_text(WORKER.replace("LOG", repr(str(tmp_path / "log"))))
    monkeypatch.setattr(host, "WORKER", tmp_path / "worker.py")
    made = load_environment("verifiers:some", {"python": sys.executable, "success": "good"})
    assert isinstance(made, VerifiersEnv)
    yield made
    made.abandon()


LACKING = """
import json, sys
for line in sys.stdin:
    result = {"defect": "KeyError: 'JUDGE_KEY'", "lacks": ["JUDGE_KEY"]}
    print(json.dumps({"id": json.loads(line)["id"], "code": 0, "result": result, "printed": ""}), flush=True)
"""


async def play(env: VerifiersEnv, says: str, id: str) -> Score:
    return await env.play(Task("some", says, "train", {"says": says}), 0, Address("http://x/v1", "key", episode=id))


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_episodes_are_played_first_and_scored_together(env: VerifiersEnv, tmp_path: Path) -> None:
    async def group() -> list[Score]:
        scores = [await play(env, "hi", "a"), await play(env, "ho", "b")]
        assert scores == [Score({}), Score({})]
        return list(await env.score_group(["a", "b"]))

    first, second = asyncio.run(group())
    assert env.scores_groups and env.beyond_scripts == ["rank"] and env.reward_weights == {"good": 1.0, "rank": 0.5}
    assert first == Score({"good": 1.0, "rank": 0.0}, {"good": 1.0, "rank": 0.0, "size": 3.0})
    assert second.rewards == {"good": 1.0, "rank": 1.0}
    assert log(tmp_path) == ["describe", "play", "play", "score a b"]


def test_a_crash_is_the_episodes_own_and_a_score_that_fails_is_not(env: VerifiersEnv) -> None:
    with pytest.raises(ProgramCrashed, match="it fell"):
        asyncio.run(play(env, "crash", "a"))
    with pytest.raises(InfraError, match="gone"):
        asyncio.run(env.score_group(["never played"]))


def test_rewards_that_are_no_sum_of_functions_are_told(env: VerifiersEnv) -> None:
    asyncio.run(play(env, "wrong", "a"))
    with pytest.raises(AirError, match="not the weighted sum") as told:
        asyncio.run(env.score_group(["a"]))
    assert "whole = true" in told.value.fix


def test_what_is_forgotten_starts_no_process(env: VerifiersEnv, tmp_path: Path) -> None:
    asyncio.run(play(env, "hi", "a"))
    env.forget(["a", "b"])
    end = time.monotonic() + 30
    while log(tmp_path)[-1] != "forget a b":
        assert time.monotonic() < end, log(tmp_path)
        time.sleep(0.01)
    with pytest.raises(InfraError):
        asyncio.run(env.score_group(["a"]))
    env.abandon()
    before = log(tmp_path)
    env.forget(["a"])
    assert log(tmp_path) == before and env.host._process._process is None


def test_H18_a_worker_that_dies_or_hangs_is_no_score_and_harms_no_other_episode(env: VerifiersEnv) -> None:
    """The next one has a process again; one that hangs ends with its episode's own time, and holds nobody else."""

    async def main() -> None:
        with pytest.raises(InfraError, match="ended with code 3"):
            await play(env, "die", "d")
        await play(env, "first", "a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(play(env, "hang", "h"), 0.2)
        await play(env, "second", "b")
        assert [score.rewards["good"] for score in await env.score_group(["a", "b"])] == [1.0, 1.0]

    asyncio.run(main())


def test_H18_a_judges_key_that_is_missing_is_named_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(LACKING)
    monkeypatch.setattr(host, "WORKER", tmp_path / "worker.py")
    env = load_environment("verifiers:some", {"python": sys.executable, "success": "good"})
    try:
        with pytest.raises(AirError, match="needs JUDGE_KEY, for a judge perhaps") as told:
            assert env.reward_weights
        assert told.value.fix == "set JUDGE_KEY where air is started."
    finally:
        env.abandon()
