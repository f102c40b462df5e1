"""Every loss × scale × credit gives the numbers it gave before the losses became a table.

`python tests/learn/test_losses_golden.py` wrote golden_losses.json at commit 5c36d08; written anew, it would prove
nothing about that commit.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
import torch

from airloop.learn.advantages import TurnWeights, assign_advantages, token_advantages
from airloop.learn.losses import LOSSES, LossSettings, LossTerms
from airloop.types import Branch, Group, Task, Trajectory

GOLDEN = Path(__file__).with_name("golden_losses.json")
TYPES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "sft")
SCALES = {"unscaled": (False, "group"), "group": (True, "group"), "batch": (True, "batch")}
CREDITS = {"trajectory": None, "turn": {"e": TurnWeights({"step": 1.0, "late": 0.5}, {"late": "mean"})}}
SETTINGS = {
    "plain": LossSettings(0.02, 0.03, importance_cap=1.3),
    "masked, k1": LossSettings(0.1, 0.2, 0.1, 1.3, "mask", 0.8, "k1"),
    "k3": LossSettings(0.1, 0.28, 0.1, kl_estimator="k3"),
}
CASES = [" | ".join(case) for case in itertools.product(TYPES, SCALES, CREDITS, SETTINGS)]


def make_groups() -> list[Group]:
    rng, task = random.Random(11), Task("e", "t", "train")
    groups = []
    for g in range(3):
        members = []
        for m in range(4):
            lengths = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            places = [turn for turn, length in enumerate(lengths) for _ in range(length)]
            n = len(places)
            branch = Branch((0, *range(n)), (False, *[True] * n), (0.0, *[-1.0] * n), (-1, *places))
            turns = tuple({"step": rng.choice([0.0, 0.5]), "late": rng.random()} for _ in lengths)
            reward = rng.choice([0.0, 0.3, 1.0]) + 0.01 * m
            name = f"{g}-{m}"
            members.append(Trajectory(name, task, 0, 0, (), (branch,), "done", {}, turns, {}, reward, 0.0, 0.0))
        groups.append(Group(task, 0, tuple(members)))
    return groups


def draw(rng: random.Random, around: list[float], spread: float) -> list[float]:
    return [x + rng.gauss(0, spread) for x in around]


def numbers(case: str) -> dict[str, float]:
    """The loss, two sums over its gradient, which any change moves, and the statistics."""
    kind, scale, credit, name = case.split(" | ")
    scaled, by = SCALES[scale]
    batch = assign_advantages(
        make_groups(),
        loss=kind,
        scale_rewards=scaled,
        token_constant=50,
        keep_zero=True,
        scale_by=by,
        turn_weights=CREDITS[credit],
    )
    rng = random.Random(12)
    advantage = [a for row in batch.rows for a in token_advantages(row)]
    now = [-rng.expovariate(1.0) for _ in advantage]
    old = draw(rng, now, 0.2)
    columns = [now, old, draw(rng, old, 0.5), draw(rng, now, 0.5), advantage]
    columns += [[row.weight for row in batch.rows for _ in range(sum(row.train))], draw(rng, [0.0] * len(now), 0.05)]
    terms = LossTerms(*(torch.tensor(column, dtype=torch.float64) for column in columns))
    terms.logprobs.requires_grad_()
    loss, parts = LOSSES[kind](terms, SETTINGS[name])
    loss.backward()
    slopes = terms.logprobs.grad
    assert slopes is not None
    mixed = (slopes * torch.arange(1, len(now) + 1)).sum()
    found = {"loss": loss, "slopes": slopes.sum(), "mixed": mixed, **parts}
    return {key: float(value) for key, value in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_as_before(case: str) -> None:
    assert numbers(case) == pytest.approx(json.loads(GOLDEN.read_text())[case], abs=1e-7, rel=1e-9)


if __name__ == "__main__":
    GOLDEN.write_text("{\n" + ",\n".join(f"{json.dumps(c)}: {json.dumps(numbers(c))}" for c in CASES) + "\n}\n")
