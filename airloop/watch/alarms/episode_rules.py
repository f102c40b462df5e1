"""What is looked at in every step: episodes, rewards, time. (learner_rules.py: the update.)

Each is a function of the step's line of metrics and of the lines before. A key that a line does not have (written by
an older version, or of a step without episodes) says nothing. The reason for a threshold stands beside it; all are
silent on the healthy runs of tests/watch/healthy/.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from airloop.success import NAME
from airloop.watch.alarms.reward_sources import reward_source_between
from airloop.watch.alarms.rules import Sign, Step, watch
from airloop.watch.metrics.latency import HEALTHY, largest

# A quarter of the episodes cut by the context: the healthy research runs had at most 15 %, the failed one 100 %.
CUT_SHARE = 0.25
# Replies that run to max_tokens: up to 11 % in healthy runs; without a stop token it is all of them.
LENGTH_SHARE = 0.5
# A tool call that takes longer than this is worth mending before the GPU is: the case in the catalogue took 1.5 s.
TOOL_TURN_S = 1.0
# Of the time, over EDGE steps: whoever waits for less is kept busy enough. Beside training, one of two always waits.
WAITS = 1 / 3
# Groups whose members scored alike: in healthy runs two thirds near their end, when many tasks are solved, and seven of
# eight in a single step. More than this in five steps in a row is something else.
SILENT_SHARE = 0.8
# Lengths, in means over EDGE steps: those of healthy runs moved by a factor of 1.4, over tasks of different lengths.
LENGTH_FACTOR = 3.0
# Entropy of healthy runs went down to 0.23 of its start while the reward rose; a tenth leaves one reply per prompt.
ENTROPY_SHARE = 0.1
# Steps at either end that are compared, so that one step's tasks decide nothing.
EDGE = 5
# A rise of the mean reward by less than this part of the episodes' standard deviation is no gain.
GAIN = 0.25
# Components cancel when the sum varies by less than a twentieth of what its largest part does; independent ones add up.
CANCEL_SHARE = 0.05
# Attempts that the machinery spoilt: each is repeated and costs time; a fifth is a defect, not bad luck.
FAILED_SHARE = 0.2
# Agents' own programs that fail on what the policy says: a beginner's ending, of which there are fewer and fewer.
# Nearly all of them, or half where there were few before, is the program's fault or the environment's.
CRASHED_SHARE, CRASHED_GROWN = 0.9, 0.5


@watch("A6", patience=2)
def cut_by_context(step: Step, before: Sequence[Step]) -> Sign | None:
    rollout = step["rollout"]
    episodes, cut = rollout.get("episodes", 0), rollout.get("ended_context_full", 0)
    if not episodes or cut / episodes <= CUT_SHARE:
        return None
    turns = step["metrics"].get("turns")
    after = f" after {turns:.1f} turns on average" if turns else ""
    return Sign(
        f"{cut:.0f} of {episodes:.0f} episodes ({cut / episodes:.0%}) ended because the context was full{after}.",
        "They are scored on what they had done by then, so the reward measures length instead of skill.",
        "raise seq_len, or lower orchestrator.sampling.max_tokens or the environment's max_turns.",
    )


@watch("B9", patience=2)
def replies_run_to_the_limit(step: Step, before: Sequence[Step]) -> Sign | None:
    share = step["metrics"].get("length_stops")
    if share is None or share <= LENGTH_SHARE:
        return None
    seen = f"{share:.0%} of the replies ended at orchestrator.sampling.max_tokens instead of a stop token"
    first = before[0]["metrics"].get("length_stops") if before else None
    if first is not None and first < share / 2:
        return Sign(
            f"{seen}; in the first step it was {first:.0%}.",
            "Replies have become longer than their room: what is cut off cannot be parsed or be right.",
            "raise orchestrator.sampling.max_tokens; trainer.loss.overlong puts a price on length.",
        )
    return Sign(
        f"{seen}.",
        "The model does not know the stop token, or its replies need more room: what is cut off cannot be parsed.",
        "check the model's generation_config.json and chat template (`air doctor --only B9`); if replies are cut in "
        "the middle of sense, raise orchestrator.sampling.max_tokens.",
    )


@watch("D6", patience=3)
def time_goes_elsewhere(step: Step, before: Sequence[Step]) -> Sign | None:
    """Named only where most of a step is spent outside the model and the update, on calls that are slow by themselves:
    an environment that works for its answers may have most of a short step."""
    found = largest(step["times"])
    turns = step["metrics"].get("turns") or 1.0
    if found is None or found.part in HEALTHY or found.share <= 0.5 or found.seconds / turns <= TOOL_TURN_S:
        return None
    return Sign(
        f"{found.share:.0%} of the step ({found.seconds:.1f} s of {found.total:.1f} s, {found.seconds / turns:.1f} s a "
        f"turn) went to: {found.part}. {found.split}",
        f"The step waits for {found.means}; a faster model or GPU would change little.",
        found.advice,
    )


@watch("D6")
def one_side_waits_for_the_other(step: Step, before: Sequence[Step]) -> Sign | None:
    """Sampling beside training: in the long run the slower one is waited for, and only more of it makes more steps."""
    steps = [one for one in (*before[1 - EDGE :], step) if "held" in one["times"]]
    if len(steps) < EDGE:
        return None
    times = [one["times"] for one in steps]
    whole = sum(one["sampling"] + one["training"] + one["sync"] for one in times)
    learner, samplers = (sum(one[name] for one in times) / whole if whole > 0 else 0.0 for name in ("sampling", "held"))
    if max(learner, samplers) <= WAITS:
        return None
    seen = (
        f"In the last {EDGE} steps the learner waited for groups in {learner:.0%} of the time, and samplers for the "
        f"learner in {samplers:.0%} (an update takes {sum(one['training'] for one in times) / EDGE:.1f} s)."
    )
    if min(learner, samplers) > WAITS / 2:
        return Sign(
            seen,
            "Both wait for the longest episodes: nothing more may begin before those are trained.",
            "cut the longest by orchestrator.episode_timeout_s, or raise orchestrator.max_staleness.",
        )
    if learner > samplers:
        return Sign(
            seen,
            "The samplers are slower: a faster update would gain nothing.",
            "raise orchestrator.max_concurrent if the engine has room, else name one GPU more in inference_gpu_ids.",
        )
    return Sign(
        seen,
        "The learner is slower: more samplers would gain nothing.",
        "raise trainer.token_budget if memory allows, else move a GPU from inference_gpu_ids to trainer_gpu_ids.",
    )


@watch("D17")
def too_good_to_be_true(step: Step, before: Sequence[Step]) -> Sign | None:
    share = step["metrics"].get("too_good", 0.0)
    if not share:
        return None
    count = max(1, round(share * len(step["rewards"])))
    return Sign(
        f"{count} of {len(step['rewards'])} episodes scored above what can be had.",
        "A score above the known optimum means that the grader was reached, not that the task was solved. Those scores "
        "were withheld from the reward; an evaluation that has such episodes is no candidate for the run's best.",
        "read these trajectories (metrics.too_good = 1) and close the way they took before trusting any score.",
    )


@watch("E1")
def no_signal_yet(step: Step, before: Sequence[Step]) -> Sign | None:
    """From the first step on, until some step has signal."""
    if any(_has_signal(one) for one in before) or _has_signal(step):
        return None
    return _no_signal(step, "Nothing has been learned so far.")


@watch("E1", severity="pause", patience=5)
def never_any_signal(step: Step, before: Sequence[Step]) -> Sign | None:
    """Five steps without any: of a run whose reward one episode in fifty earns, that is next to impossible (with 16
    episodes in 4 groups a step, less than 1 in 1,000), and what never happens by chance does not come later."""
    if any(_has_signal(one) for one in before) or _has_signal(step):
        return None
    return _no_signal(step, f"In {len(before) + 1} steps there was no gradient at all.")


def _has_signal(step: Step) -> bool:
    groups = step["rollout"].get("groups", 0)
    return groups > 0 and step["groups_without_signal"] < groups


def _no_signal(step: Step, so_far: str) -> Sign:
    rollout, rewards = step["rollout"], step["rewards"]
    if not rewards:
        why = f"No episode could be scored: {rollout.get('lost', 0):.0f} were lost to infrastructure errors."
        return Sign(f"No group was left to train on. {so_far}", why, "mend what failed: alarm G9 has the first error.")
    dropped = int(rollout.get("dropped_no_signal", 0))
    kept = int(rollout.get("groups", 0))
    components = step["components"] | step["turn_components"]
    dead = sorted(name for name, value in components.items() if not value)
    named = ", ".join(f"{name} {value:.3g}" for name, value in components.items() if value is not None)
    never = sorted(name for name, value in step["metrics"].items() if value == 0)
    scored = f"(mean reward {step['reward']:.3g}; {named})"
    seen = f"In all {kept + dropped} groups every episode scored the same {scored}. {so_far}"
    why = "Equal rewards in a group give no advantage: the loss is 0."
    if dead and min(rewards) == max(rewards):
        why += f" No episode earned {', '.join(dead)}."
    if never:
        why += f" Never seen in any episode: {', '.join(never)}."
    fix = (
        "raise orchestrator.rollouts_per_example or orchestrator.sampling.temperature, or begin with easier tasks or a "
        "[warmstart]; one trajectory read from start to end tells which."
    )
    return Sign(seen, why, fix)


@watch("E2", patience=5)
def groups_without_signal(step: Step, before: Sequence[Step]) -> Sign | None:
    groups = step.get("ledger", {}).get("groups")
    if not groups or not groups["sampled"] or groups["silent"] / groups["sampled"] <= SILENT_SHARE:
        return None
    share, reward = groups["silent"] / groups["sampled"], step["reward"]
    return Sign(
        f"In {groups['silent']} of {groups['sampled']} groups ({share:.0%}) every episode scored the same; the mean "
        f"reward is {reward:.3g}.",
        "Such groups cost as much as others and teach nothing: the tasks are solved always or never.",
        "orchestrator.buffer.online_difficulty_filtering = true with orchestrator.oversampling_factor = 2, or other "
        "tasks; with few rollouts, a larger orchestrator.rollouts_per_example.",
    )


@watch("E4", patience=3)
def components_cancel(step: Step, before: Sequence[Step]) -> Sign | None:
    variance = step.get("ledger", {}).get("variance")
    if not variance or len(variance["components"]) < 2:
        return None
    name, most = max(variance["components"].items(), key=lambda item: item[1])
    if most <= 0 or variance["sum"] >= CANCEL_SHARE * most:
        return None
    parts = ", ".join(f"{n} {v:.3g}" for n, v in variance["components"].items())
    return Sign(
        f"Within groups the reward's variance is {variance['sum']:.3g}, that of its components: {parts}.",
        f"What {name} rewards, another component takes away: the sum says nothing.",
        "change the weights in [[orchestrator.env]] rewards, or leave one of the components out (weight 0).",
    )


@watch("E7", patience=3)
def entropy_collapses(step: Step, before: Sequence[Step]) -> Sign | None:
    found = _edges(step, before, lambda s: s["learner"].get("entropy"))
    if found is None or found[1] >= ENTROPY_SHARE * found[0] or _gained(step, before):
        return None
    seen = (
        f"Entropy per token fell from {found[0]:.3g} (first {EDGE} steps) to {found[1]:.3g} (last {EDGE}), and "
        f"{_not_gained(step, before)}."
    )
    return _paid_for(seen, step, before) or Sign(
        seen,
        "The policy says the same whatever it is asked; exploration is over before anything was found.",
        "lower trainer.optim.lr, raise orchestrator.sampling.temperature, or set trainer.loss.kl_beta = 0.01; go on "
        "from a checkpoint before the fall.",
    )


@watch("E7", patience=3)
def lengths_drift(step: Step, before: Sequence[Step]) -> Sign | None:
    found = _edges(step, before, lambda s: s["metrics"].get("sampled_tokens"))
    if found is None or 1 / LENGTH_FACTOR <= found[1] / max(found[0], 1e-9) <= LENGTH_FACTOR or _gained(step, before):
        return None
    seen = (
        f"Episodes went from {found[0]:.0f} sampled tokens (first {EDGE} steps) to {found[1]:.0f} (last {EDGE}), and "
        f"{_not_gained(step, before)}."
    )
    return _paid_for(seen, step, before) or Sign(
        seen,
        "The policy learns length, not the task: the loss's token weights or the reward pay for it.",
        'trainer.loss.type = "dr_grpo" weighs every token the same; trainer.loss.overlong puts a price on length.',
    )


@watch("G9")
def rollouts_fail(step: Step, before: Sequence[Step]) -> Sign | None:
    share = _failed_share(step["rollout"])
    return _failures(step, share) if share > FAILED_SHARE else None


@watch("G9", severity="pause", patience=2)
def all_rollouts_fail(step: Step, before: Sequence[Step]) -> Sign | None:
    rollout = step["rollout"]
    gone = rollout.get("episodes", 0) > 0 and rollout.get("lost", 0) == rollout["episodes"]
    return _failures(step, 1.0) if gone else None


@watch("G9", patience=3)
def programs_crash(step: Step, before: Sequence[Step]) -> Sign | None:
    share = step["metrics"].get("crashed")
    if not share or share <= CRASHED_GROWN:
        return None
    at_first = next((v for one in before if (v := one["metrics"].get("crashed")) is not None), share)
    if share < CRASHED_SHARE and at_first > share / 2:
        return None
    grown = f"; in the first step it was {at_first:.0%}" if at_first <= share / 2 else ""
    return Sign(
        f"In {share:.0%} of the episodes the agent's own program failed after the policy had spoken{grown}. Most "
        f"often: {step.get('commonest_crash') or '(its episode says how)'}",
        "Such an episode is worth nothing, whatever the policy said; where all are, there is nothing to learn from.",
        "mend the program, or let it score what it cannot read; the episodes with crashed = 1 hold their errors.",
    )


def _failed_share(rollout: Mapping[str, float]) -> float:
    attempts = rollout.get("episodes", 0) - rollout.get("reused", 0) + rollout.get("retried", 0)
    return rollout.get("infra_errors", 0) / attempts if attempts > 0 else 0.0


def _failures(step: Step, share: float) -> Sign:
    rollout = step["rollout"]
    first = step.get("first_error") or "(its file says what happened)"
    return Sign(
        f"{rollout['infra_errors']:.0f} attempts at episodes ({share:.0%}) failed, {rollout['lost']:.0f} episodes were "
        f"given up. The first: {first}",
        "These are failures of the machinery: they count in no reward, so a run can look healthy while it loses them.",
        "mend what the first error names; trajectories with ending infra_error hold the others.",
    )


def _edges(step: Step, before: Sequence[Step], value: Any) -> tuple[float, float] | None:
    """Means over the first and the last EDGE steps that have the value; None until they are apart."""
    found = [float(v) for one in (*before, step) if (v := value(one)) is not None]
    if value(step) is None or len(found) < 2 * EDGE:
        return None
    return statistics.fmean(found[:EDGE]), statistics.fmean(found[-EDGE:])


def _gained(step: Step, before: Sequence[Step]) -> bool:
    """By success where there is one: a reward that rises without it is no gain."""
    steps = _gains([one for one in (*before, step) if one["rewards"]])
    first, last = [r for s in steps[:EDGE] for r in s], [r for s in steps[-EDGE:] for r in s]
    if not first or not last:
        return False
    return statistics.fmean(last) - statistics.fmean(first) > GAIN * statistics.pstdev(first)


def _gains(steps: Sequence[Step]) -> list[Sequence[float]]:
    """Of each step its episodes' successes, where all of them are known, else its rewards: never some of each."""
    found = [[v for v in step.get("successes", ()) if v is not None] for step in steps]
    return [*found] if all(found) else [step["rewards"] for step in steps]


def _not_gained(step: Step, before: Sequence[Step]) -> str:
    name = step.get(NAME) or "the reward"
    means = [statistics.fmean(values) for values in _gains([one for one in (*before, step) if one["rewards"]])]
    apart = len(means) >= 2 * EDGE
    change = f"{statistics.fmean(means[:EDGE]):.3g} to {statistics.fmean(means[-EDGE:]):.3g}" if apart else "unknown"
    return f"{name} did not rise ({change})"


def _paid_for(seen: str, step: Step, before: Sequence[Step]) -> Sign | None:
    """Where a component other than success pays for what is seen, that is its cause, and no other advice would help."""
    steps = [one for one in (*before, step) if one["rewards"]]
    found = reward_source_between(steps[:EDGE], steps[-EDGE:])
    if found is None:
        return None
    source, line = found
    why = f"A component of the reward pays for it: {source}, while {step.get(NAME)} did not rise."
    return Sign(seen, why, f"{line}; go on from a checkpoint before the change.")
