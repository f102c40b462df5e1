"""A client that plays episodes of a training run, to be copied to another machine. The key is AIR_REMOTE_KEY.

play("http://127.0.0.1:8400", lambda task, url, key: solve(task, OpenAI(base_url=url, api_key=key)))
"""

import contextlib
import json
import os
import time
import urllib.request
from typing import Any

LOST = {"URLError", "APIConnectionError", "APITimeoutError", "InternalServerError"}  # failures to reach the policy


def post(url: str, body: Any) -> Any:
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["AIR_REMOTE_KEY"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=120))


def play(run: str, solve: Any, patience_s: float = 600) -> None:
    """Episode after episode: solve(task, url, key) → rewards. Ends when the run has not answered for so long."""
    heard = time.monotonic()
    while time.monotonic() < heard + patience_s:
        try:
            episode = post(run + "/episodes", {"wait_s": 20})
        except OSError as error:
            if getattr(error, "code", 503) != 503:  # else no episode is pending, or the run does not answer
                raise
            heard = time.monotonic() if hasattr(error, "code") else heard
            time.sleep(0.5)
            continue
        try:
            how, said = "finish", {"rewards": solve(episode["task"], run + episode["path"], episode["api_key"])}
        except Exception as error:
            lost = isinstance(error, ConnectionError) or type(error).__name__ in LOST
            how, said = "abandon" if lost else "finish", {"error": repr(error)}
        with contextlib.suppress(OSError):  # its time may be over
            post(f"{run}/episodes/{episode['id']}/{how}", said)
        heard = time.monotonic()
