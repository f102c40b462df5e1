"""Drafts for 3SATTime: solvers from slower than the starter to about twenty times as fast."""

from __future__ import annotations

import random
from collections.abc import Sequence

from airloop_envs.mlgym.researchers.work import Draft

# The starter's search with another choice of the literal to branch on.
BRANCHING = """def solve(num_vars, clauses):
    found = search(clauses, ())
    return None if found is None else [v in found for v in range(1, num_vars + 1)]

def search(clauses, true):
    unit = next((c[0] for c in clauses if len(c) == 1), None)
    if unit is not None:
        rest = simplify(clauses, unit)
        return None if rest is None else search(rest, true + (unit,))
    if not clauses:
        return true
    {choose}
    for choice in (literal, -literal):
        rest = simplify(clauses, choice)
        found = None if rest is None else search(rest, true + (choice,))
        if found is not None:
            return found
    return None

def simplify(clauses, literal):
    left = [[x for x in c if x != -literal] if -literal in c else c for c in clauses if literal not in c]
    return left if all(left) else None
"""
LAST = BRANCHING.format(choose="literal = clauses[-1][-1]")
SHORTEST = BRANCHING.format(choose="literal = min(clauses, key=len)[0]")
FREQUENT = BRANCHING.format(
    choose="""count = {}
    for c in clauses:
        for x in c:
            count[x] = count.get(x, 0) + 1
    literal = max(count, key=count.get)"""
)
WEIGHTED = BRANCHING.format(
    choose="""count = {}
    for c in clauses:
        for x in c:
            count[x] = count.get(x, 0) + 5 ** (3 - len(c))
    literal = max(count, key=lambda x: (count[x] + 1) * (count.get(-x, 0) + 1))"""
)
COUNTERS = """def solve(num_vars, clauses):
    occurs = {x: [] for v in range(1, num_vars + 1) for x in (v, -v)}
    for i, c in enumerate(clauses):
        for x in c:
            occurs[x].append(i)
    free, sat, value = [len(c) for c in clauses], [0] * len(clauses), {}

    def assign(literal, trail):
        queue = [literal]
        while queue:
            x = queue.pop()
            if x in value:
                if value[x]:
                    continue
                return False
            value[x], value[-x] = True, False
            trail.append(x)
            for i in occurs[x]:
                sat[i] += 1
            dead = False
            for i in occurs[-x]:
                free[i] -= 1
                if not sat[i]:
                    if free[i] == 1:
                        queue += [y for y in clauses[i] if y not in value]
                    dead = dead or free[i] == 0
            if dead:
                return False
        return True

    def undo(trail):
        for x in trail:
            del value[x], value[-x]
            for i in occurs[x]:
                sat[i] -= 1
            for i in occurs[-x]:
                free[i] += 1

    def search():
        count = {}
        for i, c in enumerate(clauses):
            if not sat[i]:
                weight = 5 if free[i] == 2 else 1
                for x in c:
                    if x not in value:
                        count[x] = count.get(x, 0) + weight
        if not count:
            return True
        literal = max(count, key=lambda x: (count[x] + 1) * (count.get(-x, 0) + 1))
        for choice in (literal, -literal):
            trail = []
            if assign(choice, trail) and search():
                return True
            undo(trail)
        return False

    return [value.get(v, False) for v in range(1, num_vars + 1)] if search() else None
"""
GUESS = """import random

def solve(num_vars, clauses):
    for _ in range(200):
        guess = [random.random() < 0.5 for _ in range(num_vars)]
        if all(any(guess[abs(x) - 1] == (x > 0) for x in c) for c in clauses):
            return guess
    return None
"""

LEVELS: dict[str, Sequence[tuple[str, str]]] = {
    "novice": (("I branch on the last literal.", LAST), ("I guess at random.", GUESS)),
    "junior": (("I branch in the shortest clause.", SHORTEST), ("I branch on the commonest literal.", FREQUENT)),
    "senior": (("I weigh short clauses more when branching.", WEIGHTED),),
    "oracle": (("I keep counters for the clauses and undo them instead of copying.", COUNTERS),),
}


def sat(level: str, rng: random.Random) -> Draft:
    thought, text = rng.choice(LEVELS[level])
    return Draft(thought, "solver.py", text)
