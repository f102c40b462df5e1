"""Which GPUs each of the runs that are under way at once may see."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from airloop.config import Config
from airloop.doctor.gpus import listed
from airloop.errors import AirError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them. Where it is not set, all, by what cannot be mistaken: their order depends on
    who counts."""
    if VISIBLE not in environment:
        return [gpu.uuid for gpu in listed()]
    named = [name.strip() for name in environment[VISIBLE].split(",")]
    end = next((i for i, name in enumerate(named) if name in ("", "-1")), len(named))  # as the driver reads it
    return named[:end]


class GpuShares:
    """Those of the machine, and how many runs are on each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._runs = dict.fromkeys(names, 0)

    def take(self, count: int) -> tuple[str, ...]:
        """Those that the fewest runs are on, so that none has two while another is idle; none where there are not so
        many: then the run itself says what it lacks."""
        if count > len(self._runs):
            return ()
        taken = sorted(sorted(self._runs, key=lambda name: self._runs[name])[:count], key=[*self._runs].index)
        for name in taken:
            self._runs[name] += 1
        return tuple(taken)

    def give_back(self, taken: Sequence[str]) -> None:
        for name in taken:
            self._runs[name] -= 1


def gpus_of(config: Config) -> int:
    """How many a run of this config uses, where there are any."""
    named = {*(config.trainer_gpu_ids or ()), *(config.inference_gpu_ids or ())}
    return 0 if config.model.device == "cpu" else len(named) or config.ranks


def check_spread(name: str, config: Config, jobs: int, names: Sequence[str]) -> None:
    """Where there are GPUs, there are enough for each run. A run numbers those that it may see from 0: one that names
    others could only have those, as all its like."""
    if names and gpus_of(config) > len(names):
        raise AirError(
            f"{name}: a run uses {gpus_of(config)} GPUs, and {len(names)} {'is' if len(names) == 1 else 'are'} visible "
            f"({', '.join(names)}).",
            f"leave it out, or run it where there are {gpus_of(config)}; {VISIBLE} says which are visible.",
        )
    named = sorted({*(config.trainer_gpu_ids or ()), *(config.inference_gpu_ids or ())})
    if jobs > 1 and names and config.model.device != "cpu" and named != [*range(len(named))]:
        chosen = ",".join(names[i] for i in named if i < len(names))
        raise AirError(
            f"{name}: its config names the GPUs {named}, so {jobs} runs at once would all be on these.",
            f"in [both]: trainer_gpu_ids = {[*range(len(named))]}, which are the first that a run may see; each of the "
            f"{jobs} then has its own. To leave others alone: {VISIBLE}={chosen or ','.join(names)} air lab run …",
        )


def worker_environment(jobs: int, gpus: Sequence[str]) -> dict[str, str]:
    """Of a run's process: its share of the cores, and the GPUs that are its own."""
    share = max(1, (os.cpu_count() or 1) // jobs)
    made = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share))}
    return {**made, VISIBLE: ",".join(gpus)} if gpus else made
