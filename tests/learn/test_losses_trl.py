"""Losses against TRL's own trainers on the same tensors, where TRL has the loss."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from airloop.learn.advantages import group_advantages, pooled_spread, token_weights
from airloop.learn.losses import LOSSES, LossSettings, LossTerms, importance_weight
from airloop.types import Branch, Task, Trajectory

pytest.importorskip("trl")

SHAPE = (4, 12)
LENGTHS = (12, 7, 12, 3)
CONSTANT = 20
# Our loss; TRL's loss_type and importance_sampling_level; what TRL's epsilon_high is here.
CASES = {
    "grpo": ("grpo", "token", 0.28),
    "dr_grpo": ("dr_grpo", "token", 0.28),
    "dapo": ("dapo", "token", 0.28),
    "dapo as bnpo": ("bnpo", "token", 0.28),
    "gspo": ("grpo", "sequence", 0.28),
    "cispo": ("cispo", "token", 1.28),  # TRL's is the cap itself, the paper's is its distance from 1
}


@dataclass(frozen=True)
class Data:
    """[trajectories, tokens] each, padded; `mask` is 1 where there is a token."""

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    sampler: Tensor
    advantages: Tensor
    mask: Tensor


def make_data(case: str = "grpo") -> Data:
    """With GSPO, TRL gives every token the mean of its trajectory's importance weights, and we give each its own, as
    in every other loss: so there the weights are the same within a trajectory."""
    rng = torch.Generator().manual_seed(1)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(SHAPE, generator=rng, dtype=torch.float64)

    logprobs = -torch.rand(SHAPE, generator=rng, dtype=torch.float64) * 3
    old, reference = logprobs + noise(0.3), logprobs + noise(0.3)
    shift = noise(0.5)
    sampler = old + (shift[:, :1] if case == "gspo" else shift)
    mask = (torch.arange(SHAPE[1]) < torch.tensor(LENGTHS)[:, None]).double()
    return Data(logprobs, old, reference, sampler, torch.randn(4, generator=rng, dtype=torch.float64), mask)


def trl_inputs(data: Data, importance: Tensor) -> dict[str, Tensor]:
    ids = torch.zeros(SHAPE, dtype=torch.long)
    return {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": data.mask,
        "advantages": data.advantages,
        "old_per_token_logps": data.old,
        "ref_per_token_logps": data.reference,
        "importance_sampling_ratio": importance,
        "num_items_in_batch": data.mask.sum(),
    }


def trl_loss_and_gradient(
    case: str, kl_beta: float, logprobs: Tensor, inputs: dict[str, Tensor]
) -> tuple[float, Tensor]:
    """TRL's own `GRPOTrainer._compute_loss` on given log-probs; the trainer around it is a stand-in."""
    from trl import GRPOTrainer

    leaf = logprobs.clone().requires_grad_()
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (leaf, torch.zeros_like(leaf), None)
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer.top_entropy_quantile = 1.0
    trainer.off_policy_mask_threshold = None
    trainer.loss_type, trainer.importance_sampling_level, trainer.epsilon_high = CASES[case]
    trainer.epsilon_low = 0.2
    trainer.args.delta = None
    trainer.args.use_bias_correction_kl = False
    trainer.args.steps_per_generation = 1
    trainer.beta = kl_beta
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    trainer.max_completion_length = CONSTANT
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.num_processes = 1
    trainer.accelerator.gather.side_effect = lambda x: x
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    return loss.item(), leaf.grad


def our_weights(loss: str) -> Tensor:
    """As the batch would give them to trajectories of these lengths."""
    task = Task("e", "t", "train")
    members = [
        Trajectory(
            str(i), task, 0, 0, (), (Branch((0,) * n, (True,) * n, (0.0,) * n, (0,) * n),), "done", {}, (), {}, 0, 0, 0
        )
        for i, n in enumerate(LENGTHS)
    ]
    found = token_weights(loss, members, CONSTANT)
    return torch.tensor([found[str(i)] for i in range(4)], dtype=torch.float64)


def our_loss_and_gradient(loss: str, data: Data, settings: LossSettings) -> tuple[float, Tensor]:
    leaf = data.logprobs.clone().requires_grad_()
    keep = data.mask.bool()
    drift = ((data.logprobs - data.old) * data.mask).sum(1) / data.mask.sum(1)
    terms = LossTerms(
        leaf[keep],
        data.old[keep],
        data.sampler[keep],
        data.reference[keep],
        data.advantages[:, None].expand(SHAPE)[keep],
        our_weights(loss)[:, None].expand(SHAPE)[keep],
        drift[:, None].expand(SHAPE)[keep],
    )
    ours, _ = LOSSES[loss](terms, settings)
    ours.backward()
    return ours.item(), leaf.grad


@pytest.mark.slow
@pytest.mark.parametrize("kl_beta", [0.0, 0.04])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_trls_on_the_same_tensors(case: str, kl_beta: float) -> None:
    data = make_data(case)
    inputs = trl_inputs(data, (data.old - data.sampler).exp().clamp_max(1.5))
    wanted, gradient = trl_loss_and_gradient(case, kl_beta, data.logprobs, inputs)
    settings = LossSettings(0.2, 0.28, kl_beta, importance_cap=1.5)
    ours, own = our_loss_and_gradient(case.split()[0], data, settings)
    assert ours == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(own, gradient, atol=1e-9, rtol=0)


@pytest.mark.parametrize("floor", [0.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_masked_weights_equal_trls_token_mask(case: str, floor: float) -> None:
    """TRL computes the weights while it samples: its token_mask, as written there, with clip_min and clip_max."""
    data = make_data(case)
    ratio = (data.old - data.sampler).exp()
    masked = ratio.masked_fill((ratio < floor) | (ratio > 1.5), 0.0)
    wanted, gradient = trl_loss_and_gradient(case, 0.0, data.logprobs, trl_inputs(data, masked))
    settings = LossSettings(0.2, 0.28, importance_cap=1.5, importance_mode="mask", importance_floor=floor)
    ours, own = our_loss_and_gradient(case.split()[0], data, settings)
    assert ours == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(own, gradient, atol=1e-9, rtol=0)
    terms = LossTerms(*(x[data.mask.bool()] for x in (data.logprobs, data.old, data.sampler, *[data.old] * 3)))
    assert 0 < importance_weight(terms, settings)[1].sum() < data.mask.sum()


def test_rloos_gradient_is_trls_on_the_first_pass() -> None:
    """TRL clips the whole sequence's ratio, which is 1 on the first pass; its KL is in the reward."""
    from trl import RLOOTrainer

    data = make_data()
    data = Data(data.logprobs, data.logprobs, data.reference, data.logprobs, data.advantages, data.mask)
    leaf = data.logprobs.clone().requires_grad_()
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (leaf, torch.zeros_like(leaf), None)
    trainer.aux_loss_enabled = False
    trainer.epsilon_low = trainer.epsilon_high = 0.2
    trainer.accelerator.gather.side_effect = lambda x: x
    inputs = trl_inputs(data, data.mask) | {"old_logps": (data.logprobs * data.mask).sum(1)}
    RLOOTrainer._compute_loss(trainer, trainer.model, inputs).backward()
    _, own = our_loss_and_gradient("rloo", data, LossSettings())
    torch.testing.assert_close(own, leaf.grad, atol=1e-12, rtol=0)


def test_scaled_advantages_are_trls() -> None:
    """TRL divides by the unbiased standard deviation plus 1e-4, of the group or, scale_rewards="batch", of all."""
    rewards = [[0.0, 1.0, 1.0, 0.25], [0.0, 0.5, 0.0, 0.0]]
    tensor = torch.tensor(rewards, dtype=torch.float64)
    centred = tensor - tensor.mean(1, keepdim=True)
    by_group, by_batch = centred / (tensor.std(1, keepdim=True) + 1e-4), centred / (tensor.std() + 1e-4)
    spread = pooled_spread([[r for group in rewards for r in group]])
    for i, group in enumerate(rewards):
        assert group_advantages(group, True) == pytest.approx(by_group[i].tolist(), abs=1e-12)
        assert group_advantages(group, True, spread) == pytest.approx(by_batch[i].tolist(), abs=1e-12)


def test_rloos_advantages_are_trls() -> None:
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.25], dtype=torch.float64)
    wanted = rewards - (rewards.sum() - rewards) / 3
    assert group_advantages(rewards.tolist(), False, None, True) == pytest.approx(wanted.tolist(), abs=1e-12)
