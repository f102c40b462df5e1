"""A step goes through the weights in stretches: what it does and what it reports do not depend on how they are cut."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_learner import make_policy
from torch import Tensor

from airloop.errors import AirError
from airloop.learn import optimiser as module
from airloop.learn.optimiser import PIECE, Optimiser, _differing, _length, _stretches
from airloop.policy import Policy
from airloop.ranks import Ranks

LR = 1e-3


def make(policy: Policy, **changed: object) -> Optimiser:
    settings = {"betas": (0.9, 0.99), "weight_decay": 0.01, "max_norm": 0.5, "offload": False} | changed
    return Optimiser(policy, Ranks(), None, **settings)  # type: ignore[arg-type]


def give_gradients(policy: Policy, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _, p in policy.trainable():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.trainable()}


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stretches_change_neither_the_weights_nor_the_report(
    lora: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for stretch in (1, 300, 1 << 26):
        monkeypatch.setattr(module, "STRETCH", stretch)
        policy = make_policy(lora=lora)
        policy.model.to(dtype)
        optimiser = make(policy)
        reports = []
        for step in range(3):
            give_gradients(policy, step)
            reports.append(optimiser.step(LR))
        ends.append((weights(policy), reports, len(optimiser._stretches)))
    one = ends[-1]
    assert ends[0][2] == len(one[0])  # a parameter each
    assert ends[1][2] > one[2]
    for changed, reports, _ in ends[:-1]:
        assert all(torch.equal(changed[name], one[0][name]) for name in one[0])
        for found, expected in zip(reports, one[1], strict=True):
            assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offload", [True, False])
def test_a_step_is_what_torchs_clipping_and_adamw_make_of_it(dtype: torch.dtype, offload: bool) -> None:
    policy = make_policy()
    policy.model.to(dtype)
    optimiser = make(policy, offload=offload)
    plain = {name: p.detach().float().clone().requires_grad_() for name, p in policy.trainable()}
    adam = torch.optim.AdamW(plain.values(), lr=LR, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(3):
        for name, gradient in give_gradients(policy, step).items():
            plain[name].grad = gradient.float()
        before, old = weights(policy), {name: p.detach().clone() for name, p in plain.items()}
        norm = torch.nn.utils.clip_grad_norm_(plain.values(), 0.5)
        adam.step()
        report = optimiser.step(LR)
        moved = math.hypot(*((plain[n] - old[n]).detach().double().norm().item() for n in plain))
        size = math.hypot(*(old[n].double().norm().item() for n in plain))
        others = sum(int((p.detach().to(dtype) != before[n]).sum()) for n, p in plain.items())
        assert report["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
        assert report["update_ratio"] == pytest.approx(moved / size, rel=1e-4)
        assert report["weights_changed"] == pytest.approx(others / sum(p.numel() for p in plain.values()), rel=1e-6)
        for name, weight in policy.trainable():
            torch.testing.assert_close(weight.detach(), plain[name].detach().to(dtype), rtol=0, atol=0)
        assert all(p.grad is None for _, p in policy.trainable())
        assert all(m.grad is None for m in optimiser.masters)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([torch.float32, torch.bfloat16])), min_size=1), st.data())
def test_stretches_cover_every_weight_once(sizes: list[tuple[int, torch.dtype]], data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 60))
    tensors = [torch.empty(size, dtype=kind) for size, kind in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STRETCH", limit)
        parts = list(_stretches(tensors))
    assert parts[0].start == 0
    assert parts[-1].stop == len(tensors)
    assert all(a.stop == b.start for a, b in pairwise(parts))
    for part in parts:
        inside = tensors[part]
        assert inside
        assert len({t.dtype for t in inside}) == 1
        assert len(inside) == 1 or sum(t.numel() for t in inside) <= limit


def test_what_is_not_finite_is_refused_and_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRETCH", 300)
    policy = make_policy(lora=True)
    optimiser = make(policy)
    give_gradients(policy, 0)
    policy.trainable()[-1][1].grad[0, 0] = math.inf  # type: ignore[index]
    before = weights(policy)
    with pytest.raises(AirError, match="norm is inf"):
        optimiser.step(LR)
    assert all(torch.equal(before[name], now) for name, now in weights(policy).items())


def test_weights_without_a_gradient_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRETCH", 300)
    policy = make_policy(lora=True)
    optimiser = make(policy)
    before = weights(policy)
    give_gradients(policy, 0)
    still = {name for i, (name, _) in enumerate(policy.trainable()) if i % 3 == 0}
    for name, p in policy.trainable():
        p.grad = None if name in still else p.grad
    optimiser.step(LR)
    assert {name for name, now in weights(policy).items() if torch.equal(now, before[name])} == still


@pytest.mark.parametrize("fused", [None, True, False, "missing"])
def test_a_state_is_loaded_whatever_kind_of_adamw_wrote_it(fused: bool | str | None) -> None:
    def grown() -> tuple[Policy, Optimiser]:
        policy = make_policy(lora=True)
        optimiser = make(policy)
        give_gradients(policy, 0)
        optimiser.step(LR)
        return policy, optimiser

    (one, first), (two, second) = grown(), grown()
    state = copy.deepcopy(first.state())
    for group in state["optimiser"]["param_groups"]:
        group.pop("fused") if fused == "missing" else group.update(fused=fused)
    second.load_state(state)
    for policy, optimiser in ((one, first), (two, second)):
        give_gradients(policy, 1)
        optimiser.step(LR)
    assert all(torch.equal(weights(one)[name], now) for name, now in weights(two).items())


def test_long_sums_are_exact_enough_and_a_step_takes_what_the_plan_says() -> None:
    """Of one stretch: AdamW's first steps are nearly constant vectors, which a float32 sum on the CPU gets wrong."""
    size = 1 << 24
    flat = torch.full((size,), 1e-3)
    assert _length(flat).item() == pytest.approx(1e-3 * math.sqrt(size), rel=1e-5)
    with torch.profiler.profile(profile_memory=True) as profile:
        count = _differing(flat, torch.zeros(size), torch.bfloat16)
    assert count.item() == size
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert most < size * 8 + 32 * PIECE  # the zeros above, and a piece's booleans and numbers
