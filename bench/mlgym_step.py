"""Where the time of a step goes in mlgym: many episodes at once by a scripted researcher, without a model.

    python bench/mlgym_step.py                                     # 64 episodes, 64 and then 16 at once
    python bench/mlgym_step.py --tasks titanic --episodes 16 --at-once 16
    AIR_MLGYM_ROOT=DIR python bench/mlgym_step.py --tasks prisonersDilemma blotto

The researchers write a script, run it, validate and submit, as trained policies do. Every task is played once before,
alone: that episode is what one takes when nobody else is there. Then come as many steps as are asked for, with a pause
between them as long as an update of a model might take. Of the last step there is the ledger: seconds that all episodes
together spent in each thing, how often, the mean and the longest. What is indented is part of the line above it. A wall
time cannot be shorter than the longest episode alone, nor than all CPU work divided by the cores: it is compared with
both. CPU work of sandboxes is counted by control groups, where there are any; the machine's is that of everybody on it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from airloop.rollout.episode import run_episode
from airloop.sandbox import pool as pools
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from airloop.types import Task, Trajectory
from airloop_envs.mlgym import session as sessions
from airloop_envs.mlgym.args import MlgymArgs
from airloop_envs.mlgym.baselines import Baselines
from airloop_envs.mlgym.env import MlgymEnv
from airloop_envs.mlgym.grading import Grader

STATE = 'builtin printf %s "$CURRENT_FILE"'  # how a session asks for the open file
TICKS = os.sysconf("SC_CLK_TCK")


class Ledger:
    """Seconds by what they were spent in, of everything that runs at the same time together."""

    def __init__(self) -> None:
        self.counts_cpu = True
        self.clear()

    def clear(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(list)
        self.worlds_cpu_s = 0.0

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what].append(time.perf_counter() - began)

    def watch(self, place: Any, name: str, what: str | Callable[..., str]) -> None:
        """Times an async function of a class or module from now on; `what` may depend on its arguments."""
        real = getattr(place, name)

        @functools.wraps(real)
        async def timed(*args: Any, **named: Any) -> Any:
            with self.timed(what if isinstance(what, str) else what(*args)):
                return await real(*args, **named)

        setattr(place, name, timed)

    def watch_all(self) -> None:
        self.watch(sessions.MlgymSession, "__aenter__", "opening")
        self.watch(Baselines, "of", "  baseline")
        self.watch(pools.Pool, "lease", "  a sandbox for the agent")
        self.watch(sessions.MlgymSession, "begin", "looking at what is there")
        self.watch(pools.Lease, "run", lambda _, command, *__: "state of the shell" if command == STATE else "commands")
        self.watch(sessions, "collect", "collecting what was made")
        self.watch(Grader, "grade", "grading")
        self.watch(Grader, "_evaluate", "  evaluation")
        self.watch(sessions.MlgymSession, "finish", "the end")
        self.watch(sessions.MlgymSession, "__aexit__", "closing")
        self.watch(Bubblewrap, "start", "sandboxes: started")
        self.watch(BubblewrapSandbox, "close", "sandboxes: ended")
        self._count_cpu()

    def _count_cpu(self) -> None:
        real = BubblewrapSandbox.close

        async def close(sandbox: BubblewrapSandbox) -> None:
            used = sandbox.cpu_seconds() if sandbox.alive else 0.0
            self.counts_cpu = self.counts_cpu and used is not None
            self.worlds_cpu_s += used or 0.0
            await real(sandbox)

        BubblewrapSandbox.close = close  # type: ignore[method-assign,assignment]


class TimedStarts(asyncio.Semaphore):
    """The pool's limit on sandboxes that start at one time, with the time that was spent waiting for it."""

    ledger: Ledger

    async def acquire(self) -> Any:
        with self.ledger.timed("  waiting for a start"):
            return await super().acquire()


# --- playing ------------------------------------------------------------------------------------------------


def make_env(options: argparse.Namespace, ledger: Ledger) -> MlgymEnv:
    args: dict[str, Any] = {"task_configs": options.tasks, "prompt": "short", "max_turns": 8}
    env = MlgymEnv(MlgymArgs(**args, num_examples_per_task=options.episodes))
    TimedStarts.ledger = ledger
    pool = env.places().pool
    pool._starts = TimedStarts(pool._starts._value)
    return env


async def play(env: MlgymEnv, task: Task, agent: str, seed: int) -> Trajectory:
    made = env.scripted(agent, task, seed)
    return await run_episode(env, task, made, id=f"{task.id}-{seed}", seed=seed, deadline_s=900)


async def play_all(env: MlgymEnv, tasks: Sequence[Task], agent: str, at_once: int) -> tuple[list[Trajectory], float]:
    room = asyncio.Semaphore(at_once)

    async def one(number: int, task: Task) -> Trajectory:
        async with room:
            return await play(env, task, agent, number)

    began = time.perf_counter()
    ended = await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))
    return list(ended), time.perf_counter() - began


async def measure(options: argparse.Namespace, at_once: int, ledger: Ledger) -> dict[str, Any]:
    env = make_env(options, ledger)
    tasks = [task for task in env.tasks("train") for _ in range(options.group)][: options.episodes]
    firsts = {task.family: task for task in reversed(tasks)}
    try:
        for task in firsts.values():  # the libraries' first import, and a new machine's baselines, are nobody's step
            await play(env, task, options.agent, 0)
        alone = [(await play_all(env, [task], options.agent, 1))[1] for task in firsts.values()]
        for step in range(options.steps):
            await asyncio.sleep(options.pause if step else 0.0)
            ledger.clear()
            machine, own, doors = machine_busy_s(), time.process_time(), doors_cpu_s(env)
            ended, wall = await play_all(env, tasks, options.agent, at_once)
        doors = {name: used - doors[name] for name, used in doors_cpu_s(env).items()}
    finally:
        await env.close()
    return {
        "at_once": at_once,
        "wall_s": wall,
        "alone_s": max(alone),
        "scored": sum(t.metrics.get("scored", 0.0) for t in ended),
        "episodes": len(ended),
        "turns": sum(len(t.turns) for t in ended),
        "longest_commands_s": max(commands_s(t) for t in ended),
        "worlds_cpu_s": ledger.worlds_cpu_s if ledger.counts_cpu else None,
        "own_cpu_s": time.process_time() - own,
        "machine_cpu_s": machine_busy_s() - machine,
        "doors_cpu_s": doors,
        "ledger": {what: list(spent) for what, spent in ledger.spent.items()},
    }


def commands_s(trajectory: Trajectory) -> float:
    return sum(turn.times.tool for turn in trajectory.turns)


def doors_cpu_s(env: MlgymEnv) -> dict[str, float]:
    """Of the processes that fork what enters sandboxes, without what they have forked."""
    found = {}
    for name, door in env.places().pool.backend._doors.items():  # type: ignore[attr-defined]
        stat = Path(f"/proc/{door.process.pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(stat[11]) + int(stat[12])) / TICKS
    return found


def machine_busy_s() -> float:
    """Of all processes on all cores; without what waits for a disk."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / TICKS


# --- telling ------------------------------------------------------------------------------------------------

ORDER = (
    *("opening", "  baseline", "  a sandbox for the agent", "  waiting for a start", "looking at what is there"),
    *("commands", "state of the shell", "collecting what was made", "grading", "  evaluation", "the end", "closing"),
    *("sandboxes: started", "sandboxes: ended"),
)


def tell(found: dict[str, Any]) -> None:
    cores = len(os.sched_getaffinity(0))
    print(
        f"\n{found['episodes']} episodes, {found['at_once']} at once: {found['wall_s']:.2f} s "
        f"({found['turns']} turns, {found['scored']:.0f} scored)"
    )
    print(f"  {'':28s}{'in all':>9s}{'times':>7s}{'mean':>9s}{'longest':>9s}   seconds")
    for what in ORDER:
        if spent := found["ledger"].get(what):
            print(f"  {what:28s}{sum(spent):9.2f}{len(spent):7d}{statistics.fmean(spent):9.3f}{max(spent):9.3f}")
    sandboxes = found["worlds_cpu_s"]
    doing = found["own_cpu_s"] + sum(found["doors_cpu_s"].values())
    work = doing + sandboxes if sandboxes is not None else found["machine_cpu_s"]
    counted = f"{sandboxes:.1f} s in sandboxes" if sandboxes is not None else "not counted in sandboxes"
    doors = "".join(f"{used:.1f} s in the door for {name}, " for name, used in found["doors_cpu_s"].items())
    machine = f"{found['machine_cpu_s']:.1f} s on the whole machine"
    print(f"  CPU: {counted}, {found['own_cpu_s']:.1f} s here, {doors}{machine}")
    least = max(found["alone_s"], work / cores)
    print(
        f"  the longest episode alone {found['alone_s']:.2f} s, the longest one's commands here "
        f"{found['longest_commands_s']:.2f} s, CPU work on {cores} cores {work / cores:.2f} s: "
        f"the wall time is {found['wall_s'] / least:.2f} of the least"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["titanic", "prisonersDilemma", "battleOfSexes", "blotto"])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="episodes of each task in a row")
    parser.add_argument("--at-once", type=int, nargs="+", default=[64, 16])
    parser.add_argument("--agent", default="demo", help="the scripted researcher")
    parser.add_argument("--steps", type=int, default=1, help="of which the last is measured")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between steps")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, {date.today()}")
    ledger, rows = Ledger(), []
    ledger.watch_all()
    for at_once in options.at_once:
        rows.append(asyncio.run(measure(options, at_once, ledger)))
        tell(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
