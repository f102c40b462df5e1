"""Our own forward pass and the runner that works ahead of the answers, on the CPU: the same code as on a GPU, above
the kernels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import support.plain_ops  # noqa: F401 - our own forward pass on a CPU
import torch
from test_engine import KINDS, in_loop, prompts, reference_logprobs

from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.lora import attach_lora, use_fp32_adapters
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]  # not all: some products have half an adapter


def make(kind: str = "llama", lora: bool = False, own: bool = True, **options: Any) -> tuple[Policy, EmbeddedEngine]:
    model = tiny_model(kind, seed=1).model
    if lora:
        attach_lora(model, 3, 6, TARGETS)
        use_fp32_adapters(model)
        change_adapter(model, 0)
    policy = Policy(model, logits_head(model))
    return policy, EmbeddedEngine(policy, **{"context": 256, "page_size": 8, "own_forward": own, **options})


def change_adapter(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data.copy_(torch.randn(p.shape, generator=generator) * 0.2)


async def greedy(engine: EmbeddedEngine, asked: list[list[int]]) -> list[tuple[int, ...]]:
    found = await asyncio.gather(*[engine.generate(p, Sampling(12, temperature=0)) for p in asked])
    return [g.token_ids for g in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", [False, True])
def test_greedy_equals_transformers_layers(kind: str, lora: bool) -> None:
    asked = prompts(20)
    _, plain = make(kind, lora, own=False)
    _, own = make(kind, lora)
    assert in_loop(lambda: greedy(own, asked)) == in_loop(lambda: greedy(plain, asked))


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_of_the_scaled_untruncated_softmax(kind: str) -> None:
    _, engine = make(kind)
    prompt = prompts(1, low=40)[0]
    found = in_loop(lambda: engine.generate(prompt, Sampling(20, temperature=0.7, top_k=5, seed=3)))
    logprobs = reference_logprobs(kind, prompt + list(found.token_ids), 0.7)
    wanted = [logprobs[len(prompt) + i - 1, t].item() for i, t in enumerate(found.token_ids)]
    assert max(abs(a - b) for a, b in zip(found.logprobs, wanted, strict=True)) < 1e-4
    ranks = [(logprobs[len(prompt) + i - 1] > w).sum().item() for i, w in enumerate(wanted)]
    assert max(ranks) < 5


def test_the_modules_still_work_on_the_shared_memory() -> None:
    """One copy of the weights: transformers' layers and the engine see the same numbers, also after a change."""
    policy, _ = make("qwen2")
    model = policy.model
    before = reference_logprobs("qwen2", [1, 2, 3])
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits[0].float().log_softmax(-1), before)
    attention = model.get_decoder().layers[0].self_attn
    weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert len({w.untyped_storage().data_ptr() for w in weights}) == 1


def test_an_update_of_the_adapter_reaches_the_engine() -> None:
    asked = prompts(6)

    async def work() -> None:
        policy, engine = make(lora=True)
        first = await greedy(engine, asked)
        change_adapter(policy.model, 1)
        await engine.publish(1)
        changed, wanted = await greedy(engine, asked), await greedy(make_changed(), asked)
        assert changed == wanted != first

    in_loop(work)


def make_changed() -> EmbeddedEngine:
    policy, engine = make(lora=True, own=False)
    change_adapter(policy.model, 1)
    return engine


@pytest.mark.slow
def test_draws_do_not_depend_on_what_else_is_in_the_batch() -> None:
    asked = prompts(12, seed=4)

    async def together() -> list[tuple[int, ...]]:
        _, engine = make()
        jobs = [engine.generate(p, Sampling(16, seed=i)) for i, p in enumerate(asked)]
        return [g.token_ids for g in await asyncio.gather(*jobs)]

    async def alone() -> list[tuple[int, ...]]:
        _, engine = make()
        return [(await engine.generate(p, Sampling(16, seed=i))).token_ids for i, p in enumerate(asked)]

    assert in_loop(together) == in_loop(alone)


@pytest.mark.parametrize("repeat", [1, 4, 8])
def test_bursts_change_nothing_but_the_time(repeat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from airloop.engine.embedded.runner import FastRunner

    monkeypatch.setattr(FastRunner, "repeat", repeat)
    asked = prompts(10, seed=2)

    async def sampled(own: bool) -> list[tuple[tuple[int, ...], str]]:
        _, engine = make(own=own, max_batch=4, kv_tokens=640)
        stops = tuple(range(0, 512, 9))
        jobs = [
            engine.generate(p, Sampling(3 + 5 * i, temperature=0, stop_ids=stops if i % 2 else ()))
            for i, p in enumerate(asked)
        ]
        found = [(g.token_ids, g.stop) for g in await asyncio.gather(*jobs)]
        assert engine._tree.claimed == 0
        return found

    assert in_loop(lambda: sampled(True)) == in_loop(lambda: sampled(False))


def test_a_group_computes_its_prompt_once_and_a_turn_continues_the_last() -> None:
    _, engine = make()
    prompt = prompts(1, low=60, high=60)[0]

    async def work() -> None:
        group = await asyncio.gather(*[engine.generate(prompt, Sampling(10, seed=i)) for i in range(8)])
        assert sum(g.cached_tokens for g in group) == 7 * (len(prompt) - 1)
        turn = [*prompt, *group[3].token_ids, 5, 6, 7]
        second = await engine.generate(turn, Sampling(5))
        assert second.cached_tokens == len(prompt) + 9

    in_loop(work)


def test_cancelled_requests_leave_nothing_behind() -> None:
    _, engine = make(max_batch=4)

    async def work() -> None:
        jobs = [asyncio.ensure_future(engine.generate(p, Sampling(100, seed=1))) for p in prompts(8)]
        await asyncio.sleep(0.05)
        for job in jobs[::2]:
            job.cancel()
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert sum(isinstance(f, asyncio.CancelledError) for f in found) == 4
        again = await engine.generate([1, 2, 3], Sampling(4))
        assert len(again.token_ids) == 4 and engine._tree.claimed == 0 and not engine._scheduler.running

    in_loop(work)


def test_what_the_kernels_cannot_do_is_said() -> None:
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model = GemmaForCausalLM(config).eval()
    engine = EmbeddedEngine(Policy(model, logits_head(model)), context=64, own_forward=True)
    assert "gemma" in engine.fallback_reason and "gemma" in engine.describe().detail["forward"]
    assert len(in_loop(lambda: engine.generate([1, 2, 3], Sampling(4))).token_ids) == 4
    assert make()[1].fallback_reason == ""
