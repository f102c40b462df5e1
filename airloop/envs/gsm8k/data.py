"""The problems of each split: GSM8K's rows (`question`, and `answer` with the result after ####), or generated ones.

No question is in two splits; `airloop.envs.splits` says which is where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.envs.gsm8k.answers import MARK, read_number
from airloop.envs.gsm8k.problems import generated_rows
from airloop.envs.rows import GENERATED
from airloop.envs.splits import SPLITS, TEST_SHARE, hash_of, home, read_with_test
from airloop.errors import AirError

# Of the generated problems, as they are split by default: to make them only to count them takes a quarter of a second.
GENERATED_COUNTS = {"train": 1666, "eval": 113, "test": 221}

_ANNOTATION = re.compile(r"<<([^<>]*)>>")


@dataclass(frozen=True)
class Problem:
    """`expressions` are what the reference solution computes, from its <<a*b=c>>; `steps` is their number, or the
    number of lines of a solution without any."""

    id: str
    question: str
    solution: str  # without annotations, ending in "#### result"
    result: str
    expressions: tuple[tuple[str, str], ...]  # the words before a calculation, the calculation
    steps: int


def load_problems(
    dataset: str | None, test_dataset: str | None, eval_share: float, max_calculations: int | None
) -> dict[str, list[Problem]]:
    """Every split's problems, in the order of the rows."""
    rows, test_rows = _rows(dataset, test_dataset)
    label = GENERATED if dataset in (None, GENERATED) else "gsm8k"
    test = _problems(test_rows, label, test_dataset or dataset or "")
    rest = {key: problem for key, problem in _problems(rows, label, dataset or "").items() if key not in test}
    test_share = 0.0 if test else TEST_SHARE
    splits: dict[str, list[Problem]] = {split: [] for split in SPLITS}
    for problem in rest.values():
        splits[home(problem.id, eval_share, test_share)].append(problem)
    splits["test"] += test.values()
    limit = max_calculations or max(p.steps for found in splits.values() for p in found)
    return {split: [p for p in found if p.steps <= limit] for split, found in splits.items()}


def _rows(dataset: str | None, test_dataset: str | None) -> tuple[Sequence[Mapping[str, Any]], Sequence[Any]]:
    if dataset in (None, GENERATED):
        if test_dataset:
            raise AirError(
                f"test_dataset = {test_dataset!r} is given, but the training problems are generated.",
                "give dataset too, or leave test_dataset out.",
            )
        return generated_rows(), ()
    assert dataset is not None
    return read_with_test(dataset, test_dataset)


def _problems(rows: Sequence[Mapping[str, Any]], label: str, source: str) -> dict[str, Problem]:
    """By id, which is a hash of the question: the same row has the same name in every slice and file."""
    found: dict[str, Problem] = {}
    for number, row in enumerate(rows, 1):
        problem = _problem(row, label, f"Row {number} of {source or label}")
        found.setdefault(problem.id, problem)
    return found


def _problem(row: Mapping[str, Any], label: str, where: str) -> Problem:
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise AirError(f"{where} has no text as question and answer.", f"its keys are {', '.join(row)}; rename them.")
    working, mark, result = answer.rpartition(MARK)
    if not mark or read_number(result) is None:
        raise AirError(f"{where} has no number after {MARK} in its answer.", f"end the answer with `{MARK} 42`.")
    expressions = _expressions(working)
    lines = sum(bool(line.strip()) for line in working.splitlines())
    return Problem(
        f"{label}-{hash_of(question)}",
        question.strip(),
        f"{_ANNOTATION.sub('', working).strip()}\n{MARK} {result.strip()}".strip(),
        result.strip(),
        expressions,
        len(expressions) or max(lines, 1),
    )


def _expressions(working: str) -> tuple[tuple[str, str], ...]:
    """Every annotation with the words of its line that lead to it."""
    found = []
    for line in working.splitlines():
        at = 0
        for match in _ANNOTATION.finditer(line):
            expression = match[1].rpartition("=")[0]
            words = line[at : match.start()].strip().rstrip("=$ ").strip()
            at = match.end()
            if expression:
                found.append((words, expression))
    return tuple(found)
