"""What the environments measure of an episode, by name: unit and meaning. A component of the reward has the same name
and meaning as the metric."""

from __future__ import annotations

from airloop.success import METRIC

SHARE = "share"


def is_share(name: str) -> bool:
    """Whether a metric of this name lies between 0 and 1."""
    return name == METRIC or MEASURED.get(name, ("", ""))[0] == SHARE


MEASURED: dict[str, tuple[str, str]] = {
    # every episode of a policy
    "turns": ("turns", "replies of the agent."),
    "invalid_actions": (SHARE, "actions that could not be read from the reply."),
    "sampled_tokens": ("tokens", "tokens that were sampled."),
    "length_stops": (SHARE, "replies that ended at max_tokens instead of a stop token."),
    "cached_share": (SHARE, "prompt tokens that were found in the engine's cache."),
    "seconds_opening": ("s", "until the session was open."),
    "seconds_scoring": ("s", "until the episode was graded."),
    # of a model behind a URL
    "tokens_in": ("tokens", "tokens of the requests, as the server counts them."),
    "tokens_out": ("tokens", "tokens of the replies, as the server counts them."),
    "cost": ("price", "what the tokens cost by the prices that were given."),
    "request_retries": ("count", "requests that were repeated."),
    # research: tune, mlgym
    "score": ("metric", "the score of what was submitted, in the task's own metric."),
    "validate_score": ("metric", "what `validate` says of it, where that is on other rows than the score (mlgym)."),
    "baseline": ("metric", "the baseline's score in the task's own metric."),
    "reference": ("metric", "the best known score in the task's own metric."),
    "improved": (SHARE, "1 if the baseline was beaten (in mlgym by more than the metric's noise)."),
    "improvement": ("", "10 × (score − baseline)/|baseline|, signed by the metric's direction; not below -2."),
    "headroom": ("", "share of the way from the baseline to the reference that was gone, from -1 to 1."),
    "trained": (SHARE, "1 if the agent trained a model at all."),
    "scored": (SHARE, "1 if there was a score."),
    "validated": (SHARE, "1 if the agent validated a submission."),
    "submitted": (SHARE, "1 if the agent submitted."),
    "autosubmitted": (SHARE, "1 if what lay there at the end was submitted for the agent."),
    "submission_not_found": (SHARE, "1 if there was nothing to be graded."),
    "evaluation_failed": (SHARE, "1 if the submission could not be graded."),
    "too_good": (SHARE, "1 if the score lay above the known optimum and was withheld."),
    "world_lost": (SHARE, "1 if the agent broke its own sandbox."),
    "commands_failed": ("count", "commands that ended in an error."),
    "idle": ("", "metric: 1 if what was submitted is the starter's work; component: what that costs, -0.5."),
    "tool": ("", "+0.5 for a turn whose command ran without error, -0.5 for an error."),
    "delta": ("metric", "at each validation, the score less the one before, signed."),
    "episode_end": ("metric", "score − baseline at the end, signed; 0 without a score."),
    "code_quality": (SHARE, "how much of the agent's Python compiles, how few style errors it has; 0 unless improved."),
    "tier": ("", "headroom in steps of a quarter, rounded up."),
    "percentile": (SHARE, "rank of the score within the group."),
    # answers: arith, gsm8k, musique, soup
    "correct": (SHARE, "1 if the answer was right."),
    "answered": (SHARE, "1 if an answer was given."),
    "format": (SHARE, "how far the reply, or its calls, had the right form."),
    "calculator_calls": ("count", "calls of the calculator."),
    "tool_errors": ("count", "tool calls that were refused."),
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
    "answer": (SHARE, "musique: (em + f1)/2. soup: what the answer earned, before efficiency."),
    "completed": (SHARE, "1 if the agent gave a final answer."),
    "searches": ("count", "searches."),
    "documents_shown": ("count", "documents that the agent was shown."),
    "documents_cited": ("count", "documents that the answer cites."),
    "answer_words": ("words", "words of the answer."),
    "passed": (SHARE, "1 if the page's question was answered, or its limit named where it has one."),
    "limit": (SHARE, "1 if the agent said, rightly, that the page does not hold the answer."),
    "partial": (SHARE, "1 if the answer was right in part."),
    "violation": (SHARE, "1 if the answer held what it must not hold."),
    "schema_error": (SHARE, "1 if the answer had not the form that was asked for."),
    "calls": ("count", "code that the agent ran."),
    "failed_calls": ("count", "code that ended in an error."),
    "used_soup": (SHARE, "1 if the page was read with the library."),
    "safety": ("", "what a violation costs: 0 or less."),
    "efficiency": ("", "what further calls cost: 0 or less."),
    "library": ("", "what it costs not to use the library: 0 or less."),
    "process": ("", "what was earned for work without a right answer."),
    # of training itself
    "overlong": ("", "what length near its limit costs (trainer.loss.overlong): 0 or less."),
}
