"""Our environments as verifiers has them from 0.4 on: a Taskset, the Harness that plays its episodes, and their Env.

Imported by packages that `air env package` has written, where verifiers is installed, and by nothing of air.
"""

# Without postponed annotations: verifiers and pydantic read the types of fields and hooks from the classes.
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from pydantic import Field, PrivateAttr, model_validator

from airloop.chat.native import NativeReplies
from airloop.engine.base import ContextFull
from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.packaged.definition import Definition, forget_environment
from airloop.packaged.external_episode import ExternalEpisode, ExternalReply, Prompt, check_no_group_rewards
from airloop.rollout.deadline import OutOfTime
from airloop.rollout.episode import component_totals
from airloop.types import Sampled, Task, Trajectory

# The key of the episode's score in a trace: it is also read when the trace is scored again later.
SCORE = "air"


class PackagedData(vf.TaskData):
    """A task, with the arguments of its environment: the row is enough to play it."""

    id: str = ""
    split: str = ""
    family: str = ""
    payload: dict[str, Any] = Field(default_factory=dict)
    args: dict[str, Any] = Field(default_factory=dict)
    rewards: dict[str, float] = Field(default_factory=dict)
    trajectory_dir: str | None = None


class PackagedState(vf.State):
    """The episode that a rollout plays: opened by the task, played by the harness, ended by the task."""

    _episode: ExternalEpisode | None = PrivateAttr(default=None)
    _prompt: Prompt | None = PrivateAttr(default=None)
    _taken: bool = PrivateAttr(default=False)


class PackagedTask(vf.Task[PackagedData, PackagedState]):
    definition: ClassVar[Definition]

    @property
    def key(self) -> str:
        return self.data.id

    def environment(self) -> Environment:
        return self.definition.environment(self.data.args, self.data.rewards)

    async def setup(self, trace: vf.Trace) -> None:
        env, data = self.environment(), self.data
        task = Task(env.name, data.id, data.split, data.payload, data.family)
        trace.state._episode = ExternalEpisode(env, task, data.trajectory_dir)
        trace.state._prompt = await trace.state._episode.begin()
        if trace.state._prompt is None:
            _check(trace.state._episode.trajectory)

    async def finalize(self, trace: vf.Trace) -> None:
        """However it ended, the episode is scored on what it has."""
        episode = trace.state._episode
        if episode is None or (trace.state._prompt is None and not episode.done):
            raise vf.SandboxError("The episode was not open when its time for that was up.")
        if not trace.state._taken and trace.stop_condition == "agent_completed":
            await episode.abandon()  # that harness will not do it
            raise AirError(
                "Another harness than the package's own has run, and played nothing of the episode.",
                "leave env.agent.harness out.",
            )
        trajectory = await episode.stop(OutOfTime() if getattr(trace, "is_timeout", False) else ContextFull())
        _check(trajectory)
        trace.info[SCORE] = self._scored(trajectory)

    def _scored(self, trajectory: Trajectory) -> dict[str, Any]:
        env = self.environment()
        check_no_group_rewards(env, trajectory)
        totals = component_totals(trajectory.rewards, trajectory.turn_rewards, env.turn_reward_mode)
        weights = dict(env.reward_weights) or dict.fromkeys(totals, 1.0)
        components = {name: (totals.get(name, 0.0), weight) for name, weight in weights.items()}
        return {"rewards": components, "metrics": dict(trajectory.metrics), "ending": trajectory.ending}

    async def score(self, trace: vf.Trace, *more: Any, **named: Any) -> None:
        """The environment's own components and weights, beside whatever judges and functions a config adds."""
        await super().score(trace, *more, **named)
        if self.scoring_is_for_later or SCORE not in trace.info:
            return
        for name, (value, weight) in trace.info[SCORE]["rewards"].items():
            trace.record_reward(name, value, weight)
        trace.record_metrics(trace.info[SCORE]["metrics"])

    @property
    def scoring_is_for_later(self) -> bool:
        return bool(getattr(self, "scoring_deferred", False))


class PackagedConfig(vf.TasksetConfig):
    split: str = "train"
    """Which tasks: train, eval or test, as in air."""
    args: dict[str, Any] = Field(default_factory=dict)
    """The environment's own arguments."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """Weights of its reward components; empty: its own."""
    trajectory_dir: str | None = None
    """Where every episode is kept as air keeps it; None: nowhere."""


class PackagedTaskset(vf.Taskset[PackagedTask, PackagedConfig]):
    task: ClassVar[type[PackagedTask]]

    @classmethod
    def task_type(cls) -> type[PackagedTask]:
        return cls.task

    def environment(self) -> Environment:
        return self.task.definition.environment(self.config.args, self.config.rewards)

    def load(self) -> Iterator[PackagedTask]:
        env, config = self.environment(), self.config
        tasks = env.tasks(config.split)
        if not tasks:
            raise AirError(f"Environment {env.name!r} has no tasks in the split {config.split!r}.", "name another.")
        for idx, one in enumerate(tasks):
            data = PackagedData(
                idx=idx,
                id=one.id,
                name=one.id,
                prompt=f"{env.name}: {one.id}",  # stands for its messages, which are known when it is opened
                split=one.split,
                family=one.family,
                payload=dict(one.payload),
                args=config.args,
                rewards=config.rewards,
                trajectory_dir=config.trajectory_dir,
            )
            yield self.task(data, config.task)


class PackagedHarness(vf.Harness[vf.HarnessConfig]):
    """Plays the episode that its task has opened, in this process: what an agent runs, the environment's own sandbox
    runs."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime: vf.Runtime) -> None:
        _check_runtime(runtime.config.type)

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: vf.TaskData,
        **_: Any,
    ) -> vf.ProgramResult:
        state = trace.state
        if not isinstance(state, PackagedState) or state._episode is None:
            raise AirError("This harness plays episodes of its own package only.", "leave env.agent.harness out.")
        state._taken = True
        prompt, replies = state._prompt, NativeReplies()
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            while prompt is not None:
                try:
                    reply = await _ask(client, ctx.model, _with_system(prompt, data.system_prompt), replies, trace)
                except ContextFull as full:
                    await state._episode.stop(full)
                    break
                prompt = await state._episode.answer(reply)
        _check(state._episode.trajectory)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    async def cleanup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """After a failure nobody has ended the episode."""
        episode = getattr(trace.state, "_episode", None)
        if episode is not None and not episode.done:
            await episode.abandon()


class PackagedEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """Who is trained or evaluated."""

    @model_validator(mode="after")
    def _in_this_process(self) -> Self:
        _check_runtime(self.agent.runtime.type)
        return self


class PackagedEnv(vf.Env[PackagedEnvConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)

    async def start(self) -> None:
        """Wrong arguments are reported before the first rollout."""
        self.taskset.environment().warm()

    async def stop(self) -> None:
        with contextlib.suppress(AirError):  # start() has reported it
            env = self.taskset.environment()
            forget_environment(env)
            await env.close()


def classes(definition: Definition) -> tuple[type[vf.Taskset], type[vf.Harness], type[vf.Env]]:
    """What a package exports."""
    task = type("PackagedTask", (PackagedTask,), {"definition": definition})
    taskset = type("Taskset", (PackagedTaskset,), {"task": task})
    return taskset, type("Harness", (PackagedHarness,), {}), type("Env", (PackagedEnv,), {})


def _check_runtime(kind: str) -> None:
    if kind != "subprocess":
        raise ValueError(
            f"episodes of air are played in this process, with a sandbox of their own, not in the runtime {kind!r}: "
            'write env.agent.runtime.type = "subprocess", or leave it out'
        )


async def _ask(
    client: AsyncOpenAI, model: str, prompt: Prompt, replies: NativeReplies, trace: vf.Trace
) -> ExternalReply:
    """Samples a reply. ContextFull where verifiers allows no more: a limit, a stop, or the end of the context."""
    tools = {"tools": [dict(tool) for tool in prompt.tools]} if prompt.tools else {}
    messages: list[Any] = replies.conversation(prompt.messages)
    try:
        answer = await client.chat.completions.create(model=model, messages=messages, **tools)
    except APIStatusError as error:
        if trace.stop_condition is not None or _is_overflow(error):
            raise ContextFull(str(error)) from error
        raise
    choice = answer.choices[0]
    native = choice.message.model_dump(exclude_none=True)
    cut = choice.finish_reason == "length"
    return ExternalReply(replies.hear(native, {"content": "", **native}), cut, _sampled(trace, cut))


def _is_overflow(error: APIStatusError) -> bool:
    reply = str(error).lower()
    return error.status_code == 400 and ("context_length" in reply or "maximum context length" in reply)


def _with_system(prompt: Prompt, system: str | None) -> Prompt:
    """A system prompt that a config gives stands in place of the environment's."""
    if system is None:
        return prompt
    rest = [message for message in prompt.messages if message["role"] != "system"]
    return Prompt(({"role": "system", "content": system}, *rest), prompt.tools)


def _sampled(trace: vf.Trace, cut: bool) -> Sampled | None:
    """The reply's own tokens, which a trainer's client leaves in the trace: in lists or, later, arrays."""
    node = next((node for node in reversed(trace.nodes) if node.sampled), None)
    if node is None or not len(node.token_ids):
        return None
    ids = tuple(int(token) for token, own in zip(node.token_ids, node.mask, strict=True) if own)
    return Sampled(ids, tuple(map(float, node.logprobs)), "length" if cut else "stop", 0)


def _check(trajectory: Trajectory) -> None:
    """Infrastructure trouble is never a reward: verifiers drops or repeats what ends so."""
    if trajectory.ending == "infra_error":
        raise vf.SandboxError(trajectory.error)
