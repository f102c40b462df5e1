"""Word problems made from a seed, in the form of GSM8K's rows: not GSM8K, and never called so.

They let every command run where no data is at hand. A problem is a stock of things that changes a few times; each
change is one sentence of the question, one line of the solution and one `<<a+b=c>>`. All numbers are whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

COUNT = 2000
LENGTHS = (1, 1, 2, 2, 2, 3, 3, 4, 5, 6)  # calculations, as likely as they are listed
MOST = 900  # the largest stock: products of it stay readable

NAMES = ("Ada", "Boris", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")
THINGS = ("apples", "books", "candles", "marbles", "pencils", "postcards", "shells", "stamps", "stickers", "tiles")
PLACES = ("at a market", "from a neighbour", "in a drawer", "at a fair", "in the attic", "from an aunt")


@dataclass
class Story:
    rng: random.Random
    name: str
    things: str
    stock: int
    sentences: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def step(self, sentence: str, said: str, expression: str, result: int) -> None:
        self.sentences.append(sentence)
        self.lines.append(f"{said} {expression} = <<{expression.replace(' ', '')}={result}>>{result} {self.things}.")
        self.stock = result


def _find(story: Story) -> None:
    more = story.rng.randint(2, 60)
    story.step(
        f"{story.name} finds {more} more {story.rng.choice(PLACES)}.",
        "After finding more, there are",
        f"{story.stock} + {more}",
        story.stock + more,
    )


def _give(story: Story) -> None:
    fewer = story.rng.randint(1, max(1, story.stock // 2))
    story.step(
        f"{story.name} gives {fewer} of them to a friend.",
        "After the gift, there remain",
        f"{story.stock} - {fewer}",
        story.stock - fewer,
    )


def _multiply(story: Story) -> None:
    times = story.rng.randint(2, 5)
    story.step(
        f"After a lucky week there are {times} times as many.",
        "After the lucky week, there are",
        f"{story.stock} * {times}",
        story.stock * times,
    )


def _share(story: Story) -> None:
    """Only where the stock can be shared without a remainder."""
    ways = [n for n in range(2, 10) if story.stock % n == 0 and story.stock // n > 1]
    if not ways:
        return _find(story)
    ways_taken = story.rng.choice(ways)
    story.step(
        f"{story.name} shares them equally among {ways_taken} boxes and keeps only one box.",
        "One box holds",
        f"{story.stock} / {ways_taken}",
        story.stock // ways_taken,
    )


CHANGES: tuple[Callable[[Story], None], ...] = (_find, _give, _multiply, _share)


def generate(number: int) -> dict[str, str]:
    """Problem `number`, the same for ever: {"question", "answer"}."""
    rng = random.Random(f"gsm8k-like problem {number}")
    story = Story(rng, rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 40))
    story.sentences.append(f"{story.name} has {story.stock} {story.things}.")
    for _ in range(rng.choice(LENGTHS)):
        # Small stocks grow and large ones shrink, so that no story ends with one thing or a million.
        allowed = [
            c
            for c in CHANGES
            if (c is not _give or story.stock > 2) and (c is not _multiply or story.stock * 5 <= MOST)
        ]
        rng.choice(allowed)(story)
    question = " ".join([*story.sentences, f"How many {story.things} does {story.name} have now?"])
    return {"question": question, "answer": "\n".join([*story.lines, f"#### {story.stock}"])}


def generated_rows(count: int = COUNT) -> list[dict[str, str]]:
    """`count` different questions."""
    rows: dict[str, dict[str, str]] = {}
    number = 0
    while len(rows) < count:
        row = generate(number)
        rows.setdefault(row["question"], row)
        number += 1
    return list(rows.values())
