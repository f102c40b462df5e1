"""How fast replies come on this machine, now: measured before the probe, so that its deadlines fit the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airloop.doctor.case import NotJudged
from airloop.engine.base import ContextFull, Sampling
from airloop.errors import AirError
from airloop.waits import waiting
from airloop.watch.pace import span

if TYPE_CHECKING:
    from airloop.assemble import Parts
    from airloop.rollout.schedule import Planned

# Further tokens of each reply that are timed: enough to tell a slow step from a slow start.
TOKENS = 4
SLOWER = "a smaller model, shorter replies (orchestrator.sampling.max_tokens) or a less busy machine; the run may start"


@dataclass(frozen=True)
class Speed:
    """Of so many replies at once as the probe will ask for."""

    opening_s: float  # until a task has shown its prompt
    first_s: float  # until all have their first token
    token_s: float  # for one more token of each

    def reply_s(self, tokens: int) -> float:
        """From opening a task to a first reply of this length."""
        return self.opening_s + self.first_s + tokens * self.token_s


async def measure_speed(parts: Parts, plan: Sequence[Planned], at_once: int, longest_s: float) -> Speed | None:
    """None where a task cannot be opened or does not fit: the probe's episodes will say so."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(longest_s):
            with waiting("the first tasks", "their environments", longest_s):
                prompts = [await _prompt(parts, planned) for planned in plan]
            opening_s = (time.monotonic() - began) / len(plan)
            with waiting("the probe's first tokens", "the engine", longest_s):
                first_s = await _generate(parts, prompts, at_once, 1)
                token_s = await _generate(parts, prompts, at_once, TOKENS) / TOKENS
    except TimeoutError:
        raise NotJudged(
            f"the first tasks were not opened and answered with {TOKENS} tokens within {span(longest_s)}",
            f"see what hangs or is slow, the environment or the model: `air doctor --only D-tasks,D-sandbox`; {SLOWER}",
        ) from None
    except AirError:
        raise
    except Exception:  # a defect of the environment, or a prompt without room: found again, and told, by the probe
        return None
    return Speed(opening_s, first_s, token_s)


async def _prompt(parts: Parts, planned: Planned) -> list[int]:
    name, task = planned
    tokenizer = parts.loaded.tokenizer
    async with parts.envs[name].open(task, 0) as session:
        opening = await session.begin()
    prompt: list[int] = tokenizer.encode(tokenizer.render(list(opening.messages), list(opening.tools), True))
    if len(prompt) + TOKENS > parts.config.context:
        raise ContextFull(f"the prompt has {len(prompt)} tokens")
    return prompt


async def _generate(parts: Parts, prompts: Sequence[list[int]], at_once: int, tokens: int) -> float:
    """Seconds for so many tokens after each prompt, those of one prompt next to each other, as groups are."""
    began, heat = time.monotonic(), parts.config.orchestrator.sampling.temperature
    asked = [prompts[i * len(prompts) // at_once] for i in range(at_once)]
    await asyncio.gather(
        *(parts.engine.generate(p, Sampling(tokens, heat, seed=i), f"{i:03d}") for i, p in enumerate(asked))
    )
    return time.monotonic() - began
