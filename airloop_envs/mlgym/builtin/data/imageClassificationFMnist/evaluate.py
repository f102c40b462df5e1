from __future__ import annotations

import argparse

from submission import all_ids, read_answers, read_submission
from verdict import report

LABELS = {str(label) for label in range(10)}


def label(text: str) -> str:
    if text not in LABELS:
        raise ValueError("it must be a whole number from 0 to 9.")
    return text


def evaluate(path: str) -> dict[str, dict[str, float]]:
    halves = read_answers("id", "label")
    guesses = read_submission(path, "id", "label", all_ids(halves), label)
    return {half: scores(guesses, answers) for half, answers in halves.items()}


def scores(guesses: dict[str, str], answers: dict[str, str]) -> dict[str, float]:
    return {"accuracy": round(sum(guesses[i] == answers[i] for i in answers) / len(answers), 6)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission_file", required=True)
    path = parser.parse_args().submission_file
    report(lambda: evaluate(path))
