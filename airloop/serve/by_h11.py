"""A connection whose requests are read by h11, in Python: what is there with every installation."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """h11 bounds heads and all else that is not a body by itself (64 KiB)."""

    @property
    def half_read(self) -> bool:
        """Whether there is more to come of the request's body."""
        return self.conn.their_state is h11.SEND_BODY
