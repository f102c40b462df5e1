"""Episodes of a package that `air env package` has written, by verifiers' own means. Says what came of each as JSON.

python packaged_play.py v0|v1|server '{"id": "air-arith", "split": "eval", "args": {}, "n": 3, "url": "http://…"}'
"""

import asyncio
import json
import os
import sys

os.environ["STANDIN_KEY"] = "none"


async def by_v0(asked):
    import verifiers as vf
    from verifiers.types import ClientConfig

    env = vf.load_environment(asked["id"], eval_split=asked["split"], **asked["args"])
    if "most" in asked:  # replies; the stand-in counts one token for each
        env.set_max_total_completion_tokens(asked["most"])
    client = ClientConfig(api_base_url=asked["url"], api_key_var="STANDIN_KEY", max_retries=0)
    rows = env.get_eval_dataset(asked["n"]).repeat(asked.get("rollouts", 1))
    made = await env.generate(rows, client, "scripted", max_concurrent=1)
    for one in made["outputs"]:
        told = one["info"] if isinstance(one["info"], dict) else json.loads(one["info"])
        error = one["error"] and f"{one['error']['error']}: {one['error']['message']}"
        yield told["id"], told["split"], one["reward"], one["metrics"], error


def config_of(asked):
    import verifiers.v1 as vf

    taskset = {"id": asked["id"], "split": asked["split"], "args": asked["args"]}
    return vf.resolve_env_config({"taskset": taskset, "agent": {"max_turns": asked.get("most")}})


def told_of(trace):
    error = f"{trace.errors[-1].type}: {trace.errors[-1].message}" if trace.errors else None
    data = trace.task.data
    return data.id, data.split, trace.reward, dict(trace.metrics), error


async def by_v1(asked):
    import verifiers.v1 as vf

    env = vf.load_environment(config_of(asked))
    client = vf.EvalClientConfig(base_url=asked["url"], api_key_var="STANDIN_KEY")
    model = vf.ModelContext(client=client, model="scripted", sampling=vf.SamplingConfig())
    async with env.serving():
        for task in list(env.taskset)[: asked["n"]]:
            (slot,) = env.slots(task)
            yield told_of((await env.run_slot(slot, model)).traces[0])


async def by_server(asked):
    """As prime-rl does: its orchestrator has the tasks, a server the environment, and rows go between them."""
    import verifiers.v1 as vf
    from verifiers.v1.serve import EnvClient, EnvServer

    config = config_of(asked)
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    running = asyncio.create_task(server.run())
    client = EnvClient(address=server.address)
    await client.wait_for_server_startup(timeout=60)
    model = vf.EvalClientConfig(base_url=asked["url"], api_key_var="STANDIN_KEY")
    for task in list(vf.load_taskset(config.taskset))[: asked["n"]]:
        row = task.data.model_dump(mode="json")
        episode = await client.run(task_data=row, client=model, model="scripted", sampling=vf.SamplingConfig())
        yield told_of(episode.traces[0])
    running.cancel()
    await asyncio.wait({running})


async def main():
    how, asked = sys.argv[1], json.loads(sys.argv[2])
    played = {"v0": by_v0, "v1": by_v1, "server": by_server}[how](asked)
    names = ("id", "split", "reward", "metrics", "error")
    print("PLAYED", json.dumps([dict(zip(names, one, strict=True)) async for one in played], default=str), flush=True)
    assert "torch" not in sys.modules, "an environment has imported torch"


asyncio.run(main())
