from __future__ import annotations

import argparse

from submission import all_ids, read_answers, read_submission
from verdict import report


def survived(text: str) -> int:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1.")
    return int(text)


def evaluate(path: str) -> dict[str, dict[str, float]]:
    halves = read_answers("PassengerId", "Survived")
    guesses = read_submission(path, "PassengerId", "Survived", all_ids(halves), survived)
    return {half: scores(guesses, answers) for half, answers in halves.items()}


def scores(guesses: dict[str, int], answers: dict[str, str]) -> dict[str, float]:
    return {"accuracy": round(sum(guesses[i] == int(answers[i]) for i in answers) / len(answers), 6)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission_file", required=True)
    path = parser.parse_args().submission_file
    report(lambda: evaluate(path))
