"""Random 3-SAT with 4.27 clauses a variable: where as many instances can be solved as not."""

from __future__ import annotations

import random

NUM_VARS, NUM_CLAUSES = 56, 239


def draw(rng: random.Random) -> list[list[int]]:
    triples = (rng.sample(range(1, NUM_VARS + 1), 3) for _ in range(NUM_CLAUSES))
    return [[rng.choice((v, -v)) for v in triple] for triple in triples]
