"""A client of the policy without dependencies, for agents that have no library of their own. It stands alone.

client = Client()                                   # OPENAI_BASE_URL and OPENAI_API_KEY
reply = client.chat([{"role": "user", "content": "1+1="}])
reply["content"]
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

TRIES, WAIT_S, TIMEOUT_S = 3, 1.0, 600


class Client:
    def __init__(self, base_url: str = "", api_key: str = "") -> None:
        self.base_url = (base_url or os.environ["OPENAI_BASE_URL"]).rstrip("/")
        self.api_key = api_key or os.environ["OPENAI_API_KEY"]

    def chat(self, messages: list[Any], tools: list[Any] | None = None, **more: Any) -> Any:
        """The assistant's message; `more` are other fields of a chat completion's request."""
        body = {"model": "policy", "messages": messages, **more, **({"tools": tools} if tools else {})}
        return self.post("/chat/completions", body)["choices"][0]["message"]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        for number in range(TRIES):
            head = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
            head["X-Stainless-Retry-Count"] = str(number)  # the same question again, and no second sample
            asked = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), head)
            try:
                with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code < 500 or number == TRIES - 1:
                    raise RuntimeError(f"{error.code}: {said}") from None
            except OSError:
                if number == TRIES - 1:
                    raise
            time.sleep(WAIT_S * 2**number)
