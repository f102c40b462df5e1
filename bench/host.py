"""What an episode costs the process around the model: rendering, encoding, admission, scoring, bookkeeping.

A step of `--episodes` one-turn episodes in groups of 8 with a tiny model and replies of two tokens, so that little
else is left; processor time of the whole process per episode, the tiny model's own included. On a GPU the model waits
for it.

    python bench/host.py
    python bench/host.py --profile        # where it goes
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import platform
import pstats
import time

from airloop.assemble import assemble, training_schedule
from airloop.config import load_config

ROLLOUTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4, help="measured ones; one more comes first")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    asyncio.run(measure(args.episodes, args.steps, args.profile))


async def measure(episodes: int, steps: int, profile: bool) -> None:
    at_once = ["--orchestrator.batch_size", "--orchestrator.max_concurrent", "--inference.max_batch"]
    flags = ["--model.name", "tiny:llama", "--seq_len", "512", "--orchestrator.sampling.max_tokens", "2"]
    flags += ["--orchestrator.env.0.id", "gsm8k", "--orchestrator.rollouts_per_example", str(ROLLOUTS)]
    config = load_config(flags + [word for key in at_once for word in (key, str(episodes))])
    parts = assemble(config, lambda *_: None)
    schedule = training_schedule(config, parts.envs)
    sampler = parts.sampler(lambda *_: None, schedule)
    costs = []
    profiler = cProfile.Profile()
    for step in range(steps + 1):
        began = time.process_time()
        if profile and step == steps:
            profiler.enable()
        await sampler.collect(step, schedule.batch(step, episodes // ROLLOUTS), 0)
        costs.append((time.process_time() - began) / episodes * 1000)
    profiler.disable()
    shown = ", ".join(f"{cost:.2f}" for cost in costs[1:])
    print(f"{platform.machine()}: {min(costs[1:]):.2f} ms of processor an episode ({shown}; first {costs[0]:.2f})")
    if profile:
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(40)


if __name__ == "__main__":
    main()
