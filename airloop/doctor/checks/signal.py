"""Will there be something to learn from? What the probe's episodes say about rewards, lengths and time."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airloop.config.schema import WarmstartConfig
from airloop.doctor.base import Finding, check, passed
from airloop.doctor.probe import STUCK, Probe, before_warmstart
from airloop.errors import AirError
from airloop.sandbox.needs import package_of
from airloop.text.figures import duration

if TYPE_CHECKING:
    from airloop.doctor.case import Case
    from airloop.envs.base import Environment
    from airloop.models.chat import ChatTokenizer
    from airloop.types import Trajectory

# Fewer episodes than this, all alike, may be chance: of 16, one in six could be different (at 95 %).
ENOUGH_EPISODES = 16
# Of a sum whose parts do not depend on each other the variance is the sum of theirs. A tenth of it is left only when
# the parts work against each other, and the episode that is better in one of them is worse in another.
CANCELLED = 0.1
# A context that ends before half of the turns cuts episodes before they can submit; one that ends later cuts some.
HALF = 0.5
# Of the probe's own episodes, more than this share ended by the context: they are not the exception.
FULL = 0.1
# Tools that take nine tenths of a turn, and at least a second: the model, and the GPU under it, waits for them.
TOOL_BOUND, TOOL_BOUND_S = 0.9, 1.0
# How tools say that something is not there at all. What so large a share of the episodes meets is the environment's.
ABSENT = re.compile(
    r"ModuleNotFoundError: No module named '[^']+'|ImportError: [^\n]*(?:shared object|cannot open)[^\n]*"
    r"|(?P<program>\S+): (?:command not found|not found$)",
    re.MULTILINE,
)
# Beside what this machine has: programs that a shell is expected to have. Any other word is the model's own: one that
# speaks where a command is asked for has most of its sentences' first words not found.
USUAL = {"bash", "cat", "git", "grep", "ls", "make", "pip", "pip3", "python", "python3", "sed"}
COMMON = 0.9
# In the doctor's own process before a run of several: how many there will be.
RANKS = "AIR_DOCTOR_RANKS"


def finished_probe(case: Case) -> Probe:
    """The probe, where something can be said of what the policy does and earns; else NotJudged."""
    probe = case.probe
    if before_warmstart(probe.parts.config):
        raise probe.untrained
    if not any(t.turns or t.ending == "context_full" for t in probe.trajectories):
        raise probe.no_reply
    if 2 * probe.cut > len(probe.trajectories):
        raise probe.unfinished
    return probe


@check("G9", stage="probe", title="episodes end in a score")
def episodes_end(case: Case) -> Finding:
    probe = case.probe
    if not probe.lost and (crashing := _crashing(probe, HALF)) is not None:
        return replace(crashing, verdict="warn")
    if not probe.lost:
        endings = Counter(t.ending for t in probe.trajectories)
        named = ", ".join(f"{count} {ending}" for ending, count in endings.most_common())
        return passed(f"{len(probe.trajectories)} episodes in {probe.seconds:.1f} s: {named}")
    # An attempt that failed is in `lost` even where a second one helped.
    share = len(probe.lost) / (len(probe.lost) + len(probe.trajectories))
    return Finding(
        "fail" if share > HALF else "warn",
        f"{len(probe.lost)} attempts at an episode failed, {len(probe.trajectories)} episodes were scored "
        f"(tasks {_some([t.task.id for t in probe.lost])})",
        f"the machinery around the agent failed, which is never a reward. First error: {probe.lost[0].error}",
        "mend what the error names; the whole text is in the detail.",
        detail="\n\n".join(dict.fromkeys(t.error for t in probe.lost)),
    )


@check("E1", "E2", "E9", stage="probe", title="rewards differ within groups")
def rewards_differ(case: Case) -> Finding:
    probe = finished_probe(case)
    groups, n = probe.groups, len(probe.trajectories)
    silent = sum(not g.has_signal for g in groups)
    values = Counter(round(t.reward, 4) for t in probe.trajectories)
    common, count = values.most_common(1)[0]
    seen = f"{silent} of {len(groups)} groups have equal rewards; {count} of {n} episodes got {common:g}"
    if silent == len(groups):
        enough = n >= ENOUGH_EPISODES and not probe.hurried
        if (broken := _crashing(probe, COMMON) or _broken_sandbox(probe)) is not None:
            return replace(broken, verdict="fail" if enough else "warn", seen=f"{broken.seen}; {seen}")
        return Finding(
            "fail" if enough else "warn",
            seen,
            "every advantage is a reward less its group's mean: here all are zero, and so is the loss. "
            + _why_equal(probe),
            "make rewards differ: easier or more varied tasks, a reward for partial success, a supervised start "
            "([warmstart]), or a model that already succeeds sometimes.",
            supervised_start(probe) if common <= 0 else {},
            ids=("E1", "E2"),
        )
    if probe.stuck >= STUCK:
        return Finding(
            "warn",
            seen,
            f"in a group, {probe.stuck:.0%} of the members get the same reward, so most groups of "
            f"{probe.parts.config.orchestrator.rollouts_per_example} will have no gradient",
            "larger groups, tasks of another difficulty, a reward with more steps, or groups without signal replaced "
            "by others.",
            {"orchestrator.buffer.online_difficulty_filtering": True, "orchestrator.oversampling_factor": 2.0},
            ids=("E9", "E2"),
        )
    return passed(f"{seen}; within a group {probe.stuck:.0%} have the commonest reward")


def supervised_start(probe: Probe) -> Mapping[str, Any]:
    """The lines that add one, where the config has none and every environment can demonstrate."""
    parts = probe.parts
    if parts.config.warmstart is not None or not all(_demonstrates(env) for env in parts.envs.values()):
        return {}
    return {"warmstart.steps": WarmstartConfig().steps, "warmstart.episodes": WarmstartConfig().episodes}


def _demonstrates(env: Environment) -> bool:
    try:
        env.scripted("demo", env.tasks("train")[0], 0)
    except (AirError, IndexError):
        return False
    return True


def _crashing(probe: Probe, share: float) -> Finding | None:
    """More than this share of the agents' own programs failed after the policy had spoken: what they said of it."""
    crashed = [t for t in probe.trajectories if t.metrics.get("crashed")]
    if not crashed or len(crashed) < share * len(probe.trajectories):
        return None
    error, count = Counter(t.error for t in crashed).most_common(1)[0]
    return Finding(
        "fail",
        f"in {len(crashed)} of {len(probe.trajectories)} episodes the agent's program failed, {count} times: {error}",
        "an episode whose program fails is worth nothing, whatever the policy said: if that is the program's own "
        "fault, all rewards are equal",
        "mend the program, or let it score what it cannot read: `air tasks show … --play noop` plays it.",
    )


def _broken_sandbox(probe: Probe) -> Finding | None:
    """What nearly all episodes met in their tools' answers and no reward can be blamed for: a module or a program that
    is not there. (An agent's own slip is not the same in all of them.)"""
    met = Counter(line for t in probe.trajectories for line in _absences(t))
    line, count = met.most_common(1)[0] if met else ("", 0)
    if count < COMMON * len(probe.trajectories):
        return None
    module = re.search(r"No module named '([\w.]+)'", line)
    install = f"install {package_of(module[1])}" if module else "put it there"
    return Finding(
        "fail",
        f"“{line}” is in the tool results of {count} of {len(probe.trajectories)} episodes",
        "the environment is broken, not the reward: whatever the policy does, it fails at this, and all rewards are "
        "equal",
        f"{install} where agents' code runs (`air doctor --only D20` looks inside the sandbox); if only the model's "
        "own code asks for it, say in the prompt what there is.",
        ids=("D20", "E1"),
    )


def _absences(trajectory: Trajectory) -> set[str]:
    texts = [o.text for turn in trajectory.turns for o in turn.observations]
    met = [found for text in texts for found in ABSENT.finditer(text)]
    return {" ".join(found[0].split()) for found in met if not found["program"] or _is_program(found["program"])}


def _is_program(name: str) -> bool:
    return "/" in name or name in USUAL or shutil.which(name) is not None


def _why_equal(probe: Probe) -> str:
    actions = [a for turn in probe.turns for a in turn.actions]
    invalid = sum(a.kind == "invalid" for a in actions)
    if actions and invalid == len(actions):
        return f"The cause: none of the {len(actions)} actions could be read (B4)."
    spread = _spread(probe)
    varied = [name for name, (parts, _) in spread.items() if parts > 0]
    if varied:
        return f"The parts of the reward do differ ({', '.join(varied)}), but their weighted sum does not (E4)."
    never = _never_seen(probe)
    return f"Never anything but 0: {', '.join(never)}." if never else "Every part of the reward is constant."


def _never_seen(probe: Probe) -> list[str]:
    """Components that no episode had anything of, and that one would want it to have."""
    weighing = [(env, name) for env in probe.parts.envs.values() for name in env.reward_weights]
    wanted = {name for env, name in weighing if name not in env.penalties}
    return [name for name, value in _largest(probe).items() if value == 0 and name in wanted]


@check("E4", stage="probe", title="parts of the reward do not cancel")
def parts_add_up(case: Case) -> Finding:
    probe = finished_probe(case)
    spread = _spread(probe)
    parts = sum(value for value, _ in spread.values())
    whole = statistics.fmean(statistics.pvariance(g.rewards) for g in probe.groups)
    shown = ", ".join(f"{name} {value:.3g}" for name, (value, _) in spread.items())
    seen = f"variance within groups, weighted: {shown}; of their sum {whole:.3g}"
    if len(spread) > 1 and parts > 0 and whole < CANCELLED * parts:
        largest = sorted(spread, key=lambda name: -spread[name][0])[:2]
        return Finding(
            "warn",
            seen,
            f"{' and '.join(largest)} work against each other: what earns one costs the other, and little is left to "
            "learn from",
            "give one of them less weight.",
            {f"orchestrator.env.0.rewards.{largest[1]}": round(spread[largest[1]][1] / 4, 4)},
        )
    return passed(seen)


def _spread(probe: Probe) -> dict[str, tuple[float, float]]:
    """Of each weighted component: its variance within groups, and its weight."""
    found: dict[str, tuple[float, float]] = {}
    for name in _largest(probe):
        columns = [[_total(probe, t, name) for t in g.trajectories] for g in probe.groups]
        weight = next(w[name] for w in (_env(probe, t).reward_weights for t in probe.trajectories) if name in w)
        found[name] = (statistics.fmean(statistics.pvariance(column) for column in columns), weight)
    return found


def _largest(probe: Probe) -> dict[str, float]:
    """Of each component with a weight: the largest size it had."""
    named = {n: 0.0 for t in probe.trajectories for n, w in _env(probe, t).reward_weights.items() if w}
    return {name: max(abs(_total(probe, t, name)) for t in probe.trajectories) for name in sorted(named)}


def _total(probe: Probe, trajectory: Trajectory, name: str) -> float:
    """What a component adds to a trajectory's reward."""
    env = _env(probe, trajectory)
    value = trajectory.rewards.get(name, 0.0)
    by_turn = [turn[name] for turn in trajectory.turn_rewards if name in turn]
    if by_turn:
        turns = len(trajectory.turn_rewards) if env.turn_reward_mode.get(name, "sum") == "mean" else 1
        value += sum(by_turn) / turns
    return value * env.reward_weights.get(name, 0.0)


def _env(probe: Probe, trajectory: Trajectory) -> Environment:
    return probe.parts.envs[trajectory.task.env]


@check("D19", stage="probe", title="every part of the reward is seen")
def parts_fire(case: Case) -> Iterator[Finding]:
    probe = finished_probe(case)
    largest = _largest(probe)
    never = _never_seen(probe)
    missing = list(_missing_by_ending(probe.trajectories))
    for name, had, lacked in missing:
        yield Finding(
            "warn",
            f"the reward component {name} is given to episodes that end by {had}, and never to those that end by "
            f"{lacked}",
            "one way of ending is not handled: whatever was done before it earns nothing",
            "give the component in finish(), which is called whatever ended the episode.",
        )
    if never:
        n = len(probe.trajectories)
        yield Finding(
            "warn",
            f"{', '.join(never)}: 0 in all of {n} episodes",
            "a component that never fires teaches nothing: it is out of the policy's reach, or it is not given",
            "see that `air eval --agent scripted:oracle` earns it on the same tasks; if so, start nearer to it "
            "([warmstart], easier tasks), else mend the environment.",
        )
    if not never and not missing:
        yield passed("seen: " + ", ".join(f"{name} up to {value:.3g}" for name, value in largest.items()))


def _missing_by_ending(trajectories: Sequence[Trajectory]) -> Iterator[tuple[str, str, str]]:
    """(component, an ending that always has it, one that never has)."""
    by_ending: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for t in trajectories:
        by_ending.setdefault((t.task.env, t.ending), []).append(t.rewards)
    for (env, ending), rewards in by_ending.items():
        for name in set.intersection(*(set(r) for r in rewards)):
            for (other_env, other), lacking in by_ending.items():
                if other_env == env and other != ending and not any(name in r for r in lacking):
                    yield name, ending, other


@check("A6", stage="probe", title="the context holds an episode")
def context_holds_episode(case: Case) -> Finding:
    probe, config = case.probe, case.probe.parts.config
    played = [t for t in probe.trajectories if t.branches and t.turns]
    if not played:
        raise probe.no_reply
    tokenizer = probe.parts.loaded.tokenizer
    a_turn = statistics.fmean(tokens for t in played for tokens in _growth(t, tokenizer))
    prompt = statistics.fmean(t.branches[0].train.index(True) for t in played)
    limits = {t.task.env: _env(probe, t).max_turns for t in played}
    # Where every episode submits by itself, the turns it takes are the turns it needs.
    free = all(t.ending == "done" for t in played)
    turns = max(len(t.turns) for t in played) if free else max(limits.values())
    needed, holds = prompt + turns * a_turn, (config.seq_len - prompt) / max(a_turn, 1.0)
    seen = (
        f"a prompt of {prompt:.0f} tokens and {a_turn:.0f} a turn: {needed:.0f} tokens at turn {turns}, "
        f"in a context of {config.seq_len}"
    )
    full = sum(t.ending == "context_full" for t in played)
    if holds >= turns and full <= FULL * len(played):
        return passed(seen)
    if full:
        seen += f"; it ended {full} of {len(played)} episodes"
    room = -(-int(needed * 1.1) // 64) * 64  # a tenth more than the mean, in whole pages of keys and values
    return Finding(
        "fail" if holds < HALF * turns else "warn",
        seen,
        f"episodes will be cut at about turn {max(1, min(turns, int(holds)))} of {turns}, before they can submit",
        "a longer context, shorter observations, or fewer turns.",
        {"seq_len": room},
    )


def _growth(trajectory: Trajectory, tokenizer: ChatTokenizer) -> list[int]:
    """Tokens that each turn adds: from its first sampled token to the next turn's; of the last one, which no prompt
    follows, the reply and what was answered to it."""
    branch = max(trajectory.branches, key=lambda b: len(b.tokens))
    starts = [branch.turns.index(turn) for turn in sorted({t for t in branch.turns if t >= 0})]
    found = [after - at for at, after in itertools.pairwise(starts)]
    if found and trajectory.ending != "context_full":
        return found
    answered = sum(len(tokenizer.encode(o.text)) for o in trajectory.turns[-1].observations)
    return [*found, len(branch.tokens) - starts[-1] + answered]


@check("D6", stage="probe", title="time is spent where it should be")
def time_per_turn(case: Case) -> Finding:
    probe = case.probe
    times = [turn.times for turn in probe.turns]
    if not times:
        raise probe.unfinished if any(t.turns for t in probe.trajectories) else probe.no_reply
    queue, model, tool = (statistics.fmean(getattr(x, name) for x in times) for name in ("queue", "model", "tool"))
    seen = f"a turn: model {model:.2f} s, tool {tool:.2f} s, queue {queue:.2f} s. {_estimate(case)}"
    if tool > TOOL_BOUND_S and tool > TOOL_BOUND * (queue + model + tool):
        return Finding(
            "warn",
            seen,
            f"{tool / (queue + model + tool):.0%} of a turn is the tool's: a faster model or GPU changes nothing",
            "more episodes at once, more workers of the environment, or faster tools.",
            {"orchestrator.max_concurrent": 2 * probe.parts.config.orchestrator.max_concurrent},
        )
    return passed(seen)


def _estimate(case: Case) -> str:
    from airloop.doctor.forecast import forecast
    from airloop.doctor.proof_tools import in_time
    from airloop.speed import measure_speed

    probe = case.probe
    parts, played = probe.parts, [t for t in probe.trajectories if t.turns]
    config = parts.config
    o, evaluation = config.orchestrator, config.orchestrator.eval
    ranks = max(parts.ranks.size, config.ranks, int(os.environ.get(RANKS, "1")))  # looked at by one, made by all
    told = forecast(config, probe, case.wait(in_time(measure_speed(parts))), ranks)
    episodes = config.max_steps * o.batch_size
    episodes += told.evaluations * evaluation.num_examples * evaluation.rollouts_per_example
    sampled = statistics.fmean(t.sampled_tokens for t in played)
    return (
        f"At this pace a step takes {duration(told.step_s)}, all {config.max_steps} with {told.evaluations} "
        f"evaluations {duration(told.total_s)}: {episodes} episodes, {episodes * sampled / 1e6:.2g} M sampled tokens"
    )


def _some(names: Sequence[str], most: int = 3) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more
