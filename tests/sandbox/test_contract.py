"""The contract of a sandbox, kept by every backend."""

from __future__ import annotations

import signal

from support.sandbox_contract import *  # noqa: F403
from support.sandbox_contract import PLAIN, output

from airloop.sandbox.base import Sandbox
from airloop.sandbox.shell import INTERRUPT_S


def test_a_background_job_that_ignores_ctrl_c_runs_commands_that_do_not(backend) -> None:  # type: ignore[no-untyped-def]
    async def check(sandbox: Sandbox, backend: object) -> None:
        await sandbox.run("x=5", 10)
        result = await sandbox.run("sleep 60", 0.5)
        assert result.timed_out and result.seconds < 0.5 + INTERRUPT_S  # else it was killed
        assert await output(sandbox, "echo $x") == "5\n"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        backend.play(check, PLAIN)
    finally:
        signal.signal(signal.SIGINT, before)
