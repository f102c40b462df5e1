"""`air serve`, and the socket that it listens on."""

from __future__ import annotations

import io
import re
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from support.endpoint_world import user
from support.warm_process import Process

from airloop.errors import AirError
from airloop.eval import agents
from airloop.serve.server import bind_socket
from airloop.watch.display.display import Display


@pytest.mark.slow
def test_air_serve_answers_over_http_and_ends_with_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key, words = "sk-planted-0123", ["serve", "--agent", "tiny:llama", "--port", "0", "--seq_len", "256"]
    process = Process([*words, "--api-key", key], stderr=True)
    try:
        assert process.stderr is not None
        said = ""
        while "/v1 (Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", said.replace("\n", ""))
        assert url is not None, said
        body = {"model": "x", "messages": [user("hello")], "max_tokens": 8, "temperature": 0}
        client = httpx.Client(base_url=url[0], timeout=60, headers={"authorization": f"Bearer {key}"})
        assert httpx.post(f"{url[0]}/chat/completions", json=body, timeout=60).status_code == 401 and key not in said
        one, two = [client.post("/chat/completions", json=body).json() for _ in range(2)]
        assert one["choices"][0]["message"] == two["choices"][0]["message"]  # greedy, as was asked
        assert one["usage"]["completion_tokens"] <= 8
        full = client.post("/chat/completions", json={"messages": [user("word " * 200)]})
        client.close()
        assert full.status_code == 400 and full.json()["error"]["code"] == "context_length_exceeded"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--agent", "scripted:oracle"], "has no weights"),
        (["--agent", "tiny:llama", "--host", "0.0.0.0"], "--api-key"),
        (["--agent", "run:nowhere"], "is not a run"),
    ],
)
def test_what_cannot_be_served_is_said(air: Any, words: list[str], problem: str) -> None:
    code, printed, errors = air("serve", *words)
    assert code == 1 and problem in printed + errors


def test_an_answer_does_not_wait_for_its_second_half() -> None:
    """asyncio sets TCP_NODELAY on connections whose protocol it knows; each answer took 40 ms more without."""
    with bind_socket("127.0.0.1", 0) as one, bind_socket("localhost", 0) as two:
        assert one.proto == two.proto == socket.IPPROTO_TCP
        one.listen()
        with pytest.raises(AirError, match="cannot listen on"):
            bind_socket("127.0.0.1", one.getsockname()[1])


def test_what_is_done_before_anybody_is_served_is_said(
    air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For half a minute nothing had been: a phase is what the heartbeat and the live block speak of."""
    phases: list[str] = []

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "phase", lambda self, text, total=0: phases.append(text))
    monkeypatch.setattr(agents, "load_agent", stopped)
    monkeypatch.chdir(tmp_path)
    code, _, said = air("serve", "--agent", "tiny:llama", "--port", "0")
    assert code == 0 and said.splitlines()[0] == "air serve: tiny:llama"
    assert phases == ["loading libraries", "loading the model"]


def test_a_phase_ends_where_nothing_more_is_waited_for() -> None:
    with Display(Console(file=io.StringIO())) as display:
        display.phase("loading the model")
        display.ready()
        assert display._board.current is None
