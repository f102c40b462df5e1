"""What an episode is worth: the answer, the documents found, the documents cited, the form.

Nothing here is caught: a score that cannot be computed is a defect, raised with its trajectory, never a zero.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

# The weights others trained with, which add up to 4: (0.9 EM + 1.0 F1 + 1.0 R + 0.4 P + 0.6 C + 0.1 F) / 4.
MIXTURE: Mapping[str, float] = {
    "em": 0.225,
    "f1": 0.25,
    "recall": 0.25,
    "precision": 0.1,
    "citation_recall": 0.15,
    "format": 0.025,
}
# The same aims without the loophole: who opens and cites all twenty documents has 0.43 of the mixture, 0.13 of this. It
# is what is trained on by default.
BALANCED: Mapping[str, float] = {"em": 0.25, "f1": 0.25, "retrieval_f1": 0.25, "citation_f1": 0.2, "format": 0.05}
ANSWER: Mapping[str, float] = {"em": 0.5, "f1": 0.5}
COMBINATIONS: Mapping[str, Mapping[str, float]] = {"mixture": MIXTURE, "balanced": BALANCED, "answer": ANSWER}

# What can be had in full without an answer (by opening and citing everything, by calls with nothing in them) is paid
# only as far as the answer is right. Metrics show it as it is.
ONLY_WITH_ANSWER = ("recall", "citation_recall", "format")

SINGLE = (
    "em",
    "f1",
    "recall",
    "precision",
    "retrieval_f1",
    "citation_recall",
    "citation_precision",
    "citation_f1",
    "format",
)
COMPONENTS = (*SINGLE, *COMBINATIONS, "mixture_by_hops")


@dataclass(frozen=True)
class Outcome:
    """What is scored of an episode. `answer` is None if it was never given."""

    answer: str | None
    retrieved: frozenset[int]
    cited: frozenset[int]
    calls: int  # everything the agent tried to call
    valid_calls: int


def measure(outcome: Outcome, answers: Collection[str], supporting: Collection[int], hops: int) -> dict[str, float]:
    """Every component by its name, those that count and those that are only watched."""
    recall, precision, retrieval_f1 = overlap(outcome.retrieved, supporting)
    cited_recall, cited_precision, citation_f1 = overlap(outcome.cited, supporting)
    said = outcome.answer is not None
    values = {
        "em": exact_match(outcome.answer, answers) if outcome.answer is not None else 0.0,
        "f1": f1(outcome.answer, answers) if outcome.answer is not None else 0.0,
        "recall": recall,
        "precision": precision,
        "retrieval_f1": retrieval_f1,
        "citation_recall": cited_recall,
        "citation_precision": cited_precision,
        "citation_f1": citation_f1,
        # Half for calls in the right form, half for having come to an end in the right form.
        "format": 0.5 * outcome.valid_calls / max(outcome.calls, 1) + 0.5 * said,
    }
    return with_combinations(values, hops)


def paid(values: Mapping[str, float], hops: int) -> dict[str, float]:
    """What each component is worth as a reward."""
    right = values["f1"]
    return with_combinations(
        {name: values[name] * (right if name in ONLY_WITH_ANSWER else 1.0) for name in SINGLE}, hops
    )


def with_combinations(values: Mapping[str, float], hops: int) -> dict[str, float]:
    combined = {
        name: sum(weight * values[part] for part, weight in weights.items()) for name, weights in COMBINATIONS.items()
    }
    # Rewards of different size for different questions make one curve of many; offered because runs used it.
    return {**values, **combined, "mixture_by_hops": combined["mixture"] * hops / 2}


def normalise(text: str) -> str:
    """As SQuAD's evaluation does: lower case, without punctuation, articles and extra spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, references: Iterable[str]) -> float:
    return float(max(normalise(answer) == normalise(reference) for reference in references))


def f1(answer: str, references: Iterable[str]) -> float:
    return max(_token_f1(normalise(answer).split(), normalise(reference).split()) for reference in references)


def _token_f1(said: list[str], meant: list[str]) -> float:
    if not said or not meant:
        return float(said == meant)
    same = (Counter(said) & Counter(meant)).total()
    return 2 * same / (len(said) + len(meant))


def overlap(chosen: Collection[int], right: Collection[int]) -> tuple[float, float, float]:
    """Recall, precision and their harmonic mean; 0 where nothing was chosen."""
    hits = len(set(chosen) & set(right))
    if not hits:
        return 0.0, 0.0, 0.0
    return hits / len(right), hits / len(chosen), 2 * hits / (len(right) + len(chosen))
