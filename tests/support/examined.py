"""What the doctor's fast checks find in a config: for tests that provoke a failure and read the answer."""

from __future__ import annotations

from collections.abc import Sequence

from airloop.doctor.base import Finding
from airloop.doctor.case import Case
from airloop.doctor.examine import Result, examine

TINY = ["--model.name", "tiny:llama", "--orchestrator.env.0.id", "arith", "--orchestrator.sampling.max_tokens", "8"]


def results(argv: Sequence[str], only: str = "", gpu_memory: int | None = None) -> list[Result]:
    with Case.read([*argv], gpu_memory=gpu_memory) as case:
        return examine(case, ("fast",), only.split(",") if only else ())


def findings(
    argv: Sequence[str], only: str = "", gpu_memory: int | None = None
) -> list[tuple[tuple[str, ...], Finding]]:
    """Every finding with the ids it is reported under."""
    return [(f.ids or r.check.ids, f) for r in results(argv, only, gpu_memory) for f in r.findings]


def trouble(argv: Sequence[str], only: str = "", gpu_memory: int | None = None) -> tuple[tuple[str, ...], Finding]:
    """The one finding that is no pass."""
    (found,) = [pair for pair in findings(argv, only, gpu_memory) if pair[1].verdict != "pass"]
    return found


def silent(argv: Sequence[str], only: str = "", gpu_memory: int | None = None) -> bool:
    return all(f.verdict == "pass" for _, f in findings(argv, only, gpu_memory))
