"""Losses in the learner: trajectories clipped as a whole, turns credited, whatever the micro-batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.learn.advantages import Batch, CreditedRow, trajectory_of
from airloop.learn.batches import Row
from airloop.learn.learner import Learner, LearnerSettings
from airloop.learn.losses import LossSettings, LossTerms, find_loss
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

TYPES = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"]
GSPO_CLIP = 0.15


def make_policy() -> Policy:
    torch.manual_seed(7)
    model = tiny_model("llama", seed=1).model
    model.double()
    return Policy(model, logits_head(model), None)


def plain_logprobs(policy: Policy, row: Row) -> torch.Tensor:
    """Of the row's trained tokens, through transformers' own attention."""
    policy.model.set_attn_implementation("eager")
    try:
        logits = policy.model(torch.tensor([row.tokens])).logits[0]
    finally:
        policy.model.set_attn_implementation("air")
    places = [i for i, t in enumerate(row.train) if t]
    return logits.log_softmax(-1)[[i - 1 for i in places], [row.tokens[i] for i in places]]


def branched_rows(policy: Policy) -> list[Row]:
    """Four trajectories of three branches each, in an order that packing does not keep, sampled by the policy."""
    rng = random.Random(3)
    rows = []
    for t in range(4):
        branches = []
        for _ in range(3):
            tokens = [rng.randrange(256) for _ in range(rng.randint(8, 30))]
            branches.append((tokens, [False] * 4 + [i % 3 != 0 for i in range(len(tokens) - 4)]))
        weight = 1 / (4 * sum(sum(train) for _, train in branches))
        for i, (tokens, train) in enumerate(branches):
            row = Row(f"t{t}#{i}", tuple(tokens), tuple(train), (), (-1.0) ** t * (1 + t), weight)
            with torch.no_grad():
                found = iter(plain_logprobs(policy, row).tolist())
            rows.append(replace(row, logprobs=tuple(next(found) if x else 0.0 for x in train)))
    return rows


def second_gradients(budget: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], Policy]:
    """The gradients of the second pass, and the policy that they were taken at."""
    policy = make_policy()
    settings = LearnerSettings(
        lr=2e-4,
        max_norm=1e9,
        loss="gspo",
        passes=2,
        token_budget=budget,
        loss_settings=LossSettings(GSPO_CLIP, GSPO_CLIP),
    )
    learner = Learner(policy, settings)
    seen: list[list[torch.Tensor]] = []
    step = learner.optimiser.step

    def recorded(lr: float) -> dict[str, float]:
        seen.append([p.grad.clone() for p in learner.parameters])
        result = step(lr if len(seen) == 1 else 0.0)
        return result

    monkeypatch.setattr(learner.optimiser, "step", recorded)
    learner.update(Batch(tuple(branched_rows(policy)), {}, 4))
    assert len(seen) == 2
    return seen[1], policy


def test_gspo_clips_a_trajectory_as_a_whole_wherever_its_rows_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass's gradient against the paper's formula, differentiated through the sequence's ratio itself."""
    rows = branched_rows(make_policy())
    small, policy = second_gradients(40, monkeypatch)
    large, _ = second_gradients(10_000, monkeypatch)
    policy.model.zero_grad()
    loss, clipped = torch.zeros((), dtype=torch.float64), 0
    for t in range(4):
        own = [r for r in rows if trajectory_of(r) == f"t{t}"]
        old = torch.tensor([lp for r in own for lp, train in zip(r.logprobs, r.train, strict=True) if train])
        ratio = (torch.cat([plain_logprobs(policy, r) for r in own]) - old).mean().exp()
        a = own[0].advantage
        held = ratio.clamp(1 - GSPO_CLIP, 1 + GSPO_CLIP)
        clipped += bool(ratio * a > held * a)
        loss = loss - torch.minimum(ratio * a, held * a) / 4
    loss.backward()
    assert 0 < clipped < 4
    for one, two, (_, parameter) in zip(small, large, policy.trainable(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)  # log-probs are fp32
        torch.testing.assert_close(one, parameter.grad, atol=1e-5, rtol=1e-4)
    assert max(g.abs().max().item() for g in small) > 1e-2


@pytest.mark.long
@settings(max_examples=8)
@given(st.sampled_from(TYPES), st.integers(20, 200))
def test_the_learner_gives_the_same_update_whatever_the_token_budget(kind: str, budget: int) -> None:
    results = []
    for tokens in (10_000, budget):
        policy = make_policy()
        learner = Learner(policy, LearnerSettings(max_norm=1e9, loss=kind, passes=2, token_budget=tokens, lr=1e-4))
        metrics = learner.update(Batch(tuple(branched_rows(policy)), {}, 4)).metrics
        results.append((metrics["loss"], metrics["grad_norm"]))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_tokens_of_a_row_are_trained_by_their_own_credits() -> None:
    """A row with two advantages is two rows of the same tokens, each trained where the other is not."""
    results = []
    for credited in (True, False):
        policy = make_policy()
        whole = branched_rows(policy)[2]
        trained = [i for i, train in enumerate(whole.train) if train]
        early = tuple(train and i < trained[4] for i, train in enumerate(whole.train))
        late = tuple(train and not e for train, e in zip(whole.train, early, strict=True))
        rows: tuple[Row, ...] = (replace(whole, train=early, advantage=2.0), replace(whole, train=late, advantage=-1.0))
        if credited:
            credits = (2.0,) * 4 + (-1.0,) * (len(trained) - 4)
            rows = (CreditedRow(*vars(whole).values(), credits=credits),)
        metrics = Learner(policy, LearnerSettings(max_norm=1e9)).update(Batch(rows, {}, 1)).metrics
        results.append((metrics["loss"], metrics["grad_norm"]))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


# --- the entropy's weight ------------------------------------------------------------------------------------


def test_surprise_as_an_advantage_has_the_gradient_of_the_entropy() -> None:
    """Over all tokens that may be drawn, each as often as it is."""
    logits = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum()
    (exact,) = torch.autograd.grad(entropy, logits, retain_graph=True)
    same = entropy.detach().expand(7)
    terms = LossTerms(logprobs, logprobs.detach(), logprobs.detach(), None, torch.zeros(7), logprobs.detach().exp())
    terms = replace(terms, advantage=terms.weight * 0, entropy=same)
    loss, _ = find_loss("grpo")(terms, LossSettings(entropy_beta=0.3))
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(found, -0.3 * exact)


@pytest.mark.long
@pytest.mark.parametrize("loss", TYPES)
def test_updates_without_reward_raise_the_entropy_only_with_its_weight(loss: str) -> None:
    entropies = {}
    for beta in (0.0, 1.0):
        policy = make_policy()
        with torch.no_grad():  # a policy that has something to lose
            policy.model.get_output_embeddings().weight.mul_(12)
        learner = Learner(policy, LearnerSettings(lr=3e-5, loss=loss, loss_settings=settings_of(loss, beta)))
        entropies[beta] = []
        for seed in range(6):
            rows = drawn_rows(policy, seed)
            entropies[beta].append(learner.update(Batch(rows, {}, len(rows))).metrics["entropy"])
    assert entropies[1.0][-1] > entropies[0.0][-1] + 0.05


def drawn_rows(policy: Policy, seed: int) -> tuple[Row, ...]:
    """Replies of one token, drawn by the policy, to the same 64 prompts; nothing sets them apart."""
    prompts = torch.randint(0, 256, (64, 6), generator=torch.Generator().manual_seed(5))
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logprobs = policy.model(prompts).logits[:, -1].log_softmax(-1)
    policy.model.set_attn_implementation("air")
    drawn = torch.multinomial(logprobs.exp(), 1, generator=torch.Generator().manual_seed(seed))
    pairs = zip(prompts.tolist(), drawn[:, 0].tolist(), logprobs.gather(1, drawn)[:, 0].tolist(), strict=True)
    train = (False,) * 6 + (True,)
    return tuple(
        Row(f"t{i}#0", (*prompt, token), train, (*(0.0,) * 6, logprob), 0.0, 1 / 64)
        for i, (prompt, token, logprob) in enumerate(pairs)
    )


def settings_of(loss: str, beta: float) -> LossSettings:
    return LossSettings(**find_loss(loss).clips, entropy_beta=beta)
