"""Losses against an independent float64 implementation; against TRL itself in test_losses_trl.py."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airloop.learn.advantages import Batch, assign_advantages, token_advantages, trajectory_of
from airloop.learn.batches import Row
from airloop.learn.losses import LOSSES, POLICY_LOSSES, LossSettings, LossTerms, kl_estimate
from airloop.learn.losses.sequence_mask import MaskedBy, sequence_mask
from airloop.types import Branch, Group, Task, Trajectory

TYPES = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"]
CONSTANT = 50  # Dr. GRPO's


def reference(t: dict[str, np.ndarray], s: LossSettings) -> tuple[float, np.ndarray]:
    """Loss and its gradient with respect to the log-probs, token by token, by hand."""
    total, gradient = 0.0, np.zeros(len(t["logprobs"]))
    for i in range(len(gradient)):
        ratio = math.exp(t["logprobs"][i] - t["old"][i])
        low, high = 1 - s.clip_low, 1 + s.clip_high
        clipped = min(max(ratio, low), high)
        a, w = t["advantage"][i], t["weight"][i]
        correction = min(math.exp(t["old"][i] - t["sampler"][i]), s.importance_cap)
        inside = ratio * a <= clipped * a
        total += -min(ratio * a, clipped * a) * correction * w
        if inside:
            gradient[i] += -ratio * a * correction * w
        if s.kl_beta:
            d = t["reference"][i] - t["logprobs"][i]
            total += s.kl_beta * (math.exp(d) - d - 1) * w
            gradient[i] += s.kl_beta * (1 - math.exp(d)) * w
    return total, gradient


@pytest.mark.parametrize("kl_beta", [0.0, 0.04])
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.1, 0.28)])
def test_loss_and_gradient_equal_the_float64_reference(kl_beta: float, clip: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    n = 300
    base = -rng.exponential(1.0, n)
    values = {
        "logprobs": base,
        "old": base + rng.normal(0, 0.3, n),
        "sampler": base + rng.normal(0, 0.5, n),
        "reference": base + rng.normal(0, 0.5, n),
        "advantage": rng.normal(0, 1, n),
        "weight": rng.uniform(0, 1, n) / n,
    }
    settings = LossSettings(*clip, kl_beta=kl_beta, importance_cap=1.5)
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in values.items()}
    tensors["logprobs"].requires_grad_()
    loss, parts = LOSSES["grpo"](LossTerms(**tensors), settings)
    loss.backward()
    wanted, gradient = reference(values, settings)
    assert loss.item() == pytest.approx(wanted, abs=1e-12)
    np.testing.assert_allclose(tensors["logprobs"].grad.numpy(), gradient, atol=1e-12)
    assert 0 < parts["clipped"] < 1 and parts["importance"] <= 1.5


# --- every loss, from rewards to gradient, against its paper's formula -----------------------------------------------


def world(seed: int, branching: bool = False) -> tuple[list[Group], dict[str, dict[str, list[float]]]]:
    """Groups of trajectories of different lengths, and for each the log-probs that a loss is made of. Branching,
    the same tokens lie in several sequences."""
    rng = random.Random(seed)
    task = Task("e", "t", "train")
    groups, values = [], {}
    for g in range(3):
        members = []
        for m in range(3):
            lengths = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
            n = sum(lengths)
            now = [-rng.expovariate(1.0) for _ in range(n)]
            old = [x + rng.gauss(0, 0.2) for x in now]
            values[f"{g}-{m}"] = {
                "logprobs": now,
                "old": old,
                "sampler": [x + rng.gauss(0, 0.5) for x in old],
                "reference": [x + rng.gauss(0, 0.5) for x in now],
            }
            places = [i for i, length in enumerate(lengths) for _ in range(length)]
            pieces = [[p == i for p in places] for i in range(len(lengths))] if branching else [[True] * n]
            branches = tuple(
                Branch((0, *range(n)), (False, *train), (0.0, *([-1.0] * n)), (-1, *places)) for train in pieces
            )
            reward = rng.choice([0.0, 0.3, 1.0]) + 0.01 * m
            members.append(Trajectory(f"{g}-{m}", task, 0, 0, (), branches, "done", {}, (), {}, reward, 0.0, 0.0))
        groups.append(Group(task, 0, tuple(members)))
    return groups, values


def paper(
    kind: str, groups: list[Group], values: dict[str, dict[str, list[float]]], s: LossSettings
) -> tuple[float, dict[str, list[float]]]:
    """The formulas of docs/losses.md, a trajectory after the other: the loss and its gradient by log-prob."""
    total_trajectories = sum(len(g.trajectories) for g in groups)
    total_tokens = sum(len(v["logprobs"]) for v in values.values())
    loss, gradient = 0.0, {}
    for group in groups:
        rewards = [t.reward for t in group.trajectories]
        n = len(rewards)
        for i, trajectory in enumerate(group.trajectories):
            others = [r for j, r in enumerate(rewards) if j != i]
            if kind == "rloo":
                a = rewards[i] - sum(others) / (n - 1)
            else:
                a = rewards[i] - sum(rewards) / n
                if kind != "dr_grpo":
                    mean = sum(rewards) / n
                    a /= math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1)) + 1e-4
            v = values[trajectory.id]
            length = len(v["logprobs"])
            share = {
                "grpo": 1 / length / total_trajectories,
                "gspo": 1 / length / total_trajectories,
                "dr_grpo": 1 / CONSTANT / total_trajectories,
                "dapo": 1 / total_tokens,
                "cispo": 1 / total_tokens,
                "rloo": 1 / total_trajectories,
            }[kind]
            logs = [x - y for x, y in zip(v["old"], v["sampler"], strict=True)]
            mean, ratios = math.exp(sum(logs) / length), [math.exp(log) for log in logs]
            kept = s.geo_mask_low <= mean <= s.geo_mask_high
            kept &= s.sequence_mask_low <= min(ratios) and max(ratios) <= s.sequence_mask_high
            whole_ratio = math.exp(sum(x - y for x, y in zip(v["logprobs"], v["old"], strict=True)) / length)
            gradient[trajectory.id] = []
            for now, old, sampler, start in zip(*v.values(), strict=True):
                correction = math.exp(old - sampler)
                if s.importance_mode == "truncate":
                    correction = min(correction, s.importance_cap)
                elif not s.importance_floor <= correction <= s.importance_cap:
                    correction = 0.0
                correction *= kept
                b = a - (s.kl_beta * (old - start) if s.kl_estimator == "k1" else 0.0)
                value, slope = token(kind, now, old, whole_ratio, b, s)
                value, slope = value * correction, slope * correction
                if s.kl_estimator == "k2":
                    value += s.kl_beta * 0.5 * (now - start) ** 2
                    slope += s.kl_beta * (now - start)
                if s.kl_estimator == "k3":
                    value += s.kl_beta * (math.exp(start - now) - (start - now) - 1)
                    slope += s.kl_beta * (1 - math.exp(start - now))
                loss += value * share
                gradient[trajectory.id].append(slope * share)
    return loss, gradient


def token(kind: str, now: float, old: float, whole_ratio: float, a: float, s: LossSettings) -> tuple[float, float]:
    """Of one token the loss before corrections, and its derivative by `now`. In GSPO the derivative of the ratio
    exp(mean) by one log-prob is ratio/length; the 1/length is the token's share already."""
    if kind == "rloo":
        return -a * now, -a
    ratio = whole_ratio if kind == "gspo" else math.exp(now - old)
    if kind == "cispo":
        weight = min(ratio, 1 + s.clip_high)
        return -weight * a * now, -weight * a
    held = min(max(ratio, 1 - s.clip_low), 1 + s.clip_high)
    return -min(ratio * a, held * a), -ratio * a if ratio * a <= held * a else 0.0


def terms_of(
    rows: list[Row], values: dict[str, dict[str, list[float]]], s: LossSettings | None = None
) -> tuple[LossTerms, list[tuple[str, int]]]:
    """A micro-batch of the rows as the learner makes one, and of each of its tokens the trajectory and the place."""
    places = [(trajectory_of(r), t) for r in rows for t, train in zip(r.tokens, r.train, strict=True) if train]
    tensors = {
        name: torch.tensor([values[key][name][place] for key, place in places], dtype=torch.float64)
        for name in ("logprobs", "old", "sampler", "reference")
    }
    drift = {k: np.mean(np.subtract(v["logprobs"], v["old"])) for k, v in values.items()}
    terms = LossTerms(
        **tensors,
        advantage=torch.tensor([a for r in rows for a in token_advantages(r)], dtype=torch.float64),
        weight=torch.tensor([r.weight for r in rows for _ in range(sum(r.train))], dtype=torch.float64),
        sequence=torch.tensor([drift[key] for key, _ in places], dtype=torch.float64),
    )
    if mask := sequence_mask(vars(s or LossSettings())):
        cuts = {k: mask.cut(np.subtract(v["old"], v["sampler"]).tolist()) for k, v in values.items()}
        whole = {
            f"cut_{name}": torch.tensor([getattr(cuts[key], name) for key, _ in places]) for name in MaskedBy._fields
        }
        terms = replace(terms, **whole)
    terms.logprobs.requires_grad_()
    return terms, places


def batch_of(kind: str, groups: list[Group]) -> Batch:
    scale = kind not in ("dr_grpo", "rloo")
    return assign_advantages(groups, loss=kind, scale_rewards=scale, token_constant=CONSTANT, keep_zero=True)


SETTINGS = {
    "plain": LossSettings(0.1, 0.2),
    "clip higher": LossSettings(0.05, 0.28, importance_cap=1.3),
    "masked": LossSettings(0.1, 0.2, importance_cap=1.3, importance_mode="mask", importance_floor=0.8),
    "geo masked": LossSettings(0.1, 0.2, geo_mask_low=0.85, geo_mask_high=1.2),
    "sequence masked": LossSettings(0.1, 0.2, sequence_mask_low=0.4, sequence_mask_high=2.5),
    "all masks": LossSettings(0.1, 0.2, 0.1, 1.6, "mask", 0.6, geo_mask_high=1.3, sequence_mask_low=0.3),
    "k1": LossSettings(0.1, 0.2, kl_beta=0.1, kl_estimator="k1"),
    "k2": LossSettings(0.1, 0.2, kl_beta=0.1, kl_estimator="k2"),
    "k3": LossSettings(0.1, 0.2, kl_beta=0.1, kl_estimator="k3"),
}


def chosen(kind: str, name: str) -> LossSettings:
    """A trajectory's ratio is nearer to 1 than its tokens': it takes a tighter clip to act."""
    return replace(SETTINGS[name], clip_low=0.02, clip_high=0.03) if kind == "gspo" else SETTINGS[name]


@pytest.mark.parametrize("branching", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_loss_is_its_papers_from_rewards_to_gradient(kind: str, name: str, branching: bool) -> None:
    groups, values = world(1, branching)
    wanted, gradient = paper(kind, groups, values, chosen(kind, name))
    terms, places = terms_of(list(batch_of(kind, groups).rows), values, chosen(kind, name))
    loss, parts = LOSSES[kind](terms, chosen(kind, name))
    loss.backward()
    assert loss.item() == pytest.approx(wanted, abs=1e-12)
    assert len(places) == sum(len(g) for g in gradient.values())
    for (key, place), slope in zip(places, terms.logprobs.grad.tolist(), strict=True):
        assert slope == pytest.approx(gradient[key][place], abs=1e-12)
    assert parts["clipped"] > 0 or kind == "rloo"
    assert ("kl" in parts) == (SETTINGS[name].kl_beta > 0)
    whole = [value for key, value in parts.items() if key in ("cut_geo", "cut_sequence")]
    assert len(whole) == 2 * ("geo" in name or "sequence" in name or name == "all masks")
    if whole:
        assert 0 < max(whole) <= parts["cut"] < 1
    else:
        assert (parts["cut"] > 0) == bool((terms.old - terms.sampler).exp().max() > SETTINGS[name].importance_cap)


@pytest.mark.slow
@given(
    st.sampled_from(TYPES),
    st.sampled_from(sorted(SETTINGS)),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), min_size=64, max_size=64),
)
def test_any_cut_into_micro_batches_gives_the_same_loss_and_gradient(
    kind: str, name: str, seed: int, cut: list[int]
) -> None:
    """Also when the rows of a trajectory are torn apart."""
    groups, values = world(seed, branching=True)
    rows = batch_of(kind, groups).rows
    found: list[tuple[float, dict[tuple[str, int], float]]] = []
    for parts in ([list(rows)], [[r for r, c in zip(rows, cut, strict=False) if c == part] for part in range(4)]):
        total, slopes = 0.0, {}
        for part in parts:
            if part:
                terms, places = terms_of(part, values, chosen(kind, name))
                loss, _ = LOSSES[kind](terms, chosen(kind, name))
                loss.backward()
                total += loss.item()
                slopes |= dict(zip(places, terms.logprobs.grad.tolist(), strict=True))
        found.append((total, slopes))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-12)


def test_on_the_first_pass_the_losses_differ_only_in_what_tokens_weigh() -> None:
    groups, values = world(2)
    for v in values.values():
        v["old"] = v["logprobs"]
    slopes = {}
    for kind in TYPES:
        terms, _ = terms_of(list(batch_of("grpo", groups).rows), values)
        terms = replace(terms, sequence=None)
        LOSSES[kind](terms, LossSettings())[0].backward()
        slopes[kind] = terms.logprobs.grad
    for kind in TYPES:
        torch.testing.assert_close(slopes[kind], slopes["grpo"], atol=1e-12, rtol=0)


# --- the KL estimators ------------------------------------------------------------------------------------------------


def expected_gradient(estimator: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the KL term alone, over all the tokens there are, each as often as the policy samples it."""
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    start = torch.tensor([0.0, 0.5, 0.2, -0.4, 0.1], dtype=torch.float64).log_softmax(0)
    now = logits.log_softmax(0)
    often = now.detach().exp()
    terms = LossTerms(now, now.detach(), now.detach(), start, torch.zeros(5, dtype=torch.float64), often)
    loss, _ = LOSSES["grpo"](terms, LossSettings(kl_beta=1.0, kl_estimator=estimator))
    loss.backward()
    mean = (often * kl_estimate(terms, estimator)).sum().detach()
    return logits.grad, mean, start


def true_kl(start: torch.Tensor, forward: bool) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.tensor([0.3, -0.2, 1.1, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    now = logits.log_softmax(0)
    kl = (start.exp() * (start - now)).sum() if forward else (now.exp() * (now - start)).sum()
    kl.backward()
    return kl.detach(), logits.grad


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_what_each_kl_estimator_estimates_and_where_it_pulls(estimator: str) -> None:
    gradient, mean, start = expected_gradient(estimator)
    kl, wanted = true_kl(start, forward=False)
    if estimator == "k3":  # its value is KL(policy ‖ start), but its gradient is that of KL(start ‖ policy)
        _, wanted = true_kl(start, forward=True)
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)
    if estimator == "k2":
        assert mean > 0 and abs(mean - kl) > 1e-3  # biased
    else:
        torch.testing.assert_close(mean, kl, atol=1e-12, rtol=0)


def test_k1_in_the_loss_itself_would_pull_nowhere() -> None:
    """Why it is taken off the advantage."""
    logits = torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64, requires_grad=True)
    now = logits.log_softmax(0)
    (now.detach().exp() * now).sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros(3, dtype=torch.float64), atol=1e-15, rtol=0)


def test_every_loss_is_held_to_its_paper() -> None:
    assert tuple(TYPES) == POLICY_LOSSES and {*LOSSES} - {*POLICY_LOSSES} == {"sft"}


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo"])
def test_anchored_at_the_sampler_the_clip_is_around_the_policy_that_sampled(kind: str) -> None:
    """By hand: −min(r A, clip(r) A) with r = π/μ, whatever the trainer had before the update, and no weight besides."""
    groups, values = world(3)
    terms, _ = terms_of(list(batch_of(kind, groups).rows), values)
    settings = LossSettings(clip_low=0.2, clip_high=0.3, anchor="sampler", importance_cap=1.0)
    loss, parts = LOSSES[kind](terms, settings)
    (slope,) = torch.autograd.grad(loss, terms.logprobs)
    ratio = (terms.logprobs - terms.sampler).exp().detach()
    up = terms.advantage > 0
    outside = (up & (ratio > 1.3)) | (~up & (ratio < 0.8) & (terms.advantage < 0))
    by_hand = -(torch.where(outside, ratio.clamp(0.8, 1.3), ratio) * terms.advantage * terms.weight).sum()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-12)
    pushed = -(ratio * terms.advantage * terms.weight).masked_fill(outside, 0.0)
    torch.testing.assert_close(slope, pushed, rtol=1e-12, atol=0)
    assert 0 < outside.double().mean() < 1 and parts["cut"].item() == pytest.approx(outside.float().mean().item())
    assert parts["importance"].item() == 1.0
    other, _ = LOSSES[kind](replace(terms, old=terms.old - 1.0), settings)
    assert other.item() == loss.item()
