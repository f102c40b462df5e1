"""On a CPU the engine computes as transformers' layers do, to the last bit, without their modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from airloop.engine.embedded.pages import KeyValues
from airloop.engine.embedded.plain import PlainForward, plain_forward
from airloop.engine.embedded.plan import Chunk, StepPlan
from airloop.learn.lora import attach_lora, use_fp32_adapters
from airloop.models.head import logits_head
from airloop.models.tiny import KINDS, tiny_model
from airloop.policy import ForwardPlan, Policy

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_policy(kind: str = "llama", dtype: str = "float32", targets: list[str] | None = None) -> Policy:
    """With no adapter, or one that has been trained: a new one's second matrix is zero and would hide mistakes."""
    model = tiny_model(kind, dtype=dtype).model
    if targets is None:
        return Policy(model, logits_head(model))
    peft = attach_lora(model, 8, 16, targets)
    use_fp32_adapters(model)
    change(model)
    return Policy(model, logits_head(model), peft)


@torch.no_grad()
def change(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn(parameter.shape)


def own(policy: Policy) -> PlainForward:
    found = plain_forward(policy)
    assert found is not None
    return found


@torch.no_grad()
def steps(policy: Policy, hidden: Callable[[ForwardPlan], Tensor]) -> list[Tensor]:
    """Prompts; tokens after them, of which two share a page; both in one step; one alone."""
    layers, heads, dim = policy.kv_shape
    kv = KeyValues(layers, 8, 16, heads, dim, policy.dtype, policy.device)
    prompts = [Chunk(range(10, 40), 0, [0, 1]), Chunk(range(50, 63), 0, [2]), Chunk(range(50, 70), 0, [3, 4])]
    first, shared, alone = Chunk([7], 30, [0, 1]), Chunk([8], 20, [0, 5]), Chunk([9], 13, [2])
    given = [([], prompts), ([first, shared, alone], []), ([alone], [Chunk([3, 4], 20, [3, 4])]), ([alone], [])]
    return [hidden(StepPlan(kv, decode, prefill, policy.dtype)) for decode, prefill in given]


def assert_same(policy: Policy, forward: PlainForward) -> None:
    for ours, theirs in zip(steps(policy, forward), steps(policy, policy.hidden), strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("targets", [None, EVERY, ["q_proj", "v_proj"]], ids=["full", "every", "two"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_bits_of_transformers_layers(kind: str, dtype: str, targets: list[str] | None) -> None:
    policy = make_policy(kind, dtype, targets)
    assert_same(policy, own(policy))


def test_whatever_changes_is_seen_in_the_next_pass() -> None:
    """Nobody tells it: neither an update, nor new tensors behind the same parameters, nor an adapter switched off."""
    policy = make_policy(targets=EVERY)
    forward = own(policy)
    before = steps(policy, forward)
    change(policy.model)
    assert not torch.equal(before[0], steps(policy, forward)[0])
    assert_same(policy, forward)
    for parameter in policy.model.parameters():
        parameter.data = parameter.data * 1.25
    assert_same(policy, forward)
    assert policy.peft is not None
    changed = steps(policy, forward)
    with policy.peft.disable_adapter():
        assert not torch.equal(changed[0], steps(policy, forward)[0])
        assert_same(policy, forward)
    assert_same(policy, forward)


def test_modules_are_called_where_they_must_be() -> None:
    policy = make_policy(targets=EVERY)
    assert own(policy)
    policy.impl = "hf"  # the user says so
    assert plain_forward(policy) is None
    policy.impl = "auto"
    policy.hold = lambda _, __: None  # weights in shards are there while their module is called, and only then
    assert plain_forward(policy) is None
    policy.hold = None
    policy.decoder = torch.nn.Sequential(policy.decoder)  # as what gathers shards wraps it
    assert plain_forward(policy) is None
