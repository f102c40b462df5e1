"""Limits on the bodies of requests: in size, each and together, and in time."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airloop.serve.cancellation import CONNECTION, client_disconnected
from airloop.serve.chat_form import BadRequest
from airloop.serve.refusals import OVERLOADED

if TYPE_CHECKING:
    from starlette.requests import Request

LARGEST_BODY = 16 << 20  # bytes: some four million tokens
MOST_HELD = 256 << 20  # bytes of all bodies that are being read
BODY_S = 60.0  # for a body to arrive, from its request's head on
TWO_LENGTHS = "invalid_framing"


@dataclass
class RequestBodies:
    """Reads the bodies of the requests to one server, within limits."""

    held: int = 0  # bytes

    async def read(self, request: Request) -> bytes:
        """A body that is too large is refused by its announced length, before any of it is read."""
        _check_framing(request)
        held = bytearray()
        try:
            async with contextlib.nullcontext() if _has_come(request) else asyncio.timeout(BODY_S):
                more = True
                while more:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise client_disconnected()
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    held += chunk
                    self.held += len(chunk)
                    _check_length(len(held))
                    if self.held > MOST_HELD:
                        raise BadRequest("Too much is being sent at once.", code=OVERLOADED, status=503)
        except TimeoutError:
            raise BadRequest(f"The body has not come in {BODY_S:g} s.", code="request_timeout", status=408) from None
        finally:
            self.held -= len(held)
        return bytes(held)


def _has_come(request: Request) -> bool:
    """Whether nothing of its body is to be waited for, as with most: they need no timer."""
    connection = request.scope.get("state", {}).get(CONNECTION)
    return connection is not None and not connection.half_read


def _check_framing(request: Request) -> None:
    """Refuses requests with two lengths: a proxy may have used the other one."""
    announced = request.headers.get("content-length")
    if announced is not None and "transfer-encoding" in request.headers:
        raise BadRequest("Content-Length and Transfer-Encoding exclude each other.", code=TWO_LENGTHS)
    _check_length(int(announced or 0))


def _check_length(length: int) -> None:
    if length > LARGEST_BODY:
        raise BadRequest(f"The body has more than {LARGEST_BODY >> 20} MiB.", code="request_too_large", status=413)
