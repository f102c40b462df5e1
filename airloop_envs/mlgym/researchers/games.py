"""Drafts for the three games: strategies of many kinds, from bad to the best reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from airloop_envs.mlgym.researchers.work import Draft

MISTAKES = 0.12  # of the novices' drafts have one

Idea = tuple[str, str]  # a thought, and strategy.py


def strategy(thought: str, body: str, imports: str = "") -> Idea:
    head = f"{imports}\n\n" if imports else ""
    return thought, f"{head}def row_strategy(history):\n    " + body.replace("\n", "\n    ")


def mixed(one: float, thought: str = "I mix both moves at random.") -> Idea:
    return strategy(thought, f"return 1 if random.random() < {one:g} else 0", "import random")


ALWAYS_0 = strategy("I always play 0.", "return 0")
ALWAYS_1 = strategy("I always play 1.", "return 1")
COPY = strategy("I copy the opponent's last move.", "return history[-1][1] if history else 0")
OPPOSE = strategy("I do the opposite of its last move.", "return 1 - history[-1][1] if history else 0")
ALTERNATE = strategy("I alternate.", "return len(history) % 2")
MAJORITY = strategy(
    "I play what it played most.",
    "ones = sum(their for mine, their in history)\nreturn 1 if 2 * ones > len(history) else 0",
)
STAY = strategy(
    "I repeat my move while we meet.",
    "if not history:\n    return 0\nmine, their = history[-1]\nreturn mine if mine == their else 1 - mine",
)
KIND_FIRST = strategy("I open kindly, then defect.", "return 1 if history else 0")
LATE = strategy("I defect in the second half.", "return 1 if len(history) >= 5 else 0")
EARLY = strategy("I defect until the last rounds.", "return 1 if len(history) < 8 else 0")
TURNS = strategy(
    "After two meetings at 0 I give it a turn.",
    "if [tuple(pair) for pair in history[-2:]] == [(0, 0), (0, 0)]:\n    return 1\nreturn 0",
)
EVERY_THIRD = strategy("I give in every third round.", "return 1 if len(history) % 3 == 2 else 0")

SHARES = tuple(round(0.05 * n, 2) for n in range(1, 20))


def mixes(low: float, high: float) -> Callable[[random.Random], Idea]:
    return lambda rng: mixed(rng.choice([p for p in SHARES if low <= p <= high]))


def one_of(*ideas: Idea) -> Callable[[random.Random], Idea]:
    return lambda rng: rng.choice(ideas)


Menu = Sequence[Callable[[random.Random], Idea]]
Forces = Sequence[tuple[int, ...]]

PRISONERS: dict[str, Menu] = {
    "novice": (one_of(ALWAYS_0, COPY, MAJORITY, STAY), mixes(0.05, 0.4), one_of(COPY, LATE)),
    "junior": (one_of(ALTERNATE, OPPOSE, LATE), mixes(0.4, 0.7), mixes(0.5, 0.8)),
    "senior": (one_of(ALWAYS_1, EARLY), mixes(0.85, 0.95)),
    "oracle": (one_of(KIND_FIRST),),
}
SEXES: dict[str, Menu] = {
    "novice": (one_of(ALWAYS_1, COPY, ALTERNATE, OPPOSE), mixes(0.3, 0.9), mixes(0.3, 0.6)),
    "junior": (one_of(MAJORITY), mixes(0.1, 0.3), mixes(0.1, 0.3)),
    "senior": (one_of(ALWAYS_0, EVERY_THIRD), one_of(ALWAYS_0)),
    "oracle": (one_of(TURNS),),
}


def _draft(idea: Idea, level: str, rng: random.Random, break_it: Callable[[str], str]) -> Draft:
    thought, text = idea
    broken = break_it(text) if level == "novice" and rng.random() < MISTAKES else ""
    return Draft(thought, "strategy.py", text, broken=broken if broken != text else "")


def _spoil(text: str) -> str:
    """A mistake people make: the import is forgotten, or the function's name is wrong."""
    return text.removeprefix("import random\n\n") if "import" in text else text.replace("row_strategy", "strategy")


def prisoners_dilemma(level: str, rng: random.Random, menus: Mapping[str, Menu] = PRISONERS) -> Draft:
    return _draft(rng.choice(menus[level])(rng), level, rng, _spoil)


def battle_of_sexes(level: str, rng: random.Random, menus: Mapping[str, Menu] = SEXES) -> Draft:
    return _draft(rng.choice(menus[level])(rng), level, rng, _spoil)


# --- blotto ---------------------------------------------------------------------------------------------

SOLDIERS, FIELDS = 120, 6
FORCES: dict[str, Forces] = {
    "novice": (
        (60, 60, 0, 0, 0, 0),
        (20, 20, 20, 20, 20, 20),
        (22, 22, 22, 22, 22, 10),
        (24, 24, 24, 24, 24, 0),
        (50, 14, 14, 14, 14, 14),
    ),
    "junior": ((30, 30, 30, 30, 0, 0), (25, 25, 25, 25, 10, 10), (38, 38, 22, 12, 8, 2), (35, 30, 25, 15, 10, 5)),
    "senior": ((40, 40, 40, 0, 0, 0), (41, 41, 38, 0, 0, 0), (31, 31, 31, 27, 0, 0), (40, 34, 28, 10, 6, 2)),
    "oracle": ((41, 40, 30, 3, 3, 3),),
}
RANDOM_FORCE = strategy(
    "I scatter the soldiers at random.",
    "force = [0] * 6\nfor _ in range(120):\n    force[random.randrange(6)] += 1\nreturn force",
    "import random",
)


def blotto(level: str, rng: random.Random, forces: Mapping[str, Forces] = FORCES) -> Draft:
    if level == "novice" and rng.random() < 0.1:
        return _draft(RANDOM_FORCE, level, rng, _spoil)
    if level == "novice" and rng.random() < 0.5:
        cuts = sorted(rng.randrange(SOLDIERS + 1) for _ in range(FIELDS - 1))
        force = [later - cut for cut, later in pairwise([0, *cuts, SOLDIERS])]
    else:
        force = list(rng.choice(forces[level]))
        force = force if level == "oracle" else _wavered(force, rng)
    rng.shuffle(force)
    kind = f"{sum(n >= SOLDIERS // FIELDS for n in force)} strong fields"
    # The last field gets the rest: a small model cannot add six numbers up to 120, and without a valid plan there is
    # nothing to learn from.
    first, rest = force[:-1], f"plan + [{SOLDIERS} - sum(plan)]"
    idea = strategy(f"I try {kind}.", f"plan = {first}\nreturn {rest}")
    return _draft(idea, level, rng, lambda text: text.replace(rest, "plan + [10]" if sum(first) != 110 else "plan"))


def _wavered(force: list[int], rng: random.Random) -> list[int]:
    """A few soldiers moved between fields, so that demonstrations spread."""
    moved = force.copy()
    for _ in range(rng.randrange(4)):
        source, to = rng.sample(range(FIELDS), 2)
        count = min(moved[source], rng.randint(1, 5))
        moved[source], moved[to] = moved[source] - count, moved[to] + count
    return moved
