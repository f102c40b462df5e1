"""bench/serve.py measures the endpoint as it is now, or says that it cannot."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "serve.py"


def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_serve", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TINY = ["--clients", "2", "--turns", "2", "--seconds", "0", "--engine", "0.001"]


@pytest.mark.parametrize("stream", [False, True])
def test_every_request_is_answered_and_counted(stream: bool, capfd: pytest.CaptureFixture[str]) -> None:
    bench().main([*TINY, *["--stream"] * stream])
    said, _ = capfd.readouterr()
    assert "2 clients, 2 turns" in said and ": 4 requests, p50 +" in said
    assert "a bare socket in its place: 4 requests, p50 +" in said
    assert ("first text: p50 +" in said) == stream


def test_an_endpoint_that_refuses_is_no_measurement(capfd: pytest.CaptureFixture[str]) -> None:
    module = bench()
    original = module.SlowEngine.__init__

    def broken(engine: Any, tokenizer: Any, seconds: float) -> None:
        original(engine, tokenizer, seconds)
        del engine.counters

    module.SlowEngine.__init__ = broken
    with pytest.raises(SystemExit, match="the clients failed"):
        module.main(TINY)
    said, problems = capfd.readouterr()
    assert not said and "the endpoint refused a request" in problems
