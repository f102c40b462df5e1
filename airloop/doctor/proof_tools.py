"""What proofs are made with: what they change is restored exactly, and replies are sampled as a run would."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import statistics
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from airloop.doctor.probe import LONGEST_S
from airloop.doctor.refusals import SLOWER, NotJudged
from airloop.engine.base import Generation, Sampling
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row
from airloop.learn.checkpoints import random_states, set_random_states
from airloop.learn.optimiser import assign
from airloop.text.figures import duration
from airloop.text.prefix import common_prefix
from airloop.waits import waiting

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.doctor.case import Case
    from airloop.learn.report import Report
    from airloop.learn.rounding import Distances

T = TypeVar("T")
# A mean gap between the engine's and the trainer's log-probs of the same tokens that nobody need look into. In float32
# both sides differ by 4e-6; 1e-3 leaves room for TF32 products. bfloat16 keeps 8 bits: 0.01 to 0.05 was measured, and
# 0.5 in a network that amplifies rounding. What is larger is therefore held against rounding, which is measured then.
QUIET = {torch.float32: 1e-3, torch.bfloat16: 0.01}
# Smallest change of a log-prob that counts as one. The same tokens in the same shapes give the same bits, so what is
# not seen changes nothing at all; what is seen changed log-probs by 1e-2 and more in every model that was tried.
CHANGE = 1e-4
# A confident policy gives its tokens log-probs of nearly zero, which nothing moves. At this temperature, on both sides,
# they have room: after a supervised start a changed prompt moved them by 1e-4 at 1, and by tenths at 3.
PROOF_TEMPERATURE = 3.0
# A reply of a proof: a few tokens show what a hundred would.
REPLY_TOKENS = 8
PROMPTS = 4
# Replies of a second look.
SECOND_LOOK = 16


@dataclass(frozen=True)
class Answer:
    """What the engine sampled after a prompt."""

    prompt: tuple[int, ...]
    generation: Generation

    def row(self, number: int, advantage: float = 1.0, weight: float = 1.0) -> Row:
        reply = self.generation
        return Row.of_reply(f"proof-{number}#0", self.prompt, reply.token_ids, reply.logprobs, advantage, weight)


def sample_replies(
    case: Case, prompts: Sequence[Sequence[int]], tokens: int = REPLY_TOKENS, seed: int = 0
) -> list[Answer]:
    """A reply to each prompt at the learner's temperature, one after the other and without cached prefixes, so that
    equal prompts are computed alike to the last bit. The weights are published first, as after an update."""
    parts = case.parts
    heat = parts.learner.settings.temperature

    async def ask() -> list[Answer]:
        answers = []
        for number, prompt in enumerate(prompts):
            await parts.engine.publish(parts.policy.version)
            sampling = Sampling(tokens, heat, seed=seed + number)
            answers.append(Answer(tuple(prompt), await parts.engine.generate(prompt, sampling, order=f"{number:03d}")))
        await parts.engine.publish(parts.policy.version)
        return answers

    return case.wait(in_time(ask()))


async def in_time(asked: Coroutine[Any, Any, T]) -> T:
    """An engine that answers no more must not hold the doctor for ever."""
    with waiting("replies of a few tokens", "the engine", LONGEST_S):
        try:
            async with asyncio.timeout(LONGEST_S):
                return await asked
        except TimeoutError:
            raise NotJudged(
                f"the engine did not answer prompts of a few tokens within {duration(LONGEST_S)}",
                f"see whether it hangs (`air doctor --only G9`); {SLOWER}",
            ) from None


def change(before: Answer, after: Answer) -> float:
    """The largest change of a served log-prob, up to the first token that became another one. Drawn with the same
    random numbers, it became so because its distribution changed: that counts, however alike the two log-probs."""
    old, new = before.generation, after.generation
    same = common_prefix(old.token_ids, new.token_ids)
    moved = [abs(a - b) for a, b in zip(old.logprobs[: same + 1], new.logprobs[: same + 1], strict=False)]
    return max(*moved, 2 * CHANGE) if same < len(old.token_ids) else max(moved)


def gap(rows: Sequence[Row], trainer: dict[str, list[float]]) -> float:
    """The mean distance of the trainer's log-probs from those that the rows were sampled with."""
    sampler = [lp for row in rows for lp in row.trained_logprobs]
    own = [lp for row in rows for lp in trainer[row.key]]
    return statistics.fmean(abs(a - b) for a, b in zip(own, sampler, strict=True))


def quiet_gap(parts: Components) -> float:
    return QUIET.get(parts.policy.dtype, QUIET[torch.bfloat16])


def first_prompts(case: Case, count: int = PROMPTS) -> list[tuple[int, ...]]:
    """Prompts of the probe's episodes, of as many tasks as there are. To be asked for before anything is changed: where
    there are none, nothing need be undone."""
    rows = [b for t in case.replies.trajectories for b in t.branches[:1] if any(b.train)] or case.replies.rows
    return list(dict.fromkeys(row.tokens[: row.train.index(True)] for row in rows))[:count]


def second_look(case: Case, prompts: Sequence[tuple[int, ...]], first: Distances) -> Distances:
    """Before anything is refused for what may be rounding: new replies, after prompts that begin elsewhere, together
    with the first ones. (Not in their place: a fault may need a whole prompt, or one that rows have in common.)"""
    from airloop.learn.rounding import distances

    learner, rows = case.parts.learner, more_rows(case, prompts)
    return first.with_more(while_paused(case, lambda: distances(learner, rows, learner.logprobs(rows))))


def more_rows(case: Case, prompts: Sequence[tuple[int, ...]]) -> list[Row]:
    from airloop.learn.rounding import other_beginnings

    answers = sample_replies(case, other_beginnings(prompts, SECOND_LOOK), seed=len(prompts))
    return [answer.row(i) for i, answer in enumerate(answers)]


def update(case: Case, rows: Sequence[Row]) -> Report:
    """As in the loop: the key/value memory is given back meanwhile, and the result is published."""
    parts = case.parts
    batch = Batch(tuple(rows), {row.key: row.advantage for row in rows}, len(rows))
    report = while_paused(case, lambda: parts.learner.update(batch))
    case.wait(parts.engine.publish(parts.policy.version))
    return report


def while_paused(case: Case, work: Callable[[], T]) -> T:
    """Its result. The engine rests meanwhile, and its key/value memory is given back."""

    async def do() -> T:
        async with case.parts.engine.paused():
            return work()

    return case.wait(do())


def learner_state(parts: Components) -> dict[str, Any]:
    """All that an update changes, copied to the CPU's memory."""
    optimiser = parts.learner.optimiser
    return {
        "weights": [_copy(w) for w in optimiser.weights],
        "masters": [None if m is w else _copy(m) for m, w in zip(optimiser.masters, optimiser.weights, strict=True)],
        "optimiser": _copy(optimiser.adam.state_dict()),
        "updates": parts.learner.updates,
        "version": parts.policy.version,
        "random": random_states(),
    }


@contextlib.contextmanager
def restored_after(case: Case) -> Iterator[dict[str, Any]]:
    """What is done to the policy and its learner inside is as if it had never been: weights, optimiser, settings,
    version, random states and what the engine has derived from them. Gives the state that is put back."""
    parts = case.parts
    before, settings = learner_state(parts), parts.learner.settings
    served = parts.engine.version
    try:
        yield before
    finally:
        parts.learner.settings = settings
        restore_state(parts, before)
        case.wait(parts.engine.publish(served))


@contextlib.contextmanager
def at_high_temperature(parts: Components) -> Iterator[None]:
    """Log-probs of the trainer, and of replies that are sampled, are at PROOF_TEMPERATURE, or as near as the engine
    goes."""
    settings = parts.learner.settings
    parts.learner.settings = replace(settings, temperature=min(PROOF_TEMPERATURE, parts.engine.describe().hottest))
    try:
        yield
    finally:
        parts.learner.settings = settings


def restore_state(parts: Components, state: dict[str, Any]) -> None:
    learner, optimiser = parts.learner, parts.learner.optimiser
    assign(optimiser.weights, state["weights"])
    for master, saved in zip(optimiser.masters, state["masters"], strict=True):
        if saved is not None:
            master.data.copy_(saved)
    optimiser.adam.load_state_dict(state["optimiser"])
    if learner.shards:
        learner.shards.gather()
    learner.updates = state["updates"]
    parts.policy.version = state["version"]
    set_random_states(state["random"])


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return copy.copy(value)
