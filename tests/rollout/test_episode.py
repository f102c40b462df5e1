from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from support.rollout_world import STOP, TEMPLATES, Says, ScriptedEngine, StubEnv, ToolEnv, chat_tokenizer, command

from airloop.chat.session import ChatSession
from airloop.engine.base import EngineDowntime, Sampling
from airloop.errors import InfraError
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import tiny_tokenizer
from airloop.rollout import deadline
from airloop.rollout import episode as episode_module
from airloop.rollout.agents import PolicyAgent
from airloop.rollout.episode import BadReward, EpisodeDefect, run_episode, weighted_reward
from airloop.types import Observation, Score, Trajectory


def play(env: StubEnv, agent: Any, **more: Any) -> Trajectory:
    task = env.tasks("train")[0]
    return asyncio.run(run_episode(env, task, agent, id="x", seed=7, **{"version": 2, **more}))


def policy(engine: ScriptedEngine, max_tokens: int = 200) -> PolicyAgent:
    return PolicyAgent(ChatSession(engine, engine.tokenizer, Sampling(max_tokens), seed=7, order="000001-0002"))


async def hang(_: Any) -> None:
    await asyncio.sleep(100)


def fail(error: BaseException) -> Any:
    def hook(_: Any) -> None:
        raise error

    return hook


def test_done_with_all_the_records() -> None:
    env = StubEnv()
    engine = ScriptedEngine(chat_tokenizer(), lambda p, s: command("submit" if p.count("did") else "look"))
    t = play(env, policy(engine))
    assert (t.ending, t.seed, t.version, t.error) == ("done", 7, 2, "")
    assert engine.orders == ["000001-0002-000", "000001-0002-001"]
    assert [turn.actions[0].text for turn in t.turns] == ["look", "submit"]
    assert [m["role"] for m in t.turns[0].shown] == ["system", "user"]
    assert [m["content"] for m in t.turns[1].shown] == ["you did: look"]
    assert t.rewards == {"solved": 1.0}
    assert t.turn_rewards == ({"step": 0.5}, {"step": 0.5})
    assert t.reward == pytest.approx(1.0 + 0.1 * 1.0)
    (branch,) = t.branches
    assert t.metrics["sampled_tokens"] == t.sampled_tokens == sum(branch.train)
    assert t.metrics["turns"] == 2 and t.metrics["depth"] == 1.0
    times = t.turns[0].times
    assert (times.queue, times.model) == (0.1, 0.2) and times.tool >= 0
    assert t.turns[1].sampled is not None and t.turns[1].sampled.token_ids[-1] == STOP
    assert env.sessions[0].closed and env.sessions[0].finishes == 1


def test_max_turns_is_scored() -> None:  # D19, G5
    env = StubEnv(max_turns=3)
    t = play(env, Says(command("look")))
    assert (t.ending, len(t.turns), t.reward) == ("max_turns", 3, pytest.approx(1.15))
    assert t.turns[0].sampled is None and t.branches == ()


def test_context_full_is_scored_and_never_longer_than_the_context() -> None:
    env = StubEnv(act=lambda s: Observation("long " * 100, rewards={"step": 0.5}))
    engine = ScriptedEngine(chat_tokenizer(), lambda p, s: command("look"), context=1200)
    t = play(env, policy(engine))
    assert t.ending == "context_full"
    assert 1 <= len(t.turns) < 5 and t.rewards == {"solved": 1.0}
    assert max(len(b.tokens) for b in t.branches) < 1200


def test_deadline_in_act_is_scored_on_what_it_has() -> None:  # D9
    env = StubEnv(act=lambda s: hang(s) if len(s.acted) == 2 else None)
    engine = ScriptedEngine(chat_tokenizer(), lambda p, s: command("look"))
    t = play(env, policy(engine), deadline_s=2.0)
    assert t.ending == "deadline" and 1.9 < t.seconds < 50
    assert [len(turn.observations) for turn in t.turns] == [1, 0]
    assert t.sampled_tokens == sum(len(turn.sampled.token_ids) for turn in t.turns if turn.sampled)
    assert t.reward == pytest.approx(1.05) and env.sessions[0].closed


def test_time_in_which_the_engine_serves_nobody_is_no_episodes_own() -> None:
    """An update beside it, or a server that is started again: it would be scored 0 for it, and trained on."""
    downtime = EngineDowntime()

    class Waits(Says):
        async def reply(self, messages: Any, tools: Any) -> Any:
            with downtime.counted():
                await asyncio.sleep(0.4)
            return await super().reply(messages, tools)

    assert play(StubEnv(), Waits(command("submit")), deadline_s=0.15).ending == "deadline"
    assert play(StubEnv(), Waits(command("submit")), deadline_s=0.15, downtime=downtime).ending == "done"
    late = StubEnv(act=lambda s: hang(s))  # its own time is counted as ever
    t = play(late, Waits(command("submit")), deadline_s=0.15, downtime=downtime)
    assert t.ending == "deadline" and 0.5 < t.seconds < 2


def test_what_several_wait_for_is_the_same_time() -> None:
    async def work() -> tuple[float, float]:
        downtime = EngineDowntime()

        async def wait(seconds: float) -> None:
            with downtime.counted():
                await asyncio.sleep(seconds)

        started = time.monotonic()
        await asyncio.gather(wait(0.1), wait(0.2), wait(0.2))
        first, passed = downtime.seconds, time.monotonic() - started
        await asyncio.sleep(0.1)
        assert downtime.seconds == first
        return first, passed

    counted, passed = asyncio.run(work())
    assert 0.19 < counted <= passed


def test_deadline_while_the_model_speaks() -> None:
    class Slow(Says):
        async def reply(self, messages: Any, tools: Any) -> Any:
            if self.heard:
                await asyncio.sleep(100)
            return await super().reply(messages, tools)

    t = play(StubEnv(), Slow(command("look")), deadline_s=0.1)
    assert (t.ending, len(t.turns)) == ("deadline", 1)


def test_a_session_that_swallows_its_cancellation_cannot_hold_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadline, "STUCK_S", 0.1)

    async def stubborn(_: Any) -> None:
        for _ in range(20):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    t = play(StubEnv(act=stubborn), Says(command("look")), deadline_s=0.1)
    assert t.ending == "infra_error" and "could not be stopped" in t.error

    async def stubborn_once(_: Any) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return

    t = play(StubEnv(act=stubborn_once), Says(command("look")), deadline_s=0.1)
    assert (t.ending, len(t.turns)) == ("deadline", 1)


@pytest.mark.parametrize("where", ["enter", "begin", "act", "finish"])
def test_infrastructure_trouble_is_never_scored(where: str) -> None:  # D7
    env = StubEnv(**{where: fail(InfraError("the sandbox is gone"))})
    t = play(env, Says(command("look")))
    assert (t.ending, t.rewards, t.reward) == ("infra_error", {}, 0.0)
    assert t.error.startswith("the sandbox is gone [at ") and t.error.endswith("hook]")
    assert len(t.turns) == {"enter": 0, "begin": 0, "act": 1, "finish": 5}[where]
    assert env.sessions[0].closed  # also one that did not open
    assert env.sessions[0].finishes == (where == "finish")


@pytest.mark.parametrize("where", ["enter", "begin", "finish"])
def test_hanging_outside_the_turns_is_infrastructure_trouble(where: str) -> None:
    t = play(StubEnv(**{where: hang}), Says(command("submit")), deadline_s=0.1, finish_s=0.1)
    assert t.ending == "infra_error" and "took more than" in t.error


def test_a_session_that_does_not_close_spoils_nothing(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(episode_module, "CLOSE_S", 0.1)
    assert play(StubEnv(exit=hang), Says(command("submit"))).ending == "done"
    assert "closing the session took more than" in caplog.text
    assert play(StubEnv(exit=fail(InfraError("gone"))), Says(command("submit"))).ending == "done"


@pytest.mark.parametrize("where", ["begin", "act", "finish", "exit"])
def test_a_defect_is_raised_with_its_trajectory(where: str) -> None:  # E3
    env = StubEnv(**{where: fail(KeyError("score"))})
    with pytest.raises(EpisodeDefect, match="'stub', task 'task 0': KeyError: 'score'") as caught:
        play(env, Says(command("submit")))
    t = caught.value.trajectory
    assert (t.ending, t.rewards, t.reward) == ("infra_error", {}, 0.0)
    assert "defect: Traceback" in t.error and "KeyError" in t.error
    assert len(t.turns) == (where != "begin")
    assert env.sessions[0].closed


def test_own_timeout_error_of_an_environment_is_a_defect() -> None:
    with pytest.raises(EpisodeDefect, match="TimeoutError"):
        play(StubEnv(act=fail(TimeoutError())), Says(command("look")))


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (Score({"solved": math.nan}), "'solved' is nan"),
        (Score({"solved": math.inf}), "'solved' is inf"),
        (Score({"bonus": 1.0}), "'bonus' has no weight .weights: solved, step"),
        (Score({"step": 1.0}), "'step' is given both per turn and for the whole episode"),
    ],
)
def test_rewards_that_cannot_be_trained_on(score: Score, words: str) -> None:
    with pytest.raises(EpisodeDefect, match=words):
        play(StubEnv(finish=lambda s: score), Says(command("submit")))


def test_weights_and_modes() -> None:
    turns: tuple[dict[str, float], ...] = ({"form": 1.0}, {}, {"form": 0.5})
    assert weighted_reward({"solved": 1.0}, turns, {"solved": 2.0, "form": 1.0, "other": 9.0}, {}) == 3.5
    assert weighted_reward({}, turns, {"form": 1.0}, {"form": "mean"}) == 0.5
    assert weighted_reward({}, (), {}, {}) == 0.0
    assert weighted_reward({"solved": 1.0}, turns, {}, {}) == 2.5  # none is named: each counts 1
    with pytest.raises(BadReward):
        weighted_reward({"solved": 1.0}, (), {"other": 1.0}, {})
    env = StubEnv(max_turns=4)
    env.turn_reward_mode = {"step": "mean"}  # type: ignore[attr-defined]
    env.weigh({"solved": 0.0, "step": 2.0})
    t = play(env, Says(command("look")))
    assert t.reward == pytest.approx(1.0)


def test_several_tool_calls_until_done() -> None:
    calls = ['{"name": "look", "arguments": {}}', "{broken", '{"name": "submit", "arguments": {}}']
    env, agent = ToolEnv(), Says("".join(f"<tool_call>{c}</tool_call>" for c in [*calls, calls[0]]))
    t = play(env, agent)
    (turn,) = t.turns
    assert [a.kind for a in turn.actions] == ["tool", "invalid", "tool", "tool"]
    assert [o.done for o in turn.observations] == [False, False, True]
    assert turn.observations[1].failed
    assert [a.name for a in env.sessions[0].acted] == ["look", "submit"]
    assert t.metrics["invalid_actions"] == 0.25
    assert t.turn_rewards == ({"step": 1.0},)


def test_what_the_agent_hears() -> None:
    agent = Says("hm", command("a") + "\n" + command("b"), command("submit"))
    play(StubEnv(), agent)
    lesson, observation = agent.heard[1][-1], agent.heard[2][-1]
    assert lesson["role"] == "user" and lesson["content"].startswith("No command found")
    assert observation["content"] == "One command per reply; not run: `b`.\nyou did: a"
    tools = Says('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    play(ToolEnv(max_turns=2), tools)
    assert tools.heard[1][-1] == {
        "role": "tool", "content": "you did: look", "name": "look", "tool_call_id": "call_0"
    }  # fmt: skip


def test_replies_cut_by_their_length_are_counted() -> None:
    engine = ScriptedEngine(chat_tokenizer(), lambda p, s: command("look"))
    env = StubEnv(max_turns=2)
    t = play(env, policy(engine, max_tokens=20))
    assert t.metrics["length_stops"] == 1.0
    assert [turn.actions[0].kind for turn in t.turns] == ["invalid", "invalid"]
    assert env.sessions[0].acted == []


def test_a_reply_begins_inside_the_thought_that_the_template_opened() -> None:
    """As templates of models that always think do it."""
    hf = tiny_tokenizer()
    hf.chat_template = TEMPLATES["chatml"].replace("assistant\\n", "assistant\\n<think>\\n")
    tokenizer = ChatTokenizer(hf, name="thinks")
    thought = f"I could write {command('look')}, but should I"
    replies = [thought, f"{thought}? No.\n</think>\n{command('submit')}"]
    engine = ScriptedEngine(tokenizer, lambda p, s: replies[p.count("assistant") - 1])
    env = StubEnv(max_turns=2)
    t = play(env, policy(engine))
    assert [turn.actions[0].kind for turn in t.turns] == ["invalid", "command"]
    assert [action.text for action in env.sessions[0].acted] == ["submit"]


@pytest.mark.parametrize("how", ["cancelled", "late", "broken"])
def test_a_session_whose_opening_fails_is_closed(how: str) -> None:
    """What it has begun, a sandbox perhaps, would be held for ever."""
    env = StubEnv(enter=fail(InfraError("gone")) if how == "broken" else hang)

    async def main() -> None:
        more = {"deadline_s": 0.05} if how == "late" else {}
        run = run_episode(env, env.tasks("train")[0], Says(command("look")), id="x", seed=0, **more)
        task = asyncio.create_task(run)
        await asyncio.sleep(0.05)
        if how == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await task).ending == "infra_error"

    asyncio.run(main())
    assert env.sessions[0].closed and env.sessions[0].finishes == 0


def test_cancellation_gets_through_and_closes_the_session() -> None:
    acting = asyncio.Event()

    async def act(session: Any) -> None:
        acting.set()
        await hang(session)

    env = StubEnv(act=act)

    async def main() -> None:
        run = run_episode(env, env.tasks("train")[0], Says(command("look")), id="x", seed=0)
        task = asyncio.create_task(run)
        await acting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert env.sessions[0].closed and env.sessions[0].finishes == 0


def test_cancellation_while_closing_does_not_lose_the_record() -> None:
    closing, kept = asyncio.Event(), []

    async def close(session: Any) -> None:
        closing.set()
        await hang(session)

    env = StubEnv(exit=close)

    async def main() -> None:
        async def work() -> None:
            kept.append(await run_episode(env, env.tasks("train")[0], Says(command("submit")), id="x", seed=0))
            await asyncio.sleep(0)
            kept.append(None)

        task = asyncio.create_task(work())
        await closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [t and t.ending for t in kept] == ["done"]
