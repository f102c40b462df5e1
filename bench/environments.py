"""Environments: how fast tasks are listed, and whether 256 episodes at once hold with bounded memory.

Each environment in a process of its own. Listing: a fresh environment, all splits, from nothing (data files are read,
problems generated). Episodes: the oracle's replies through the real sampler, chat template, tokenizer and sessions;
the model is a script, so what is measured is everything else. Memory is the growth of the process's peak.

    python bench/environments.py                             # every registered environment but mlgym
    python bench/environments.py gsm8k --arg dataset=gsm8k_train.jsonl.gz
    python bench/environments.py soup --episodes 64
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airloop.plugins import plugins

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

SPLITS = ("train", "eval", "test")
GROUP = 8
LEFT_OUT = {"mlgym", "prompts"}  # an episode is minutes of real training; there are no tasks without rows of one's own


def listing(name: str, args: dict[str, Any]) -> tuple[int, float]:
    from airloop.envs.base import load_environment

    load_environment(name, args)  # its imports are not its tasks
    began = time.perf_counter()
    env = load_environment(name, args)
    count = sum(len(env.tasks(split)) for split in SPLITS)
    seconds = time.perf_counter() - began
    env.abandon()
    return count, seconds


async def episodes(name: str, args: dict[str, Any], count: int) -> dict[str, Any]:
    from support.scripted_agent_engine import ScriptedEngine

    from airloop.engine.base import Sampling
    from airloop.envs.base import load_environment
    from airloop.eval.tasks import cached_tokenizer
    from airloop.models.chat import ChatTokenizer
    from airloop.models.tiny import tiny_tokenizer
    from airloop.rollout.collected import RolloutSettings
    from airloop.rollout.sampler import Sampler
    from airloop.rollout.schedule import TaskSchedule

    chat = cached_tokenizer() or ChatTokenizer(tiny_tokenizer(), name="tiny")
    env = load_environment(name, args)
    plan = TaskSchedule({name: env}, "train", seed=0).batch(0, count // GROUP)
    settings = RolloutSettings(Sampling(1 << 16), GROUP, max_concurrent=count, deadline_s=900, retries=0)
    engine = ScriptedEngine(chat, {name: env}, plan, together=len(plan) * GROUP)
    sampler = Sampler(engine, chat, {name: env}, settings, lambda trajectory, step: None)
    env.warm()
    before, began = forget_peak(), time.perf_counter()
    collected = await sampler.collect(0, plan, version=0)
    seconds, grown = time.perf_counter() - began, peak_mib() - before
    await env.close()
    ended = [t for group in collected.groups for t in group.trajectories]
    return {
        "tokenizer": chat.name,
        "at_once": engine.most_waiting,
        "seconds": seconds,
        "turns": sum(len(t.turns) for t in ended),
        "done": sum(t.ending == "done" for t in ended),
        "reward": sum(t.reward for t in ended) / max(len(ended), 1),
        "mib": grown,
    }


def forget_peak() -> float:
    """Loading libraries took more for a moment; where the system can, the peak is counted anew from here on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, args: dict[str, Any], count: int) -> dict[str, Any]:
    tasks, seconds = listing(name, args)
    return {"tasks": tasks, "listing_s": seconds, **asyncio.run(episodes(name, args, count))}


def in_a_process(name: str, given: list[str], count: int) -> dict[str, Any]:
    extra = [part for pair in given for part in ("--arg", pair)]
    command = [sys.executable, __file__, "--child", name, "--episodes", str(count), *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        return {"failed": "\n".join(done.stderr.strip().splitlines()[-15:])}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*")
    parser.add_argument("--episodes", type=int, default=256, help="at once; a multiple of 8")
    parser.add_argument("--arg", action="append", default=[], help="an argument of the environments, key=value")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from airloop.eval.tasks import parse_args

        print(json.dumps(measure(options.child, parse_args(options.arg), options.episodes)))
        return
    names = options.environments or sorted(plugins("envs").keys() - LEFT_OUT)
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(
        f"{'':18s}{'tasks':>8s}{'listed/s':>10s}{'at once':>9s}{'done':>6s}{'turns':>7s}{'episodes/s':>12s}{'MiB':>7s}"
    )
    failed: list[str] = []
    for name in names:
        row = in_a_process(name, options.arg, options.episodes)
        if "failed" in row:
            failed.append(name)
            print(f"{name:18s}failed:\n{row['failed']}", flush=True)
            continue
        print(
            f"{name:18s}{row['tasks']:8d}{row['tasks'] / max(row['listing_s'], 1e-9):10.0f}{row['at_once']:9d}"
            f"{row['done']:6d}{row['turns']:7d}{row['done'] / row['seconds']:12.1f}{row['mib']:7.0f}"
            f"   reward {row['reward']:.2f}, tokenizer {row['tokenizer'].rpartition('/')[2]}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
