"""A gap between engine and trainer that is too large to pass unseen is held against what rounding does to the same
network, as the doctor's proofs do: 0.1 nats a token are another policy in most models, and plain rounding in some."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from airloop.engine.base import Sampling
from airloop.errors import AirError
from airloop.learn.batches import Row
from airloop.waits import waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airloop.assemble import Components
    from airloop.learn.report import Report
    from airloop.learn.rounding import Distances

log = logging.getLogger(__name__)
# Sampler and trainer differ by 0.002 to 0.02 a token in bf16 and 4e-7 in fp32. At 0.1 the typical token's probability
# differs by a tenth.
SUSPICIOUS = 0.1
# So many replies of so many tokens, after the ends of so many of the step's prompts: wide numbers take memory.
REPLIES, REPLY_TOKENS, PROMPTS, PROMPT_TOKENS = 16, 8, 4, 256
MEASURE_S = 600.0


async def judge_gap(parts: Components, rows: Sequence[Row], report: Report, gap: float | None = None) -> dict[str, Any]:
    """After an update is published: `rounding` in the step's line, where its gap is suspicious; of all ranks that which
    is farthest off. Nothing where it cannot be measured: the gap then speaks for itself. `gap`: of tokens that the
    policy itself has sampled, where a step has others, too."""
    if (report.metrics.get("logprob_gap_mean", 0.0) if gap is None else gap) <= SUSPICIOUS or not rows:
        return {}
    own: Distances | None = None
    try:
        async with asyncio.timeout(MEASURE_S):
            with waiting("tokens to judge the gap by", "the engine", MEASURE_S):
                own = await _measured(parts, rows)
    except (TimeoutError, RuntimeError, AirError) as error:  # out of memory is a RuntimeError
        log.warning("the gap between engine and trainer could not be judged: %s", error)
    found = await parts.ranks.all_gather(own, "how far engine and trainer are from the truth", 2 * MEASURE_S)
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return {}
    worst = max(known, key=lambda one: max(one.engine, one.trainer) / one.most)
    return {
        "rounding": {
            "engine": worst.engine,
            "trainer": worst.trainer,
            "plain": worst.rounding,
            "most": worst.most,
        }
    }


async def _measured(parts: Components, rows: Sequence[Row]) -> Distances:
    """On new replies, with the weights as they are now: those that the gap was seen with are gone."""
    from airloop.learn.rounding import distances, other_beginnings

    learner, engine = parts.learner, parts.engine
    begun = [row.tokens[: row.train.index(True)][-PROMPT_TOKENS:] for row in rows if any(row.train)]
    prompts = other_beginnings(list(dict.fromkeys(begun))[:PROMPTS], REPLIES)
    asked = [
        engine.generate(prompt, Sampling(REPLY_TOKENS, learner.settings.temperature, seed=i), order=f"{i:03d}")
        for i, prompt in enumerate(prompts)
    ]
    answers = await asyncio.gather(*asked)
    found = [
        Row.of_reply(f"gap-{i}#0", prompt, answer.token_ids, answer.logprobs, 0.0, 0.0)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    async with engine.paused():
        return distances(learner, found, learner.logprobs(found))
