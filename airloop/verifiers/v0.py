"""An environment of verifiers' first interface (to 0.3): load_environment() and a rubric. Used by worker.py."""

from __future__ import annotations

import contextvars
import copy
import logging
import sys
from collections.abc import Iterator
from typing import Any

CONNECT_S = 60.0
# The policy's own doing, or a request that it was refused: what an agent's program would have crashed of.
THE_POLICYS = ("ModelResponseError", "ToolError", "ToolParseError", "ToolCallError", "BadRequestError")
# Of a reward function that failed: a judge that did not answer, not a reply that could not be read.
ON_THE_WAY = {"APIError", "OpenAIError", "TransportError", "ConnectionError", "InfraError", "ClientError"}


class V0:
    def __init__(self, name: str, args: dict[str, Any]) -> None:
        import httpx
        import verifiers

        self.version = verifiers.__version__
        # One for all episodes: to make one takes longer than many a rollout. The address and the key are an episode's.
        no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_S), limits=no_limit)
        self.env = verifiers.load_environment(name, **args)
        logging.getLogger("verifiers").addHandler(Overheard())

    def describe(self) -> dict[str, Any]:
        rubric = self.env.rubric
        functions = functions_of(rubric)
        return {
            "interface": "v0",
            "version": self.version,
            "components": functions,
            "whole": functions is None,
            "in_groups": [f.__name__ for f in rubric._get_reward_funcs() if rubric._is_group_func(f)],
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

    async def play(self, order: dict[str, Any]) -> dict[str, Any]:
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        at = {"base_url": order["base_url"], "api_key": order["api_key"]}
        client = OpenAIChatCompletionsClient(AsyncOpenAI(**at, http_client=self.http))
        overheard: list[BaseException] = []
        OVERHEARD.set(overheard)
        sampling = copy.deepcopy(self.env.sampling_args)
        return result_of(await self.env.run_rollout(order["row"], client, order["model"], sampling), overheard)

    async def close(self) -> None:
        await self.http.aclose()
        await self.env._teardown()


def functions_of(rubric: Any) -> dict[str, float] | None:
    """The reward functions with their weights; None where the reward is not the weighted sum of them."""
    from verifiers.rubrics.rubric import Rubric
    from verifiers.rubrics.rubric_group import RubricGroup

    def sums(one: Any) -> bool:
        if type(one).score_rollout is RubricGroup.score_rollout:
            return all(map(sums, one.rubrics))
        return bool(type(one).score_rollout is Rubric.score_rollout)

    names, weights = rubric._get_reward_func_names(), rubric._get_reward_weights()
    if not sums(rubric) or len(names) != len(weights):
        return None
    pairs = list(zip(names, weights, strict=True))
    shared = {name for name in names if names.count(name) > 1}  # whose values are added before they are weighed
    return None if any(weight for name, weight in pairs if name in shared) else {n: float(w) for n, w in pairs}


def result_of(played: Any, overheard: list[BaseException]) -> dict[str, Any]:
    if failed := played.get("error"):
        said = failed if isinstance(failed, str) else failed["error_chain_repr"]
        return {"crash" if any(kind in said for kind in THE_POLICYS) else "infra": said}
    if on_the_way := [error for error in overheard if is_on_the_way(error)]:
        return {"infra": f"a reward could not be had: {type(on_the_way[0]).__name__}: {on_the_way[0]}"}
    values = {name: float(value) for name, value in (played.get("metrics") or {}).items()}
    # The library counts such a function as 0 and only logs it.
    return {"values": {**values, "reward_errors": float(len(overheard))}, "reward": float(played["reward"])}


# --- what the library only logs ----------------------------------------------------------------------------------

OVERHEARD: contextvars.ContextVar[list[BaseException]] = contextvars.ContextVar("overheard")


class Overheard(logging.Handler):
    """A reward function that fails is 0 to the library. It logs that with the error at hand, in the episode's task."""

    def emit(self, record: logging.LogRecord) -> None:
        error, heard = sys.exc_info()[1], OVERHEARD.get(None)
        if error is not None and heard is not None and "reward function" in record.getMessage():
            heard.append(error)


def is_on_the_way(error: BaseException) -> bool:
    return any({kind.__name__ for kind in type(one).__mro__} & ON_THE_WAY for one in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
