"""How many of a step's episodes end as they would without any policy: as the environment's own scripts that do nothing
or cheat, or with one and the same answer to every task (E11).

The scripts are played only in a run that is suspected: success has not come for some steps while rewards differ. They
are played beside the run, one after the other, each within a deadline, and what they earned is kept in scripts.json.
A run never waits for them, and one that fails is left out.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.envs.base import Environment
from airloop.files import parse_json, write_json
from airloop.rollout.scripted import run_agent
from airloop.runs.run import Run
from airloop.success import METRIC
from airloop.types import Task, Trajectory
from airloop.watch.alarms.success_rules import EDGE, NEVER, SCRIPTS

if TYPE_CHECKING:
    from airloop.rollout.collected import Collected

log = logging.getLogger(__name__)

FILE = "scripts.json"
KINDS = 8  # kinds of tasks on which scripts are played: of a mixture with more, those that were met first
# For one episode of a script. An update, which may take half an hour, holds the event loop meanwhile.
PLAY_S = 2400.0
FEWEST_TASKS = 3  # that one answer must be given to, to be the same whatever is asked
SHOWN = 60  # characters of that answer
DIGITS = 6  # to which two scores are the same
REWARD = "reward"  # the whole of it, with what turns earned: no component has this name

Outcome = Mapping[str, float]  # of an episode: whole-episode components and success
Outcomes = dict[str, dict[str, Outcome]]  # by script, by kind of task


class ScriptSimilarity:
    def __init__(self, envs: Mapping[str, Environment], run: Run) -> None:
        self._envs = envs
        self._run = run
        self._steps: list[Mapping[str, Any]] = list(run.metrics("train"))
        self._kinds: dict[str, Task] = {}
        self._outcomes: Outcomes | None = _kept(run.path / FILE)
        self._first: dict[str, list[float]] = {}
        self._last: dict[str, deque[float]] = {}
        self._playing: asyncio.Task[None] | None = None
        self._ready = False

    def facts(self, collected: Collected) -> dict[str, Any]:
        """For the step's line of metrics. `like` is there from when the scripts' results are."""
        groups = [*collected.groups, *(d.group for d in collected.dropped)]
        trajectories = [t for group in groups for t in group.trajectories]
        for t in trajectories:
            if len(self._kinds) < KINDS:
                self._kinds.setdefault(t.task.curve, t.task)
        found: dict[str, Any] = {"one_answer": one_answer(trajectories)}
        if self._ready and self._outcomes and trajectories:
            for name, share in like(trajectories, self._outcomes).items():
                self._last[name].append(share)
            found["like"] = {
                name: {"first": statistics.fmean(self._first[name]), "last": statistics.fmean(self._last[name])}
                for name in self._outcomes
                if self._first.get(name) and self._last[name]
            }
        return found

    def suspect(self, line: Mapping[str, Any]) -> None:
        """After the step: the scripts are begun, once, where success does not come."""
        self._steps.append(line)
        if self._run.writes and self._playing is None and suspicious(self._steps):
            self._playing = asyncio.create_task(self._play())

    async def close(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
            with suppress(asyncio.CancelledError):
                await self._playing

    async def _play(self) -> None:
        try:
            if self._outcomes is None:
                self._outcomes = await self._outcomes_of(dict(self._kinds))
                if self._outcomes:
                    write_json(self._run.path / FILE, self._outcomes)
            numbers = [line["step"] for line in self._steps if line.get("rewards")]
            self._outcomes = await asyncio.to_thread(self._worth_it, self._outcomes, numbers[:EDGE])
            early = await asyncio.to_thread(self._shares, numbers[:EDGE])
            late = await asyncio.to_thread(self._shares, numbers[-EDGE:])
            self._first, self._last = early, {name: deque(shares, EDGE) for name, shares in late.items()}
            self._ready = True
        except Exception as error:  # whatever an environment's script does, it is not the run's affair
            log.warning("the environments' own scripts could not be played for comparison: %s", error)

    async def _outcomes_of(self, kinds: Mapping[str, Task]) -> Outcomes:
        found: Outcomes = {name: {} for name in SCRIPTS}
        for kind, task in kinds.items():
            for name in SCRIPTS:
                outcome = await self._played(name, task)
                if outcome is not None and outcome[METRIC] <= NEVER:  # one that succeeds is another defect
                    found[name][kind] = outcome
        return {name: kinds for name, kinds in found.items() if kinds}

    async def _played(self, name: str, task: Task) -> Outcome | None:
        env = self._envs.get(task.env)
        if env is None:
            return None
        try:
            agent = env.scripted(name, task, 0)
            played = await run_agent(env, task, agent, id=f"{name}-{task.id}", seed=0, deadline_s=PLAY_S)
        except Exception as error:
            log.info("the script %s of task %s could not be played: %s", name, task.id, error)
            return None
        return outcome_of(played) if played.ending in ("done", "max_turns") and METRIC in played.metrics else None

    def _worth_it(self, outcomes: Outcomes, steps: Sequence[int]) -> Outcomes:
        """Of each script the kinds of tasks where it earned more than the first attempts that failed. Elsewhere, as
        with a reward of 0 or 1, all that fails ends as it does, and nobody learned to do so."""
        failed: dict[str, list[float]] = {}
        for step in steps:
            for t in self._run.finished(step).values():
                if t.ending != "infra_error" and t.metrics.get(METRIC, 1.0) <= NEVER:
                    failed.setdefault(t.task.curve, []).append(t.reward)
        return {
            name: {
                kind: outcome
                for kind, outcome in kinds.items()
                if kind in failed and statistics.fmean(failed[kind]) < outcome[REWARD] - 10**-DIGITS
            }
            for name, kinds in outcomes.items()
        }

    def _shares(self, steps: Sequence[int]) -> dict[str, list[float]]:
        """Of steps that were made before the scripts were played: from their episodes on disk."""
        assert self._outcomes is not None
        found: dict[str, list[float]] = {name: [] for name in self._outcomes}
        for step in steps:
            episodes = [t for t in self._run.finished(step).values() if t.ending != "infra_error"]
            for name, share in like(episodes, self._outcomes).items():
                found[name].append(share)
        return found


def suspicious(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Success has not come in the last steps, although rewards differ. (Where none does, E1 speaks.)"""
    late = [line[METRIC] for line in steps[-EDGE:] if line.get(METRIC) is not None]
    if len(late) < EDGE or statistics.fmean(late) > NEVER:
        return False
    return any(len({round(r, DIGITS) for r in line["rewards"]}) > 1 for line in steps)


def outcome_of(trajectory: Trajectory) -> dict[str, float]:
    return {**trajectory.rewards, METRIC: trajectory.metrics[METRIC], REWARD: trajectory.reward}


def like(trajectories: Sequence[Trajectory], outcomes: Outcomes) -> dict[str, float]:
    """Of each script, the share of episodes on its kinds of tasks that ended as it did: with the same components, as
    far as it has them. What turns earn on the way is left out: a script has fewer or more of them."""
    shares = {}
    for name, kinds in outcomes.items():
        known = [t for t in trajectories if t.task.curve in kinds and METRIC in t.metrics]
        if known:
            shares[name] = statistics.fmean(_same(outcome_of(t), kinds[t.task.curve]) for t in known)
    return shares


def _same(outcome: Outcome, script: Outcome) -> bool:
    parts = [(name, value) for name, value in script.items() if name != REWARD]
    return all(round(outcome.get(name, 0.0) - value, DIGITS) == 0 for name, value in parts)


def one_answer(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The commonest conversation of a step, by what the agent said in it: the share of episodes that have it, if they
    are of several tasks."""
    said = [("\n".join(turn.reply["content"] for turn in t.turns), t.task.id) for t in trajectories if t.turns]
    if not said:
        return {}
    text, count = Counter(text for text, _ in said).most_common(1)[0]
    tasks = len({task for other, task in said if other == text})
    return {"share": count / len(said) if tasks >= FEWEST_TASKS else 0.0, "tasks": tasks, "text": text[:SHOWN]}


def _kept(path: Path) -> Outcomes | None:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return {
            name: {kind: {**row, REWARD: row[REWARD]} for kind, row in kinds.items()} for name, kinds in found.items()
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
