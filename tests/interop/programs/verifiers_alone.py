"""Episodes of environments of verifiers by that library alone: what it makes of them without air."""

import asyncio
import os
import sys


def solve_v0(task):
    import verifiers
    from verifiers.types import ClientConfig

    sys.path.insert(0, task["folder"])
    env = verifiers.load_environment(task["name"], **task["args"])
    client = ClientConfig(api_base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    (played,) = asyncio.run(env.generate([task["row"]], client, "any"))["outputs"]
    return {**played["metrics"], "whole": played["reward"]}


def solve_group_v0(task):
    """So many rollouts of a row, which the library scores as a group: what each was given, in any order."""
    import verifiers
    from verifiers.types import ClientConfig

    sys.path.insert(0, task["folder"])
    env = verifiers.load_environment(task["name"], **task["args"])
    client = ClientConfig(api_base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    rows = [task["row"]] * task["rollouts"]
    played = asyncio.run(env.run_group(rows, client, "any", {}))
    found = sorted([("whole", one["reward"]), *sorted(one["metrics"].items())] for one in played)
    return {f"{name}.{i}": value for i, one in enumerate(found) for name, value in one}


async def solve_v1(task):
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    sys.path.insert(0, task["folder"])
    taskset = {**task["args"].get("taskset", {}), "id": task["name"]}
    env = load_environment(resolve_env_config({**task["args"], "taskset": taskset}))
    (wanted,) = [one for one in env.taskset if one.data.idx == task["row"]["idx"]]
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        (slot,) = env.slots(wanted)
        (trace,) = (await env.run_slot(slot, ModelContext(model="any", client=client))).traces
    rewards = {name: reward.score for name, reward in trace.rewards.items()}
    return {**trace.metrics, **rewards, "whole": trace.reward}
