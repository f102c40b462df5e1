"""Packing, gradients and updates, against plain transformers computations."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.learn.advantages import Batch
from airloop.learn.batches import PackedPlan, Row, micro_batches
from airloop.learn.learner import Learner, LearnerSettings
from airloop.learn.logprobs import token_logprobs
from airloop.learn.lora import attach_lora
from airloop.learn.losses import LossSettings
from airloop.learn.report import Statistics, _gaps
from airloop.models.fp32_matmul import are_slow, widen_products
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

KINDS = ["llama", "qwen2", "qwen3", "mistral"]


def make_policy(kind: str = "llama", lora: bool = False, double: bool = False) -> Policy:
    torch.manual_seed(7)
    model = tiny_model(kind, seed=1).model
    peft = attach_lora(model, 4, 8, ["q_proj", "v_proj", "down_proj"]) if lora else None
    if lora:
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first; make the adapter matter
                torch.nn.init.normal_(parameter, std=0.05)
    if double:
        model.double()
    return Policy(model, logits_head(model), peft)


def group_rows(seed: int = 0, prompts: int = 2, members: int = 4) -> list[Row]:
    """Groups that share a prompt; two members of each share their first reply too, as episodes do."""
    rng = random.Random(seed)
    rows = []
    for p in range(prompts):
        prompt = [rng.randrange(256) for _ in range(30 + 7 * p)]
        first = [rng.randrange(256) for _ in range(20)]
        for m in range(members):
            tail = [rng.randrange(256) for _ in range(rng.randint(3, 25))]
            reply = first + tail if m < 2 else tail
            train = [False] * len(prompt) + [i % 4 != 3 for i in range(len(reply))]
            logprobs = [rng.uniform(-6, -1) if t else 0.0 for t in train]
            rows.append(
                Row(
                    f"{p}-{m}#0",
                    tuple(prompt + reply),
                    tuple(train),
                    tuple(logprobs),
                    rng.uniform(-1, 1),
                    1 / 64,
                )
            )
    return rows


def plain_logprobs(policy: Policy, row: Row, temperature: float = 1.0) -> torch.Tensor:
    """One row by itself through transformers' own attention."""
    policy.model.set_attn_implementation("eager")
    try:
        logits = policy.model(torch.tensor([row.tokens])).logits[0]
    finally:
        policy.model.set_attn_implementation("air")
    logprobs = (logits / temperature).log_softmax(-1)
    places = [i for i, t in enumerate(row.train) if t]
    return logprobs[[i - 1 for i in places], [row.tokens[i] for i in places]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", [False, True])
def test_shared_prefixes_leave_loss_and_gradients_as_they_are(kind: str, lora: bool) -> None:
    rows = group_rows()
    policy = make_policy(kind, lora, double=True)
    names = [n for n, _ in policy.trainable()]
    learner = Learner(policy, LearnerSettings())
    parts = list(micro_batches(rows, 10_000))
    assert len(parts) == 1 and parts[0].computed_tokens < 0.6 * parts[0].row_tokens
    plan = PackedPlan(parts[0], policy.device)
    packed, _ = learner._forward(plan)
    weights = torch.tensor([parts[0].rows[r].advantage for r in plan.rows], dtype=torch.float64)
    (packed * weights).sum().backward()
    gradients = {n: p.grad.clone() for n, p in policy.trainable()}
    policy.model.zero_grad()
    plain = [plain_logprobs(policy, row) for row in parts[0].rows]
    torch.testing.assert_close(packed.double(), torch.cat(plain), atol=1e-6, rtol=0)  # log-probs are fp32
    sum((lp * row.advantage).sum() for lp, row in zip(plain, parts[0].rows, strict=True)).backward()
    for name in names:
        wanted = dict(policy.trainable())[name].grad
        torch.testing.assert_close(gradients[name], wanted, atol=1e-5, rtol=1e-4)


def test_micro_batches_add_up_to_the_whole() -> None:
    """Gradient accumulation by token budget changes nothing but memory."""
    results = []
    for budget in (10_000, 60):
        policy = make_policy(lora=True)
        learner = Learner(policy, LearnerSettings(token_budget=budget, max_norm=1e9))
        report = learner.update(Batch(tuple(group_rows()), {}, 8))
        results.append((report.metrics, [p.detach().clone() for _, p in policy.trainable()]))
    assert results[0][0]["micro_batches"] == 1 and results[1][0]["micro_batches"] > 3
    assert results[0][0]["loss"] == pytest.approx(results[1][0]["loss"], rel=1e-4)
    assert results[0][0]["grad_norm"] == pytest.approx(results[1][0]["grad_norm"], rel=1e-4)
    assert results[0][0]["tokens_trained"] == results[1][0]["tokens_trained"]


@pytest.mark.long
def test_training_chooses_its_threads_and_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways are tried, the process keeps its number, and gradients differ by rounding only. Where the user or
    `deterministic` has set the number, it stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, pinned = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    used, forward = list[int](), Learner._forward
    monkeypatch.setattr(Learner, "_forward", lambda *a: (used.append(torch.get_num_threads()), forward(*a))[1])
    norms = {}
    try:
        torch.use_deterministic_algorithms(False)
        for said, threads in (("free", 2), ("alone", 1)):
            torch.set_num_threads(threads)
            learner = Learner(make_policy(lora=True), LearnerSettings(token_budget=60, max_norm=1e9))
            norms[said] = [learner.update(Batch(tuple(group_rows()), {}, 8)).metrics["grad_norm"] for _ in range(2)]
            assert torch.get_num_threads() == threads and set(used) == ({1, 2} if threads == 2 else {1})
            used.clear()
        torch.set_num_threads(2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        Learner(make_policy(lora=True), LearnerSettings(token_budget=60)).update(Batch(tuple(group_rows()), {}, 8))
        assert set(used) == {2}
        used.clear()
        monkeypatch.delenv("OMP_NUM_THREADS")
        torch.use_deterministic_algorithms(True)
        Learner(make_policy(lora=True), LearnerSettings(token_budget=60)).update(Batch(tuple(group_rows()), {}, 8))
        assert set(used) == {2}
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(pinned)
    assert norms["free"] == pytest.approx(norms["alone"], rel=1e-4)


def test_activation_checkpointing_changes_nothing() -> None:
    from airloop.assemble import checkpoint_activations

    norms = []
    for freq in (0, 1, 2):
        policy = make_policy(lora=True)
        if freq:
            checkpoint_activations(policy.model, freq)
        learner = Learner(policy, LearnerSettings())
        norms.append(learner.update(Batch(tuple(group_rows()), {}, 8)).metrics["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-6)


def test_log_probs_in_chunks_equal_those_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    head = torch.nn.Linear(16, 50, bias=False).double()
    hidden = torch.randn(23, 16, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 50, (23,))
    gradients = []
    for chunk in (1 << 30, 4 * 50 * 5):
        monkeypatch.setattr("airloop.learn.logprobs.CHUNK_BYTES", chunk)
        logprobs, entropy = token_logprobs(head, hidden, targets, 0.7, 50)
        assert not entropy.requires_grad
        (logprobs * torch.arange(23)).sum().backward()
        gradients.append((hidden.grad.clone(), head.weight.grad.clone(), logprobs.detach()))
        hidden.grad = head.weight.grad = None
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_an_update_makes_rewarded_tokens_likelier_and_punished_ones_less_so() -> None:
    policy = make_policy(lora=True)
    learner = Learner(policy, LearnerSettings(lr=1e-2))
    rows = [r.__class__(**{**r.__dict__, "advantage": 1.0 if i % 2 else -1.0}) for i, r in enumerate(group_rows())]
    before = learner.logprobs(rows)
    rows = [_with_sampler(r, before[r.key]) for r in rows]
    learner.update(Batch(tuple(rows), {}, len(rows)))
    after = learner.logprobs(rows)
    change = {r.key: sum(after[r.key]) - sum(before[r.key]) for r in rows}
    assert all(change[r.key] * r.advantage > 0 for r in rows)


def test_what_an_update_says_of_tokens_are_arrays_that_json_has_digit_by_digit() -> None:
    learner, rows = Learner(make_policy(lora=True), LearnerSettings()), group_rows()
    before = learner.logprobs(rows)
    report = learner.update(Batch(tuple(rows), {}, len(rows)))
    for found in (report.logprobs, report.entropies):
        assert {row.key: (sum(row.train), np.float32) for row in rows} == {
            k: (len(v), v.dtype) for k, v in found.items()
        }
    assert {key: values.tolist() for key, values in report.logprobs.items()} == before
    assert json.loads(json.dumps(before)) == before
    for key, values in report.logprobs.items():
        assert np.array(before[key], np.float32).tobytes() == values.tobytes()


def _with_sampler(row: Row, logprobs: list[float]) -> Row:
    found = iter(logprobs)
    return Row(
        row.key,
        row.tokens,
        row.train,
        tuple(next(found) if t else 0.0 for t in row.train),
        row.advantage,
        row.weight,
    )


def test_passes_clip_from_the_second_on() -> None:
    policy = make_policy(lora=True)
    rows = group_rows()
    learner = Learner(policy, LearnerSettings(lr=5e-2, passes=3, loss_settings=LossSettings(0.01, 0.01)))
    report = learner.update(Batch(tuple(rows), {}, len(rows)))
    assert learner.updates == 1 and policy.version == 1
    assert report.metrics["logprob_gap_max"] > 0


@pytest.mark.parametrize("budget", [60, 10_000])
def test_what_an_update_reports_is_of_all_its_passes(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clipped` was of the first pass, where it is always 0, and the gradient's norm of the last."""
    clipped, steps = [], []
    settings = LearnerSettings(
        lr=5e-2, passes=4, warmup_steps=3, token_budget=budget, loss_settings=LossSettings(0.01, 0.01)
    )
    learner = Learner(make_policy(lora=True), settings)
    own = learner.logprobs(group_rows())
    rows = tuple(_with_sampler(row, own[row.key]) for row in group_rows())
    step, add = learner.optimiser.step, Statistics.add

    def added(self: Statistics, loss: Any, terms: Any, entropy: Any, parts: Any) -> None:
        clipped.append((len(terms.logprobs), float(parts["clipped"])))
        add(self, loss, terms, entropy, parts)

    def stepped(lr: float) -> dict[str, float]:
        steps.append(step(lr))
        return steps[-1]

    monkeypatch.setattr(Statistics, "add", added)
    monkeypatch.setattr(learner.optimiser, "step", stepped)
    rates = []
    for _ in range(4):
        clipped.clear(), steps.clear()
        metrics = learner.update(Batch(rows, {}, len(rows))).metrics
        share = sum(n * c for n, c in clipped) / sum(n for n, _ in clipped)
        assert metrics["clipped"] == pytest.approx(share) and share > 0.2
        norms = [s["grad_norm"] for s in steps]
        assert len(norms) == 4 and metrics["grad_norm"] == pytest.approx(sum(norms) / 4)
        assert metrics["grad_norm_max"] == max(norms)
        assert metrics["update_ratio"] == pytest.approx(sum(s["update_ratio"] for s in steps))
        assert {s["lr"] for s in steps} == {metrics["lr"]}  # a step's rate is that of all its passes
        rates.append(metrics["lr"] / settings.lr)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_entropy_and_gap_are_of_all_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of groups that are not trained on: a policy that is sure where it no longer learns is sure."""
    policy, names = make_policy(), ("entropy", "importance", "logprob_gap_mean", "logprob_gap_p90", "logprob_gap_max")
    rows = group_rows(prompts=4)
    none = LearnerSettings(lr=0.0)
    every = Learner(policy, none).update(Batch(tuple(rows), {}, 1)).metrics
    monkeypatch.setattr("airloop.learn.learner.LOOKED_AT", 1.0)
    silent = [replace(r, advantage=0.0, weight=0.0) for r in rows[8:]]
    found = Learner(policy, none).update(Batch(tuple(rows[:8]), {}, 1, tuple(silent))).metrics
    assert {n: found[n] for n in names} == pytest.approx({n: every[n] for n in names}, rel=1e-5)
    assert found["tokens_trained"] == sum(sum(r.train) for r in rows[:8])
    only = Learner(policy, none).update(Batch(tuple(rows[:8]), {}, 1)).metrics
    assert only["entropy"] != pytest.approx(every["entropy"], rel=1e-4)
    nothing = Learner(policy, none).update(Batch((), {}, 1, tuple(silent))).metrics
    assert nothing["tokens_trained"] == 0 and nothing["entropy"] > 0


def test_of_episodes_that_are_not_trained_on_a_sample_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rows = make_policy(), group_rows(prompts=12)
    silent = tuple(replace(r, advantage=0.0, weight=0.0) for r in rows[8:])
    seen: list[int] = []
    forward = Learner._forward
    monkeypatch.setattr(Learner, "_forward", lambda self, plan: seen.append(len(plan.tokens)) or forward(self, plan))
    learner = Learner(policy, LearnerSettings(lr=0.0, token_budget=10_000))
    sampled = learner.update(Batch(tuple(rows[:8]), {}, 1, silent)).metrics
    assert len(seen) == 2 and 0 < seen[0] <= 0.2 * sum(len(r.tokens) for r in rows)
    every = learner.update(Batch(tuple(rows), {}, 1)).metrics
    assert sampled["entropy"] == pytest.approx(every["entropy"], rel=0.02)


@pytest.mark.long
def test_gaps_of_more_tokens_than_torch_has_quantiles_for() -> None:
    values = torch.arange(17_000_000, dtype=torch.float32)
    with pytest.raises(RuntimeError):
        values.quantile(0.5)
    found = _gaps(values, torch.ones(1).expand(len(values)))
    assert found["logprob_gap_p90"] == pytest.approx(0.9 * len(values), rel=1e-6)
    assert found["logprob_gap_max"] == float(values[-1])
    weighted = _gaps(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 8.0]))
    assert weighted["logprob_gap_p50"] == 3.0 and weighted["logprob_gap_mean"] == pytest.approx(2.7)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_F9_gradients_in_few_bits_are_added_up_in_float32(kind: str) -> None:
    """Also those of a tied head, which come chunk by chunk. In bf16 a sum of 64 parts was off by a percent."""
    policy = make_policy(kind)
    policy.model.to(torch.bfloat16)
    widen_products(are_slow(policy.model))
    rows = group_rows(prompts=1, members=8)
    learner = Learner(policy, LearnerSettings(token_budget=1))
    narrow = [i for i, p in enumerate(learner.parameters) if p.dtype == torch.bfloat16]
    whole = [torch.zeros(p.shape, dtype=torch.float64) for p in learner.parameters]
    weights = {row.key: [1.0] * sum(row.train) for row in rows}
    for row in rows:
        for total, part in zip(whole, learner.slopes([row], weights), strict=True):
            total += 0 if part is None else part.double()
    found = learner.slopes(rows, weights)
    assert narrow and all(found[i].dtype == torch.float32 for i in narrow)
    for i in narrow:
        torch.testing.assert_close(found[i].double(), whole[i], rtol=1e-4, atol=1e-4 * float(whole[i].abs().max()))
    assert all(p.grad is None for p in learner.parameters)
    found, whole = (learner.slopes(rows[:2], weights) for learner in (learner, Learner(policy, learner.settings)))
    torch.testing.assert_close(found, whole)  # of the same policy


def test_kl_is_to_the_policy_the_run_started_from() -> None:
    policy = make_policy(lora=True)
    rows = group_rows()
    learner = Learner(policy, LearnerSettings(lr=1e-2, loss_settings=LossSettings(kl_beta=0.1)))
    first = learner.update(Batch(tuple(rows), {}, len(rows)))
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-9)
    weights = [p.detach().clone() for _, p in policy.trainable()]
    second = learner.update(Batch(tuple(rows), {}, len(rows)))
    assert second.metrics["kl"] > 1e-6
    with learner.reference():
        pass
    assert not all(torch.equal(a, p) for a, (_, p) in zip(weights, policy.trainable(), strict=True))


@pytest.mark.slow
def test_bf16_weights_are_trained_through_fp32_masters() -> None:
    """F5: a step of 1e-5 is lost in bf16; the masters remember it until it shows."""
    policy = make_policy()
    policy.model.to(torch.bfloat16)
    widen_products(are_slow(policy.model))
    learner = Learner(policy, LearnerSettings(lr=1e-5, max_norm=1e9))
    before = [p.detach().clone() for p in learner.parameters]
    rows = tuple(group_rows())
    for _ in range(3):
        metrics = learner.update(Batch(rows, {}, 8)).metrics
    assert metrics["update_ratio"] > 0
    masters = learner.optimiser.masters
    moved = sum((m.detach() - p.float()).abs().max() > 0 for m, p in zip(masters, before, strict=True))
    assert moved == sum(p.dtype == torch.bfloat16 for p in learner.parameters)


def test_a_batch_without_rows_updates_nothing_and_says_so() -> None:
    policy = make_policy(lora=True)
    report = Learner(policy, LearnerSettings()).update(Batch((), {}, 8))
    assert report.metrics["tokens_trained"] == 0 and report.metrics["grad_norm"] == 0.0


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=70), min_size=1, max_size=8),
    st.integers(20, 200),
)
def test_every_row_is_laid_out_whole_whatever_it_shares(sequences: list[list[int]], budget: int) -> None:
    rows = [
        Row(str(i), tuple(s), (False, *(True,) * (len(s) - 1)), (0.0,) * len(s), 1.0, 1.0)
        for i, s in enumerate(sequences)
    ]
    seen = []
    for part in micro_batches(rows, budget):
        for r, row in enumerate(part.rows):
            pieces = [part.segments[s] for s in part.paths[r]]
            assert [t for p in pieces for t in p.tokens] == list(row.tokens)
            assert [p.place for p in pieces] == [sum(len(q.tokens) for q in pieces[:i]) for i in range(len(pieces))]
            seen.append(row.key)
    assert sorted(seen) == sorted(r.key for r in rows)
