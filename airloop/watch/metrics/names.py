"""Every metric by its name, as the sinks have it: unit and meaning.

`describe("train/learner/loss")` says what a number is; `python -m airloop.watch.metrics.names > docs/metrics.md` writes
all. In a pattern, `*` stands for a name that the config or the environment gives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from airloop.types import Ending
from airloop.watch.metrics.latency import PARTS
from airloop.watch.metrics.measured import SHARE, measured

_GAPS = {"mean": "Mean", "p50": "Median", "p90": "90th percentile", "p99": "99th percentile", "max": "Maximum"}
_COLUMNS = {
    "tokens": "Tokens that the engine returned.",
    "trained": "Of them, those with a part in the loss.",
    "zero_advantage": "Of them, those whose group (credited by turn: whose turn) scored alike.",
    "filtered": "Of them, those of groups that difficulty filtering left out.",
    "infra_error": "Of them, those of attempts that the machinery spoilt.",
    "stale": "Of them, those left out because their probability has changed too much since they were sampled.",
    "truncated": "Of them, those of replies that were cut off, or that came behind a text of `stop`.",
}
_CUTS = {"by_task": "family of tasks", "by_ending": "ending", "by_duration": "quarter of the episodes, by duration"}
_WORST = {
    "value": ("", "How far it is off."),
    "place": ("", "Its place among the row's trained tokens."),
    "token": ("id", "Its token id."),
    "logprob": ("nats", "Its log-probability by the trainer."),
    "other": ("nats", "The one it is compared with."),
}


@dataclass(frozen=True)
class Name:
    pattern: str
    unit: str
    text: str  # one sentence


def _step() -> Iterator[Name]:
    yield Name("train/step", "step", "The step's number, from 0 (on the axis of a sink, from 1).")
    yield Name(
        "train/success",
        SHARE,
        "What the environment's users want (its success_name says which metric), mean over episodes.",
    )
    yield Name("train/reward", "reward", "Mean reward of the step's scored episodes, filtered groups included.")
    yield Name("train/groups_without_signal", "groups", "Groups whose members all scored the same: they teach nothing.")
    yield Name("train/task/*/episodes", "episodes", "Scored episodes of this family of tasks.")
    yield Name("train/task/*/success", SHARE, "Their success.")
    yield Name("train/task/*/reward", "reward", "Their mean reward.")
    yield Name(
        "train/one_answer/share", SHARE, "Episodes in which the agent said the same as in most, over several tasks."
    )
    yield Name("train/one_answer/tasks", "tasks", "Tasks that got this one answer.")
    yield Name(
        "train/like/*/first", SHARE, "Episodes of the first 5 steps that ended as the environment's own script did."
    )
    yield Name(
        "train/like/*/last", SHARE, "The same of the last 5 steps. Scripts are played where success does not come."
    )


def _rollout() -> Iterator[Name]:
    rows = {
        "episodes": ("episodes", "Episodes that ended, however they did."),
        "groups": ("groups", "Groups that were trained on."),
        "reused": ("episodes", "Episodes that were read back from disk after a restart."),
        "infra_errors": ("attempts", "Attempts that the machinery spoilt."),
        "retried": ("attempts", "Of those, how many were followed by another."),
        "lost": ("episodes", "Episodes that failed in every attempt: they count in no mean."),
        "abandoned_tokens": (
            "tokens",
            "Tokens of replies that were cut off, or that came behind a text of `stop`.",
        ),
        "dropped_infra_error": ("groups", "Groups that had too few members left."),
        "dropped_no_signal": ("groups", "Groups that difficulty filtering left out."),
        "seconds": ("s", "Time until the last episode was there."),
    }
    for name, (unit, text) in rows.items():
        yield Name(f"train/rollout/{name}", unit, text)
    for ending in get_args(Ending):
        yield Name(f"train/rollout/ended_{ending}", "episodes", f"Episodes with the ending {ending}.")


def _learner() -> Iterator[Name]:
    rows = {
        "loss": ("", "The loss, summed over the batch's tokens with their weights; the mean over passes."),
        "tokens_trained": ("tokens", "Tokens that the loss counts."),
        "tokens_computed": ("tokens", "Tokens that went through the model, shared prefixes once."),
        "tokens_shared": ("tokens", "Tokens that needed no computing, because a prefix is shared."),
        "micro_batches": ("count", "Forward and backward passes of the update."),
        "entropy": (
            "nats",
            "Mean entropy of the policy over all sampled tokens (of those not trained on, a sample).",
        ),
        "kl": ("nats", "Mean KL estimate to the starting model (with trainer.loss.kl_beta)."),
        "clipped": (SHARE, "Tokens whose ratio was clipped, over all passes (the first cannot clip)."),
        "importance": ("ratio", "Mean weight that corrects for sampler and trainer differing: 1 if they agree."),
        "cut": (SHARE, "Tokens whose weight was above the cap (or, masked, outside its range), or masked by sequence."),
        "cut_geo": (SHARE, "Tokens of trajectories that trainer.loss.geo_mask_low or _high left out as a whole."),
        "cut_sequence": (SHARE, "The same, by trainer.loss.sequence_mask_low or _high."),
        "grad_norm": ("", "Norm of the gradient before it was clipped; with several passes their mean."),
        "grad_norm_max": ("", "The largest of the passes."),
        "update_ratio": ("ratio", "Norm of the update over the norm of the weights, added up over passes."),
        "weights_changed": (
            SHARE,
            "Trained weights that the update (of several passes the one that did most) changed at all.",
        ),
        "lr": ("", "The learning rate of this update."),
        "seconds": ("s", "Time of the update."),
        "tokens_per_s": ("tokens/s", "Tokens computed per second of the update."),
    }
    for name, (unit, text) in rows.items():
        yield Name(f"train/learner/{name}", unit, text)
    for name, word in _GAPS.items():
        text = f"{word} of |log-probability by the trainer − by the sampler| over all sampled tokens."
        yield Name(f"train/learner/logprob_gap_{name}", "nats", text)
    sides = {
        "engine": "The engine's mean distance",
        "trainer": "The trainer's",
        "plain": "That of the model's own layers in its own number format",
        "most": "The most that a healthy side has",
    }
    for name, text in sides.items():
        where = "from the same tokens computed in more bits; only of a step whose gap is suspicious."
        yield Name(f"train/rounding/{name}", "nats", f"{text} {where}")


def _ages() -> Iterator[Name]:
    of = "Of the trained tokens that were sampled so many updates ago (with orchestrator.max_staleness):"
    rows = {
        "tokens": ("tokens", "their number."),
        "gap": ("nats", "mean of |log-probability by the trainer − by the sampler|: at age 0 a fault, growing drift."),
        "cut": (SHARE, "those outside of the trust region around the policy that sampled them."),
        "ess": (SHARE, "their effective sample size over their number: 1 if the policy has not moved."),
    }
    for name, (unit, text) in rows.items():
        yield Name(f"train/ages/*/{name}", unit, f"{of} {text}")


def _times() -> Iterator[Name]:
    yield Name("train/times/sampling", "s", "From the step's begin until its episodes are there, by the clock.")
    held = "Beside training: samplers stood still, or a share of them for longer, as orchestrator.max_staleness bids."
    yield Name("train/times/held", "s", held)
    for part, (what, _) in PARTS.items():
        how = "by the clock" if part in ("training", "sync") else "mean over its episodes"
        yield Name(f"train/times/{part}", "s", f"Of the step, waiting for {what}; {how}.")
    for part, what in {"queue": "for a place in the engine", "model": "in the model", "tool": "in the tool"}.items():
        yield Name(f"train/times/turn_{part}", "s", f"Mean time of one turn {what}.")


def _ledger() -> Iterator[Name]:
    for column, text in _COLUMNS.items():
        yield Name(f"train/ledger/{column}", "tokens", text)
    for cut, what in _CUTS.items():
        yield Name(f"train/ledger/{cut}/*/episodes", "episodes", f"Episodes of this {what}.")
        for column in _COLUMNS:
            yield Name(f"train/ledger/{cut}/*/{column}", "tokens", f"As train/ledger/{column}, of this {what}.")
    yield Name("train/ledger/by_duration/*/up_to_s", "s", "The longest episode of this quarter.")
    yield Name("train/ledger/variance/sum", "", "Variance of the reward within groups, averaged over them.")
    yield Name("train/ledger/paid/*", "reward", "What this component adds to the reward, weighted; mean over episodes.")
    yield Name("train/ledger/groups/sampled", "groups", "Groups that were sampled and scored.")
    yield Name("train/ledger/groups/silent", "groups", "Of them, those whose members all scored the same.")
    yield Name("train/ledger/filter/groups", "groups", "Groups that difficulty filtering left out.")
    yield Name("train/ledger/filter/tasks/*", "groups", "Of them, those of this family of tasks.")
    yield Name("train/ledger/filter/reward_all", "reward", "Mean reward with what was filtered.")
    yield Name("train/ledger/filter/reward_kept", "reward", "Mean reward of what was trained on.")
    yield Name("train/ledger/filter/reward_dropped", "reward", "Mean reward of what was left out.")


def _machine() -> Iterator[Name]:
    yield Name("train/servers/answering", "servers", "Servers of vLLM that are asked for replies, as the step ends.")
    yield Name("train/servers/all", "servers", "Servers of vLLM that the run began with.")
    yield Name("train/memory/used", "MiB", "Memory of the process between two steps.")
    yield Name("train/memory/peak", "MiB", "The most memory that the process has had so far.")
    yield Name("train/memory/available", "MiB", "Memory that it could still have.")
    yield Name("train/memory/gpu_used", "MiB", "Memory of the GPU in tensors between two steps (CUDA only).")
    yield Name("train/memory/gpu_peak", "MiB", "The most memory of the GPU in tensors so far (CUDA only).")
    yield Name("train/memory/gpu_available", "MiB", "Memory of the GPU that is still free to us (CUDA only).")
    yield Name("train/versions/wanted", "version", "The policy version that the step was to be sampled from.")
    yield Name("train/versions/wanted_to", "version", "The newest, where sampling goes on beside training.")
    yield Name("train/versions/sampled_from", "version", "The oldest that a reply was sampled from.")
    yield Name("train/versions/sampled_to", "version", "The newest that a reply was sampled from.")
    text = "Episodes whose replies are of several versions; with servers of vLLM only where an adapter was gone."
    yield Name("train/versions/mixed", "count", text)
    yield Name("train/versions/policy", "version", "The trainer's version after the update.")
    yield Name("train/versions/served", "version", "The engine's version after the update.")
    for what, measure in {"gap": "between trainer and sampler", "kl": "from the starting model"}.items():
        for name, (unit, text) in _WORST.items():
            yield Name(f"train/worst/{what}/{name}", unit, f"Of the token that is worst {measure}: {text}")
    yield Name("train/plan/max_steps", "steps", "Steps that the run is to have.")
    yield Name("train/plan/lr", "", "The learning rate of the config.")
    yield Name("train/plan/lora", "", "1 if an adapter is trained, 0 if all the weights are.")
    yield Name("train/plan/rewards/*/*", "", "The weight of a component of the reward, by environment.")


def _evaluation() -> Iterator[Name]:
    yield Name(
        "eval/*/step", "steps", "Updates that the evaluated policy has had; * is the split, or base: the model itself."
    )
    yield Name("eval/*/episodes", "episodes", "Scored episodes on this split.")
    yield Name("eval/*/lost", "episodes", "Episodes that the machinery spoilt: they count in no mean.")
    yield Name("eval/*/success/mean", SHARE, "Mean of success, each task with the same weight.")
    yield Name("eval/*/success/low", SHARE, "Lower end of its 95 % interval, over tasks.")
    yield Name("eval/*/success/high", SHARE, "Upper end of its 95 % interval, over tasks.")
    yield Name("eval/*/success/tasks", "tasks", "Tasks in that mean.")
    yield Name("eval/*/reward/mean", "reward", "Mean reward, each task with the same weight.")
    yield Name("eval/*/reward/low", "reward", "Lower end of its 95 % interval, over tasks.")
    yield Name("eval/*/reward/high", "reward", "Upper end of its 95 % interval, over tasks.")
    yield Name("eval/*/reward/tasks", "tasks", "Tasks in that mean.")
    yield Name("eval/*/task/*/episodes", "episodes", "Scored episodes of this family of tasks.")
    yield Name("eval/*/task/*/success", SHARE, "Their success.")
    yield Name("eval/*/task/*/reward", "reward", "Their mean reward.")


def _sinks() -> Iterator[Name]:
    yield Name("step", "step", "The axis of all curves at W&B, from 1; an evaluation has that of the step before it.")
    yield Name("alarm/*", "", "1 at the step at which this alarm was raised (alarms.jsonl says why).")


SECTIONS = {
    "A step": tuple(_step()),
    "Episodes": tuple(_rollout()),
    "The update": tuple(_learner()),
    "Tokens by age": tuple(_ages()),
    "Time": tuple(_times()),
    "What became of the tokens": tuple(_ledger()),
    "Memory, versions, extremes, plan": tuple(_machine()),
    "Evaluations": tuple(_evaluation()),
    "Only in W&B and TensorBoard": tuple(_sinks()),
}
# Where what an environment measures is found, {} being its name.
PLACES = {
    "train/metrics/{}": "Mean over the step's episodes",
    "train/components/{}": "As a component of the reward, before its weight; mean over the step's episodes",
    "train/best/{}": "As a component of the reward; the highest of the step's episodes",
    "train/turn_components/{}": "As a component that turns earn; mean over the step's turns",
    "train/task/*/{}": "Mean over the step's episodes of this family of tasks",
    "train/ledger/variance/components/{}": "Variance within groups of what it adds to the reward",
    "eval/*/{}/mean": "Mean over held-out tasks",
    "eval/*/{}/low": "Lower end of the mean's 95 % interval",
    "eval/*/{}/high": "Upper end of the mean's 95 % interval",
    "eval/*/{}/tasks": "Tasks in the mean",
    "eval/*/task/*/{}": "Mean over held-out episodes of this family of tasks",
}
OF_ITS_OWN = "what the environment calls so."


@functools.cache
def all_names() -> tuple[Name, ...]:
    """The most exact first."""
    found = [name for section in SECTIONS.values() for name in section]
    for place, how in PLACES.items():
        for name, (unit, text) in measured().items():
            found.append(Name(place.format(name), "tasks" if place.endswith("/tasks") else unit, f"{how}: {text}"))
        found.append(Name(place.format("*"), "", f"{how}: {OF_ITS_OWN}"))
    return tuple(sorted(found, key=lambda name: (name.pattern.count("*"), -len(name.pattern))))


@functools.lru_cache(maxsize=8192)
def describe(flat_name: str) -> Name | None:
    """The most exact description of a metric; None for a name that no part of air gives."""
    return next((name for name in all_names() if _regex(name.pattern).fullmatch(flat_name)), None)


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def page() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m airloop.watch.metrics.names > docs/metrics.md`.",
        "",
        "Every step and every evaluation is a line of `metrics.jsonl` in the run's directory, nested as the names are: "
        '`train/learner/loss` is `["learner"]["loss"]` of a line of kind "train", `eval/SPLIT/…` of one of kind '
        '"eval". Weights & Biases (`[wandb]`) and TensorBoard (`[tensorboard]`) have the same numbers under the same '
        "names. "
        "`*` stands for a name that the config or the environment gives. What was not measured is left out.",
        "",
        "    [wandb]             # pip install -e '.[wandb]' in a checkout; offline where there is no key",
        '    project = "air"',
        "    [tensorboard]       # pip install -e '.[tensorboard]' in a checkout; event files in RUN/tensorboard",
        "",
        "With `samples` (3) trajectories per step, spread over the step's rewards, both also show what was said: "
        "`samples/trajectories`. A sink works beside the run: one that fails or hangs is left out with a note.",
    ]
    for title, names in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{name.pattern}` | {name.unit} | {_cell(name.text)} |" for name in names]
    lines += ["", "## What environments measure", "", "| where | what |", "|---|---|"]
    lines += [f"| `{place.format('NAME')}` | {how} |" for place, how in PLACES.items()]
    lines += ["", "An environment has some of these, and may have others of its own.", ""]
    lines += ["| NAME | unit | of an episode |", "|---|---|---|"]
    lines += [f"| `{name}` | {unit} | {_cell(text)} |" for name, (unit, text) in measured().items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page())
