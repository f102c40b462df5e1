"""Scripted researchers for the built-in tasks, and for those of a checkout that have the same name and form:
demonstrations of several levels of skill, and some that keep an environment honest (a no-op, a cheat, a prober, an
oracle). They act by commands and on what they read, nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.types import Agent, Message
from airloop_envs.mlgym.researchers import checkout
from airloop_envs.mlgym.researchers.cheats import attempts
from airloop_envs.mlgym.researchers.games import battle_of_sexes, blotto, prisoners_dilemma
from airloop_envs.mlgym.researchers.pictures import fashion
from airloop_envs.mlgym.researchers.probes import Prober
from airloop_envs.mlgym.researchers.solvers import sat
from airloop_envs.mlgym.researchers.tables import house_prices, titanic
from airloop_envs.mlgym.researchers.work import Draft, Researcher, say
from airloop_envs.mlgym.spec import TaskSpec

LEVELS = ("novice", "junior", "senior", "oracle")
WEAK = ("junior", "junior")  # who is honest and weak: two drafts, of which the better one beats the baseline a little
NAMES = (*LEVELS, "weak", "demo", "noop", "idle", "cheat", "prober")

# Who gives a demonstration: good work is there to be found and is not what is seen most.
EXPERTS = 0.05  # of them, unless `demo_skill` says otherwise
OTHERS: Mapping[str, float] = {"novice": 0.55, "junior": 0.27, "senior": 0.13}
SECOND_THOUGHTS = 0.15  # of the demonstrations make a second draft and keep the better one

# A draft of a level; the same random state gives the same draft.
DRAFTS: Mapping[str, Callable[[str, random.Random], Draft]] = {
    "prisonersDilemma": prisoners_dilemma,
    "battleOfSexes": battle_of_sexes,
    "blotto": blotto,
    "titanic": titanic,
    "regressionKaggleHousePrice": house_prices,
    "imageClassificationFMnist": fashion,
    "3SATTime": sat,
}

TABLES = ("titanic", "regressionKaggleHousePrice", "imageClassificationFMnist")
NOOP = "I would first think about the data and then choose a fitting approach."


def idle(key: str) -> list[Message]:
    """Hands in what is there: what `baseline.py` writes, or the starter file as it is."""
    script = [say("The baseline will do.", "python baseline.py")] if key in TABLES else []
    return [*script, say("How good is it?", "validate"), say("I submit this.", "submit")]


def researcher(name: str, spec: TaskSpec, seed: int, max_turns: int, experts: float = EXPERTS) -> Agent:
    """A fresh scripted agent for one episode: one of NAMES. `experts` is their share of the demonstrations."""
    if spec.key not in DRAFTS:
        raise AirError(
            f"There is no scripted researcher for the task {spec.key!r}.",
            f"they are written for the built-in tasks: {', '.join(DRAFTS)}.",
        )
    rng = random.Random(f"{spec.key}/{spec.variant}/{name}/{seed}")
    if name == "noop":
        return Script(NOOP)
    if name == "idle":
        return Script(*idle(spec.key))
    if name == "prober":  # where no labels are hidden there is nothing to ask for, and it is as idle as that one
        return Prober(spec.key, spec.yardstick, rng, max_turns) if spec.key in TABLES else Script(*idle(spec.key))
    if name == "cheat":
        tried = attempts(spec.key)
        start = rng.randrange(len(tried))
        room = max(1, max_turns - 1)
        chosen = (tried[start:] + tried[:start])[:room]
        return Script(*(say("Perhaps this is quicker.", line) for line in chosen), say("Done.", "submit"))
    levels = list(WEAK) if name == "weak" else [name]
    if name == "demo":
        drafts = 2 if rng.random() < SECOND_THOUGHTS else 1
        levels = rng.choices(LEVELS, _weights(experts), k=drafts)
    elif levels[0] not in LEVELS:
        raise AirError(f"There is no scripted researcher {name!r}.", f"known: {', '.join(NAMES)}.")
    write = (DRAFTS if spec.builtin else {**DRAFTS, **checkout.DRAFTS})[spec.key]
    return Researcher([write(level, rng) for level in levels], spec.yardstick, max_turns)


def _weights(experts: float) -> list[float]:
    """How often each of LEVELS gives a demonstration."""
    scale = (1 - experts) / (1 - EXPERTS)
    return [*(share * scale for share in OTHERS.values()), experts]
