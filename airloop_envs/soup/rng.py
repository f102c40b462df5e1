"""Seeded chance that is the same for ever.

Only random.Random's `random()` is used, whose sequence for a text seed does not change between Python versions;
`choice`, `shuffle` and `sample` of the standard library have changed before and give no such promise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

CONSONANTS = "bcdfghjklmnprstvz"
VOWELS = "aeiou"


class Rng:
    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random = random.Random(seed).random

    def fork(self, name: str) -> Rng:
        """Chance of its own, whatever has been drawn here."""
        return Rng(f"{self._seed}/{name}")

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, share: float) -> bool:
        return self._random() < share

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = int(self._random() * (last + 1))
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def sample(self, items: Sequence[T], n: int) -> list[T]:
        """`n` different places of `items`, in random order."""
        pool = list(items)
        if n > len(pool):
            raise ValueError(f"A sample of {n} was asked of {len(pool)} items.")
        for place in range(n):
            other = place + int(self._random() * (len(pool) - place))
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:n]

    def numbers(self, low: int, high: int, n: int) -> list[int]:
        """`n` different whole numbers."""
        found: list[int] = []
        while len(found) < n:
            number = self.between(low, high)
            if number not in found:
                found.append(number)
        return found

    def hexadecimal(self, length: int) -> str:
        return "".join("0123456789abcdef"[int(self._random() * 16)] for _ in range(length))

    def invented(self, syllables: int = 3) -> str:
        """A word that is in no dictionary, so no prompt can hold it by accident."""
        return "".join(self.pick(CONSONANTS) + self.pick(VOWELS) for _ in range(syllables))
