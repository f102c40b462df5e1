"""What an audit found: for a person as tables and sentences, for machines as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from airloop.envs.base import Environment
from airloop.eval.audit import MARGIN, Audit, Comparison, Kind, Weighting, mean_rewards, success

_WITHOUT = {"oracle": "nothing is known to be earned by the work", "demo": "a supervised start would need it"}
SHOWN = 3  # comparisons of a weighting that does not hold; --json has all


def as_json(found: Audit, env: Environment) -> dict[str, Any]:
    return {
        "env": found.env,
        "success": found.success,
        "margin": MARGIN,
        "exit_code": found.exit_code,
        "missing_scripts": found.missing,
        "beyond_scripts": list(env.beyond_scripts),
        "weightings": [{"name": w.name, "weights": dict(w.weights), "shaping": w.shaping} for w in found.weightings],
        "kinds": [_kind(found, env, kind) for kind in found.kinds],
        "comparisons": [vars(comparison) for comparison in found.comparisons],
    }


def _kind(found: Audit, env: Environment, kind: Kind) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind.name, "rounds": len(kind.rounds), "problem": kind.problem}
    row |= {"left_out": kind.left_out, "seconds": kind.seconds, "policies": {}}
    if kind.problem:
        return row
    earned = {w.name: mean_rewards(env, kind, w.weights) for w in found.weightings}
    for policy in kind.rounds[0].played:
        rewards = {name: rewards[policy] for name, rewards in earned.items()}
        row["policies"][policy] = {"honest": policy in env.honest, "success": _succeeded(env, kind, policy), **rewards}
    return row


def _succeeded(env: Environment, kind: Kind, policy: str) -> float | None:
    found = [success(env, round_.played[policy]) for round_ in kind.rounds]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


def format_audit(report: Mapping[str, Any], found: Audit) -> str:
    blocks = [_block(row, found) for row in report["kinds"]]
    missing = [name for name in found.missing if found.comparisons or name in _WITHOUT]
    notes = [
        f"{found.env} has no script {name!r}: {_WITHOUT.get(name, 'audited with the others')}." for name in missing
    ]
    notes += [f"{name} can only be earned by a model: not audited." for name in report["beyond_scripts"]]
    if found.success is None:
        notes.append(f"{found.env} names no metric as its success: only rewards are compared.")
    return "\n\n".join([*blocks, "\n".join([*notes, _verdict(found)])])


def _block(row: Mapping[str, Any], found: Audit) -> str:
    if row["problem"]:
        return f"=== {row['kind']}: not judged\n  {row['problem']}"
    usual = found.weightings[0]
    width = max(len(name) for name in row["policies"])
    lines = [f"=== {row['kind']}: {row['rounds']} rounds", f"  {'':{width}s}  {found.success or 'success':>9s}  reward"]
    for name, policy in row["policies"].items():
        share = "–" if policy["success"] is None else f"{policy['success']:.2f}"
        mark = "" if policy["honest"] else "  dishonest"
        lines.append(f"  {name:{width}s}  {share:>9s}  {policy[usual.name]:+.3f}{mark}")
    lines += [f"  left out: {text}" for text in row["left_out"]]
    lines += [_judged(weighting, row, found) for weighting in found.weightings]
    return "\n".join(lines)


def _judged(weighting: Weighting, row: Mapping[str, Any], found: Audit) -> str:
    own = [c for c in found.comparisons if c.kind == row["kind"] and c.weighting == weighting.name]
    worst = [c for c in own if c.verdict == "violated"] or [c for c in own if c.verdict == "undecided"]
    if worst:
        worst.sort(key=lambda c: c.more - c.wanted)
        lines = [f"  {worst[0].verdict.upper()}: {_named(weighting)}", *(f"    {_sentence(c)}" for c in worst[:SHOWN])]
        return "\n".join([*lines, *([f"    and {len(worst) - SHOWN} more"] if len(worst) > SHOWN else [])])
    nearest = min(own, key=lambda c: c.more - c.wanted)
    return f"  holds: {_named(weighting)}; nearest: {_sentence(nearest)}"


def _named(weighting: Weighting) -> str:
    parts = ", ".join(f"{name} {weight:g}" for name, weight in weighting.weights.items())
    if weighting.shaping:
        return f"{weighting.name}, which only shapes, beside the others ({parts})"
    return weighting.name if list(weighting.weights) == [weighting.name] else f"{weighting.name} ({parts})"


def _sentence(c: Comparison) -> str:
    why = f": {c.why}" if c.why else ""
    return (
        f"{c.honest} {c.earned[0]:+.3f}, {c.dishonest} {c.earned[1]:+.3f} (more by {c.more:+.3f}, at least "
        f"{c.wanted:.3f}; in a group {c.advantage:+.2f}, at least {c.wanted_advantage:.2f}){why}"
    )


def _verdict(found: Audit) -> str:
    counts = {v: sum(c.verdict == v for c in found.comparisons) for v in ("violated", "undecided")}
    unplayed = [kind.name for kind in found.kinds if kind.problem]
    if found.exit_code == 0:
        return (
            f"{len(found.comparisons)} comparisons hold: every honest script earns more than every dishonest one, by "
            f"at least {MARGIN:.0%} of what the work is worth, and in mixed groups."
        )
    said = []
    if counts["violated"]:
        said.append(
            f"{counts['violated']} of {len(found.comparisons)} comparisons are violated: training would push up what "
            "the dishonest script does. Pay the component only together with success, or take it out."
        )
    if counts["undecided"]:
        said.append(f"{counts['undecided']} are undecided: play more tasks (--per-kind), or a stronger weak script.")
    if unplayed:
        said.append(f"not judged: {', '.join(unplayed)}.")
    return " ".join(said)
