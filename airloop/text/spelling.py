"""Misspellings: names a slip of the finger apart. What differs more has another meaning, and is not guessed."""

from __future__ import annotations

from collections.abc import Iterable


def distance(a: str, b: str) -> int:
    """Letters to insert, delete, replace, or swap with their neighbour."""
    rows = [list(range(len(b) + 1))]
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            steps = [rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (left != right)]
            if i > 1 and j > 1 and left == b[j - 2] and right == a[i - 2]:
                steps.append(rows[-2][j - 2] + 1)
            row.append(min(steps))
        rows.append(row)
    return rows[-1][-1]


def misspelt(word: str, known: Iterable[str]) -> str | None:
    """The one name that `word` is a misspelling of: hyphens and case do not count, short names allow one slip, and two
    names that are equally near are no answer."""
    plain = _plain(word)
    slips = 0 if len(plain) < 3 else 1 if len(plain) < 8 else 2
    near = sorted((distance(plain, _plain(name)), name) for name in known if _plain(name)[:1] == plain[:1])
    near = [(d, name) for d, name in near if d <= slips]
    if not near or (len(near) > 1 and near[0][0] == near[1][0]):
        return None
    return near[0][1]


def shortened(word: str, known: Iterable[str]) -> str | None:
    """The one name that `word` is the beginning of, with more words after it. For a question, not for a correction."""
    longer = [name for name in known if name.startswith(f"{word}_")]
    return longer[0] if len(longer) == 1 else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
