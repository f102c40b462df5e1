"""How fast replies come on this machine, now: measured before the probe, so that its deadlines fit the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airloop.doctor.refusals import SLOWER, Unanswered
from airloop.engine.base import Sampling
from airloop.speed import warm_up
from airloop.text.figures import duration
from airloop.waits import waiting

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.types import Task

# Further tokens of each reply that are timed: enough to tell a slow step from a slow start.
TOKENS = 4


@dataclass(frozen=True)
class ReplyTimes:
    """Of so many replies at once as the probe will ask for."""

    opening_s: float  # until a task has shown its prompt
    first_s: float  # until all have their first token
    token_s: float  # for one more token of each

    def reply_s(self, tokens: int) -> float:
        """From opening a task to a first reply of this length."""
        return self.opening_s + self.first_s + tokens * self.token_s


async def time_replies(parts: Components, plan: Sequence[Task], at_once: int, longest_s: float) -> ReplyTimes | None:
    """None where a task cannot be opened or does not fit: the probe's episodes will say so."""
    await parts.engine.start()
    try:
        async with asyncio.timeout(longest_s):
            began = time.monotonic()
            with waiting("the first tasks", "their environments", longest_s):
                prompts = [await _prompt(parts, task) for task in plan]
            opening_s = (time.monotonic() - began) / len(plan)
            if not all(prompts):
                return None
            with waiting("the probe's first tokens", "the engine", longest_s):
                await warm_up(parts, at_once)  # what is compiled then is no reply's time (G14)
                return ReplyTimes(opening_s, *await _generate(parts, prompts, at_once))
    except TimeoutError:
        raise Unanswered(
            f"the first tasks were not opened and answered with {1 + TOKENS} tokens within {duration(longest_s)}",
            f"see what hangs or is slow, the environment or the model: `air doctor --only D-tasks,D-sandbox`; {SLOWER}",
        ) from None


async def _prompt(parts: Components, task: Task) -> list[int]:
    """Empty where the task does not open, or leaves no room for a reply."""
    tokenizer = parts.loaded.tokenizer
    try:
        async with parts.envs[task.env].open(task, 0) as session:
            opening = await session.begin()
    except Exception:  # whatever it is: a first episode meets it too, and its error is told with the place
        return []
    prompt: list[int] = tokenizer.encode(tokenizer.render(list(opening.messages), list(opening.tools), True))
    return prompt if len(prompt) + 1 + TOKENS <= parts.config.seq_len else []


async def _generate(parts: Components, prompts: Sequence[list[int]], at_once: int) -> tuple[float, float]:
    """Seconds to the first token of each, and for each further one. Those of one prompt are asked for next to each
    other, as a group's are."""
    began, heat = time.monotonic(), parts.config.orchestrator.sampling.temperature
    asked = [prompts[i * len(prompts) // at_once] for i in range(at_once)]
    replies = await asyncio.gather(
        *(parts.engine.generate(p, Sampling(1 + TOKENS, heat, seed=i), f"{i:03d}") for i, p in enumerate(asked))
    )
    decode_s = max(reply.model_s - reply.prefill_s for reply in replies)
    return time.monotonic() - began - decode_s, decode_s / TOKENS
