"""What an episode was refused for want of room: no doing of its agent, whatever the agent makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airloop.engine.base import ContextFull
from airloop.serve.chat_form import BadRequest

OVERLOADED = "overloaded"  # the code of such a refusal
UNREAD = b"unread"  # in place of a digest, of a request of unknown length that was refused before all of it was read
HUNG_UP = 499  # a status: the client did not wait for its answer


def unread(announced: str | None) -> bytes:
    """In place of the digest of a request that was refused before all of it was read, by its announced length."""
    return UNREAD if announced is None else UNREAD + announced.encode()


@dataclass
class Refusals:
    """`unanswered`: digests of the requests that were refused and have not been answered since. `crowded`: connections
    that were closed for others, or refused unread: a request of the episode may have been lost with one, unheard."""

    unanswered: set[bytes] = field(default_factory=set)
    crowded: int = 0

    def read(self, length: int, digest: bytes) -> None:
        """A body has come whole. One that was refused unread and was as long is taken for the same, sent again: few
        clients say so."""
        if (unknown := unread(str(length))) in self.unanswered:
            self.unanswered = self.unanswered - {unknown} | {digest}

    @contextmanager
    def answering(self, digest: bytes, again: bool) -> Iterator[None]:
        """Around the answer to a request, which may be one that was refused before: the same to the byte, or one that
        its client sends `again`. An answer that says what is wrong with the request is one, too."""
        refused = self.unanswered & ({digest, UNREAD} if again else {digest})
        answered = True
        try:
            yield
        except BaseException as error:
            answered = isinstance(error, BadRequest | ContextFull) and getattr(error, "status", 400) < HUNG_UP
            raise
        finally:
            if answered:
                self.unanswered -= refused
