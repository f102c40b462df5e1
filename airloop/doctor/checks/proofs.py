"""Does an update change log-probs, the right way, and does a checkpoint hold it? Each proof is undone exactly."""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.refusals import NotJudged

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.config import LossConfig
    from airloop.doctor.case import Case
    from airloop.doctor.proof_tools import Answer
    from airloop.learn.batches import Row
    from airloop.learn.rounding import Distances

# Summed over all steps of a run that push the same way, log-probs of the chosen tokens must move by this much: 0.1 is
# 10 % more likely, and no evaluation shows less.
VISIBLE = 0.1
# An update too small to tell from rounding is made again at four times the rate, and so on, until it shows; one after
# which chosen tokens are less likely at a quarter of it, as a step may be too long for what it follows. Whether the
# machinery works is one question, whether lr is right another.
STEP, MOST_STEPS = 4.0, 5
# Adam's first step changes every number that has a gradient. Where fewer than half of them change, the others were
# rounded back to what they were.
FOLLOWS = 0.5
# The toy: 32 replies of two tokens, so that a reply's reward says something about each of its tokens. Of 64 tokens the
# share that is even has a noise of 0.06, of three samples' mean 0.036: a rise of 0.15 is three times the noise of a
# difference of two such means, and half as much again, which ends it early, more than four times.
TOY_UPDATES, TOY_GROUP, TOY_TOKENS, TOY_PROMPT = 40, 32, 2, 8
TOY_RISE, TOY_WINDOW = 0.15, 3
HALF = 0.5
# The config's lr is proved elsewhere; the toy finds its own, from one that hurts no model: three times as much while an
# update changes its tokens' log-probs by less than the first of these, a third when by more than the second.
TOY_LR, TOY_LR_FACTOR, TOY_PACE = {"lora": 2e-3, "full": 1e-5}, 3.0, (0.3, 1.0)


@dataclass(frozen=True)
class Push:
    """What one update with the same advantage for a few replies did."""

    trainer: float  # mean change of the replies' log-probs
    apart: float  # mean gap between the two sides, on what the engine samples after it
    grad_norm: float
    followed: float  # share of the numbers that changed, in the middle one of the tensors that have a gradient
    trained: int  # tokens that the update counted
    sampled: int
    measured: Distances | None = None  # of both sides, where something looks wrong

    @property
    def rounding(self) -> float:
        return self.measured.rounding if self.measured else 0.0

    @property
    def arrived(self) -> bool:
        return self.measured is None or self.measured.healthy


@check("F5", "A10", stage="proof", title="an update moves log-probs, the right way")
def update_moves(case: Case) -> Finding:
    """What rounding does to the same tokens is measured before anything is refused (F8)."""
    config, scale, push = case.parts.config, *_visible(case)
    if isinstance(push, Finding):
        return push
    seen = (
        f"one update at lr = {scale * config.trainer.optim.lr:g} with advantage +1: log-probs of the {push.sampled} "
        f"chosen tokens {push.trainer:+.3g} in the trainer; the engine agrees to {push.apart:.2g}"
    )
    if push.measured is not None:
        seen += f"; {push.measured}"
    if push.trainer <= max(_least(case), push.rounding) or not push.arrived:
        return Finding(
            "fail",
            seen,
            "that is more than rounding does: the update does not reach the engine"
            if not push.arrived
            else "tokens with a positive advantage must become more likely: the sign of the loss or of the advantage "
            "is wrong, or the update does not reach what computes log-probs",
            "report it with this line; training would not learn, or unlearn.",
            ids=("F5",),
        )
    if scale < 1:
        return _too_long(case, scale, push)
    total = push.trainer / scale * config.max_steps
    if total < VISIBLE and config.max_steps:
        lr = float(f"{config.trainer.optim.lr * VISIBLE / max(total, 1e-12) * 10:.0e}")
        return Finding(
            "warn",
            seen,
            f"if all {config.max_steps} steps pushed the same way, log-probs would move by {total:.2g} in the whole "
            f"run; below {VISIBLE:g} nobody sees a difference",
            "a larger learning rate.",
            {"trainer.optim.lr": lr},
            ids=("A10",),
        )
    return passed(seen)


def _visible(case: Case) -> tuple[float, Push | Finding]:
    """An update that shows, and at which multiple of lr: larger ones while nothing does, smaller ones while chosen
    tokens become less likely. Where none shows as it should, the first that went wrong, or the largest."""
    scale, wrong = 1.0, None
    for number in range(MOST_STEPS + 1):
        push = _push(case, scale)
        if (broken := _stuck(push, scale * case.parts.config.trainer.optim.lr)) is not None:
            return scale, broken
        shows = abs(push.trainer) > max(_least(case), push.rounding)
        if (shows and push.trainer > 0) or (wrong and not shows):
            break
        if shows:
            wrong = wrong or (scale, push)
        if number < MOST_STEPS:
            scale *= 1 / STEP if shows else STEP
    if wrong and not shows and push.trainer > 0:  # between too long a step and one that rounding hides
        between = _push(case, math.sqrt(STEP) * scale)
        if between.trainer > max(_least(case), between.rounding):
            return math.sqrt(STEP) * scale, between
        return scale, _too_long(case, scale, wrong[1])
    if wrong and not (push.trainer > 0 and shows):
        hidden = not shows  # what a shorter step does is
        return wrong[0], (_either_way(case, *wrong) if hidden else None) or wrong[1]
    return scale, push


def _either_way(case: Case, scale: float, push: Push) -> Finding | None:
    """Where an update the other way makes the tokens less likely, too, the step is too long to show its direction. Of
    a wrong sign it would make them more likely."""
    other = _push(case, scale, advantage=-1.0)
    if other.trainer >= -max(_least(case), other.rounding):
        return None
    return Finding(
        "warn",
        f"one update at lr = {scale * case.parts.config.trainer.optim.lr:g}: log-probs of the {push.sampled} chosen "
        f"tokens {push.trainer:+.3g} with advantage +1, {other.trainer:+.3g} with advantage -1",
        "either way they become less likely, so that such a step is too long to show the update's direction, and what "
        "a shorter one does is hidden by rounding",
        'model.dtype = "float32" shows it.',
        {"model.dtype": "float32"},
    )


def _too_long(case: Case, scale: float, push: Push) -> Finding:
    lr = case.parts.config.trainer.optim.lr
    return Finding(
        "warn",
        f"one update with advantage +1: log-probs of the {push.sampled} chosen tokens {push.trainer:+.3g}",
        f"at the config's lr = {lr:g} the update makes them less likely, at {scale * lr:g} it does not: the step is "
        "too long for what it follows",
        "a smaller learning rate.",
        {"trainer.optim.lr": float(f"{lr * scale:.0e}")},
    )


def _least(case: Case) -> float:
    """The smallest change of a log-prob, in the mean, that counts as one."""
    from airloop.doctor.proof_tools import quiet_gap

    return quiet_gap(case.parts) / 10


def _stuck(push: Push, lr: float) -> Finding | None:
    """A gradient that is not there, weights that do not follow it, tokens that should not count."""
    seen = (
        f"one update at lr = {lr:g}: gradient norm {push.grad_norm:.3g}, {push.followed:.1%} of the trained numbers "
        "changed"
    )
    if push.trained != push.sampled:
        return Finding(
            "fail",
            f"the update counted {push.trained} tokens where {push.sampled} were sampled",
            "the loss is on other tokens than those that were sampled",
            "report it: the learner's mask is not the rows'.",
            ids=("F3",),
        )
    if push.grad_norm == 0:
        why = "no gradient reaches the trained weights: they are frozen, or not part of the forward pass"
        fix = "the parameters that the optimiser holds must have requires_grad = true and be used by the model."
    elif push.followed < FOLLOWS:
        why = "steps of this size are rounded away: the weights are stored in too few bits, without float32 masters"
        fix = "trained weights, or the masters that the optimiser works on, must be in float32."
    else:
        return None
    return Finding("fail", seen, why, fix, ids=("F5",))


def _push(case: Case, scale: float, advantage: float = 1.0) -> Push:
    from airloop.doctor import proof_tools
    from airloop.doctor.proof_tools import (
        at_high_temperature,
        first_prompts,
        gap,
        quiet_gap,
        restored_after,
        sample_replies,
        while_paused,
    )
    from airloop.learn.rounding import distances

    learner, prompts = case.parts.learner, first_prompts(case)
    with restored_after(case), at_high_temperature(case.parts):
        before = sample_replies(case, prompts)
        tokens = sum(len(a.generation.token_ids) for a in before)
        rows = [a.row(i, advantage=advantage, weight=1 / tokens) for i, a in enumerate(before)]
        if not any(p.requires_grad for p in learner.parameters):
            return Push(0.0, 0.0, 0.0, 0.0, tokens, tokens)  # its loss could not even be differentiated
        old, masters = learner.logprobs(rows), [m.detach().clone() for m in learner.optimiser.masters]
        learner.updates = learner.settings.warmup_steps  # at the full rate
        learner.settings = replace(learner.settings, lr=learner.settings.lr * scale)
        report = proof_tools.update(case, rows)
        new, after = learner.logprobs(rows), [a.row(i) for i, a in enumerate(sample_replies(case, prompts))]
        own = learner.logprobs(after)
        apart, rise = gap(after, own), statistics.fmean(b - a for k in old for a, b in zip(old[k], new[k], strict=True))
        measured = None
        if apart > quiet_gap(case.parts) or rise < -_least(case):
            measured = while_paused(case, lambda: distances(learner, after, own))
        if measured is not None and not measured.healthy:
            measured = proof_tools.second_look(case, prompts, measured)
        shares = [float((a != b).float().mean()) for a, b in zip(masters, learner.optimiser.masters, strict=True)]
    return Push(
        rise,
        apart,
        report.metrics["grad_norm"],
        statistics.median([share for share in shares if share] or [0.0]),
        int(report.metrics["tokens_trained"]),
        tokens,
        measured,
    )


@check("F5", "F2", stage="proof", title="a toy reward rises")
def toy_reward_rises(case: Case) -> Finding:
    """Sampling, advantages, updates and publishing together: the share of even token ids among those sampled, or of odd
    ones where they are fewer. At most half of them are at first, whatever the model, so there is something to learn."""
    from airloop.doctor.proof_tools import first_prompts, restored_after

    first_prompts(case, 1)  # an engine that gave the probe no reply would give none here
    with restored_after(case):
        kind, start, rewards = _toy(case)
    end = statistics.fmean(rewards[-TOY_WINDOW:])
    seen = f"share of {kind} token ids {start:.2f} → {end:.2f} in {len(rewards)} updates"
    if end - start >= TOY_RISE:
        return passed(seen)
    return Finding(
        "fail",
        seen,
        f"{len(rewards)} updates on a reward that any model can earn did not raise it by {TOY_RISE:g}: what is "
        "sampled, trained and served does not fit together",
        "see the other proofs (F1, F2, F5) first; if they pass, trainer.loss and trainer.optim.max_norm.",
        {} if case.parts.config.trainer.optim.max_norm >= 0.1 else {"trainer.optim.max_norm": 1.0},
        detail=" ".join(f"{reward:.2f}" for reward in rewards),
    )


def _toy(case: Case) -> tuple[str, float, list[float]]:
    """Which token ids pay, their share before, and after each update; ends when it has risen without doubt."""
    from airloop.doctor.proof_tools import gap, update

    parts, learner = case.parts, case.parts.learner
    loss = replace(learner.settings.loss_settings, kl_beta=0.0, entropy_beta=0.0)
    train = "full" if parts.policy.peft is None else "lora"
    learner.settings = replace(
        learner.settings, lr=TOY_LR[train], temperature=1.0, warmup_steps=0, passes=1, loss_settings=loss
    )
    # Text that no model has seen: it has no opinion on how this goes on, so its replies differ.
    prompt = random.Random(0).choices(range(parts.loaded.tokenizer.vocab_size), k=TOY_PROMPT)
    before = [_toy_answers(case, prompt, seed=1000 * (i + 1)) for i in range(TOY_WINDOW)]
    even = statistics.fmean(share for answers in before for share in _toy_shares(answers, 0))
    odd = int(even > HALF)
    start, answers, rewards = (1 - even if odd else even), before[-1], []
    if not start:  # the same tokens each time: nothing differs, so there is nothing to learn from
        raise NotJudged(
            f"{TOY_WINDOW * TOY_GROUP} replies to eight random tokens had no {'odd' if odd else 'even'} token id",
            "nothing need be changed: the other proofs tell whether updates arrive",
            ("F5", "F2"),
        )
    for number in range(TOY_UPDATES):
        rows = _toy_rows(answers, _toy_shares(answers, odd), parts.config.trainer.loss)
        update(case, rows)
        pace = gap(rows, learner.logprobs(rows))
        factor = TOY_LR_FACTOR if pace < TOY_PACE[0] else 1 / TOY_LR_FACTOR if pace > TOY_PACE[1] else 1.0
        learner.settings = replace(learner.settings, lr=learner.settings.lr * factor)
        answers = _toy_answers(case, prompt, seed=1000 * (number + TOY_WINDOW + 1))
        rewards.append(statistics.fmean(_toy_shares(answers, odd)))
        # Without doubt higher, or lower: what falls so far has the wrong sign, and goes anywhere afterwards.
        if len(rewards) >= TOY_WINDOW and abs(statistics.fmean(rewards[-TOY_WINDOW:]) - start) > 1.5 * TOY_RISE:
            break
    return ("odd" if odd else "even"), start, rewards


def _toy_shares(answers: Sequence[Answer], odd: int) -> list[float]:
    return [statistics.fmean(token % 2 == odd for token in a.generation.token_ids) for a in answers]


def _toy_rows(answers: Sequence[Answer], rewards: Sequence[float], loss: LossConfig) -> list[Row]:
    from airloop.learn.advantages import group_advantages, own_advantages
    from airloop.learn.losses import find_loss

    lengths = [len(a.generation.token_ids) for a in answers]
    if loss.advantage is not None:
        advantages = own_advantages(loss.advantage, rewards, lengths)
    else:
        advantages = group_advantages(rewards, scale=True, leave_one_out=find_loss(loss.type).leave_one_out)
    tokens = sum(lengths)
    return [a.row(i, advantages[i], 1 / tokens) for i, a in enumerate(answers)]


def _toy_answers(case: Case, prompt: Sequence[int], seed: int) -> list[Answer]:
    import asyncio

    from airloop.doctor.proof_tools import Answer, in_time
    from airloop.engine.base import Sampling

    engine = case.parts.engine

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(engine.generate(prompt, Sampling(TOY_TOKENS, 1.0, seed=seed + i), f"{i:03d}") for i in range(TOY_GROUP))
        )

    return [Answer(tuple(prompt), generation) for generation in case.wait(in_time(ask()))]


@check("G2", stage="proof", title="a checkpoint brings everything back")
def checkpoint_restores(case: Case) -> Finding:
    import torch

    from airloop.doctor.proof_tools import (
        first_prompts,
        learner_state,
        restore_state,
        restored_after,
        sample_replies,
        update,
    )
    from airloop.learn.checkpoints import load_checkpoint, save_checkpoint

    parts, prompts = case.parts, first_prompts(case, 1)
    with restored_after(case), tempfile.TemporaryDirectory(prefix=".air-doctor-", dir=_place(parts)) as directory:
        start = learner_state(parts)
        answers = sample_replies(case, prompts)
        update(case, [a.row(i, weight=1 / len(a.generation.token_ids)) for i, a in enumerate(answers)])
        wanted = learner_state(parts)
        path = save_checkpoint(Path(directory), parts.learner, 7)
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        restore_state(parts, start)
        random.random(), torch.rand(1)  # no state is by chance as it was
        step = load_checkpoint(path, parts.learner)
        found = learner_state(parts)
    lost = [name for name, value in wanted.items() if not _same(value, found[name])]
    lost += [] if step == 7 else ["step"]
    if not lost:
        return passed(f"{size / 2**20:.1f} MiB saved, loaded and compared: {', '.join(wanted)} and step are the same")
    return Finding(
        "fail",
        f"after loading a checkpoint, not as they were saved: {', '.join(lost)}",
        "a resumed run would go on from another state than the one it was stopped in",
        "report it: save_checkpoint and load_checkpoint must hold all that an update changes.",
    )


def _place(parts: Components) -> Path:
    """Where checkpoints will be written, or the nearest directory above it that is there."""
    place = Path(parts.config.output_dir).expanduser().resolve()
    return next(p for p in (place, *place.parents) if p.is_dir())


def _same(a: Any, b: Any) -> bool:
    import numpy as np
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
