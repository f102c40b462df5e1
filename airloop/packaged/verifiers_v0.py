"""Our environments as verifiers had them until 0.3: `load_environment`, a MultiTurnEnv and its Rubric.

Imported by packages that `air env package` has written, where verifiers is installed, and by nothing of air.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.utils.message_utils import normalize_messages

from airloop.chat.native import NativeReplies
from airloop.engine.base import ContextFull
from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.packaged.definition import Definition, forget_environment
from airloop.packaged.external_episode import ExternalEpisode, ExternalReply, Prompt, check_no_group_rewards
from airloop.rollout.deadline import OutOfTime
from airloop.rollout.episode import as_message, compared, component_totals
from airloop.types import Sampled, Task, Trajectory

# The keys of an episode in a rollout's state.
EPISODE, REPLIES, TRAJECTORY = "air_episode", "air_replies", "air_trajectory"


def load(
    definition: Definition,
    rewards: Mapping[str, float] | None = None,
    train_split: str = "train",
    eval_split: str = "eval",
    trajectory_dir: str | None = None,
    **args: Any,
) -> vf.Environment:
    """What a package's load_environment gives. `args` are the environment's own, `rewards` the weights of its
    components; `eval_split = "test"` evaluates on the held-out tasks that air tests on; in `trajectory_dir` every
    episode is kept as air keeps it."""
    return PackagedEnv(definition.environment(args, rewards), train_split, eval_split, trajectory_dir)


class PackagedEnv(vf.MultiTurnEnv):
    """verifiers asks the model; what a reply does and is worth, the episode says. It also says when it is over: limits
    of verifiers' own end it earlier."""

    def __init__(self, env: Environment, train_split: str, eval_split: str, trajectory_dir: str | None) -> None:
        self.air, self.trajectory_dir = env, trajectory_dir
        super().__init__(
            dataset=lambda: _rows(env, train_split),
            eval_dataset=lambda: _rows(env, eval_split),
            rubric=PackagedRubric(env),
        )

    async def setup_state(self, state: vf.State) -> vf.State:
        task = Task(**state["info"])
        state[REPLIES], state[EPISODE] = NativeReplies(), ExternalEpisode(self.air, task, self.trajectory_dir)
        prompt = await state[EPISODE].begin()
        state["prompt"] = self._conversation(state, prompt)
        state["tool_defs"] = self._normalize_tool_defs([dict(t["function"]) for t in prompt.tools]) if prompt else []
        return state

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        """The whole conversation as the environment shows it: it may shorten what is past."""
        if not state["trajectory"]:
            return state["prompt"]
        prompt = await state[EPISODE].answer(_last_reply(state))
        return self._conversation(state, prompt)

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """What follows the last reply."""
        return (await self.get_prompt_messages(state))[len(messages) :]

    def _conversation(self, state: vf.State, prompt: Prompt | None) -> vf.Messages:
        if prompt is not None:
            return normalize_messages(state[REPLIES].conversation(prompt.messages))
        trajectory = state[EPISODE].trajectory
        if trajectory.ending == "infra_error":
            raise vf.InfraError(trajectory.error)
        state["final_env_response"] = normalize_messages(_final_observations(self.air, trajectory, state[REPLIES]))
        return []

    @vf.cleanup
    async def end_episode(self, state: vf.State) -> None:
        """However it ended: a reply that was given is acted on, and the episode is scored on what it has."""
        episode = state.get(EPISODE)
        if episode is None:
            return
        if state.get("error") is not None:
            await episode.abandon()
            return
        if not episode.done and state.get("stop_condition") == "max_total_completion_tokens_reached":
            await episode.answer(_last_reply(state))
        state[TRAJECTORY] = await episode.stop(OutOfTime() if state.get("timed_out") else ContextFull())
        if state[TRAJECTORY].ending == "infra_error":
            state["error"] = vf.InfraError(state[TRAJECTORY].error)

    @vf.teardown
    async def release(self) -> None:
        forget_environment(self.air)
        self.air.abandon()


class PackagedRubric(vf.Rubric):
    """The environment's own components and weights; whatever else it measures is a metric. A rollout with an error has
    no score: verifiers counts it 0 and keeps the error beside it."""

    def __init__(self, env: Environment) -> None:
        weights = dict(env.reward_weights)
        funcs = [_component(env, name) for name in weights] or [_whole]
        super().__init__(funcs=funcs, weights=list(weights.values()) or [1.0])
        self.air = env

    @property
    def has_group_rewards(self) -> bool:
        """Whether a group must be scored together."""
        return type(self.air).group_rewards is not Environment.group_rewards

    async def score_rollout(self, state: vf.State) -> None:
        if (trajectory := _scored(state)) is not None:
            check_no_group_rewards(self.air, trajectory)
        await super().score_rollout(state)
        _add_metrics(state)

    async def score_group(self, states: list[vf.State]) -> None:
        scored = [state for state in states if _scored(state) is not None]
        trajectories = tuple(state[TRAJECTORY] for state in scored)
        for state, one in zip(scored, compared(self.air, trajectories), strict=True):
            state[TRAJECTORY] = one
        await super().score_group(states)
        for state in states:
            _add_metrics(state)


def _scored(state: vf.State) -> Trajectory | None:
    """None of a rollout that has ended in an error."""
    trajectory: Trajectory | None = state.get(TRAJECTORY)
    return trajectory if state.get("error") is None else None


def _component(env: Environment, name: str) -> Callable[..., float]:
    """A reward function in verifiers' form."""

    def value(state: vf.State) -> float:
        trajectory = _scored(state)
        if trajectory is None:
            return 0.0
        return component_totals(trajectory.rewards, trajectory.turn_rewards, env.turn_reward_mode).get(name, 0.0)

    value.__name__ = name
    return value


def _whole(state: vf.State) -> float:
    """Of an environment that names no weights: each component that an episode has counts 1."""
    trajectory = _scored(state)
    return 0.0 if trajectory is None else trajectory.reward


def _add_metrics(state: vf.State) -> None:
    """verifiers has the components among the metrics: what is called like one and is another number gets a name of its
    own."""
    trajectory = _scored(state)
    if trajectory is None:
        return
    paid = state["metrics"]
    measured = {f"{k}_measured" if paid.get(k, v) != v else k: v for k, v in trajectory.metrics.items()}
    state["metrics"] = {**measured, **paid}


def _rows(env: Environment, split: str) -> Dataset:
    """Rows that carry their task. Its messages are known when it is opened: until then its name stands for them."""
    tasks = env.tasks(split)
    if not tasks:
        raise AirError(f"Environment {env.name!r} has no tasks in the split {split!r}.", 'name another: "train".')
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"{env.name}: {task.id}"}],
                "answer": "",
                "info": json.dumps({name: getattr(task, name) for name in ("env", "id", "split", "payload", "family")}),
            }
            for task in tasks
        ]
    )


def _last_reply(state: vf.State) -> ExternalReply:
    step = state["trajectory"][-1]
    message = step["completion"][-1]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls or []
    ]
    text = state[REPLIES].hear({"content": _text(message.content), "tool_calls": calls}, message)
    tokens, cut = step["tokens"], bool(step["is_truncated"])
    if not tokens:
        return ExternalReply(text, cut)
    ids, logprobs = tuple(tokens["completion_ids"]), tuple(tokens["completion_logprobs"])
    return ExternalReply(text, cut, Sampled(ids, logprobs, "length" if cut else "stop", 0))


def _text(content: Any) -> str:
    """Of a text, or of parts of which some are."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _final_observations(env: Environment, trajectory: Trajectory, replies: NativeReplies) -> list[Any]:
    """The environment's observations after the last reply."""
    if not trajectory.turns:
        return []
    turn = trajectory.turns[-1]
    answers = [as_message(env, act, seen.text) for act, seen in zip(turn.actions, turn.observations, strict=False)]
    return [message for message in replies.conversation([turn.reply, *answers])[1:] if message["content"]]
