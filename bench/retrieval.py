"""How fast documents are found, and how well: each retriever of MuSiQue over the twenty paragraphs of a question.

python bench/retrieval.py                            # generated questions, no embedding model
python bench/retrieval.py --datasets musique_dev.jsonl.gz --retrievers lexical,semantic,hybrid

The query is the question itself. Speed is queries per second of CPU time (so: of one core), with indexes and vectors
of documents at hand; `first` is what the first query of a question takes, which makes them or reads them from the
cache. The aim is 10,000 queries a second (lexical).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from airloop_envs.musique.library import load
from airloop_envs.musique.questions import Question, arrange
from airloop_envs.musique.retrievers import Retriever, make_retriever
from airloop_envs.musique.vectors import DEFAULT

AIM = 10_000  # queries a second
TOPS = (1, 2, 5)


@dataclass
class Result:
    first_ms: float
    per_second: float
    recall: dict[int, float]


async def measure(retriever: Retriever, questions: Sequence[Question], seconds: float) -> Result:
    started = time.process_time()
    rankings = [await retriever.rank(question, question.text) for question in questions]
    first = (time.process_time() - started) / len(questions)
    count, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        for question in questions:
            # Another query each time, so that a query's vector is not simply remembered.
            await retriever.rank(question, f"{question.text} {count}")
            count += 1
            if time.process_time() - started > seconds:
                break
    per_second = count / (time.process_time() - started)
    recall = {
        top: sum(
            len(set(ranking[:top]) & q.supporting) / len(q.supporting)
            for q, ranking in zip(questions, rankings, strict=True)
        )
        / len(questions)
        for top in TOPS
    }
    return Result(1000 * first, per_second, recall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="generated")
    parser.add_argument("--retrievers", default="lexical,golden")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each retriever")
    options = parser.parse_args()
    questions = [arrange(question, 1.0, 0) for question in load(options.datasets)]
    print(f"{len(questions)} questions of {options.datasets}")
    print(
        f"{'retriever':10s} {'first ms':>9s} {'queries/s':>10s} {'of the aim':>11s}  "
        + "  ".join(f"R@{t}" for t in TOPS)
    )
    for name in options.retrievers.split(","):
        result = asyncio.run(measure(make_retriever(name, DEFAULT), questions, options.seconds))
        recalls = "  ".join(f"{value:.2f}" for value in result.recall.values())
        print(
            f"{name:10s} {result.first_ms:9.2f} {result.per_second:10.0f} {result.per_second / AIM:10.2f}x  {recalls}",
            flush=True,
        )


if __name__ == "__main__":
    main()
