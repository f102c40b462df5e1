"""The contract of a sandbox, kept by every backend."""

from __future__ import annotations

import signal

import pytest
from support.sandbox_contract import *  # noqa: F403
from support.sandbox_contract import PLAIN, output

from airloop.sandbox import shell
from airloop.sandbox.base import Sandbox


def test_a_background_job_that_ignores_ctrl_c_runs_commands_that_do_not(  # type: ignore[no-untyped-def]
    backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INTERRUPT_S", 20.0)  # far more than an interrupt takes on a busy machine

    async def check(sandbox: Sandbox, backend: object) -> None:
        await sandbox.run("x=5", 10)
        result = await sandbox.run("sleep 60", 1.0)
        assert result.timed_out and result.seconds < 1.0 + 20.0  # else it was killed
        assert await output(sandbox, "echo $x") == "5\n"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        backend.play(check, PLAIN)
    finally:
        signal.signal(signal.SIGINT, before)
