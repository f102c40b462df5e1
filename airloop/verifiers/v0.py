"""An environment of verifiers' first interface (to 0.3): load_environment() and a rubric. Used by worker.py."""

from __future__ import annotations

import contextvars
import copy
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterator
from typing import Any

OLDEST = "0.1.10"
CONNECT_S = 60.0
# Errors that the policy caused, or a rejected request: an agent's program would have crashed with them.
POLICY_ERRORS = ("ModelResponseError", "ToolError", "ToolParseError", "ToolCallError", "BadRequestError")
# Errors of a reward function that are not the policy's fault: a judge that did not answer, for one.
INFRA_ERRORS = {"APIError", "OpenAIError", "TransportError", "ConnectionError", "InfraError", "ClientError"}


class V0:
    def __init__(self, name: str, args: dict[str, Any]) -> None:
        import httpx
        import verifiers

        self.version = verifiers.__version__
        refuse_too_old(self.version)
        # One for all episodes: to make one takes longer than many rollouts. The address and the key are the episode's.
        no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_S), limits=no_limit)
        self.env = verifiers.load_environment(name, **args)
        self.unscored: dict[str, Any] = {}  # what episodes have become, until their group is scored
        logging.getLogger("verifiers").addHandler(RewardErrorHandler())

    def describe(self) -> dict[str, Any]:
        rubric = self.env.rubric
        functions = functions_of(rubric)
        return {
            "interface": "v0",
            "version": self.version,
            "components": functions,
            "whole": functions is None,
            "in_groups": in_groups(rubric),
            "lacks": [],
            "unsafe": "",
        }

    def rows(self, most: int | None) -> dict[str, Any]:
        env = self.env
        train = env.dataset is not None or getattr(env, "dataset_source", None) is not None
        test = env.eval_dataset is not None or getattr(env, "eval_dataset_source", None) is not None
        count = -1 if most is None else most
        return {
            "train": env.get_dataset(count).to_list() if train else [],
            "test": env.get_eval_dataset(count).to_list() if test else [],
        }

    async def play(self, request: dict[str, Any]) -> dict[str, Any]:
        from openai import AsyncOpenAI

        client: Any = AsyncOpenAI(base_url=request["base_url"], api_key=request["api_key"], http_client=self.http)
        if importlib.util.find_spec("verifiers.clients") is not None:  # from 0.1.11 on
            client = importlib.import_module("verifiers.clients").OpenAIChatCompletionsClient(client)
        sampling = copy.deepcopy(self.env.sampling_args)
        if "keep" in request:
            return await self.play_first(request, client, sampling)
        reward_errors: list[BaseException] = []
        REWARD_ERRORS.set(reward_errors)
        return result_of(await self.env.run_rollout(request["row"], client, request["model"], sampling), reward_errors)

    async def play_first(self, request: dict[str, Any], client: Any, sampling: Any) -> dict[str, Any]:
        """Runs an episode as the library does for a group, without scoring it."""
        state = await self.env.rollout(request["row"], client, request["model"], sampling)
        self.unscored[request["keep"]] = state
        error = state.get("error")
        return failure(" from ".join(f"{type(one).__name__}({one})" for one in causes(error))) if error else {}

    async def score(self, episodes: list[str]) -> list[dict[str, Any]]:
        """Scores a group as the library does. A function of the whole group that fails is 0 for all episodes to the
        library; here it is an error."""
        if gone := [name for name in episodes if name not in self.unscored]:
            raise RuntimeError(f"the process that had played {gone[0]} has ended since")
        states = [self.unscored[name] for name in episodes]
        reward_errors: list[BaseException] = []
        REWARD_ERRORS.set(reward_errors)
        rubric = self.env.rubric
        await (rubric.score_group if self.env.score_rollouts else rubric.dummy_score_group)(states)
        own: list[list[BaseException]] = [[] for _ in states]
        for error in reward_errors:
            place = next((i for i, state in enumerate(states) if state is scored_alone(error)), None)
            if place is None or is_infra_error(error):
                raise error
            own[place].append(error)
        return [result_of(state, errors) for state, errors in zip(states, own, strict=True)]

    async def forget(self, episodes: list[str]) -> None:
        for state in [self.unscored.pop(name) for name in episodes if name in self.unscored]:
            await self.env.rubric.cleanup(state)

    async def close(self) -> None:
        await self.http.aclose()
        await self.env._teardown()


def refuse_too_old(version: str) -> None:
    """Checks the method's signature, since development versions are numbered in many ways."""
    from verifiers.envs.environment import Environment

    run = getattr(Environment, "run_rollout", None)
    if run is None or "max_retries" not in inspect.signature(run).parameters:
        raise RuntimeError(
            f"{sys.executable} has verifiers {version}, which runs rollouts in another way: an environment with "
            f"load_environment() needs {OLDEST} or later, to 0.3.1"
        )


def functions_of(rubric: Any) -> dict[str, float] | None:
    """The reward functions with their weights; None where the reward is not the weighted sum of them."""
    from verifiers.rubrics.rubric import Rubric
    from verifiers.rubrics.rubric_group import RubricGroup

    method = "score_group" if in_groups(rubric) else "score_rollout"

    def sums(one: Any) -> bool:
        way = getattr(type(one), method)
        if way is getattr(RubricGroup, method):
            return all(map(sums, one.rubrics))
        return bool(way is getattr(Rubric, method))

    names, weights = rubric._get_reward_func_names(), rubric._get_reward_weights()
    if not sums(rubric) or len(names) != len(weights):
        return None
    pairs = list(zip(names, weights, strict=True))
    shared = {name for name in names if names.count(name) > 1}  # whose values are added before they are weighed
    return None if any(weight for name, weight in pairs if name in shared) else {n: float(w) for n, w in pairs}


def in_groups(rubric: Any) -> list[str]:
    """What compares the episodes of a task: functions, and rubrics with a way of their own to score a group."""
    from verifiers.envs.env_group import EnvGroupRubric
    from verifiers.rubrics.rubric import Rubric
    from verifiers.rubrics.rubric_group import RubricGroup

    known = [kind.score_group for kind in (Rubric, RubricGroup, EnvGroupRubric)]
    own = [] if type(rubric).score_group in known else [type(rubric).__name__]
    inner = [*getattr(rubric, "rubrics", ()), *(env.rubric for env in getattr(rubric, "env_map", {}).values())]
    own += [name_of(function) for function in rubric.funcs if rubric._is_group_func(function)]
    return [*own, *(name for one in inner for name in in_groups(one))]


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))


def failure(text: str) -> dict[str, Any]:
    return {"crash" if any(kind in text for kind in POLICY_ERRORS) else "infra": text}


def result_of(played: Any, reward_errors: list[BaseException]) -> dict[str, Any]:
    if failed := played.get("error"):
        return failure(failed if isinstance(failed, str) else failed["error_chain_repr"])
    if infra_errors := [error for error in reward_errors if is_infra_error(error)]:
        return {"infra": f"a reward could not be had: {type(infra_errors[0]).__name__}: {infra_errors[0]}"}
    values = {name: float(value) for name, value in (played.get("metrics") or {}).items()}
    # The library counts such a function as 0 and only logs it.
    return {"values": {**values, "reward_errors": float(len(reward_errors))}, "reward": float(played["reward"])}


# --- what the library only logs ----------------------------------------------------------------------------------

REWARD_ERRORS: contextvars.ContextVar[list[BaseException]] = contextvars.ContextVar("reward_errors")


class RewardErrorHandler(logging.Handler):
    """Collects the errors of reward functions. One that fails is 0 to the library. It logs that with the error at hand,
    in the episode's task."""

    def emit(self, record: logging.LogRecord) -> None:
        error, reward_errors = sys.exc_info()[1], REWARD_ERRORS.get(None)
        if error is not None and reward_errors is not None and "reward function" in record.getMessage():
            reward_errors.append(error)


def scored_alone(error: BaseException) -> Any:
    """The state that the failed function was given; None for a function of a whole group. The library does not pass it
    on: it is read from the stack frame that caught the error."""
    trace = error.__traceback__
    return None if trace is None else trace.tb_frame.f_locals.get("state")


def is_infra_error(error: BaseException) -> bool:
    return any({kind.__name__ for kind in type(one).__mro__} & INFRA_ERRORS for one in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
