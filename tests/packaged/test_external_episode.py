"""An episode whose replies come from outside ends as one of air's own does, however it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from airloop.chat.native import NativeReplies
from airloop.engine.base import ContextFull
from airloop.envs.base import Environment, Opening, Session, load_environment
from airloop.errors import InfraError
from airloop.files import read_object
from airloop.packaged.external_episode import ExternalEpisode, ExternalReply
from airloop.rollout.deadline import OutOfTime
from airloop.rollout.episode import EpisodeDefect
from airloop.runs.trajectory_file import from_json
from airloop.types import Action, Message, Observation, Sampled, Score, Task


class Counting(Session):
    """Counts words until it is told to stop; some words are trouble."""

    def __init__(self) -> None:
        self.words, self.ids, self.closed = 0, 0, False

    async def __aexit__(self, *_: Any) -> None:
        self.closed = True

    async def begin(self) -> Opening:
        return Opening((Message(role="user", content="Count."),))

    async def act(self, action: Action) -> Observation:
        self.ids += len(self.reply_ids or ())
        match action.text:
            case "lost":
                raise InfraError("the sandbox is gone")
            case "broken":
                raise ValueError("a defect")
            case "slow":
                await asyncio.sleep(0.2)
        self.words += 1
        return Observation(f"{self.words} so far", done=action.text == "stop")

    async def finish(self) -> Score:
        return Score({"words": float(self.words)}, {"ids": float(self.ids)})


class CountingEnv(Environment):
    name = "counting"
    sessions: list[Counting]

    def __init__(self) -> None:
        super().__init__()
        self.sessions = []

    @property
    def max_turns(self) -> int:
        return 4

    def tasks(self, split: str) -> list[Task]:
        return [Task("counting", "one", split)]

    def open(self, task: Task, seed: int) -> Session:
        self.sessions.append(Counting())
        return self.sessions[-1]


def begin_episode(env: Environment) -> ExternalEpisode:
    return ExternalEpisode(env, env.tasks("train")[0])


def test_replies_from_outside_are_acted_on() -> None:
    async def play() -> None:
        env = CountingEnv()
        episode = begin_episode(env)
        prompt = await episode.begin()
        assert prompt is not None and prompt.messages[-1]["content"] == "Count."
        prompt = await episode.answer(ExternalReply("one", sampled=Sampled((5, 6), (0.0, 0.0), "stop", 0)))
        assert prompt is not None and [m["content"] for m in prompt.messages] == ["Count.", "one", "1 so far"]
        assert await episode.answer(ExternalReply("stop")) is None
        assert (episode.trajectory.ending, episode.trajectory.reward) == ("done", 2.0)
        assert episode.trajectory.metrics["ids"] == 2.0 and env.sessions[0].closed

    asyncio.run(play())


def test_the_environments_own_limit_of_turns_holds() -> None:
    async def play() -> int:
        episode, turns = begin_episode(CountingEnv()), 0
        prompt = await episode.begin()
        while prompt is not None:
            prompt, turns = await episode.answer(ExternalReply("more")), turns + 1
        assert episode.trajectory.ending == "max_turns"
        return turns

    assert asyncio.run(play()) == 4


@pytest.mark.parametrize(("why", "ending"), [(ContextFull(), "context_full"), (OutOfTime(), "deadline")])
def test_an_episode_that_is_stopped_is_scored(why: Exception, ending: str) -> None:
    async def play() -> None:
        env = CountingEnv()
        episode = begin_episode(env)
        await episode.begin()
        waiting = asyncio.ensure_future(episode.answer(ExternalReply("slow")))
        await asyncio.sleep(0.05)
        waiting.cancel()  # as a deadline of verifiers' does, in the middle of an action
        over = await episode.stop(why)
        assert (over.ending, over.reward, env.sessions[0].closed) == (ending, 1.0, True)
        assert await episode.stop(why) is over

    asyncio.run(play())


def test_trouble_is_no_score_and_a_defect_is_raised() -> None:
    async def play() -> None:
        env = CountingEnv()
        episode = begin_episode(env)
        await episode.begin()
        assert await episode.answer(ExternalReply("lost")) is None
        assert episode.trajectory.ending == "infra_error" and "the sandbox is gone" in episode.trajectory.error
        episode = begin_episode(env)
        await episode.begin()
        with pytest.raises(EpisodeDefect, match="a defect"):
            await episode.answer(ExternalReply("broken"))
        episode = begin_episode(env)
        await episode.begin()
        await episode.abandon()
        assert episode.done and all(session.closed for session in env.sessions)

    asyncio.run(play())


def test_trajectories_are_kept_where_asked(tmp_path: Path) -> None:
    async def play() -> None:
        episode = ExternalEpisode(CountingEnv(), Task("counting", "a/b+c", "train"), str(tmp_path / "kept"))
        await episode.begin()
        await episode.answer(ExternalReply("stop"))

    asyncio.run(play())
    (file,) = (tmp_path / "kept").iterdir()
    kept = from_json(read_object(file))
    assert file.name.startswith("a-b-c_") and (kept.task.id, kept.reward, kept.ending) == ("a/b+c", 1.0, "done")


def test_each_episode_of_a_task_has_a_seed_of_its_own() -> None:
    async def play() -> list[int]:
        seeds = []
        for _ in range(2):
            episode = ExternalEpisode(CountingEnv(), Task("counting", "seeds", "train"))
            await episode.begin()
            seeds.append((await episode.stop(ContextFull())).seed)
        return seeds

    first, second = asyncio.run(play())
    assert first != second


def test_calls_and_their_answers_keep_their_ids() -> None:
    replies = NativeReplies()
    call = {"id": "x7", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "I add.", "tool_calls": [call], "reasoning_content": "hm"}
    text = replies.hear(message)
    assert text == 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    reply = [Message(role="user", content="?"), Message(role="assistant", content=text)]
    answer = Message(role="tool", content="2", tool_call_id="call_0")
    assert replies.conversation([*reply, answer]) == [
        {"role": "user", "content": "?"},
        message,
        {"role": "tool", "tool_call_id": "x7", "content": "2"},
    ]
    assert replies.conversation([reply[0], answer])[1] == {"role": "user", "content": "2"}


def test_the_environments_of_air_are_played_alike() -> None:
    """Its own scripts, by hand."""

    async def play(script: str) -> float:
        env = load_environment("gsm8k-calculator")
        task = env.tasks("eval")[0]
        agent, episode = env.scripted(script, task, 0), ExternalEpisode(env, task)
        prompt = await episode.begin()
        while prompt is not None:
            reply = await agent.reply(prompt.messages, prompt.tools)
            prompt = await episode.answer(ExternalReply(reply["content"]))
        return episode.trajectory.reward

    assert asyncio.run(play("oracle")) == 1.0 and asyncio.run(play("noop")) == 0.0
