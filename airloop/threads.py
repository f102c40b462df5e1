"""How torch's threads wait."""

from __future__ import annotations

import os


def let_idle_sleep() -> None:
    """Idle OpenMP threads sleep instead of spinning; to be called before torch is imported. Sampling shares its cores
    with the environments' own processes, and a spinning thread that waits for one that is not scheduled waits long."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
