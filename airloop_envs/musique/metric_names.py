"""What this environment measures of an episode, by name: unit and meaning."""

from __future__ import annotations

from airloop.watch.metrics.measured import SHARE

METRICS: dict[str, tuple[str, str]] = {
    "em": (SHARE, "1 if the answer is word for word one of the accepted ones."),
    "f1": (SHARE, "overlap of the answer's words with the accepted ones, F1."),
    "recall": (SHARE, "supporting documents that were found."),
    "precision": (SHARE, "found documents that support the answer."),
    "retrieval_f1": (SHARE, "F1 of the documents found."),
    "citation_recall": (SHARE, "supporting documents that were cited."),
    "citation_precision": (SHARE, "cited documents that support the answer."),
    "citation_f1": (SHARE, "F1 of the documents cited."),
    # As rewards recall, citation_recall and format count × f1 in all of these.
    "mixture": (SHARE, "0.225 em + 0.25 f1 + 0.25 recall + 0.1 precision + 0.15 citation_recall + 0.025 format."),
    "mixture_by_hops": ("", "mixture × hops / 2."),
    "balanced": (SHARE, "0.25 em + 0.25 f1 + 0.25 retrieval_f1 + 0.2 citation_f1 + 0.05 format."),
    "answer": (SHARE, "(em + f1)/2."),
    "completed": (SHARE, "1 if the agent gave a final answer."),
    "searches": ("count", "searches."),
    "documents_shown": ("count", "documents that the agent was shown."),
    "documents_cited": ("count", "documents that the answer cites."),
    "answer_words": ("words", "words of the answer."),
}
