"""An environment of verifiers' second interface (0.4 on): a Taskset, and agents that a harness runs. Used by worker.py
beside it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

NUMBERS = itertools.count()
HERE = ("127.0.0.1", "localhost", "::1")
# Errors of the agent's own program, or of the policy: any agent's program would have crashed with them. All others are
# failures of the environment.
POLICY_ERRORS = {"HarnessError"}
PRIME = "PRIME_API_KEY"


class V1:
    def __init__(self, name: str, args: dict[str, Any]) -> None:
        import verifiers
        from verifiers.v1.utils import loaders

        self.version = verifiers.__version__
        taskset = {**args.get("taskset", {}), "id": name}
        config = loaders.resolve_env_config({**args, "taskset": taskset})
        self.task_type = loaders.task_type(name)
        self.env = loaders.load_environment(on_this_machine(config, self.task_type))
        self.over = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def describe(self) -> dict[str, Any]:
        functions = self.functions()
        return {
            "interface": "v1",
            "version": self.version,
            "components": functions,
            "whole": functions is None,
            "in_groups": [],  # it has none: attempts are compared inside an episode, by finalize()
            "lacks": [*lacking_keys(self.env.config), *self.lacking_sandbox()],
            "unsafe": self.unsafe(),
        }

    def functions(self) -> dict[str, float] | None:
        """Rewards with their weights; None where they are only known when an episode has ended."""
        from verifiers.v1.env import Env

        first = next(iter(self.env.taskset), None)
        if first is None or type(self.env).finalize is not Env.finalize or len(self.env._agent_specs) > 1:
            return None
        found = first.hooks("reward")
        if first.plugged_judges() or any(gives_several(function) for function in found):
            return None
        metrics = {function.__name__: 0.0 for function in first.hooks("metric") if not gives_several(function)}
        return {**metrics, **{function.__name__: float(getattr(function, "_vf_weight", 1.0)) for function in found}}

    def lacking_sandbox(self) -> Iterator[tuple[str, str]]:
        from verifiers.v1.utils.prime import load_prime_config

        for role, spec in self.env._agent_specs.items():
            if spec.runtime.type == "prime" and not (os.environ.get(PRIME) or load_prime_config().get("api_key")):
                harness = self.env._harnesses[role].config.id
                yield (
                    f"its harness {harness!r} runs in a rented sandbox of Prime Intellect, and {PRIME} is not set",
                    f'args = {{ {role} = {{ harness = {{ id = "null" }} }} }}, which needs none; or '
                    f'{role} = {{ runtime = {{ type = "docker" }} }}; or set {PRIME}',
                )

    def unsafe(self) -> str:
        """The harness that runs what the model writes on this machine, with nothing between them."""
        for name, spec in self.env._agent_specs.items():
            harness = self.env._harnesses[name]
            if getattr(harness, "EXECUTES_CODE", False) and spec.runtime.type == "subprocess":
                return f"{name}: {harness.config.id}"
        return ""

    def rows(self, most: int | None) -> dict[str, Any]:
        taskset = self.env.taskset
        if taskset.INFINITE and most is None:
            return {"endless": True}
        tasks = itertools.islice(iter(taskset), most)
        return {"train": [task.data.model_dump(mode="json") for task in tasks], "test": []}

    async def play(self, request: dict[str, Any]) -> dict[str, Any]:
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        await self.serve()
        task = self.task_type(self.task_type.data_type().model_validate(request["row"]), self.env.config.taskset.task)
        variable = f"AIR_EPISODE_API_KEY_{next(NUMBERS)}"  # the library wants the name of a variable
        os.environ[variable] = request["api_key"]
        client = EvalClientConfig(base_url=request["base_url"], api_key_var=variable)
        try:
            return result_of(await self.env.run_episode(task, ModelContext(model=request["model"], client=client)))
        finally:
            del os.environ[variable]

    async def serve(self) -> None:
        """Opens what all episodes share, with the first of them; the task that has opened it closes it."""
        if self.serving is None:
            self.serving = asyncio.ensure_future(self._serve())
            self.serving.add_done_callback(self._not_served)
        await asyncio.shield(self.ready)

    async def _serve(self) -> None:
        try:
            async with self.env.serving():
                self.ready.set_result(None)
                await self.over.wait()
        except SystemExit as error:  # it would end the process, with all other episodes
            raise RuntimeError(f"it wants to end: {error}") from error

    def _not_served(self, ended: asyncio.Task[None]) -> None:
        if not self.ready.done():
            self.ready.set_exception(ended.exception() or RuntimeError("it was told to end"))

    async def close(self) -> None:
        self.over.set()
        if self.serving is not None:
            await asyncio.gather(self.serving, return_exceptions=True)


def gives_several(function: Any) -> bool:
    text = str(inspect.signature(function).return_annotation).lower()
    return "dict" in text or "mapping" in text


def on_this_machine(config: Any, task_type: Any) -> Any:
    """The config with agents on this machine whose runtime is the default, where their harness runs nothing that the
    model writes: the library's default is a rented sandbox."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.configs.env import default_agent_harness
    from verifiers.v1.runtimes import SubprocessConfig
    from verifiers.v1.utils.loaders import harness_class

    agents = agent_config_fields(config)
    for role, spec in agents.items():
        harness = harness_class((spec.harness or default_agent_harness(config.taskset.id)).id)
        safe = not (harness.EXECUTES_CODE or harness.NEEDS_CONTAINER or task_type.NEEDS_CONTAINER)
        if safe and spec.runtime.type == "prime" and spec.runtime == type(spec.runtime)():
            config = config.model_copy(update={role: spec.model_copy(update={"runtime": SubprocessConfig()})})
    return config


def lacking_keys(config: Any) -> list[tuple[str, str]]:
    """Of judges, or of agents with a model of their own."""
    names = dict.fromkeys(lacking(config))
    return [(f"it asks a model of its own, a judge perhaps, and {name} is not set", f"set {name}") for name in names]


def lacking(config: Any) -> Iterator[str]:
    """Variables with keys that are needed and not set."""
    from pydantic import BaseModel
    from verifiers.v1.configs.client import BaseClientConfig, resolve_api_key

    asks = isinstance(config, BaseClientConfig) and urlparse(config.base_url).hostname not in HERE
    if asks and resolve_api_key(config) == "EMPTY":
        yield config.api_key_var
    parts: Any = ()
    if isinstance(config, BaseModel):
        parts = [getattr(config, name) for name in type(config).model_fields]
    elif isinstance(config, (list, tuple, dict)):
        parts = config.values() if isinstance(config, dict) else config
    for part in parts:
        yield from lacking(part)


def result_of(episode: Any) -> dict[str, Any]:
    """One reward of an episode: that of the trace that is trained, or the mean where several are."""
    errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
    if not episode.ok and errors:
        text = "; ".join(f"{error.type}: {error.message}" for error in errors)
        return {"crash" if all(map(is_policy_error, errors)) else "infra": text}
    if not episode.ok:
        return {"infra": "it did not end well and says no reason"}
    traces = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
    values: dict[str, float] = {}
    for trace in traces:
        rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        for name, value in {**metrics, **rewards}.items():
            values[name] = values.get(name, 0.0) + float(value) / len(traces)
    earned = [float(trace.reward) for trace in traces]
    if len(traces) > 1:  # what sets attempts at one task apart is lost in their mean
        values["reward_spread"] = max(earned) - min(earned)
    return {"values": values, "reward": sum(earned) / len(earned)}


def is_policy_error(error: Any) -> bool:
    refused = error.type == "ProviderError" and 400 <= (getattr(error, "status_code", None) or 500) < 500
    return refused or error.type in POLICY_ERRORS
