"""F8: proofs must not take rounding for a fault, nor a small fault for rounding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import support.plain_ops  # noqa: F401 - our own forward pass on a CPU
import torch
from support.probe_cases import ARITH, ask, case_of

from airloop.doctor.case import Case
from airloop.doctor.checks import arrival, proofs
from airloop.doctor.checks.arrival import ENOUGH, TOO_MUCH, _add_noise, perturb
from airloop.doctor.checks.proofs import _same
from airloop.doctor.proof_tools import (
    Answer,
    at_high_temperature,
    first_prompts,
    gap,
    learner_state,
    restored_after,
    sample_replies,
)
from airloop.engine.embedded import EmbeddedEngine
from airloop.engine.embedded.forward import Forward
from airloop.learn.report import Report
from airloop.learn.rounding import Distances, distances, exact, reference, wide
from airloop.ranks import Ranks
from airloop.watch.alarms.gap import judge_gap
from airloop.watch.alarms.learner_rules import engine_serves_another_policy
from airloop.watch.alarms.rules import Sign
from airloop_lab.faults import frozen_copy

# The settings that the false alarm was seen with, and the largest that anybody uses.
CHAOTIC = [("32", "64"), pytest.param("256", "512", marks=pytest.mark.soak)]
# What the proof that gave it did: so much noise on every number of every adapter's second matrix, whatever its effect,
# and at most so much between engine and trainer in bfloat16.
OLD_NOISE, OLD_GAP = 0.1, 0.15


@contextmanager
def deep_case(
    rank: str = "32", alpha: str = "64", dtype: str = "bfloat16", layers: int = 6, wild: float = 1.0
) -> Iterator[Case]:
    """A tiny Qwen2 of some depth; one whose weights are `wild` times as large amplifies every rounding, as real models
    do under noise."""
    from airloop.models import tiny

    original, deep = tiny.tiny_settings, layers

    def settings(kind: str = "llama", *, hidden: int = 64, layers: int = 2, **more: Any) -> dict[str, Any]:
        return {**original(kind, hidden=hidden, layers=deep, **more), "initializer_range": wild * hidden**-0.5}

    flags = {"trainer.model.lora.rank": rank, "trainer.model.lora.alpha": alpha, "model.dtype": dtype}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "tiny_settings", settings)
        with case_of({**ARITH, **flags, "model.name": "tiny:qwen2"}) as case:
            case.parts.engine = EmbeddedEngine(
                case.parts.policy, context=case.config.seq_len, max_batch=16, own_forward=True
            )
            yield case


def rows_of(answers: list[Answer]) -> list[Any]:
    return [answer.row(i) for i, answer in enumerate(answers)]


@pytest.mark.long
@pytest.mark.parametrize(("rank", "alpha"), CHAOTIC)
def test_F8_a_healthy_network_that_amplifies_rounding_passes(rank: str, alpha: str) -> None:
    """Under the old proof's noise engine and trainer are farther apart than it allowed, by rounding alone: with twelve
    layers on CPUs with AVX-512 (0.15 to 0.2), by 0.14 on one with AVX2; with twenty on that one by 0.21."""
    with deep_case(rank, alpha, layers=20, wild=4.0) as case:
        prompts = 4 * first_prompts(case, 1)
        with restored_after(case) as start, at_high_temperature(case.parts):
            _add_noise(case, start["weights"], OLD_NOISE)
            rows = rows_of(sample_replies(case, prompts, 12))
            own = case.parts.learner.logprobs(rows)
            assert gap(rows, own) > OLD_GAP
            assert distances(case.parts.learner, rows, own).rounding > OLD_GAP / 2
            assert watched(case, rows, own) is None  # as a step of a run, too
        for name in ("adapter_arrives", "trainer_agrees", "update_moves"):
            (finding,) = ask(case, name)
            assert finding.verdict != "fail", finding


@pytest.mark.parametrize(("against", "verdict"), [(-1.18, "warn"), (0.4, "fail"), (-0.1, "fail")])
def test_F8_a_step_that_shows_no_direction_is_no_wrong_sign(
    against: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen with twenty layers, bfloat16 and AVX2: too short a step is hidden by rounding, the next one is too long
    for its direction to show. With a wrong sign, the update that should make tokens less likely does the opposite."""
    measured = Distances(engine=0.2, trainer=0.2, rounding=0.25, tokens=8)

    def push(case: Case, scale: float, advantage: float = 1.0) -> proofs.Push:
        rise = against if advantage < 0 else -0.384 if scale > 2 else -0.01
        return proofs.Push(rise, 0.17, 1.0, 1.0, 8, 8, measured)

    monkeypatch.setattr(proofs, "_push", push)
    with case_of(ARITH) as case:
        (finding,) = ask(case, "update_moves")
    assert finding.verdict == verdict
    assert ("either way" in finding.why) == (verdict == "warn")


def test_F5_an_update_that_lowers_whatever_it_is_told_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each length of its step, and clearly: it does not read the advantage."""
    fallen = Distances(engine=0.0, trainer=0.0, rounding=0.0, tokens=8)
    monkeypatch.setattr(proofs, "_push", lambda case, scale, advantage=1.0: proofs.Push(-1, 0, 1, 1, 8, 8, fallen))
    with case_of(ARITH) as case:
        (finding,) = ask(case, "update_moves")
    assert finding.verdict == "fail" and "the wrong sign" not in finding.seen


@pytest.mark.long
def test_F8_nothing_is_refused_for_one_unlucky_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on an H200 with alpha = 4 times the rank: of 44 set-ups in health the trainer was once 4.4 times as far from
    the truth as plain rounding, on rows that all began alike. A second look has other beginnings."""
    from airloop.learn import rounding

    looks: list[list[Any]] = []
    factor = 1.3

    def unlucky(learner: Any, rows: Any, trainer: Any) -> Distances:
        looks.append([row.tokens[: row.train.index(True)] for row in rows])
        found = distances(learner, rows, trainer)
        return replace(found, trainer=factor * found.most) if len(looks) == 1 else found

    monkeypatch.setattr(rounding, "distances", unlucky)
    with deep_case("8", "32", layers=2, wild=2.0) as case:
        for name in ("adapter_arrives", "update_moves"):
            looks.clear()
            (finding,) = ask(case, name)
            assert finding.verdict != "fail", finding
            if looks:  # an update whose gap nobody need look into was not measured at all
                assert len(looks) >= 2 and len(looks[1]) == 16 and len(set(looks[1])) > len(set(looks[0]))
        assert len(looks) != 1
        looks.clear()
        factor = 99.0  # what only the first rows have is not excused by the others
        (finding,) = ask(case, "adapter_arrives")
        assert finding.verdict == "fail" and len(looks) == 2


def watched(case: Case, rows: list[Any], trainer: dict[str, list[float]]) -> Sign | None:
    """What the alarm of a running training says of a step with these rows."""
    metrics = {"logprob_gap_mean": gap(rows, trainer)}
    facts = case.wait(judge_gap(case.parts, rows, Report(metrics)))
    return engine_serves_another_policy({"learner": metrics, **facts}, [])


def test_F2_a_running_training_tells_old_weights_from_rounding() -> None:
    with deep_case("8", "16", layers=4, wild=1.0, dtype="float32") as case:
        prompts = 4 * first_prompts(case, 1)
        parts = case.parts
        with restored_after(case) as start, at_high_temperature(parts):
            _add_noise(case, start["weights"], OLD_NOISE)
            rows = rows_of(sample_replies(case, prompts, 12))
            new = parts.learner.logprobs(rows)
            assert not case.wait(judge_gap(parts, rows, Report({"logprob_gap_mean": gap(rows, new)})))
            served, parts.engine = parts.engine, EmbeddedEngine(frozen_copy(parts.policy), context=128, max_batch=4)
            _add_noise(case, start["weights"], 4 * OLD_NOISE)
            sign = watched(case, rows, parts.learner.logprobs(rows))
            assert sign is not None and "From new tokens computed in more bits the engine is" in sign.seen
            case.wait(parts.engine.close())
            parts.engine = served
            # The engine is right again; a step whose gap was more than rounding is not excused by that.
            assert watched(case, rows, parts.learner.logprobs(rows)) is not None


# --- faults, large and small --------------------------------------------------------------------------


def old_weights(case: Case, refresh: Callable[[], None]) -> None:
    """Nothing is brought up to date."""


def scaled(times: float) -> Callable[[Case, Callable[[], None]], None]:
    """The engine has another alpha / rank than the trainer."""

    def serve_scaled(case: Case, refresh: Callable[[], None]) -> None:
        changed(case, refresh, lambda name, weight: weight.mul_(times) if "lora_B" in name else None)

    return serve_scaled


def one_layer(case: Case, refresh: Callable[[], None]) -> None:
    changed(case, refresh, lambda name, weight: weight.zero_() if "layers.3." in name and "lora_B" in name else None)


def one_matrix(case: Case, refresh: Callable[[], None]) -> None:
    """First matrices are those of another version: the seconds arrive."""
    generator = torch.Generator().manual_seed(1)

    def other(name: str, weight: torch.Tensor) -> None:
        if "lora_A" in name:
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.std())

    changed(case, refresh, other)


def another_version(case: Case, refresh: Callable[[], None]) -> None:
    generator = torch.Generator().manual_seed(1)

    def other(name: str, weight: torch.Tensor) -> None:
        if "lora_B" in name:
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.std())

    changed(case, refresh, other)


def changed(case: Case, refresh: Callable[[], None], change: Callable[[str, torch.Tensor], Any]) -> None:
    """What the engine copies is not what is trained."""
    held = [(p, p.detach().clone()) for _, p in case.parts.policy.trainable()]
    with torch.no_grad():
        for name, parameter in case.parts.policy.trainable():
            change(name, parameter)
        refresh()
        for parameter, value in held:
            parameter.copy_(value)


FAULTS = {
    "old weights": old_weights,
    "half the scale": scaled(0.5),
    "scale 1.5": scaled(1.5),
    "scale 1.25": scaled(1.25),
    "one layer of six": one_layer,
    "one matrix of two": one_matrix,
    "another version": another_version,
}

IN_BFLOAT16 = ("old weights", "scale 1.5", "one matrix of two")
SELDOM = {("float32", "half the scale"), ("float32", "scale 1.5"), ("float32", "old weights")}
SELDOM |= {("float32", "another version"), ("bfloat16", "one matrix of two")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        # A scale that is less wrong, and what is harder to see in bfloat16, tell of these.
        pytest.param(dtype, name, marks=[pytest.mark.soak] if (dtype, name) in SELDOM else [])
        for dtype, name in [("float32", name) for name in FAULTS] + [("bfloat16", name) for name in IN_BFLOAT16]
    ],
)
def test_F2_weights_that_arrive_in_part_are_found(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with deep_case(dtype=dtype) as case:
        original = Forward.refresh
        monkeypatch.setattr(Forward, "refresh", lambda self: FAULTS[name](case, lambda: original(self)))
        (finding,) = ask(case, "adapter_arrives")
    assert finding.verdict == "fail", (name, finding)
    old = "goes on serving the old weights"
    assert (old in finding.why) == (name == "old weights"), finding


@pytest.mark.long
def test_F2_one_layer_that_stays_behind_is_found_where_rounding_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missed with Qwen2.5-Coder-0.5B in bfloat16 on an H200: a mean distance of four times rounding was allowed."""
    looked: list[arrival.Arrival] = []
    original, changed = Forward.refresh, arrival._changed

    @torch.no_grad()
    def refresh(self: Any) -> None:
        held = [(p, p.detach().clone()) for name, p in case.parts.policy.trainable() if ".layers.1." in name]
        for parameter, _ in held:
            parameter.zero_()
        original(self)
        for parameter, value in held:
            parameter.copy_(value)

    monkeypatch.setattr(arrival, "_changed", lambda case: looked.append(changed(case)) or looked[-1])
    with deep_case("16", "8", layers=12, wild=2.0) as case:
        monkeypatch.setattr(Forward, "refresh", refresh)
        (finding,) = ask(case, "adapter_arrives")
    assert finding.verdict == "fail" and "layer 1 stays behind" in finding.why, finding
    assert replace(looked[0], stale_layer="").right  # nothing else would have told


def test_F2_parts_of_a_model_are_told_by_layer_and_by_matrix() -> None:
    from airloop.doctor.stale_layer import _parts

    head = "base_model.model.model.layers"
    matrices = [f"{m}.lora_{x}.weight" for m in ("self_attn.q_proj", "mlp.up_proj") for x in "AB"]
    names = [f"{head}.{i}.{matrix}" for i in (0, 1) for matrix in matrices]
    assert _parts(names) == {
        "layer 0": [0, 1, 2, 3],
        "layer 1": [4, 5, 6, 7],
        "q_proj of every layer": [0, 1, 4, 5],
        "up_proj of every layer": [2, 3, 6, 7],
    }
    assert _parts(["model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"]) == {
        "model.embed_tokens.weight": [0],
        "layer 0": [1],
        "input_layernorm of every layer": [1],
    }
    assert _parts([names[0]]) == {}  # the whole is no part


@pytest.mark.slow
def test_F2_a_trainer_that_does_not_compute_with_what_it_trains_is_found() -> None:
    with case_of(ARITH) as case:
        optimiser = case.parts.learner.optimiser
        optimiser.weights = [w.detach().clone() for w in optimiser.weights]
        (finding,) = ask(case, "adapter_arrives")
    assert finding.verdict == "fail" and "does not compute with the weights that it trains" in finding.why


# --- what it rests on ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_F8_a_perturbation_is_scaled_to_its_effect(train: str, dtype: str) -> None:
    for kind in ("llama", "qwen3"):
        flags = {"model.name": f"tiny:{kind}", "model.dtype": dtype, "trainer.model.train": train}
        with case_of({**ARITH, **flags}) as case, restored_after(case) as start, at_high_temperature(case.parts):
            rows = rows_of(sample_replies(case, first_prompts(case), 12))
            assert ENOUGH <= perturb(case, start["weights"], rows) <= TOO_MUCH


def test_F8_where_the_effect_cannot_be_had_the_nearest_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with case_of(ARITH) as case, restored_after(case) as start, at_high_temperature(case.parts):
        rows = rows_of(sample_replies(case, first_prompts(case), 12))
        learner, jump = case.parts.learner, math.inf
        own, first = learner.logprobs, learner.logprobs(rows)

        def unsteady(asked: Any) -> Any:  # nothing at all, then far too much
            nonlocal jump
            size = max(float(w.abs().max()) for n, w in case.parts.policy.trainable() if "lora_B" in n)
            jump = 1e-6 if size < 1e-3 else 7.0
            return first if size == 0 else {k: [v + jump for v in values] for k, values in own(asked).items()}

        monkeypatch.setattr(learner, "logprobs", unsteady)
        moved = perturb(case, start["weights"], rows)
        assert math.isfinite(moved) and not ENOUGH <= moved <= TOO_MUCH


@pytest.mark.slow
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_F8_more_bits_without_a_second_copy_are_those_of_a_wider_model(kind: str, train: str) -> None:
    """Against transformers on weights that are in float32 for good; then nothing has changed, to the last bit."""
    flags = {"model.name": f"tiny:{kind}", "model.dtype": "bfloat16", "trainer.model.train": train}
    with case_of({**ARITH, **flags}) as case:
        parts = case.parts
        rows = rows_of(sample_replies(case, first_prompts(case), 12))
        before, state = reference(parts.learner, rows), {n: p.clone() for n, p in parts.policy.model.named_parameters()}
        objects = {n: id(p) for n, p in parts.policy.model.named_parameters()}
        found = exact(parts.learner, rows)
        assert reference(parts.learner, rows) == before
        assert {n: id(p) for n, p in parts.policy.model.named_parameters()} == objects
        assert all(_same(p.detach(), state[n].detach()) for n, p in parts.policy.model.named_parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in parts.policy.model.modules())
        parts.policy.model.float()
        wanted = reference(parts.learner, rows)
    worst = max(abs(a - b) for k in found for a, b in zip(found[k], wanted[k], strict=True))
    rounded = statistics.fmean(abs(a - b) for k in found for a, b in zip(found[k], before[k], strict=True))
    assert worst < 1e-5 < rounded


def test_F8_rows_that_share_a_pass_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there is room for in one: log-probs are those of each row by itself."""
    with case_of(ARITH) as case:
        learner, rows = case.parts.learner, rows_of(sample_replies(case, first_prompts(case), 12))
        alone = {key: values for row in rows for key, values in exact(learner, [row]).items()}
        tokens = sum(len(row.tokens) for row in rows)
        for room in (tokens, tokens // 2, 1):
            monkeypatch.setattr("airloop.learn.rounding.ROW_TOKENS", room)
            together = exact(learner, rows)
            assert list(together) == [row.key for row in rows]
            for row in rows:
                assert together[row.key] == pytest.approx(alone[row.key], abs=1e-10), (room, row.key)


def test_F8_a_pass_in_more_bits_that_fails_leaves_the_model_as_it_was() -> None:
    with case_of(ARITH, model__dtype="bfloat16") as case:
        model = case.parts.policy.model
        kinds = {n: (id(p), p.dtype) for n, p in model.named_parameters()}
        with pytest.raises(TypeError), wide(case.parts.policy, torch.float32):
            model.get_output_embeddings()("no tensor")
        assert {n: (id(p), p.dtype) for n, p in model.named_parameters()} == kinds


@pytest.mark.slow
def test_F8_a_proof_leaves_the_learner_as_it_was() -> None:
    with case_of(ARITH, model__dtype="bfloat16") as case:
        before = learner_state(case.parts)
        ask(case, "adapter_arrives")
        after = learner_state(case.parts)
    assert [key for key in before if not _same(before[key], after[key])] == []
    assert arrival.TRIES <= 8  # forward passes of a few hundred tokens


class Two(Ranks):
    """This rank, and another one that found something else."""

    def __init__(self, other: Distances | None) -> None:
        self.other = other

    async def all_gather(self, value: Any, what: str, deadline_s: float = 0.0) -> list[Any]:
        return [value, self.other]


@pytest.mark.parametrize(("other", "found"), [(Distances(0.5, 0.02, 0.02, 9), True), (None, True), ("same", False)])
def test_F2_a_rank_that_is_well_does_not_speak_for_one_that_is_not(other: Any, found: bool) -> None:
    """The step's gap is the mean of all; nor does one that could not tell."""
    with deep_case("8", "16", layers=2, dtype="float32") as case:
        rows = rows_of(sample_replies(case, first_prompts(case, 1), 4))
        one = Distances(0.02, 0.02, 0.02, 9)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airloop.learn.rounding.distances", lambda *_: one)
            patch.setattr(case.parts, "ranks", Two(one if other == "same" else other))
            metrics = {"logprob_gap_mean": 0.13}
            facts = case.wait(judge_gap(case.parts, rows, Report(metrics)))
    assert (engine_serves_another_policy({"learner": metrics, **facts}, []) is not None) is found


def test_F2_a_gap_that_cannot_be_judged_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room for wide numbers")

    monkeypatch.setattr("airloop.learn.rounding.distances", full)
    with deep_case("8", "16", layers=2, dtype="float32") as case:
        rows = rows_of(sample_replies(case, first_prompts(case, 1), 4))
        assert case.wait(judge_gap(case.parts, rows, Report({"logprob_gap_mean": 0.5}))) == {}
    assert engine_serves_another_policy({"learner": {"logprob_gap_mean": 0.5}}, []) is not None
    nan = {"engine": 0.01, "trainer": math.nan, "plain": 0.01, "most": 0.041}
    assert engine_serves_another_policy({"learner": {"logprob_gap_mean": 0.06}, "rounding": nan}, []) is None
    assert engine_serves_another_policy({"learner": {"logprob_gap_mean": 0.2}, "rounding": nan}, []) is not None
