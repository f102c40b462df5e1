"""What `air doctor` does: read a config, examine it, and leave nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airloop.doctor.base import FAMILIES, STAGES, Stage, checks
from airloop.doctor.case import Case
from airloop.doctor.examine import Result, examine
from airloop.errors import AirError
from airloop.events import Watcher


def run_doctor(
    argv: Sequence[str],
    watcher: Watcher,
    only: Sequence[str] = (),
    skip_proofs: bool = False,
    gpu_memory: str | None = None,
) -> list[Result]:
    """The results of all checks of the config that `argv` names, or of those that `only` names."""
    from airloop.plan.gpu import parse_size

    _check_names(only)
    stages: tuple[Stage, ...] = ("fast",) if skip_proofs else STAGES
    # What environments warn of is among the findings.
    logging.getLogger("airloop.envs").setLevel(logging.ERROR)
    with Case.read(argv, watcher.say, parse_size(gpu_memory) if gpu_memory else None) as case:
        return examine(case, stages, only, watcher.phase)


def _check_names(only: Sequence[str]) -> None:
    """A name that no check answers would look like a pass."""
    for name in only:
        if not checks([name]):
            known = sorted({id for check in checks() for id in check.ids}, key=lambda id: (id[0], len(id), id))
            raise AirError(
                f"--only {name}: no check answers it before a run.",
                f"known are {', '.join(known)}; families {', '.join(FAMILIES)} are printed together. "
                "docs/failures.md says what is answered by design or while a run goes on.",
            )
