"""What would make a verdict worthless is refused before anything is spent, with the lines that would be right. Advice
that is given here is accepted when it is followed: tests/lab/test_advice.py feeds it back."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airloop.config import Config
from airloop.errors import AirError
from airloop.stats.holm import strictest
from airloop.stats.intervals import fewest
from airloop.success import METRIC
from airloop.watch.metrics.measured import measured
from airloop_lab.factors import Variant
from airloop_lab.hypothesis import Hypothesis
from airloop_lab.hypothesis_file import FEWEST_SEEDS, WHOLE, flat, line, shown

if TYPE_CHECKING:
    from airloop.envs.base import Environment
    from airloop.eval.conditions import Difference

EVAL = "orchestrator.eval."
# A loss is its type and what comes with that (clips, scaling): as a factor of a sweep they are one thing.
LOSS, OF_LOSS = "trainer.loss.type", "trainer.loss."


def check_hypothesis(hypothesis: Hypothesis) -> None:
    _check_seeds(hypothesis)
    check_steps(hypothesis, hypothesis.written.seeds)
    base = hypothesis.config(hypothesis.base)
    _check_tasks(hypothesis, base)
    for variant in hypothesis.changed:
        _check_one_thing(hypothesis, base, variant)


def fewest_seeds(hypothesis: Hypothesis) -> int:
    return 1 if hypothesis.written.exploratory else FEWEST_SEEDS


def _check_seeds(hypothesis: Hypothesis) -> None:
    seeds, needed = hypothesis.written.seeds, fewest_seeds(hypothesis)
    right = sorted({abs(seed) for seed in seeds})
    wrong = len(right) < len(seeds) or min(seeds) < 0
    if not wrong and len(right) >= needed:
        return
    few = len(right) < needed
    right += [seed for seed in range(2 * needed) if seed not in right][: max(0, needed - len(right))]
    fix = line("seeds", right)
    steps = sum(hypothesis.config(variant).max_steps for variant in hypothesis.variants) * len(right)
    if steps > hypothesis.written.budget.steps:
        fix += f", and in [budget]: {line('steps', steps)}"
    if wrong:
        raise AirError(f"{hypothesis.name}: seeds = {seeds}: each once, none below 0.", fix)
    if few and hypothesis.is_sweep:
        fix += "; or exploratory = true, which ranks and gives no verdict"
    number = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    raise AirError(f"{hypothesis.name}: {number} cannot tell the change from luck.", fix)


def check_steps(hypothesis: Hypothesis, seeds: Sequence[int]) -> None:
    """The budget of steps is known to suffice before the first run."""
    configs = [hypothesis.config(variant) for variant in hypothesis.variants]
    if any(config.budget.minutes for config in configs):
        raise AirError(
            f"{hypothesis.name}: its config has budget.minutes, so the clock would give each side steps of its own.",
            "take a config without [budget]; `air configs copy NAME` writes one that can be changed.",
        )
    each, budget = sum(config.max_steps for config in configs), hypothesis.written.budget.steps
    if not all(config.max_steps for config in configs):
        raise AirError(f"{hypothesis.name}: max_steps = 0 trains nothing.", "set max_steps in [both].")
    if each * len(seeds) > budget:
        raise AirError(
            f"{hypothesis.name}: {len(seeds)} seeds of {len(configs)} runs take {each * len(seeds)} steps, "
            f"and budget.steps = {budget}.",
            _within_budget(hypothesis, configs, len(seeds)),
        )


def _within_budget(hypothesis: Hypothesis, configs: Sequence[Config], seeds: int) -> str:
    """Only what would be accepted: too few seeds are not, and max_steps is not free where it is what is varied."""
    steps, budget = {config.max_steps for config in configs}, hypothesis.written.budget.steps
    each = sum(config.max_steps for config in configs)
    ways = [f"in [budget]: {line('steps', each * seeds)}"]
    if len(steps) == 1 and (fewer := budget // (seeds * len(configs))) >= 1:
        ways.append(f"in [both]: {line('max_steps', fewer)}")
    if (fit := budget // each) >= fewest_seeds(hypothesis):
        ways.append(f"take {fit} seeds: {line('seeds', [*range(fit)])}")
    return "; or ".join(ways)


def _check_tasks(hypothesis: Hypothesis, base: Config) -> None:
    """With many comparisons the first of them is held to a stricter level, at which few tasks can show nothing."""
    tasks, lines = base.orchestrator.eval.num_examples, len(hypothesis.changed)
    needed = 1 if hypothesis.written.exploratory else fewest(strictest(lines))
    if tasks < needed:
        among = f" among {lines} comparisons" if lines > 1 else ""
        raise AirError(
            f"{hypothesis.name}: {tasks} held-out tasks cannot tell a difference from luck{among}, whatever they show.",
            f"at least {needed}, in [both]: {line('orchestrator.eval.num_examples', needed)}",
        )


def _check_one_thing(hypothesis: Hypothesis, base: Config, variant: Variant) -> None:
    """In the resolved configs too: one key may bring others along by its defaults."""
    name = hypothesis.name
    if variant.fault:
        if base.ranks > 1:
            held = line("trainer_gpu_ids", base.gpus[:1]) if base.gpus else line("trainer.processes", 1)
            raise AirError(
                f"{name}: a fault is put into one process, and this config trains in {base.ranks}.",
                f"in [both]: {held}",
            )
        return
    if measured := [key for key in variant.settings if key.startswith(EVAL)]:
        raise AirError(
            f"{name}: {measured[0]} changes what is measured, so the two sides could not be compared.",
            f"in [both] instead of [{_table(hypothesis)}]: {line(measured[0], variant.settings[measured[0]])}",
        )
    if not (differ := _differing(base, hypothesis.config(variant))):
        raise AirError(f"{name}: {variant.text} is what the base has already.", _without(hypothesis, variant))
    if WHOLE in variant.settings:
        _check_measured_alike(hypothesis, variant, differ)
    else:
        _check_nothing_else(hypothesis, variant, differ)


def _differing(base: Config, changed: Config) -> dict[str, tuple[Any, Any]]:
    here, there = (flat(config.model_dump(mode="json")) for config in (base, changed))
    keys = sorted({*here, *there})
    return {key: (here.get(key), there.get(key)) for key in keys if here.get(key) != there.get(key)}


def _table(hypothesis: Hypothesis) -> str:
    """In which the changes stand."""
    w = hypothesis.written
    return "grid" if w.grid is not None else "vary" if w.vary is not None else "change"


def _without(hypothesis: Hypothesis, variant: Variant) -> str:
    """The other values of its key, where a sweep has others."""
    key = next(iter(variant.settings))
    others = [v.settings[key] for v in hypothesis.changed if key in v.settings and v != variant]
    if hypothesis.written.vary is None or not others:
        return "change it, or the base in [both]."
    return f"in [vary]: {line(key, others)}"


def _check_measured_alike(hypothesis: Hypothesis, variant: Variant, differ: Mapping[str, tuple[Any, Any]]) -> None:
    """A whole config may change anything but what is measured."""
    if not (measured := {key: values for key, values in differ.items() if key.startswith(EVAL)}):
        return
    (key, (was, becomes)), *_ = measured.items()
    if own := {k: v for k, v in flat(hypothesis.written.sets.get(variant.whole, {})).items() if k in measured}:
        fix = f"in [both] instead of [sets.{variant.whole}]: {', '.join(line(k, v) for k, v in own.items())}"
    else:
        fix = f"in [both]: {', '.join(line(k, was) for k, (was, _) in measured.items() if was is not None)}"
    raise AirError(
        f"{hypothesis.name}: {variant.text} changes {key} from {shown(was)} to {shown(becomes)}, so the two sides "
        "could not be compared.",
        fix,
    )


def _check_nothing_else(hypothesis: Hypothesis, variant: Variant, differ: Mapping[str, tuple[Any, Any]]) -> None:
    if more := _others(hypothesis, variant, differ):
        was, becomes = map(shown, differ[more[0]])
        raise AirError(
            f"{hypothesis.name}: {variant.text} also changes {more[0]} from {was} to {becomes}.",
            _one_thing_again(hypothesis, variant, {key: differ[key][0] for key in more}),
        )


def _others(hypothesis: Hypothesis, variant: Variant, differ: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Keys that change beside those that are meant to. What has no value on one side comes or goes with these; another
    value on both sides is a second change."""
    own = (*variant.settings, *((OF_LOSS[:-1],) if hypothesis.is_sweep and LOSS in variant.settings else ()))
    return [k for k, values in differ.items() if None not in values and not any(_same_key(k, w) for w in own)]


def _one_thing_again(hypothesis: Hypothesis, variant: Variant, held: dict[str, Any]) -> str:
    """Held on both sides, if the changed side can do so; or all that comes along, as one thing with a name."""
    lines = "\n".join(f"    {line(key, value)}" for key, value in variant.settings.items())
    table, value = ("change", '"changed"') if not hypothesis.is_sweep else ("vary", '["changed"]')
    if hypothesis.written.grid is not None:
        whole = "leave it out of the grid, and ask about it by [vary] or [change]."
    else:
        whole = (
            "ask about it with all that comes along, as one thing:\n"
            f"    [{table}]\n    {WHOLE} = {value}\n    [sets.changed]\n{lines}"
        )
    try:
        holding = hypothesis.holding(held)
        after = _differing(holding.config(holding.base), holding.config(variant))
    except AirError:
        return whole
    if _others(holding, variant, after):
        return whole
    return f"hold it in [both]: {', '.join(line(key, value) for key, value in held.items())}\n  or {whole}"


def _same_key(key: str, written: str) -> bool:
    return key == written or key.startswith(f"{written}.")


# --- how held-out tasks are played ------------------------------------------------------------------------------------


def check_alike(hypothesis: Hypothesis) -> None:
    """What the change does to the way in which held-out tasks are played is known before anything is spent."""
    from airloop.environments import load_environments
    from airloop.eval.conditions import conditions, differences

    def made(variant: Variant) -> tuple[Any, dict[str, Environment]]:
        config = hypothesis.config(variant)
        envs = load_environments(config)
        try:
            temperature = config.orchestrator.eval.temperature
            return conditions(config, envs, temperature, samples=True, policy=True), envs
        finally:
            for env in envs.values():
                env.abandon()

    base, envs = made(hypothesis.base)
    _check_metric(hypothesis, envs)
    split = hypothesis.config(hypothesis.base).orchestrator.eval.split
    for variant in hypothesis.changed:
        if variant.fault:
            continue
        excused = excuses(hypothesis, variant)
        found = differences(base, made(variant)[0])
        left = [d for d in found if not (excused(d.what) and _trains_only(d.what, envs, split))]
        if left:
            said = str(left[0]).replace(" in A", " for the base").replace(" in B", " for the changed")
            raise AirError(
                f"{hypothesis.name}: {variant.text} changes how held-out tasks are played ({said}), so their scores "
                "could not be compared.",
                _played_alike(hypothesis, variant, left, envs),
            )


def _check_metric(hypothesis: Hypothesis, envs: Mapping[str, Environment]) -> None:
    """One that is misspelled would be missed in the report, when all is spent. An environment may measure what is not
    known here, so that only what is meant for something known is refused."""
    metric = hypothesis.written.rule.metric
    own = [name for env in envs.values() for name in (*env.components, *([env.success] if env.success else []))]
    known = {"reward", METRIC, *own, *measured()}
    if metric == METRIC and not all(env.success for env in envs.values()):
        raise AirError(
            f"{hypothesis.name}: rule.metric = {metric!r}, and an environment of its config names no success.",
            f"in [rule]: {line('metric', 'reward')}",
        )
    close = difflib.get_close_matches(metric, known, 1, 0.8)
    if metric not in known and close:
        raise AirError(
            f"{hypothesis.name}: rule.metric = {metric!r} is not measured.", f"in [rule]: {line('metric', close[0])}"
        )


def excuses(hypothesis: Hypothesis, variant: Variant) -> Callable[[str], bool]:
    """Which differences of conditions are no difference of what is measured: weights of rewards, if it is not the
    reward that is compared, and an argument that the variant itself names (check_alike knows which of these may be)."""
    named = {key.rpartition(".args.")[2] for key in variant.settings if ".args." in key}
    named |= {key.rpartition(".args.")[2] for key in flat(hypothesis.written.sets.get(variant.whole, {}))}

    def excused(what: str) -> bool:
        if ".rewards." in what:
            return hypothesis.written.rule.metric != "reward"
        return ".args." in what and what.rpartition(".args.")[2] in named

    return excused


def _trains_only(what: str, envs: Mapping[str, Environment], split: str) -> bool:
    if ".rewards." in what:
        return True
    title, _, arg = what.removeprefix("mode.env.").rpartition(".args.")
    return title in envs and envs[title].trains_only(arg, split)


def _played_alike(
    hypothesis: Hypothesis, variant: Variant, found: Sequence[Difference], envs: Mapping[str, Environment]
) -> str:
    """Weights of rewards may differ if something else is compared; what a whole config brings along can be held."""
    from airloop.eval.conditions import flag_of

    if weights := [d.what for d in found if ".rewards." in d.what]:
        title = weights[0].removeprefix("mode.env.").partition(".rewards.")[0]
        measures = title in envs and envs[title].success is not None
        return f"in [rule]: {line('metric', 'success')}" if measures else "in [rule]: a metric that is not the reward."
    held = {flag_of(d.what, [*envs]).removeprefix("--"): d.a for d in found}
    if not variant.whole or None in held.values() or {"", "temperature"} & {*held}:
        return "change what is trained, not what is measured."
    own = [key for key in held if key in flat(hypothesis.written.sets.get(variant.whole, {}))]
    where = f" instead of [sets.{variant.whole}]" if own else ""
    return f"in [both]{where}: {', '.join(line(key, value) for key, value in held.items())}"
