"""What is looked at in every step: the update, the versions, the memory. (episode_rules.py: all else.)"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.watch.alarms.gap import SUSPICIOUS
from airloop.watch.alarms.rules import Sign, Step, watch
from airloop.watch.metrics.ages import fresh_gap

# Half the distance between two neighbouring numbers, relative to them: what rounding to bf16 hides.
BF16_NOISE = 2.0**-9
# An adapter's change over a run of this many steps, or of its own number if that is larger, should be more than that.
A_RUN = 100
# Where all weights are trained, less does as much: 100 steps at the usual 1e-6 change those of Qwen2.5-Coder-0.5B by
# 2.6e-3 of their size, those of SmolLM2-135M, which are larger, by 5.5e-4. A ninth of the latter is no training.
FULL_NOISE = 2.0**-14
# An update as large as the weights themselves leaves nothing of them. In recorded healthy runs adapters change by up to
# 0.03 of their size in a step (lr 2e-3), all weights by 0.012; at 1e-2 a tiny model's adapters by 0.18.
WHOLE = 1.0
# Of weights held in bf16, with fp32 masters behind them, 1 to 2 % change in a step at a rate of 1e-6. One in ten
# thousand means that even the masters' sums will not be seen within a run.
CHANGED_SHARE = 1e-4
# Steps over which a slope of the memory is taken, after as many first ones that fill caches.
SLOPE = 8
# The gap grows when it is this many times that of the first steps, and is above what bf16 alone explains.
GROWTH, BF16_GAP = 3.0, 0.01
# A mean KL of 10 nats per token is another language; the healthy run with a KL term had 1.5, its worst token 132.
# One token at 1e4 (the start gave it e^9 times the probability) makes the mean of a batch of a thousand by itself.
KL_MEAN, KL_TOKEN = 10.0, 1e4
# Of tokens of one age: more than a tenth outside the trust region, or worth less than half of their number.
DRIFTED, FEW = 0.1, 0.5
# Steps that a trend is compared with.
FIRST = 3


@watch("A10", patience=3)
def updates_too_small(step: Step, before: Sequence[Step]) -> Sign | None:
    plan, learner = step.get("plan"), step["learner"]
    if not plan or not learner.get("tokens_trained") or not learner.get("lr"):
        return None
    at_full_rate = learner["update_ratio"] * plan["lr"] / learner["lr"]  # warm-up is no fault
    steps, hidden = max(plan["max_steps"], A_RUN), BF16_NOISE if plan["lora"] else FULL_NOISE
    if at_full_rate * steps >= hidden:
        return None
    return Sign(
        f"The update changed the weights by {learner['update_ratio']:.1e} of their size (trainer.optim.lr = "
        f"{plan['lr']:g}, gradient norm {learner['grad_norm']:.3g}), which makes {at_full_rate * steps:.1e} in "
        f"{steps} steps at most.",
        f"That is less than what rounding to bf16 hides ({BF16_NOISE:.1e}): nobody will see what was learned."
        if plan["lora"]
        else f"Below {hidden:.1e} nobody will see what was learned.",
        "trainer.optim.lr = 1e-4 is usual for LoRA; 1e-5 is cautious."
        if plan["lora"]
        else "trainer.optim.lr = 1e-6 is usual where all weights are trained.",
    )


@watch("E7", severity="pause")
def update_replaces_weights(step: Step, before: Sequence[Step]) -> Sign | None:
    """Said at once: what is left after such an update is noise, whatever the next step earns."""
    learner = step["learner"]
    ratio = learner.get("update_ratio", 0.0)
    if ratio <= WHOLE or not learner.get("tokens_trained"):
        return None
    plan = step.get("plan") or {}
    usual = "1e-4 is usual for LoRA" if plan.get("lora", True) else "1e-6 is usual where all weights are trained"
    return Sign(
        f"The update changed the trained weights by {ratio:.2g} times their own size (lr {learner['lr']:g}, gradient "
        f"norm {learner['grad_norm']:.3g}).",
        "What they had learned before is gone: such a step destroys the policy.",
        f"lower trainer.optim.lr ({usual}), and begin again from a checkpoint before this step.",
    )


@watch("F5", severity="pause", patience=2)
def weights_do_not_change(step: Step, before: Sequence[Step]) -> Sign | None:
    learner, plan = step["learner"], step.get("plan") or {}
    changed, lr = learner.get("weights_changed"), learner.get("lr")
    if changed is None or not learner.get("tokens_trained") or not learner["grad_norm"] or lr == 0:
        return None
    # Warming up is no fault, nor is the end of a rate that falls.
    at_full_rate = changed * plan["lr"] / lr if lr and "lr" in plan else changed
    if at_full_rate >= CHANGED_SHARE:
        return None
    return Sign(
        f"The gradient's norm is {learner['grad_norm']:.3g}, but the update changed {changed:.2%} of the trained "
        f"weights (by {learner['update_ratio']:.1e} of their size; lr {learner['lr']:g}).",
        "The weights that sampling uses stay as they were: rounding swallows the steps, or the optimiser does not hold "
        "the parameters that the gradient reaches.",
        "raise trainer.optim.lr (1e-4 for LoRA, 1e-6 for full fine-tuning); `air doctor --only F5` proves one update.",
    )


@watch("C6")
def memory_grows(step: Step, before: Sequence[Step]) -> Sign | None:
    """Only a growth that ends the run is worth a word: seen in nearly every step, and too much for what is left."""
    steps = [one.get("memory") or {} for one in (*before, step)][-(SLOPE + 1) :]
    plan = step.get("plan")
    if plan is None or len(before) < 2 * SLOPE or not all(steps):
        return None
    for name, where, fix in (
        ("gpu_used", "the GPU", "lower trainer.token_budget or inference.kv_tokens"),
        ("used", "the process", "look for what an environment or a sink keeps between steps"),
    ):
        sign = _growth(steps, name, plan["max_steps"] - 1 - step["step"])
        if sign:
            seen = (
                f"Memory of {where} grows by {sign[0]:.0f} MiB a step ({sign[1]:.0f} MiB now, {sign[2]:.0f} MiB left)."
            )
            why = f"At this rate it is used up in {sign[2] / sign[0]:.0f} steps, before the run's end."
            fix += "; checkpoints are kept: ckpt.interval decides how much a crash would cost."
            return Sign(seen, why, fix)
    return None


def _growth(steps: Sequence[Mapping[str, float]], name: str, left: int) -> tuple[float, float, float] | None:
    values = [one[name] for one in steps if name in one]
    if len(values) < SLOPE + 1:
        return None
    rises = [b - a for a, b in itertools.pairwise(values)]
    slope, available = statistics.median(rises), steps[-1][name.replace("used", "available")]
    # 7 of 8 steps that rise are chance once in 28 times by themselves; together with the rest, not in our runs.
    if sum(rise > 0 for rise in rises) < SLOPE - 1 or slope * left <= available:
        return None
    return slope, values[-1], available


@watch("F2", severity="stop")
def engine_serves_another_policy(step: Step, before: Sequence[Step]) -> Sign | None:
    found, gap = step.get("versions") or {}, gap_of_one_policy(step)
    wanted = found.get("wanted")
    until = found.get("wanted_to", wanted)  # more than one where sampling goes on beside training
    served = found and found["served"] != found["policy"]
    sampled = wanted is not None and not wanted <= found["sampled_from"] <= found["sampled_to"] <= until
    if not served and not sampled and (gap <= SUSPICIOUS or _is_rounding(step, gap)):
        return None
    seen = f"Engine and trainer differ by {gap:.3g} per token on average."
    rounding: Mapping[str, float] | None = step.get("rounding")
    if rounding:
        seen += (
            f" From new tokens computed in more bits the engine is {rounding['engine']:.2g} away, the trainer "
            f"{rounding['trainer']:.2g}, plain rounding {rounding['plain']:.2g}."
        )
    if served:
        seen = f"The trainer is at version {found['policy']}, the engine serves {found['served']}. {seen}"
    if sampled:
        low, high = found["sampled_from"], found["sampled_to"]
        allowed = wanted if until == wanted else f"{wanted} to {until}"
        seen = f"The step was sampled from version {low}{f' to {high}' if high != low else ''}, not {allowed}. {seen}"
    return Sign(
        seen + _worst(step, "gap"),
        "Episodes come from another policy than the one that is trained: the update does not reach the engine, or the "
        "engine computes something else.",
        '`air doctor --only F2` moves the adapter and compares both sides; with trainer.model.impl = "hf" and '
        "inference.model.enforce_eager = true both run the plain layers.",
    )


def gap_of_one_policy(step: Step) -> float:
    """Between engine and trainer where both have the same weights. Of tokens that are older than the policy it says
    nothing; where a step has no others, new replies were compared, if there was reason to."""
    ages: Mapping[str, Mapping[str, float]] | None = step.get("ages")
    if ages is None:
        return float(step["learner"].get("logprob_gap_mean", 0.0))
    if (gap := fresh_gap(ages)) is not None:
        return gap
    rounding: Mapping[str, float] = step.get("rounding") or {}
    both = [rounding.get("engine", 0.0), rounding.get("trainer", 0.0)]
    return sum(both) if any(not value <= rounding["most"] for value in both if rounding) else 0.0


def _is_rounding(step: Step, gap: float) -> bool:
    """Both sides are as near to the truth as rounding lets them, and the step's gap is no more than both together. (A
    step from before this was measured has no word on it.)"""
    found: Mapping[str, float] | None = step.get("rounding")
    if found is None:
        return False
    return all(value <= found["most"] for value in (found["engine"], found["trainer"], gap / 2))  # no NaN is


@watch("F4", severity="pause")
def kl_explodes(step: Step, before: Sequence[Step]) -> Sign | None:
    mean = step["learner"].get("kl")
    worst = (step.get("worst") or {}).get("kl", {}).get("value", 0.0)
    fine = mean is None or (math.isfinite(mean) and mean <= KL_MEAN and worst <= KL_TOKEN)
    if fine:
        return None
    return Sign(
        f"The KL to the start is {mean:.3g} per token.{_worst(step, 'kl')}",
        "A few tokens that the policy makes far less likely than the start did carry the whole term and its gradient.",
        'lower trainer.optim.lr, or take trainer.loss.kl_estimator = "k2", which grows with the square only; go on '
        "from the checkpoint before.",
    )


@watch("F7", patience=3)
def logprob_gap_grows(step: Step, before: Sequence[Step]) -> Sign | None:
    if "ages" in step:  # there a gap may be the policy's own, and policy_drifts tells of it
        return None
    steps = [one["learner"] for one in (*before, step) if "logprob_gap_mean" in one["learner"]]
    if len(steps) < 2 * FIRST or "logprob_gap_mean" not in step["learner"]:
        return None
    first = statistics.fmean(one["logprob_gap_mean"] for one in steps[:FIRST])
    now = steps[-1]["logprob_gap_mean"]
    if now <= BF16_GAP or now <= GROWTH * first:
        return None
    return Sign(
        f"Engine and trainer differ by {now:.3g} per token, {first:.3g} in the first {FIRST} steps. By percentile, "
        f"then and now: {_percentiles(steps[0])}; {_percentiles(steps[-1])}.{_worst(step, 'gap')}",
        "The two sides compute the same weights differently, and training makes it worse; the loss corrects for it by "
        f"p_trainer/p_sampler (mean weight {steps[-1].get('importance', 1.0):.3g}).",
        'trainer.loss.importance_mode = "mask" leaves such tokens out; model.dtype = "float32" shows whether it is '
        "rounding.",
    )


@watch("F7", patience=3)
def policy_drifts(step: Step, before: Sequence[Step]) -> Sign | None:
    """Sampling beside training: the gap is that between versions of the policy, not between engine and trainer."""
    ages: Mapping[str, Mapping[str, float]] = step.get("ages") or {}
    if not ages or gap_of_one_policy(step) > SUSPICIOUS:  # that is a fault, and F2 tells of it
        return None
    oldest = max(ages, key=int)
    found = ages[oldest]
    if found["cut"] <= DRIFTED and found["ess"] >= FEW:
        return None
    by_age = ", ".join(f"age {age}: gap {one['gap']:.2g}, cut {one['cut']:.1%}" for age, one in ages.items())
    return Sign(
        f"Tokens that are {oldest} updates old differ by {found['gap']:.3g} from what the trainer gives them; "
        f"the trust region cuts {found['cut']:.1%} of them, and they are worth {found['ess']:.0%} of their number "
        f"({by_age}).",
        "The policy moves so far within orchestrator.max_staleness updates that old episodes teach little of it. "
        "Engine and trainer agree where they have the same weights: this is drift, not a fault.",
        "lower trainer.optim.lr or orchestrator.max_staleness; a wider trust region (trainer.loss.importance_cap, "
        "or the bounds of a sequence mask) keeps more tokens and a noisier gradient.",
    )


def _percentiles(learner: Mapping[str, float]) -> str:
    names = ("p50", "p90", "p99", "max")
    return " ".join(f"{n} {learner[f'logprob_gap_{n}']:.2g}" for n in names if f"logprob_gap_{n}" in learner)


def _worst(step: Step, name: str) -> str:
    found: Mapping[str, Any] | None = (step.get("worst") or {}).get(name)
    if not found:
        return ""
    return (
        f" Worst token: {found['text']!r} (id {found['token']}, number {found['place']} of {found['row']}), "
        f"{found['logprob']:.2f} by the trainer, {found['other']:.2f} by the {'start' if name == 'kl' else 'engine'}."
    )
