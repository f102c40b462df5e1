"""What it costs that the agent is a program: the same episodes in process and by a function in processes of their own.

    python bench/programs.py --model Qwen2.5-Coder-0.5B.gguf --episodes 256 --max-tokens 200    # one GPU
    python bench/programs.py                                                                    # a tiny model, anywhere

Both ask the same prompts with the same seeds, one reply each, so the engine has the same work; the order alternates,
and the median counts. The difference is processes, HTTP and the reading of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from airloop.assemble import Components, assemble
from airloop.config import load_config
from airloop.rollout.schedule import TaskSchedule

AGENT = """
def solve(task, client):
    said = [{"role": "user", "content": task["prompt"]}]
    client.chat.completions.create(model="policy", messages=said)
    return 1.0
"""
REWARD = "def one(completions, **columns):\n    return [1.0] * len(completions)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny:llama")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="air-bench-") as folder:
        asyncio.run(compare(options, Path(folder)))


async def compare(options: argparse.Namespace, folder: Path) -> None:
    rows = [{"prompt": f"Tell me something about the number {i}."} for i in range(options.episodes)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "agent.py").write_text(AGENT)
    (folder / "reward.py").write_text(REWARD)
    flags = {
        "model.name": options.model,
        "output_dir": str(folder),
        "seq_len": str(256 + options.max_tokens),
        "orchestrator.sampling.max_tokens": str(options.max_tokens),
        "orchestrator.batch_size": str(options.episodes),
        "orchestrator.max_concurrent": str(options.episodes),
        "inference.max_batch": str(options.episodes),
        "orchestrator.env.0.id": "prompts",
        "orchestrator.env.0.args.dataset": f"{folder}/rows.jsonl",
        "orchestrator.env.0.args.rewards": f'["{folder}/reward.py:one"]',
        "orchestrator.env.1.id": f"{folder}/agent.py:solve",
        "orchestrator.env.1.args.tasks": f"{folder}/rows.jsonl",
    }
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    parts = assemble(config, print)
    seconds: dict[str, list[float]] = {name: [] for name in parts.envs}
    try:
        for number in range(options.repeat + 1):  # the first warms up
            for name in sorted(parts.envs, reverse=bool(number % 2)):
                taken = await collect(parts, name, number)
                if number:
                    seconds[name].append(taken)
    finally:
        await parts.close()
    inside, outside = (statistics.median(seconds[name]) for name in parts.envs)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    work = f"{options.episodes} episodes of at most {options.max_tokens} tokens"
    print(f"{device}, {options.model}, {work}, {time.strftime('%F')}")
    print(f"in process {inside:.3f} s, as programs {outside:.3f} s: {outside / inside - 1:+.1%}, ", end="")
    print(f"{(outside - inside) / options.episodes * 1e3:.1f} ms an episode")


async def collect(parts: Components, name: str, number: int) -> float:
    tasks = TaskSchedule({name: parts.envs[name]}, "train", 0)
    plan = tasks.batch(number, len(tasks))
    sampler = parts.sampler(lambda trajectory, step: None)
    began = time.perf_counter()
    found = await sampler.evaluate(plan, seed=number)
    assert len(found.trajectories) == len(plan), [t.error for t in found.lost][:1]
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
