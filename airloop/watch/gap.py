"""A gap between engine and trainer that is too large to pass unseen is held against what rounding does to the same
network, as the doctor's proofs do: 0.1 nats a token are another policy in most models, and plain rounding in some."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airloop.engine.base import Sampling
from airloop.learn.batches import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airloop.assemble import Parts
    from airloop.learn.learner import Report

# Sampler and trainer differ by 0.002 to 0.02 a token in bf16 and 4e-7 in fp32. At 0.1 the typical token's probability
# differs by a tenth.
SUSPICIOUS = 0.1
# Replies of so many tokens, after so many of the step's prompts.
REPLY_TOKENS, PROMPTS = 32, 4


async def judge_gap(parts: Parts, rows: Sequence[Row], report: Report) -> dict[str, Any]:
    """After an update is published: `rounding` in the step's line, where its gap is suspicious. New replies are sampled
    with the weights as they are now, since those that the gap was seen with are gone."""
    if report.metrics.get("logprob_gap_mean", 0.0) <= SUSPICIOUS:
        return {}
    from airloop.learn.rounding import distances

    learner, engine = parts.learner, parts.engine
    prompts = list(dict.fromkeys(row.tokens[: row.train.index(True)] for row in rows if any(row.train)))[:PROMPTS]
    asked = [
        engine.generate(prompt, Sampling(REPLY_TOKENS, learner.settings.temperature, seed=i), order=f"{i:03d}")
        for i, prompt in enumerate(prompts)
    ]
    answers = await asyncio.gather(*asked)
    found = []
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        n, own = len(prompt), len(answer.token_ids)
        train = (False,) * n + (True,) * own
        found.append(Row(f"gap-{i}#0", prompt + answer.token_ids, train, (0.0,) * n + answer.logprobs, 0.0, 0.0))
    async with engine.aside():
        measured = distances(learner, found, learner.logprobs(found))
    return {
        "rounding": {
            "engine": measured.engine,
            "trainer": measured.trainer,
            "plain": measured.rounding,
            "most": measured.most,
        }
    }
