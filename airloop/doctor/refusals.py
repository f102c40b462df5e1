"""Why a check could not be made: what it needs is broken, or could not be had here in time."""

from __future__ import annotations

from airloop.errors import AirError

NO_EVIDENCE = "without evidence this is neither a pass nor a failure"
SLOWER = "a smaller model, shorter replies (orchestrator.sampling.max_tokens) or a less busy machine; the run may start"


class Broken(AirError):
    """Something that checks need cannot be had. Said once, under `ids`, however many checks needed it."""

    def __init__(self, problem: str, fix: str, ids: tuple[str, ...], why: str) -> None:
        super().__init__(problem, fix)
        self.ids = ids
        self.why = why


class NotJudged(Broken):
    """What checks need could not be had in time: they are not judged, and nothing fails. `problem` has the reason and,
    where it is known, how long it would take here."""

    def __init__(self, problem: str, fix: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(problem, fix, ids, NO_EVIDENCE)


class Unanswered(NotJudged):
    """Not even a few tokens could be had."""
