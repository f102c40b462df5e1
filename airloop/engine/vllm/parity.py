"""Whether server and trainer agree: log-probs of some tokens that the server sampled, computed by both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import torch

from airloop.config.vllm_rules import HOTTEST
from airloop.engine.base import Sampling
from airloop.engine.vllm.reply import Reply
from airloop.engine.vllm.server import ServerLost, VllmServer
from airloop.errors import AirError
from airloop.learn.batches import PackedPlan, Row, micro_batches
from airloop.learn.forward import training_hidden
from airloop.learn.logprobs import token_logprobs
from airloop.policy import Policy

# Largest mean difference, in nats a token, at the probe's temperature. In fp32 two programs differ by 1e-6, with TF32
# products by up to 1e-3. In bf16, where each rounds in places of its own, by 0.01 to 0.05 at temperature 1, and by 0.5
# in a network that amplifies rounding (airloop/doctor/proof_tools.py): half of that at 2. What is smaller and still
# wrong is for the doctor's proofs and the alarm of every step, which measure rounding and do not guess it.
AGREE = {torch.float32: 1e-3}
AGREE_ROUNDED = 0.25
PROBE_TOKENS = 32  # tokens
# Temperature of the probe. At 1, log-probs before and after the temperature are the same; at 2 they are far apart even
# where a policy is confident, and what rounding does is halved.
PROBE_TEMPERATURE = HOTTEST


async def server_distance(policy: Policy, server: VllmServer, name: str, context: int) -> float:
    """Mean distance of a server's log-probs, with an adapter, from the trainer's, in nats a token."""
    prompt, most = [1, 2, 3], min(PROBE_TOKENS, context - 3)
    reply = Reply(prompt, Sampling(most, PROBE_TEMPERATURE), most, name, None)
    async with contextlib.aclosing(server.stream(reply.request())) as pieces:
        async for piece in pieces:
            reply.take(piece)
    if len(reply.ids) != most:
        raise ServerLost(f"it gave {len(reply.ids)} tokens where {most} were asked for")
    computed = await asyncio.to_thread(trainer_logprobs, policy, [*prompt, *reply.ids], len(prompt), PROBE_TEMPERATURE)
    return logprob_distance(reply.logprobs, computed)


def trainer_logprobs(policy: Policy, tokens: Sequence[int], first: int, temperature: float = 1.0) -> list[float]:
    """Of the tokens from `first` on."""
    row = Row.of_reply("probe", tokens[:first], tokens[first:], advantage=0.0)
    with torch.no_grad():
        (part,) = micro_batches([row], len(tokens))
        plan = PackedPlan(part, policy.device)
        hidden = training_hidden(policy, plan)
        values, _ = token_logprobs(
            policy.head, hidden[plan.sources], plan.targets, temperature, policy.model.config.vocab_size
        )
    return [float(value) for value in values.cpu()]


def tolerance(policy: Policy) -> float:
    return AGREE.get(policy.dtype, AGREE_ROUNDED)


def disagreement(server: VllmServer, found: float, policy: Policy) -> AirError:
    return AirError(
        f"The vLLM at {server.url} does not compute what the trainer does: its log-probs are {found:.2g} nats off, a "
        f"token, where {tolerance(policy):g} may be.",
        "serve the model that is trained, in the same dtype, with --logprobs-mode processed_logprobs.",
    )


def logprob_distance(sampled: Sequence[float], computed: Sequence[float]) -> float:
    """Mean absolute difference, in nats a token."""
    return sum(abs(a - b) for a, b in zip(sampled, computed, strict=True)) / max(len(sampled), 1)
