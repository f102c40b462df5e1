"""What this environment measures of an episode, by name: unit and meaning."""

from __future__ import annotations

from airloop.watch.metrics.measured import SHARE

METRICS: dict[str, tuple[str, str]] = {
    "answer": (SHARE, "what the answer earned, before efficiency."),
    "passed": (SHARE, "1 if the page's question was answered, or its limit named where it has one."),
    "limit": (SHARE, "1 if the agent said, rightly, that the page does not hold the answer."),
    "partial": (SHARE, "1 if the answer was right in part."),
    "violation": (SHARE, "1 if the answer held what it must not hold."),
    "schema_error": (SHARE, "1 if the answer had not the form that was asked for."),
    "calls": ("count", "code that the agent ran."),
    "failed_calls": ("count", "code that ended in an error."),
    "used_soup": (SHARE, "1 if the page was read with the library."),
    "safety": ("", "what a violation costs: 0 or less."),
    "efficiency": ("", "what further calls cost: 0 or less."),
    "library": ("", "what it costs not to use the library: 0 or less."),
    "process": ("", "what was earned for work without a right answer."),
}
