"""What an episode of research is worth, component by component.

Each has a name; a config weighs those it wants (`rewards = { headroom = 1.0, idle = 1.0 }`), and only those are
computed. Scores that count come from grading alone, and belong to an artefact made in this episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.spec import Yardstick

TURN_COMPONENTS = ("tool", "delta")
EPISODE_COMPONENTS = ("improvement", "headroom", "idle", "episode_end", "validated", "code_quality", "tier")
OF_REFERENCE = frozenset({"headroom", "tier"})  # that need a best known score
COMPONENTS: Mapping[str, str] = {
    "improvement": "10 × (score − baseline)/|baseline|, signed by the metric's direction; not below -2, and -2 without",
    "headroom": "share of the way from the baseline to the reference that was gone, from -1 to 1; -1 without a score",
    "idle": "-0.5 if what was submitted is the starter's work or the sample: its bytes, but for comments, or its score",
    "tool": "+0.5 for a turn whose command ran without error, -0.5 for an error",
    "delta": "at each validation, score − the one before (the baseline at first), signed",
    "episode_end": "score − baseline at the end, in the metric's own units, signed; 0 without a score",
    "validated": "1 if the agent validated a submission at all",
    "code_quality": "share of the agent's Python files that compile, and how few style errors they have, from 0 to 1; "
    "0 unless the score is better than the baseline: starter code is tidy, and nobody's work",
    "tier": "headroom in steps of a quarter, rounded up so that any gain is above none; steps leave many groups "
    "without a difference to learn from",
    "percentile": "rank of the score within the group, from 0 to 1",
}
TOOL = 0.5
WORST_IMPROVEMENT = -2.0  # no score, or one that is worth less: to try is never the worse choice
WORST_HEADROOM = -1.0
IDLE = -0.5


def tool(failed: bool) -> float:
    return -TOOL if failed else TOOL


def for_episode(
    names: Sequence[str],
    yardstick: Yardstick,
    baseline: float,
    score: float | None,
    validated: bool,
    code_quality: float,
    idle: bool = False,
) -> dict[str, float]:
    """The whole-episode components among `names`."""
    if score is None:
        share, better, raw = WORST_HEADROOM, WORST_IMPROVEMENT, 0.0
    else:
        share = metrics.headroom(yardstick, baseline, score) if yardstick.reference is not None else 0.0
        better = max(WORST_IMPROVEMENT, metrics.improvement(yardstick, baseline, score))
        raw = metrics.gain(yardstick, baseline, score)
    all_of_them = {
        "improvement": better,
        "headroom": share,
        "idle": IDLE if idle else 0.0,
        "episode_end": raw,
        "validated": float(validated),
        "code_quality": code_quality,
        "tier": math.ceil(share * 4) / 4,
    }
    return {name: value for name, value in all_of_them.items() if name in names}


def percentiles(scores: Sequence[float | None]) -> list[float]:
    """Each one's rank among all, ties sharing theirs; no score ranks last. Higher is better here."""
    known = [-math.inf if score is None else score for score in scores]
    if len(known) < 2:
        return [0.0] * len(known)
    below = [sum(other < mine for other in known) for mine in known]
    ties = [sum(other == mine for other in known) - 1 for mine in known]
    return [(b + t / 2) / (len(known) - 1) for b, t in zip(below, ties, strict=True)]
