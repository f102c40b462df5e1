"""How tidy an agent's code is. The files are collected and looked at elsewhere: a shell in which an agent has been
says what that agent wants (a trap, a function of any name, a process that prints)."""

from __future__ import annotations

from airloop.sandbox.base import WORKSPACE, Result

QUALITY_S = 20.0
# Compiles every file and counts style errors; nothing of them is run.
QUALITY = f"""python -I -W ignore - <<'AIR_END'
import os
os.chdir("{WORKSPACE}")
names = sorted(name for name in os.listdir(".") if name.endswith(".py"))
good = 0.0
for name in names:
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        compile(text, name, "exec")
    except Exception:
        continue
    lines = max(1, text.count("\\n"))
    long = sum(len(line) > 100 or line != line.rstrip() for line in text.split("\\n"))
    good += 0.5 + 0.5 * max(0.0, 1 - 10 * long / lines)
print(good / len(names) if names else 0.0)
AIR_END"""


def read_quality(result: Result) -> float:
    """0 where the compiler itself was brought down."""
    if result.exit_code != 0 or result.timed_out:
        return 0.0
    try:
        return min(1.0, max(0.0, float(result.output.strip().splitlines()[-1])))
    except (ValueError, IndexError):
        return 0.0
