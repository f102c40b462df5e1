"""Who may ask, and for what: written as ASGI middleware, so that nothing behind it has to think of it.

Only reading. Only under a name that is ours: a page elsewhere could otherwise have its own name resolve to this machine
and read everything here (DNS rebinding). Beyond this machine only with the token, which comes once in the address and
then as a cookie.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import secrets
import socket
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from airloop.errors import AirError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHORTEST_TOKEN = 16
# Plotly sets styles of its own; nothing else may come from elsewhere, and no script may stand in a page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def choose_token(host: str, asked: str | None) -> str | None:
    """None: none is needed. On any address that others can reach there is always one."""
    if asked is not None and len(asked) < SHORTEST_TOKEN:
        raise AirError(
            f"A token of {len(asked)} characters can be guessed.",
            f"give {SHORTEST_TOKEN} or more, or leave --token out: one is made and printed.",
        )
    return asked if asked is not None or is_loopback(host) else secrets.token_urlsafe(24)


def served_names(host: str) -> frozenset[str]:
    """Names under which we may be addressed. Numbers are always good: they cannot be made to point elsewhere."""
    names = {"localhost", host.strip("[]").lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


class Guard:
    def __init__(self, app: ASGIApp, *, host: str, port: int, token: str | None) -> None:
        self._app = app
        self._names = served_names(host)
        self._token = token
        self._cookie = f"air_view_{port}"  # cookies do not know ports: two viewers must not share one
        # Not the token itself: it may hold signs that a cookie cannot.
        self._ticket = hashlib.sha256(f"air view {token}".encode("utf-8", "replace")).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
        if self._token is not None and given is not None and self._matches(given):
            await self._let_in(scope, send)
            return
        await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, f"{scope['method'][:20]} is not possible: this is for reading only.", "use GET."
        if not self._is_ours(headers.get("host", "")):
            name = headers.get("host", "")[:80]
            return 421, f"This server does not answer to the name {name!r}.", "open it under the address it printed."
        apart = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
        if apart:
            return 403, "Another site's page may not read this.", "open the address itself."
        if self._token is not None and not self._knows(scope, headers):
            return 401, "This viewer needs its token.", "open the address that `air view` printed: it ends in ?token=…"
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        name = name.strip("[]").lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in self._names

    def _knows(self, scope: Scope, headers: dict[str, str]) -> bool:
        offered = [value for key, value in parse_qsl(scope["query_string"].decode("latin-1")) if key == "token"]
        scheme, _, value = headers.get("authorization", "").partition(" ")
        offered += [value.strip()] if scheme.lower() == "bearer" else []
        # Read by hand: the cookies of other programs on this machine come too, and one that is not well-formed
        # would make a stricter reader leave out all of them.
        cookies = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        tickets = [value.encode() for name, _, value in cookies if name == self._cookie]
        known = [self._matches(text) for text in offered]
        return any([*known, *(secrets.compare_digest(ticket, self._ticket.encode()) for ticket in tickets)])

    def _matches(self, text: str) -> bool:
        assert self._token is not None
        return secrets.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    async def _let_in(self, scope: Scope, send: Send) -> None:
        """To the same place, without the token in the address: it would stay in the history."""
        query = [(k, v) for k, v in parse_qsl(scope["query_string"].decode("latin-1"), True) if k != "token"]
        # Quoted anew: a line's end or a backslash in it would say something else to a browser than to us.
        place = "/" + quote(scope["path"].lstrip("/")) + (f"?{urlencode(query)}" if query else "")
        cookie = f"{self._cookie}={self._ticket}; Path=/; HttpOnly; SameSite=Lax"
        headers = [(b"location", place.encode("ascii")), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, "", "", headers)


async def _answer(send: Send, status: int, error: str, fix: str, more: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps({"error": error, "fix": fix}).encode() if error else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *(more or [])]})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            added = [(name, value) for name, value in HEADERS if name not in own]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return wrapped
