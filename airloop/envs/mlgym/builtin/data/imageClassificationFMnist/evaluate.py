from __future__ import annotations

import argparse

from submission import read_answers, read_submission
from verdict import report

LABELS = {str(label) for label in range(10)}


def label(text: str) -> str:
    if text not in LABELS:
        raise ValueError("it must be a whole number from 0 to 9.")
    return text


def evaluate(path: str) -> dict[str, float]:
    answers = read_answers("id", "label")
    guesses = read_submission(path, "id", "label", set(answers), label)
    return {"accuracy": round(sum(guesses[i] == answers[i] for i in answers) / len(answers), 6)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--submission_file", required=True)
    path = parser.parse_args().submission_file
    report(lambda: evaluate(path))
