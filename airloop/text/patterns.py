"""Regular expressions that strangers wrote: whether one is sure to be matched in no time."""

from __future__ import annotations

import re

MOST_REPEATS = 2


def is_quick(pattern: str, repeats: int = MOST_REPEATS, optional: int = 3, longest: int = 200) -> bool:
    """Few repetitions, and none of a group: `(a+)+$` takes longer than the world is old, on a name of its author's
    choice."""
    plain = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern, flags=re.DOTALL)  # signs that are escaped or in a class
    return (
        len(pattern) <= longest
        and len(re.findall(r"[*+{]", plain)) <= repeats
        and len(re.findall(r"(?<![(*+}])\?", plain)) <= optional
        and not re.search(r"\)[*+{]|\(\?(?!:|i\))", plain)  # (?x) would let a comment hide the rest
    )
