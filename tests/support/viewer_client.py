"""Asking a viewer over HTTP, as a page or a script does."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any
from urllib.parse import urlencode

from airloop_view.server import LARGEST, Viewer

Values = dict[str, Any]


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(viewer: Viewer, path: str, method: str = "GET", headers: dict[str, str] | None = None, **values: Any) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=20)
    query = f"?{urlencode(values, doseq=True)}" if values else ""
    connection.request(method, path + query, headers=headers or {})
    answer = connection.getresponse()
    found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    connection.close()
    return found


def get(viewer: Viewer, path: str, **values: Any) -> Any:
    answer = ask(viewer, path, **values)
    assert answer.status == 200, answer.body[:500]
    assert answer.headers["content-type"] == "application/json" and len(answer.body) <= LARGEST
    assert "NaN" not in answer.body.decode() and "Infinity" not in answer.body.decode()
    return answer.json


def rows(viewer: Viewer, **values: Any) -> list[Values]:
    found: list[Values] = get(viewer, "/api/trajectories", limit=500, **values)["rows"]
    return found


def check_export(exported: Answer) -> None:
    """Nothing but text: no tag of the agent's, no script, nothing that acts, no address to fetch from."""
    page = exported.body.decode("utf-8")
    assert "default-src 'none'" in page and "attachment" in exported.headers["content-disposition"]
    body = page.partition("</style>")[2]
    tags = set(re.findall(r"<([a-z0-9]+)", body))
    known = "body main h1 h2 h3 b dl dt dd pre section small span details summary fieldset legend input label p"
    assert tags <= set(known.split()), tags - set(known.split())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u200b]", body)
