"""Losses and advantages against an independent float64 implementation, and against TRL itself."""

from __future__ import annotations

import itertools
import math
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from air.learn.advantages import assign_advantages, group_advantages
from air.learn.losses import LossSettings, LossTerms, clipped_policy_loss
from air.types import Branch, Group, Task, Trajectory


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
    loss, parts = clipped_policy_loss(LossTerms(**tensors), settings)
    loss.backward()
    wanted, gradient = reference(values, settings)
    assert loss.item() == pytest.approx(wanted, abs=1e-12)
    np.testing.assert_allclose(tensors["logprobs"].grad.numpy(), gradient, atol=1e-12)
    assert 0 < parts["clipped"] < 1 and parts["importance"] <= 1.5


def trajectory(name: str, reward: float, lengths: list[int]) -> Trajectory:
    branches = tuple(
        Branch((0,) * (n + 2), (False, False, *(True,) * n), (0.0,) * (n + 2), (-1, -1, *(i,) * n))
        for i, n in enumerate(lengths)
    )
    return Trajectory(name, Task("e", "t", "train"), 0, 0, (), branches, "done", {}, (), {}, reward, 0.0, 0.0)


def test_grpo_averages_over_each_trajectory_and_dr_grpo_over_a_constant() -> None:
    group = Group(Task("e", "t", "train"), 0, (trajectory("a", 1.0, [4]), trajectory("b", 0.0, [8])))
    grpo = assign_advantages([group], loss="grpo", scale_rewards=False, token_constant=100)
    assert {r.key: (r.advantage, r.weight) for r in grpo.rows} == {"a#0": (0.5, 1 / 8), "b#0": (-0.5, 1 / 16)}
    dr = assign_advantages([group], loss="dr_grpo", scale_rewards=False, token_constant=100)
    assert {r.weight for r in dr.rows} == {1 / 200}


def test_branching_and_interleaved_give_the_same_loss_weights() -> None:
    """Ten sampled tokens weigh the same whether they are one sequence or three."""
    other = trajectory("b", 0.0, [5])
    whole = Group(other.task, 0, (trajectory("a", 1.0, [10]), other))
    split = Group(other.task, 0, (trajectory("a", 1.0, [3, 3, 4]), other))
    for loss in ("grpo", "dr_grpo"):
        sums = []
        for group in (whole, split):
            batch = assign_advantages([group], loss=loss, scale_rewards=True, token_constant=64)
            sums.append(sum(r.advantage * r.weight * sum(r.train) for r in batch.rows if r.key.startswith("a")))
        assert sums[0] == pytest.approx(sums[1], rel=1e-12)


def test_a_trajectory_without_advantage_has_no_row_but_counts_in_the_mean() -> None:
    group = Group(
        Task("e", "t", "train"),
        0,
        tuple(trajectory(n, r, [4]) for n, r in [("a", 1.0), ("b", 0.0), ("c", 0.5)]),
    )
    batch = assign_advantages([group], loss="grpo", scale_rewards=True, token_constant=1)
    assert {r.key for r in batch.rows} == {"a#0", "b#0"} and batch.advantages["c"] == 0.0
    assert batch.rows[0].weight == 1 / 12
    kept = assign_advantages([group], loss="grpo", scale_rewards=True, token_constant=1, keep_zero=True)
    assert len(kept.rows) == 3


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order(rewards: list[float], scale: bool) -> None:
    advantages = group_advantages(rewards, scale)
    assert sum(advantages) == pytest.approx(0, abs=1e-6 * max(1, max(map(abs, rewards))) * len(rewards))
    order = sorted(range(len(rewards)), key=rewards.__getitem__)
    ranked = [advantages[i] for i in order]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(ranked))


def test_scaled_advantages_are_trls() -> None:
    """TRL divides by the unbiased standard deviation plus 1e-4."""
    rewards = [0.0, 1.0, 1.0, 0.25]
    tensor = torch.tensor(rewards, dtype=torch.float64)
    wanted = (tensor - tensor.mean()) / (tensor.std() + 1e-4)
    assert group_advantages(rewards, True) == pytest.approx(wanted.tolist(), abs=1e-12)


def trl_loss_and_gradient(
    loss_type: str, kl_beta: float, logprobs: torch.Tensor, inputs: dict[str, torch.Tensor], max_length: int
) -> tuple[float, torch.Tensor]:
    """TRL's own `GRPOTrainer._compute_loss` on given log-probs; the trainer around it is a stand-in."""
    from trl import GRPOTrainer

    leaf = logprobs.clone().requires_grad_()
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (leaf, torch.zeros_like(leaf), None)
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer.top_entropy_quantile = 1.0
    trainer.off_policy_mask_threshold = None
    trainer.importance_sampling_level = "token"
    trainer.epsilon_low, trainer.epsilon_high = 0.2, 0.28
    trainer.args.delta = None
    trainer.args.use_bias_correction_kl = False
    trainer.beta = kl_beta
    trainer.loss_type = loss_type
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    trainer.max_completion_length = max_length
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gather.side_effect = lambda x: x
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    return loss.item(), leaf.grad


@pytest.mark.parametrize("kl_beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_loss_and_gradient_equal_trls_on_the_same_tensors(loss_type: str, kl_beta: float) -> None:
    pytest.importorskip("trl")
    rng = torch.Generator().manual_seed(1)
    shape = (4, 12)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(shape, generator=rng, dtype=torch.float64)

    logprobs = -torch.rand(shape, generator=rng, dtype=torch.float64) * 3
    old, reference = logprobs + noise(0.3), logprobs + noise(0.3)
    sampler = old + noise(0.5)
    advantages = torch.randn(4, generator=rng, dtype=torch.float64)
    mask = torch.ones(shape, dtype=torch.float64)
    mask[1, 7:] = 0
    mask[3, 3:] = 0
    ids = torch.zeros(shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "importance_sampling_ratio": (old - sampler).exp().clamp_max(1.5),
        "num_items_in_batch": mask.sum(),
    }
    wanted, gradient = trl_loss_and_gradient(loss_type, kl_beta, logprobs, inputs, max_length=20)
    leaf = logprobs.clone().requires_grad_()
    keep = mask.bool()
    lengths = mask.sum(1, keepdim=True) if loss_type == "grpo" else torch.full((4, 1), 20.0)
    weight = (1 / (4 * lengths)).expand(shape)
    advantage = advantages[:, None].expand(shape)
    terms = LossTerms(leaf[keep], old[keep], sampler[keep], reference[keep], advantage[keep], weight[keep])
    ours, _ = clipped_policy_loss(terms, LossSettings(0.2, 0.28, kl_beta, importance_cap=1.5))
    ours.backward()
    assert ours.item() == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(leaf.grad, gradient, atol=1e-9, rtol=0)
