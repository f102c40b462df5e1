"""Any agent on held-out tasks: the same tasks, seeds and sampling for all, saved as a directory.

    eval-SmolLM2-135M-Instruct-1/
      evaluation.json     agent, conditions, rows, means with intervals, tokens, cost
      episodes/*.json     one trajectory per row

An evaluation that was stopped goes on where it was when it is asked for again with the same --out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop import interrupts
from airloop.assemble import held_out_tasks
from airloop.config import Config
from airloop.config.toml import toml_value
from airloop.errors import AirError
from airloop.eval.agents import AgentSpec, LoadedAgent, UrlOptions, describe, find_agent, load_agent
from airloop.eval.breakdown import by_kind, kind_table
from airloop.eval.conditions import conditions
from airloop.eval.votes import votes
from airloop.files import read_object, write_json
from airloop.os_errors import check_place
from airloop.rollout.collected import Evaluated
from airloop.rollout.schedule import place_in_step
from airloop.runs.run import read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.success import NAME, in_order, name_of
from airloop.types import Trajectory
from airloop.version import __version__
from airloop.watch.metrics.families import by_family, table
from airloop.watch.metrics.rows import means, row_key

if TYPE_CHECKING:
    from airloop.events import Watcher

SCHEMA_VERSION = 1
SEED = 0  # of every evaluation, in training and here: the same rows


@dataclass(frozen=True)
class EvalOptions:
    """What the config does not say, or None to go by its [orchestrator.eval]."""

    agent: str = "model"
    split: str | None = None
    n: int | None = None
    rollouts: int | None = None
    temperature: float | None = None
    out: Path | None = None
    url: UrlOptions = field(default_factory=UrlOptions)
    env: str = ""  # in place of the config's environments
    args: Mapping[str, Any] = field(default_factory=dict)  # of that

    def words(self, argv: Sequence[str]) -> list[str]:
        """Files and flags of the config, and what is asked for besides."""
        if not self.env:
            if self.args:
                raise AirError("--arg is said of an environment, and none is named.", "name it: --env ID.")
            return list(argv)
        return [*argv, "--orchestrator.env", toml_value([{"id": self.env, "args": dict(self.args)}])]

    def resolved(self, config: Config) -> dict[str, Any]:
        own = config.orchestrator.eval
        return {
            "split": self.split or own.test_split,
            "n": own.num_examples if self.n is None else self.n,
            "rollouts": own.rollouts_per_example if self.rollouts is None else self.rollouts,
            "temperature": own.temperature if self.temperature is None else self.temperature,
        }


def evaluate(argv: Sequence[str], options: EvalOptions, watcher: Watcher) -> dict[str, Any]:
    """`argv` are config files and flags. Returns what evaluation.json holds, with its directory."""
    player = find_agent(options.agent, options.words(argv), options.url)
    asked = options.resolved(player.config)
    if asked["n"] < 1 or asked["rollouts"] < 1 or asked["temperature"] < 0:
        raise AirError(
            f"This is no evaluation: n = {asked['n']}, rollouts = {asked['rollouts']}, "
            f"temperature = {asked['temperature']}.",
            "tasks and episodes are at least 1, the temperature at least 0.",
        )
    directory = _directory(player, options.out)
    check_place(directory, "The place for the results")
    watcher.say(f"evaluation {directory}")
    try:
        return interrupts.run(_evaluate(player, asked, directory, watcher))
    except KeyboardInterrupt:
        watcher.say(f"every episode that ended is saved; to go on, repeat the command with --out {directory}")
        raise


def _directory(player: AgentSpec, asked: Path | None) -> Path:
    """Never one that holds something else: by default the next free number."""
    if asked is None:
        root = Path(player.config.output_dir).expanduser().resolve()
        free = (root / f"eval-{player.label}-{i}" for i in range(1, 1_000_000))
        return next(path for path in free if not path.exists())
    directory = asked.expanduser().resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        saved = _saved(directory)
        if saved is None or saved["finished"]:
            what = "holds a finished evaluation" if saved else "is not empty"
            raise AirError(f"{directory} {what}.", "give another --out, or none for the next free name.")
    return directory


def _saved(directory: Path) -> dict[str, Any] | None:
    path = directory / "evaluation.json"
    return read_object(path) if path.is_file() else None


async def _evaluate(player: AgentSpec, asked: dict[str, Any], directory: Path, watcher: Watcher) -> dict[str, Any]:
    if player.is_policy:
        watcher.phase("loading the model")
    seat = load_agent(player, watcher.say)
    try:
        plan = held_out_tasks(seat.envs, asked["split"], asked["n"])
        if len(plan) < asked["n"]:
            watcher.say(f"note: the split {asked['split']!r} has {len(plan)} tasks, not {asked['n']}")
        await seat.check(plan, watcher)
        header = _header(seat, asked, len(plan))
        finished = _continue(directory, header)
        total = len(plan) * asked["rollouts"]
        watcher.phase(f"evaluating {player.label} on {asked['split']}", total - len(finished))

        def save(trajectory: Trajectory, _: int) -> None:
            write_json(directory / "episodes" / f"{trajectory.id}.json", to_json(trajectory))
            watcher.advance()

        clock = time.perf_counter()
        result = await seat.sampler(save).evaluate(
            plan,
            seat.agents(asked["temperature"]),
            rollouts=asked["rollouts"],
            temperature=asked["temperature"],
            seed=SEED,
            version=player.version,
            finished=finished,
        )
        seconds = time.perf_counter() - clock
    finally:
        await seat.close()
    for note in seat.dialect.notes:
        watcher.say(f"note: {note}")
    reused = {t.id for t in finished.values()}
    report = {**header, "finished": True, **_results(result, seat, reused), "seconds": seconds}
    write_json(directory / "evaluation.json", report)
    if not result.trajectories:
        raise AirError(
            f"None of the {total} episodes could be scored; the last met this: {result.lost[-1].error}",
            f"all are saved in {directory}; mend what failed and evaluate again.",
        )
    return {**report, "directory": str(directory)}


def _header(seat: LoadedAgent, asked: dict[str, Any], tasks: int) -> dict[str, Any]:
    player = seat.player
    made = conditions(
        player.config,
        seat.envs,
        asked["temperature"],
        samples=player.is_policy or bool(player.base_url),
        policy=player.is_policy,
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "finished": False,
        **describe(player),
        "split": asked["split"],
        "tasks": tasks,
        "rollouts": asked["rollouts"],
        "seed": SEED,
        **made.as_json(),
        "air_version": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _continue(directory: Path, header: dict[str, Any]) -> dict[tuple[int, int], Trajectory]:
    """Episodes that a stopped evaluation of the same kind left here; a new one gets its header."""
    saved = _saved(directory)
    if saved is None:
        write_json(directory / "evaluation.json", header)
        return {}
    changed = [k for k in header if k != "date" and header[k] != saved.get(k)]
    if changed:
        raise AirError(
            f"{directory} holds an evaluation that was stopped, and it is another one: {', '.join(changed)} differ.",
            "repeat the command it was started with, or give another --out.",
        )
    found = read_trajectories(directory / "episodes")
    return {place_in_step(t.id): t for t in found if t.ending != "infra_error"}


def _results(result: Evaluated, seat: LoadedAgent, reused: set[str]) -> dict[str, Any]:
    everything = [*result.trajectories, *result.lost]
    tokens, cost = _spent(result, seat, reused)
    return {
        "rows": [dict(zip(("env", "task", "seed"), row_key(t), strict=True)) for t in everything],
        "episodes": len(result.trajectories),
        NAME: name_of(seat.envs.values()),
        "lost": [{"task": t.task.id, "seed": t.seed, "error": t.error} for t in result.lost],
        "means": {name: i.as_json() for name, i in means(result.trajectories).items()},
        "votes": {name: i.as_json() for name, i in votes(result.trajectories, seat.envs).items()},
        "task": by_family(result.trajectories),
        "kinds": by_kind(result.trajectories),
        "tokens": tokens,
        "cost": cost,
        "notes": seat.dialect.notes,
    }


def _spent(result: Evaluated, seat: LoadedAgent, reused: set[str]) -> tuple[dict[str, int] | None, float | None]:
    """Tokens in and out, and what they cost. At a URL also those of episodes that were lost or repeated."""
    player = seat.player
    if player.is_policy:
        made = [*result.trajectories, *result.lost]
        tokens = {"in": sum(map(prompt_tokens, made)), "out": sum(t.sampled_tokens for t in made)}
        return tokens, None
    if not player.base_url:
        return None, None
    before = [t.metrics for t in result.trajectories if t.id in reused]
    tokens = {
        "in": int(sum(a.tokens_in for a in seat.spent) + sum(m["tokens_in"] for m in before)),
        "out": int(sum(a.tokens_out for a in seat.spent) + sum(m["tokens_out"] for m in before)),
    }
    if player.url.price_in is None or not tokens["out"]:  # a server that counts no tokens is not free
        return tokens, None
    return tokens, sum(a.cost for a in seat.spent) + sum(m["cost"] for m in before)


def prompt_tokens(trajectory: Trajectory) -> int:
    """Of all requests: what stands before each turn's first sampled token."""
    first: dict[int, int] = {}
    for branch in trajectory.branches:
        for place, (turn, trained) in enumerate(zip(branch.turns, branch.train, strict=True)):
            if trained:
                first.setdefault(turn, place)
    return sum(first.values())


def _line(name: str, row: Mapping[str, Any]) -> str:
    found = "–" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]"
    return f"{name:18s} {row['mean']:9.3f}   {found}"


def format_report(report: dict[str, Any]) -> str:
    lost = f", {len(report['lost'])} lost to infrastructure trouble" if report["lost"] else ""
    sampling = report["sampling"]
    how = f", temperature {sampling['temperature']:g}" if sampling else ""
    who = f"{report['agent']} {report['model']}".rstrip()
    lines = [
        f"{who}: {report['tasks']} tasks of {report['split']!r} × {report['rollouts']}{how}{lost}",
        f"{'':18s} {'mean':>9s}   95 % interval",
    ]
    for name in in_order(report["means"], report[NAME]):
        lines.append(_line(name, report["means"][name]))
        if name == report[NAME]:
            lines += [_line(f"  {how} of {report['rollouts']}", row) for how, row in report["votes"].items()]
    if report["kinds"]:
        lines.append(kind_table(report["kinds"]))
    elif len(report["task"]) > 1:
        lines.append(table({"": report["task"]}, report[NAME]))
    tokens = report["tokens"]
    spent = f"{tokens['in']} tokens in, {tokens['out']} out, " if tokens else ""
    cost = f"cost {report['cost']:.4f}, " if report["cost"] is not None else ""
    lines.append(f"{spent}{cost}{report['seconds']:.1f} s")
    if tokens and report["cost"] is None and report["price_in"] is not None:
        lines.append("note: the server reports no token counts, so the cost is not known")
    lines.append(f"saved in {report['directory']}")
    return "\n".join(lines)
