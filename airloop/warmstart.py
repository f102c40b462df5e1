"""The supervised start: demonstrations become transcripts through the same code as sampled episodes, and
the learner makes their tokens likely. The result is kept, named by all that went into it, and reused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from airloop import interrupts
from airloop.assemble import (
    Components,
    assemble,
    learner_settings,
    load_environments,
    rollout_settings,
    training_schedule,
)
from airloop.chat.transcript import Transcript
from airloop.config import Config, with_changes
from airloop.config.orchestrator import EnvConfig
from airloop.envs.files import content_digest
from airloop.errors import AirError
from airloop.events import Watcher
from airloop.files import append_line, read_object, whole_directory, write_json
from airloop.learn.advantages import demonstration_batch
from airloop.learn.schedules import scheduled_lr
from airloop.own_code import is_file_id, split_id
from airloop.rollout.sampler import Sampler
from airloop.runs.run import read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.start_checkpoint import UNKEPT, Progress, StartCheckpoint
from airloop.success import METRIC
from airloop.types import Sampled, Task, Trajectory
from airloop.waits import waiting

# Keys that earlier versions did not have: at their defaults they must not change the name of what was made then.
LATER_KEYS = ("last_layers", "schedule")
# Demonstrations that are looked at to see how long an episode is.
SIZED = 64
# Demonstrations of one task that go into a batch together: their prompt is computed once.
SAME_TASK = 4
# Files of a directory whose names and times are looked at.
MOST_FILES = 100_000
# For one part of an update, as in loop.py.
UPDATE_S = 1800.0


def with_warmstart(config: Config, made: Path | None = None) -> Config:
    """The config that starts from what the warm start has made; the same config where there is none to be made, or none
    made yet."""
    if config.warmstart is None or config.model.adapter:
        return config
    made = made or warmstart_directory(config)
    if not (made / "done.json").is_file():
        return config
    whole = not (made / "adapter").is_dir()
    change = {"name": str(made / "model")} if whole else {"adapter": str(made / "adapter")}
    return config.model_copy(update={"model": config.model.model_copy(update=change)})


def warmstart_directory(config: Config, files: bool = True) -> Path:
    """The same settings, and the same files that they name, lead to the same directory, so a second run finds what the
    first one made. (Earlier versions did not look at files.)"""
    trainer = config.trainer.model
    parts: dict[str, Any] = {
        "model": _as_written(config.model),
        "chat_template": Path(config.model.chat_template).read_text(encoding="utf-8")
        if config.model.chat_template
        else None,
        "deterministic": config.deterministic,
        "optim": _as_written(config.trainer.optim, exclude={"lr", "warmup_steps", "schedule", "decay_steps", "min_lr"}),
        "train": trainer.train,
        "lora": {**_as_written(trainer.lora), "dropout": 0.0},  # as earlier versions wrote it
        "env": [_env(e) | _file_of(e.id) for e in config.orchestrator.env],
        "warmstart": _as_written(config.warmstart) if config.warmstart else None,
        "seq_len": config.seq_len,
        "seed": config.seed,
    }
    named = [config.model.name, config.model.adapter, config.warmstart.source if config.warmstart else None]
    if files and (found := _files([*named, *(e.args for e in config.orchestrator.env)])):
        parts["files"] = found  # with the same name, another adapter, data set or run is another start
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    task = "-".join(e.title for e in config.orchestrator.env)
    return starts_in(config) / f"warmstart-{task}-{digest}"


def starts_in(config: Config) -> Path:
    return Path(config.output_dir).expanduser().resolve()


def _files(value: Any) -> list[tuple[str, int, int]]:
    """Name, size and time of all files that are named anywhere in it: their contents may be gigabytes."""
    if isinstance(value, str) and value and "\0" not in value:
        # of "./rewards.py:correct" and "rows.jsonl,main,train" the file
        bare = split_id(value)[0] if is_file_id(value) else value.partition(",")[0]
        place = Path(bare).expanduser()
        with contextlib.suppress(OSError):
            inside = itertools.islice(place.rglob("*"), MOST_FILES) if place.is_dir() else [place]
            found = sorted(p for p in inside if p.is_file())
            return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in found]
    if isinstance(value, Mapping):
        return [file for part in value.values() for file in _files(part)]
    return [file for part in value for file in _files(part)] if isinstance(value, list | tuple) else []


def _env(env: EnvConfig) -> dict[str, Any]:
    """Without a ratio and families where none are said: as earlier versions wrote it."""
    new = ("ratio", "families")
    return {key: value for key, value in env.model_dump().items() if key not in new or value is not None}


def _file_of(env_id: str) -> dict[str, str]:
    return {"file": digest} if (digest := content_digest(env_id)) else {}


def _as_written(section: BaseModel, exclude: set[str] | None = None) -> dict[str, Any]:
    """A section's values, each that is its default as the default is written: a resolved config has 32.0 where the
    schema says 32, and must lead to the same directory."""
    defaults = type(section)().model_dump(exclude=exclude)
    given = section.model_dump(exclude=exclude)
    found = {name: defaults[name] if value == defaults[name] else value for name, value in given.items()}
    return {name: value for name, value in found.items() if name not in LATER_KEYS or value != defaults[name]}


# Given the assembled parts and the demonstrations, the changes of the config that make it fit a budget of time.
Planner = Callable[[Components, list[Trajectory]], Awaitable[dict[str, Any]]]
# Given the config and the seconds of each supervised step so far, the changes that make it fit now.
Replanner = Callable[[Config, Sequence[float]], dict[str, Any]]


def find_warmstart(config: Config) -> tuple[Path, dict[str, Any]] | None:
    """A supervised start that was made for this config, and the changes that a budget of time asked for then. One that
    was cut for fewer minutes than there are now is no answer."""
    directory = warmstart_directory(config)
    if (directory / "done.json").is_file():
        return directory, {}
    found = []
    for done in directory.parent.glob(f"{directory.name.rpartition('-')[0]}-*/done.json"):
        facts = read_object(done)
        cut_for = facts.get("minutes")
        if facts.get("asked") == directory.name and cut_for and cut_for >= (config.budget.minutes or float("inf")):
            found.append((facts["steps"], done.parent))
    return (max(found)[1], {"warmstart.steps": max(found)[0]}) if found else None


def found_demonstrations(config: Config) -> list[Trajectory]:
    """Those of a supervised start that was found; none where there is no such thing."""
    found = find_warmstart(config) if config.warmstart else None
    return read_trajectories(found[0] / "demonstrations")[:SIZED] if found else []


async def warmstart(
    config: Config,
    watcher: Watcher,
    plan: Planner | None = None,
    plan_again: Replanner = lambda *_: {},
    keep: Path | None = None,
    fence: Callable[[], None] = lambda: None,
) -> tuple[Path, dict[str, Any]]:
    """The directory of the warm-started weights (`adapter/`, or `model/` for full fine-tuning), and what `plan`, before
    it was made, and `plan_again`, meanwhile, changed in the config. `keep`: a folder of this process alone for what is
    made of it so far, by which the next one goes on if this one is killed; `fence` is asked before it is changed."""
    assert config.warmstart is not None
    asked = warmstart_directory(config).name  # made from other files, it would be another start
    kept = StartCheckpoint(keep, asked, fence)
    if (found := find_warmstart(config)) is not None:
        watcher.say(f"supervised start: reusing {found[0]}")
        kept.remove()
        return found
    demonstrations = await collect_demonstrations(config, watcher, kept)
    watcher.say(f"supervised start: {describe(demonstrations)}")
    watcher.phase("loading the model")
    parts = assemble(config, watcher.say)
    try:
        rows = [as_transcript(t, parts.loaded.tokenizer) for t in demonstrations]
        changes = await plan(parts, rows) if plan else {}
        parts.config = with_changes(config, changes)
        made = await fit_demonstrations(parts, rows, watcher, plan_again, kept)
        changes |= made.changes
        config = with_changes(config, changes)
        directory = warmstart_directory(config)
        losses = [line["loss"] for line in made.metrics]
        report = {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1], "demonstrations": len(rows)}
        with whole_directory(directory) as beside:
            for trajectory in demonstrations:
                write_json(beside / "demonstrations" / f"{trajectory.id}.json", to_json(trajectory))
            for line in made.metrics:
                append_line(beside / "metrics.jsonl", line)
            _save(parts, beside)
            write_json(beside / "done.json", {**report, "asked": asked, "minutes": config.budget.minutes})
        kept.remove()
    finally:
        await parts.close()
        del parts
        gc.collect()  # a model is full of cycles; without this a second one is loaded beside it
    watcher.say(
        f"supervised start: {report['steps']} steps, loss {report['first_loss']:.3f} → {report['last_loss']:.3f}"
    )
    return directory, changes


async def collect_demonstrations(config: Config, watcher: Watcher, kept: StartCheckpoint = UNKEPT) -> list[Trajectory]:
    """Episodes of a scripted policy, or the trajectories of a directory, best first."""
    settings = config.warmstart
    assert settings is not None
    source = Path(settings.source).expanduser()
    found = best_first(_on_disk(source)) if source.is_dir() else await _scripted(config, watcher, kept)
    good = [t for t in found if t.ending != "infra_error"]
    good = [t for t in good if settings.min_reward is None or t.reward >= settings.min_reward][: settings.episodes]
    if not good:
        raise AirError(
            f"No demonstration from {settings.source!r} is left: {len(found)} were found, none of them scored "
            f"warmstart.min_reward = {settings.min_reward}.",
            "lower warmstart.min_reward, or name a scripted policy or a run directory in warmstart.source.",
        )
    return good


def describe(demonstrations: Sequence[Trajectory]) -> str:
    """How many, and how good they are: a model learns to fail as often as they do."""
    successes = [t.metrics[METRIC] for t in demonstrations if METRIC in t.metrics]
    mean = f", success {sum(successes) / len(successes):.2f} on average" if successes else ""
    return f"{len(demonstrations)} demonstrations{mean}"


def _on_disk(source: Path) -> list[Trajectory]:
    """The training episodes of a run, or the trajectory files of a directory."""
    episodes = source / "trajectories"
    folders = sorted(episodes.glob("step_*")) if episodes.is_dir() else [source]
    return [t for folder in folders for t in read_trajectories(folder)]


def best_first(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Every task's best, then every task's second best, and so on: a task that pays more must not crowd out others."""
    ranked: list[tuple[int, str, Trajectory]] = []
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task.id, []).append(trajectory)
    for task, members in by_task.items():
        members.sort(key=lambda t: -t.reward)
        ranked += [(rank, task, t) for rank, t in enumerate(members)]
    return [t for _, _, t in sorted(ranked, key=lambda r: r[:2])]


async def _scripted(config: Config, watcher: Watcher, kept: StartCheckpoint) -> list[Trajectory]:
    settings, envs = config.warmstart, load_environments(config)
    assert settings is not None
    schedule = training_schedule(config, envs)
    tasks = -(-settings.episodes // SAME_TASK)
    finished = kept.demonstrations()
    watcher.phase(f"demonstrations by {settings.source!r}", tasks * SAME_TASK - len(finished))

    def save(trajectory: Trajectory, _: int) -> None:
        kept.keep(trajectory)
        watcher.advance()

    sampler = Sampler(None, None, envs, rollout_settings(config), save)

    def agent(env: Any, task: Task, seed: int) -> Any:
        return env.scripted(settings.source, task, seed)

    try:
        plan = schedule.batch(0, tasks)
        result = await sampler.evaluate(plan, agent, rollouts=SAME_TASK, seed=config.seed, finished=finished)
    finally:
        for env in envs.values():
            await env.close()
    return list(result.trajectories)


def as_transcript(trajectory: Trajectory, tokenizer: Any) -> Trajectory:
    """Give a demonstration the tokens it would have had, had the policy said it."""
    if trajectory.branches and _speaks_alike(trajectory, tokenizer):
        return trajectory  # sampled by a policy of these tokens: they are kept as they are
    if trajectory.metrics.get("conversations", 1) > 1:
        raise AirError(
            f"The demonstration {trajectory.id} has several conversations, each with tools and prompts of its own, and "
            "cannot be made into one.",
            "demonstrate by a program that has one conversation, or start from episodes that this model has sampled.",
        )
    transcript = Transcript(tokenizer, trajectory.tools)
    for turn, shown in zip(trajectory.turns, trajectory.conversations(), strict=True):
        transcript.show(shown)
        ids = tokenizer.encode(turn.reply["content"])
        cut = turn.sampled is not None and turn.sampled.stop != "stop" and bool(ids)
        ids = [*ids] if cut else [*ids, tokenizer.stop_ids[0]]  # nobody learns to end where another was cut off
        transcript.append_sampled(Sampled(tuple(ids), (0.0,) * len(ids), "length" if cut else "stop", 0))
    return replace(trajectory, branches=transcript.branches())


def _speaks_alike(trajectory: Trajectory, tokenizer: Any) -> bool:
    """Whether the tokens of a sampled episode mean to this tokenizer, and its template, what was said. Those of another
    model are other words, or none."""
    first = tokenizer.encode(tokenizer.render(next(trajectory.conversations()), trajectory.tools, True))
    if not any(list(branch.tokens[: len(first)]) == list(first) for branch in trajectory.branches):
        return False
    for turn in trajectory.turns:
        ids = turn.sampled.token_ids if turn.sampled else ()
        stopped = bool(ids) and ids[-1] in tokenizer.stop_ids
        if turn.sampled is None or (turn.sampled.stop == "stop") != stopped:
            return False
        if tokenizer.decode(ids[:-1] if stopped else ids) != turn.reply["content"]:
            return False
    return True


def computed_tokens(config: Config, rows: Sequence[Trajectory]) -> float:
    """What one demonstration adds to a supervised step: shared beginnings are computed once."""
    from airloop.learn.batches import micro_batches

    assert config.warmstart is not None
    size = config.warmstart.batch_size
    first = demonstration_batch(next(demonstration_order(rows, size, config.seed)))
    return sum(part.computed_tokens for part in micro_batches(first.rows, config.trainer.token_budget)) / size


def demonstration_order(trajectories: Sequence[Trajectory], batch: int, seed: int) -> Iterator[list[Trajectory]]:
    """Batches that hold several demonstrations of each of a few tasks, in a seeded order, epoch after epoch."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task.id, []).append(trajectory)
    rng = random.Random(seed)
    stream: list[Trajectory] = []
    while True:
        while len(stream) < batch:
            pieces = []
            for members in by_task.values():
                shuffled = rng.sample(members, len(members))
                pieces += [shuffled[i : i + SAME_TASK] for i in range(0, len(shuffled), SAME_TASK)]
            rng.shuffle(pieces)
            stream += [t for piece in pieces for t in piece]
        yield stream[:batch]
        del stream[:batch]


async def fit_demonstrations(
    parts: Components, rows: list[Trajectory], watcher: Watcher, plan_again: Replanner, kept: StartCheckpoint
) -> Progress:
    """All the steps, of which earlier sessions may have made and `kept` some."""
    from airloop.learn.learner import Learner

    settings = parts.config.warmstart
    assert settings is not None
    base = learner_settings(parts.config)
    warmup = max(1, settings.steps // 10)
    learner = parts.learner = Learner(
        parts.policy,
        replace(base, loss="sft", lr=settings.lr, warmup_steps=warmup, passes=1, temperature=1.0),
    )
    made = kept.load(learner, watcher.say)
    steps = made.changes.get("warmstart.steps", settings.steps)
    # The same, however many steps there are and in however many sessions.
    order = itertools.islice(demonstration_order(rows, settings.batch_size, parts.config.seed), len(made.metrics), None)
    _tell_steps(watcher, len(made.metrics), steps)
    async with parts.engine.paused():
        while len(made.metrics) < steps:
            began, step = time.monotonic(), len(made.metrics)
            batch = next(order)
            with (
                interrupts.finishing("a supervised update"),
                waiting("a supervised update", "the learner", UPDATE_S, here=True),
            ):
                lr = scheduled_lr(settings.schedule, settings.lr, step, steps, warmup_steps=warmup)
                report = learner.update(demonstration_batch(batch), lr)
            made.metrics.append({"kind": "sft", "step": step, **report.metrics})
            made.seconds.append(time.monotonic() - began)
            watcher.advance(f"loss {report.metrics['loss']:.2f}")
            made.changes = plan_again(parts.config, made.seconds) or made.changes
            if (fitting := made.changes.get("warmstart.steps", steps)) != steps:
                watcher.say(f"  supervised steps take {made.seconds[-1]:.2g} s here: {fitting} of them, not {steps}")
                steps = fitting
                _tell_steps(watcher, len(made.metrics), steps)
            if len(made.metrics) < steps and kept.is_due():
                kept.save(learner, made, watcher.say)
            await asyncio.sleep(0)  # so that Ctrl-C is heard between steps
    return made


def _tell_steps(watcher: Watcher, made: int, steps: int) -> None:
    watcher.phase(f"supervised start, after step {made}" if made else "supervised start", steps - made)


def _save(parts: Components, directory: Path) -> None:
    from airloop.learn.checkpoints import save_weights

    save_weights(parts.learner, directory)
    if (directory / "model").is_dir():
        parts.loaded.tokenizer.hf.save_pretrained(str(directory / "model"))
