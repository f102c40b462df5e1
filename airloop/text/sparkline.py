"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int = 24, scale: tuple[float, float] | None = None) -> str:
    """The last `width` values; a gap where there is none or it is no number. `scale`: one for several curves."""
    shown = values[-width:] if width > 0 else []
    finite = [v for v in shown if v is not None and math.isfinite(v)]
    low, high = scale or (min(finite, default=0.0), max(finite, default=0.0))
    span = (high - low) or 1.0
    return "".join(
        " " if v is None or not math.isfinite(v) else _BARS[min(7, int((v - low) / span * 7.999))] for v in shown
    )


def squeezed(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values, each the mean of its share: a whole curve rather than its end."""
    if len(values) <= width:
        return list(values)
    parts = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    means = [[v for v in part if v is not None and math.isfinite(v)] for part in parts]
    return [sum(part) / len(part) if part else None for part in means]
