"""One training run, from config to summary: what `air train` does."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from airloop import interrupts, stream
from airloop.assemble import Components, assemble, check_prompts, held_out_tasks, training_schedule
from airloop.budget import Budget
from airloop.config import ClusterConfig, Config, with_changes
from airloop.config.launchers import LAUNCHERS
from airloop.costs import size_by_config, size_of_demonstrations
from airloop.determinism import pin_run
from airloop.doctor import preflight
from airloop.errors import AirError, Stopped
from airloop.events import Say, Watcher
from airloop.extras import check_extra, install_line, missing
from airloop.launch.base import Launcher
from airloop.launch.monitor import run_ranks
from airloop.learn.checkpoints import checkpoints, load_checkpoint
from airloop.learn.overlong import COMPONENT as OVERLONG
from airloop.loop import train
from airloop.machine import describe_machine
from airloop.own_code import content_digest
from airloop.ranks import Ranks
from airloop.rewards import record_rewards, with_run_rewards
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.lineage import check_parent
from airloop.runs.run import Run
from airloop.start_checkpoint import KEPT, StartCheckpoint
from airloop.step import Outcome
from airloop.text.figures import duration
from airloop.text.keys import without_keys
from airloop.types import Trajectory
from airloop.warmstart import (
    as_transcript,
    computed_tokens,
    found_demonstrations,
    starts_in,
    warmstart,
    warmstart_directory,
    with_warmstart,
)
from airloop.watch.alarms.monitor import Halted
from airloop.watch.display.display import Clock, Display
from airloop.watch.display.summary import plot, summary
from airloop.watch.sinks import open_sinks

# Prompts measured before the first step; tasks of one environment differ little in length.
PROMPTS_MEASURED = 64
# Of the first tasks, for the plan of a budget.
PROMPTS_FOR_PLAN = 4
# The first rank makes the supervised start, with its demonstrations, while the others wait: so long without progress.
WARMSTART_S = 6 * 3600.0


@dataclass(frozen=True)
class Finished:
    """A run that came to its end."""

    run: Run  # its directory: config, metrics, episodes
    outcome: Outcome  # the held-out episodes
    text: str  # the summary that `air train` prints


def start(
    config: Config,
    display: Display,
    resume: Path | None = None,
    skip_proofs: bool = False,
    began: float | None = None,
) -> Finished:
    """Train, whatever happens leaving a run that says how it ended and can be resumed. `began`: when the command was
    given, if that was earlier than now."""
    began = began or time.time()
    if resume is None:
        if config.cluster.nodes > 1:
            check_extra("cluster", "Training on several machines")
        check_parent(config.logbook.parent, Path(config.output_dir))
        check_servers(config)
        preflight.look(config, display)  # what is refused here leaves no empty run behind
        run = Run.create(config, config.task, since=began)
    else:
        run = Run.open(resume)
        refuse_faulty(run)
        preflight.look(run.config, display)
        run.lock(began)
    if skip_proofs:
        preflight.skip(run, display)
    display.run = run
    keep_own_code(run, display)
    send_logs_to(display.say, run.config)
    try:
        outcome = _train(run, display, resuming=resume is not None)
    except (KeyboardInterrupt, asyncio.CancelledError):
        run.set_status("stopped", "interrupted")
        raise Stopped(
            f"Stopped. Everything sampled so far is in {run.path}.", f"go on with `air train --resume {run.path}`"
        ) from None
    except Halted as halted:
        run.set_status("paused" if halted.alarm.severity == "pause" else "stopped", halted.problem)
        raise
    except BaseException as error:
        run.set_status("failed", str(error))
        run.log("".join(traceback.format_exception(error)))
        raise
    else:  # while it is still ours: whoever looks in between would take it for killed, or resume it
        run.set_status("completed")
    finally:
        run.close()
    text = summary(run, outcome.before, outcome.after) + f"\nplot: {_plot(run, outcome)}"
    (run.path / "summary.txt").write_text(without_keys(text) + "\n", encoding="utf-8")
    return Finished(run, outcome, text)


def _plot(run: Run, outcome: Outcome) -> str:
    """Where the picture is, or why there is none: a run does not fail for want of one."""
    if missing("plot"):
        return f"left out, it needs matplotlib ({install_line('plot')})"
    return str(plot(run, outcome.before, outcome.after, run.path / "learning.png"))


def check_servers(config: Config) -> None:
    """Whether there is something to start servers with, or to know them by, before anything else is started."""
    if config.inference.backend != "vllm" or config.cluster.roles is not None:  # sampler nodes look for themselves
        return
    from airloop.engine.vllm.start import adapters_key, interpreter

    if not config.inference.vllm.urls:
        interpreter(config)
    elif config.inference.vllm.adapters == "http":
        adapters_key(config)


def refuse_faulty(run: Run) -> None:
    """Half with a fault and half without would be neither, and would still be called faulty."""
    status = run.status()
    if status.get("fault") or (status.get("lab") or {}).get("fault"):
        raise AirError(
            f"{run.path} has a fault that was put in on purpose, and going on here would train it without.",
            "go on with `air lab run` in the hypothesis' directory; for a healthy run start a new one.",
        )


def keep_own_code(run: Run, display: Watcher) -> None:
    """What the user's own files say is kept as a digest: a run that goes on with other code says so."""
    kept: dict[str, str] = run.status().get("code") or {}
    found = {name: content_digest(name) for name in run.config.own_code}
    for name in found:
        if name in kept and found[name] != kept[name]:
            display.say(f"note: {name} has changed since it was last used in this run: it goes on with the new code")
    if found != kept:
        run.note(code=found)


class _ToDisplay(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(f"{record.levelname.lower()}: {record.getMessage()}")
        except Exception:  # a terminal that is gone must not end what was only going to say something
            self.handleError(record)


def send_logs_to(say: Say, config: Config) -> None:
    """What any part of air logs, worker processes' last output included, is seen where the run is watched (G1)."""
    logger = logging.getLogger("airloop")
    logger.handlers = [_ToDisplay(say)]
    logger.setLevel(config.orchestrator.log.level.upper())
    logger.propagate = False


def _train(run: Run, display: Display, resuming: bool) -> Outcome:
    """In this process, or in one for each rank."""
    cluster = run.config.cluster
    if run.config.ranks == 1 and cluster.nodes == 1 and cluster.launcher is None:
        return interrupts.run(train_rank(run, display, resuming, Ranks()))
    if run.config.ranks > 1 and preflight.wanted(run):  # a single one proves by itself
        preflight.prove_apart(run, display)
    run_ranks(run, display, resuming, _launcher(cluster, display.say))
    return Outcome(run.evaluation("before"), run.evaluation("after"))


def _launcher(cluster: ClusterConfig, say: Say) -> Launcher:
    fitting = (name for name, spec in LAUNCHERS.items() if spec.several == (cluster.nodes > 1))
    found: Launcher = resolve_name(LAUNCHERS[cluster.launcher or next(fitting)].make)(say)
    return found


async def train_rank(run: Run, display: Watcher, resuming: bool, ranks: Ranks) -> Outcome:
    """What each rank of a run does, or its only process."""
    # The engine's thread holds the interpreter for most of the time; episodes must not wait 5 ms at every await.
    sys.setswitchinterval(0.001)
    config, clock, budget = run.config, Clock(), Budget.of(run)
    display.say(f"run {run.path}")
    if config.deterministic:
        pin_run(run, display.say)
    if config.warmstart and not config.model.adapter:
        config = with_warmstart(*await _start_supervised(run, display, ranks, budget, resuming))
    config = with_run_rewards(config, run)  # last: the supervised start is found by the config as it was written
    display.phase("loading the model")
    parts = assemble(config, display.say, ranks)
    try:
        record_rewards(run, parts.envs, frozenset({OVERLONG}))
        if run.writes:
            run.note(machine=describe_machine(parts.policy.device, ranks.size))
        for note in parts.notes:
            display.say(f"note: {note}")
        if resuming:
            steps = await ranks.all_gather(_resume(run, parts, display), "the checkpoint that each rank could read")
            if len(set(steps)) > 1:
                raise AirError(
                    f"The ranks could read checkpoints of different steps: {steps}.",
                    f"delete what is newer than step {min(steps)} in {run.path / 'checkpoints'} and resume again.",
                )
        await _plan_time(parts, run, display, budget)
        if ranks.size == 1 and preflight.wanted(run):
            await preflight.prove(parts, run, display)
        if ranks.first:
            await _check_and_open(parts, display)
        await ranks.barrier("the first prompts are measured by the first rank")
        with open_sinks(config, run, display) as watchers:
            if never := never_run(config, parts.policy.device.type, parts.policy.hold is not None, ranks.size):
                display.say(never)
            if config.orchestrator.max_staleness:
                outcome = await stream.train(parts, run, watchers, budget)
            else:
                outcome = await train(parts, run, watchers, budget)
        display.say(f"finished in {clock}")
        return outcome
    finally:
        await parts.close()


def never_run(config: Config, device: str, base_shards: bool = False, ranks: int = 1) -> str:
    """What this run takes that was never tried on such a device; empty where there is nothing. `ranks`: of the whole
    run, of which each has a config of its own."""
    taken = {
        f"{ranks} GPUs that train together, over NCCL (trainer_gpu_ids)": ranks > 1,
        "sampling beside training (orchestrator.max_staleness)": config.orchestrator.max_staleness > 0,
        'servers of vLLM (inference.backend = "vllm")': config.inference.backend == "vllm",
        "a base in shards (trainer.model.shard)": base_shards,
    }
    found = [what for what, is_taken in taken.items() if is_taken and device != "cpu"]
    return f"note: never run on a GPU by those who wrote it: {', '.join(found)} (docs/scaling.md)" if found else ""


async def _start_supervised(
    run: Run, display: Watcher, ranks: Ranks, budget: Budget | None, resuming: bool
) -> tuple[Config, Path]:
    """Makes the supervised start, or finds it; the run's config, with what a budget of time changed in it, and where
    the start is. A run that is resumed has the one it began with, whatever has become of what that was made from."""

    async def plan(parts: Components, rows: list[Trajectory]) -> dict[str, Any]:
        assert budget is not None
        if before := run.status().get("budget"):  # by a session that was killed in the supervised start
            display.say(f"budget: {duration(max(0.0, budget.left_s))} left of {budget.minutes:g} min, planned before")
            return dict(before["changes"])
        tokens = computed_tokens(parts.config, rows)
        size, proofs = size_of_demonstrations(rows), preflight.wanted(run)
        changes = await budget.plan(parts, display, size, tokens, proofs, ranks.size)
        run.note(budget={**budget.facts(), "changes": changes})  # not in the config yet: the start is named by it
        return changes

    made: tuple[str, dict[str, Any]] = ("", {})
    if ranks.first:
        kept = starts_in(run.config) / str(run.status().get("start") or "none")
        if resuming and "start" not in run.status():  # by an earlier version
            kept = warmstart_directory(run.config, files=False)
        # A resumed run keeps to the plan that its config has.
        planned = _is_planned(run, budget)
        if (kept / "done.json").is_file():
            display.say(f"supervised start: reusing {kept}")
            StartCheckpoint(run.path / KEPT, "", run.fence).remove()  # a kill may have come before that
            made = (kept.name, {})
        elif planned:
            directory, changes = await warmstart(run.config, display, keep=run.path / KEPT, fence=run.fence)
            made = (directory.name, changes)
        else:
            assert budget is not None
            replan, keep = budget.plan_again, run.path / KEPT
            directory, changes = await warmstart(run.config, display, plan, replan, keep, run.fence)
            made = (directory.name, changes)
    name, changes = (await ranks.all_gather(made, "the supervised start, which the first rank makes", WARMSTART_S))[0]
    config = run.change(changes)
    if run.writes:
        run.note(start=name, **({"budget": budget.facts()} if budget and "max_steps" in changes else {}))
    return config, starts_in(config) / name


def _is_planned(run: Run, budget: Budget | None) -> bool:
    """Whether the config has what a budget asks for, if there is one. Until the supervised start is made, its plan is
    only noted."""
    noted = run.status().get("budget")
    return budget is None or (noted is not None and "changes" not in noted)


async def _plan_time(parts: Components, run: Run, display: Watcher, budget: Budget | None) -> None:
    """With a budget that the supervised start has not been planned with: there is none to make, or it was found."""
    if budget is None or _is_planned(run, budget):
        return
    schedule = training_schedule(parts.config, parts.envs)
    prompt = await check_prompts(parts, schedule.batch(0, min(PROMPTS_FOR_PLAN, len(schedule))), display)
    turns = max(env.max_turns for env in parts.envs.values())
    size = size_by_config(parts.config, prompt, turns)
    if rows := found_demonstrations(run.config):
        size = size_of_demonstrations([as_transcript(t, parts.loaded.tokenizer) for t in rows])
    changes = await budget.plan(parts, display, size, None, preflight.wanted(run), parts.ranks.size)
    changes = (await parts.ranks.all_gather(changes, "the plan for the budget"))[0]
    parts.config = with_changes(parts.config, changes)
    run.change(changes)
    if run.writes:
        run.note(budget=budget.facts())


async def _check_and_open(parts: Any, display: Watcher) -> None:
    """The first and the held-out prompts fit; what the run will be, in a few lines."""
    config = parts.config
    schedule = training_schedule(config, parts.envs)
    tasks = schedule.batch(0, min(PROMPTS_MEASURED, len(schedule)))
    tasks += held_out_tasks(parts.envs, config.orchestrator.eval.test_split, PROMPTS_MEASURED)
    longest = await check_prompts(parts, tasks, display)
    display.say(_opening(config, parts, schedule, longest))


def _resume(run: Run, parts: Any, display: Watcher) -> int:
    """From the newest checkpoint that can be read, or from the start."""
    step = 0
    for _, path in reversed(checkpoints(run.path / "checkpoints")):
        try:
            step = load_checkpoint(path, parts.learner)
            break
        except AirError as error:
            display.say(f"note: {error}")
    parts.engine.set_version(parts.policy.version)
    planned = run.status()["status"] == "planned"
    run.resume(step)
    display.say(f"starting {run.name} as planned" if planned else f"resuming {run.name} after step {step}")
    return step


def _opening(config: Config, parts: Any, schedule: TaskSchedule, longest: int) -> str:
    o = config.orchestrator
    trained = sum(p.numel() for _, p in parts.policy.trainable())
    limits = parts.engine.describe()
    ranks = f", {parts.ranks.size} processes" if parts.ranks.size > 1 else ""
    return (
        f"{config.model.name} on {parts.policy.device}{ranks} in {str(parts.policy.dtype).removeprefix('torch.')}, "
        f"{trained / 1e6:.1f} M parameters trained; context {config.seq_len}, longest prompt {longest}, "
        f"key/value memory {limits.memory_bytes / 2**20:.0f} MiB\n"
        + schedule.describe(o.batch_size, o.rollouts_per_example, config.max_steps)
    )
