"""What an episode was refused for want of room: no doing of its agent, whatever the agent makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airloop.engine.base import ContextFull
from airloop.serve.chat_form import BadRequest

OVERLOADED = "overloaded"  # the code of such a refusal
UNREAD = b""  # in place of a digest: the request was refused before all of it was read
HUNG_UP = 499  # a status: the client did not wait for its answer


@dataclass
class Refusals:
    """`unanswered`: digests of the requests that were refused and have not been answered since. `crowded`: connections
    that were closed for others, or refused unread: a request of the episode may have been lost with one, unheard."""

    unanswered: set[bytes] = field(default_factory=set)
    crowded: int = 0

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
