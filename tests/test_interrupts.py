"""Signals reach those they are for, however the command was started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

REPORT = "import signal; print([signal.getsignal(n).__class__.__name__ for n in (signal.SIGINT, signal.SIGTERM)])"
USUAL = "['builtin_function_or_method', 'Handlers']"  # KeyboardInterrupt, and SIG_DFL


@pytest.mark.parametrize("heed", ["heed", "heed_launcher"])
def test_programs_that_we_start_can_be_interrupted_though_we_ignore_it(heed: str) -> None:
    program = f"from air import interrupts; interrupts.{heed}(); import subprocess, sys; "
    program += f"subprocess.run([sys.executable, '-c', {REPORT!r}])"
    seen = {}
    for given in (signal.SIG_DFL, signal.SIG_IGN):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            preexec_fn=lambda given=given: signal.signal(signal.SIGINT, given),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        seen[given] = ran.stdout.strip()
    assert seen == {signal.SIG_DFL: USUAL, signal.SIG_IGN: USUAL}


WAITS = """
import time
from air import interrupts
interrupts.{heed}()
print("ready", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(
    ("heed", "given", "number", "stops"),
    [
        ("heed", signal.SIG_DFL, signal.SIGINT, True),
        ("heed", signal.SIG_DFL, signal.SIGTERM, True),
        ("heed", signal.SIG_IGN, signal.SIGINT, False),
        ("heed", signal.SIG_IGN, signal.SIGTERM, True),
        ("heed_launcher", signal.SIG_IGN, signal.SIGINT, True),
        ("heed_launcher", signal.SIG_DFL, signal.SIGTERM, False),
    ],
)
def test_who_is_stopped_by_what(heed: str, given: signal.Handlers, number: signal.Signals, stops: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(heed=heed)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, given),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        if stops:
            assert process.communicate(timeout=30)[0] == "stopped\n"
            assert process.returncode == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
