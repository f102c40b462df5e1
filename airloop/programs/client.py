"""A client of the policy without dependencies, for agents without a client library. It imports nothing of airloop.

client = Client()                                   # OPENAI_BASE_URL and OPENAI_API_KEY
reply = client.chat.completions.create(messages=[{"role": "user", "content": "1+1="}])
reply.choices[0].message.content
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

TRIES, WAIT_S, TIMEOUT_S = 3, 1.0, 600


class Client:
    """The part of OpenAI's client for chat completions, with the same names of methods and fields."""

    def __init__(self, base_url: str = "", api_key: str = "") -> None:
        self.base_url = (base_url or os.environ["OPENAI_BASE_URL"]).rstrip("/")
        self.api_key = api_key or os.environ["OPENAI_API_KEY"]
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **body: Any) -> Any:
        return self.post("/chat/completions", {"model": "policy", **body})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        for number in range(TRIES):
            head = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
            head["X-Stainless-Retry-Count"] = str(number)  # a retry gets the same answer, and no second sample
            request = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), head)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    return json.load(response, object_hook=_Answer)
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                if error.code < 500:
                    raise RuntimeError(f"{error.code}: {text}") from None
                if number == TRIES - 1:
                    raise ConnectionError(f"{error.code}: {text}") from None
            except OSError:
                if number == TRIES - 1:
                    raise
            time.sleep(WAIT_S * 2**number)


class AsyncClient(Client):
    async def create(self, **body: Any) -> Any:
        return await asyncio.to_thread(super().create, **body)


class _Answer(dict[str, Any]):
    """A dictionary with its keys as attributes, None for missing ones; a message can be sent back unchanged."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)
