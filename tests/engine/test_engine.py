"""The embedded engine against transformers itself, on every shape we promise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from airloop.engine.base import ContextFull, EngineFailed, Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.limits import NARROW, STEP_TOKENS, step_tokens
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

KINDS = ["llama", "qwen2", "qwen3", "mistral"]


def make(kind: str = "llama", **options: Any) -> tuple[Policy, EmbeddedEngine]:
    model = tiny_model(kind, seed=1).model
    policy = Policy(model, logits_head(model))
    return policy, EmbeddedEngine(policy, **{"context": 256, "page_size": 8, **options})


def in_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 60))  # type: ignore[arg-type]


def prompts(n: int, seed: int = 0, low: int = 1, high: int = 90) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(low, high))] for _ in range(n)]


def reference_logprobs(kind: str, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    model = tiny_model(kind, seed=1).model  # with transformers' own attention
    with torch.no_grad():
        return (model(torch.tensor([tokens])).logits[0].float() / temperature).log_softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_transformers_token_for_token(kind: str) -> None:
    model = tiny_model(kind, seed=1).model
    asked = prompts(50)
    with torch.no_grad():
        wanted = [
            model.generate(
                torch.tensor([p]),
                attention_mask=torch.ones(1, len(p), dtype=torch.long),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(p) :].tolist()
            for p in asked
        ]
    _, engine = make(kind)

    async def work() -> list[list[int]]:
        found = await asyncio.gather(*[engine.generate(p, Sampling(12, temperature=0)) for p in asked])
        return [list(g.token_ids) for g in found]

    assert in_loop(work) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_of_the_scaled_untruncated_softmax(kind: str) -> None:
    _, engine = make(kind)
    sampling = Sampling(20, temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, seed=3)
    prompt = prompts(1, low=40)[0]
    found = in_loop(lambda: engine.generate(prompt, sampling))
    logprobs = reference_logprobs(kind, prompt + list(found.token_ids), 0.7)
    wanted = [logprobs[len(prompt) + i - 1, t].item() for i, t in enumerate(found.token_ids)]
    assert max(abs(a - b) for a, b in zip(found.logprobs, wanted, strict=True)) < 1e-4
    ranks = [(logprobs[len(prompt) + i - 1] > w).sum().item() for i, w in enumerate(wanted)]
    assert max(ranks) < 5  # top_k was obeyed in the drawing


def test_who_listens_hears_every_token_before_the_reply_and_changes_nothing() -> None:
    _, engine = make()
    asked = prompts(6, low=5)
    on_tokens: list[list[list[int]]] = [[] for _ in asked]

    async def work() -> list[Any]:
        draws = [Sampling(15, seed=i, stop_ids=tuple(range(0, 256, 16))) for i in range(len(asked))]
        told = [engine.generate(p, s, on_tokens=h.append) for p, s, h in zip(asked, draws, on_tokens, strict=True)]
        listened = await asyncio.gather(*told)
        alone = [await engine.generate(p, s) for p, s in zip(asked, draws, strict=True)]
        return [(one.token_ids, other.token_ids) for one, other in zip(listened, alone, strict=True)]

    for (ids, again), pieces in zip(in_loop(work), on_tokens, strict=True):
        assert tuple(token for piece in pieces for token in piece) == ids == again
        assert len(pieces) > 1 or len(ids) == 1


def test_a_group_computes_its_prompt_once_and_a_turn_continues_the_last() -> None:
    _, engine = make()
    prompt = prompts(1, low=60, high=60)[0]

    async def work() -> None:
        group = await asyncio.gather(*[engine.generate(prompt, Sampling(10, seed=i)) for i in range(8)])
        assert sum(g.cached_tokens for g in group) == 7 * (len(prompt) - 1)
        turn = [*prompt, *group[3].token_ids, 5, 6, 7]
        second = await engine.generate(turn, Sampling(5))
        # all but the last sampled token had its keys computed; the copy is exact to the token, not to the page
        assert second.cached_tokens == len(prompt) + 9

    in_loop(work)


@pytest.mark.slow
def test_draws_do_not_depend_on_what_else_is_in_the_batch() -> None:
    asked = prompts(12, seed=4)

    async def together() -> list[tuple[int, ...]]:
        _, engine = make()
        return [
            g.token_ids
            for g in await asyncio.gather(*[engine.generate(p, Sampling(16, seed=i)) for i, p in enumerate(asked)])
        ]

    async def alone() -> list[tuple[int, ...]]:
        _, engine = make()
        return [(await engine.generate(p, Sampling(16, seed=i))).token_ids for i, p in enumerate(asked)]

    assert in_loop(together) == in_loop(alone)


def test_a_stop_token_ends_a_reply_and_is_part_of_it() -> None:
    _, engine = make()
    everything = tuple(range(512))
    found = in_loop(lambda: engine.generate([1, 2, 3], Sampling(9, stop_ids=everything)))
    assert len(found.token_ids) == 1 and found.stop == "stop"


def test_a_prompt_that_fills_the_context_is_refused_and_a_long_one_cut_short() -> None:
    _, engine = make(context=64)

    async def work() -> None:
        with pytest.raises(ContextFull, match="64 tokens, the context 64"):
            await engine.generate([1] * 64, Sampling(5))
        found = await engine.generate([1] * 60, Sampling(50))
        assert len(found.token_ids) == 4 and found.stop == "length"

    in_loop(work)


@pytest.mark.slow
def test_back_pressure_more_requests_than_memory_all_come_through() -> None:
    _, engine = make(context=128, kv_tokens=160, max_batch=4)

    async def work() -> None:
        found = await asyncio.gather(*[engine.generate(p, Sampling(20, seed=i)) for i, p in enumerate(prompts(20))])
        assert all(len(g.token_ids) == 20 for g in found)
        assert max(g.queue_s for g in found) > 0

    in_loop(work)
    assert engine._tree.claimed == 0


def test_cancelling_frees_everything_and_disturbs_nobody() -> None:
    _, engine = make()

    async def work() -> None:
        wanted = await engine.generate([9, 8, 7], Sampling(30, seed=1))
        await engine.publish(1)
        tasks = [asyncio.create_task(engine.generate(p, Sampling(100, seed=2))) for p in prompts(6, seed=9)]
        begun = asyncio.Event()
        asked = engine.generate([9, 8, 7], Sampling(30, seed=1), on_tokens=lambda _: begun.set())
        kept = asyncio.create_task(asked)
        await asyncio.wait({kept, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not any(task.done() for task in (*tasks, kept))  # all are in the middle of their replies
        for task in tasks:
            task.cancel()
        assert (await kept).token_ids == wanted.token_ids
        assert len(engine._scheduler.running) == 0 and engine._tree.claimed == 0

    in_loop(work)


def test_publishing_voids_cached_prefixes_and_serves_the_new_weights() -> None:
    policy, engine = make()
    prompt = prompts(1, low=50)[0]

    async def work() -> None:
        old = await engine.generate(prompt, Sampling(1, temperature=0))
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        await engine.publish(1)
        new = await engine.generate(prompt, Sampling(1, temperature=0))
        assert new.cached_tokens == 0 and (old.version, new.version) == (0, 1)
        assert abs(new.logprobs[0] - old.logprobs[0]) > 1e-3

    in_loop(work)


def test_an_error_in_the_model_reaches_every_waiting_request() -> None:
    policy, engine = make()

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise FloatingPointError("provoked")

    policy.head = broken

    async def work() -> None:
        found = await asyncio.gather(*[engine.generate(p, Sampling(5)) for p in prompts(5)], return_exceptions=True)
        said = "The engine failed in a step: FloatingPointError: provoked"
        assert all(isinstance(e, EngineFailed) and str(e).startswith(said) for e in found) and len(found) == 5

    in_loop(work)


def test_lock_step_waits_for_every_tracked_episode_and_orders_by_name() -> None:
    _, engine = make(lockstep=True)
    joined: list[list[str]] = []
    original = engine._scheduler.next_step

    def spy(repeat: int) -> Any:
        step = original(repeat)
        joined.append([w.request.order for w in [*step.decode, *step.prefill]] if step else [])
        return step

    engine._scheduler.next_step = spy  # type: ignore[method-assign]

    async def episode(name: str, delay: float) -> None:
        for turn in range(2):
            await asyncio.sleep(delay)
            await engine.generate([1, 2, 3, ord(name[0])], Sampling(3, seed=turn), order=f"{name}-{turn}")

    async def tracked(name: str, delay: float) -> None:
        with engine.track():
            await episode(name, delay)

    async def work() -> None:
        await asyncio.gather(tracked("c", 0.03), tracked("a", 0.0), tracked("b", 0.01))

    in_loop(work)
    assert joined[0] == ["a-0", "b-0", "c-0"]
    assert all(len(step) == 3 for step in joined)


@pytest.mark.parametrize(("device", "width", "times"), [("cuda", 576, 3), ("cuda", 4096, 1), ("cuda", 8, 4)])
def test_a_narrow_model_takes_more_tokens_a_step_in_no_more_memory_than_a_wide_one(
    device: str, width: int, times: int
) -> None:
    assert step_tokens(device, width, True) == times * STEP_TOKENS[device]
    assert step_tokens(device, width, True) * width <= max(NARROW, width) * STEP_TOKENS[device]
    assert step_tokens(device, width, False) == STEP_TOKENS[device]
    assert step_tokens("cpu", width, True) == STEP_TOKENS["cpu"]
