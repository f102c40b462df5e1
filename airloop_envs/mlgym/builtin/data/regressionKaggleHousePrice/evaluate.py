from __future__ import annotations

import argparse
import math

from submission import all_ids, read_answers, read_submission
from verdict import report


def price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("it must be a number.") from None
    if not math.isfinite(value) or abs(value) > 1e12:
        raise ValueError("it must be a finite price.")
    return value


def evaluate(path: str) -> dict[str, dict[str, float]]:
    halves = read_answers("Id", "SalePrice")
    guesses = read_submission(path, "Id", "SalePrice", all_ids(halves), price)
    return {half: scores(guesses, answers) for half, answers in halves.items()}


def scores(guesses: dict[str, float], texts: dict[str, str]) -> dict[str, float]:
    answers = {key: float(value) for key, value in texts.items()}
    mean = math.fsum(answers.values()) / len(answers)
    wrong = math.fsum((guesses[i] - answers[i]) ** 2 for i in answers)
    spread = math.fsum((value - mean) ** 2 for value in answers.values())
    return {"rmse": round(math.sqrt(wrong / len(answers)), 3), "r2": round(1 - wrong / spread, 6)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission_file", required=True)
    path = parser.parse_args().submission_file
    report(lambda: evaluate(path))
