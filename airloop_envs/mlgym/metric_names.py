"""What this environment measures of an episode, by name: unit and meaning."""

from __future__ import annotations

from airloop.watch.metrics.measured import SHARE

METRICS: dict[str, tuple[str, str]] = {
    "improved": (SHARE, "only where it was beaten by more than the metric's noise."),
    "validate_score": ("metric", "what `validate` says of it, where that is on other rows than the score."),
    "best_score": ("metric", "of all that was graded in the episode, the one that `validate` showed as the best."),
    "final_score": ("metric", "of what was handed in last."),
    "scored": (SHARE, "1 if there was a score."),
    "autosubmitted": (SHARE, "1 if what lay there at the end was submitted for the agent."),
    "submission_not_found": (SHARE, "1 if there was nothing to be graded."),
    "evaluation_failed": (SHARE, "1 if the submission could not be graded."),
    "world_lost": (SHARE, "1 if the agent broke its own sandbox."),
    "commands_failed": ("count", "commands that ended in an error."),
    "tool": ("", "+0.5 for a turn whose command ran without error, -0.5 for an error."),
    "delta": ("metric", "at each validation, the score less the one before, signed."),
    "episode_end": ("metric", "score − baseline at the end, signed; 0 without a score."),
    "code_quality": (SHARE, "how much of the agent's Python compiles, how few style errors it has; 0 unless improved."),
    "tier": ("", "headroom in steps of a quarter, rounded up."),
    "percentile": (SHARE, "rank of the score within the group."),
}
