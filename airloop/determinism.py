"""What the bits of a deterministic run depend on beside its config: torch's settings for the whole process.

Whoever used torch in the process before us may have changed them, and torch changes one by itself: the first bf16
product on a CPU without bf16 switches oneDNN off for good, and every fp32 product after it is rounded differently.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airloop.events import Say
    from airloop.runs.run import Run


def pin() -> None:
    """Set everything that decides a product's or a sum's last bits, whatever it was before; threads are the run's."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA is first used
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.backends.mkldnn.set_flags(torch.backends.mkldnn.is_available(), True)
    torch.backends.cudnn.benchmark = False


def pin_run(run: Run, say: Say) -> None:
    """Everything, and the number of threads, into which long sums are cut: as it was when the run began. status.json
    keeps it for whoever resumes, here or on a machine with more cores."""
    import torch

    here = {"threads": _threads(), **_machine()}
    kept: dict[str, Any] = {**here, **(run.status().get("arithmetic") or {})}
    if run.writes:
        run.note(arithmetic=kept)
    pin()
    torch.set_num_threads(kept["threads"])
    other = [f"{name} was {kept[name]} and is {here[name]} here" for name in _machine() if kept[name] != here[name]]
    if other:
        say(f"note: from here on the run may differ in the last bits from one that was never moved: {'; '.join(other)}")


def _threads() -> int:
    """What the user asked for by OMP_NUM_THREADS, whoever changed it since, or else what torch has."""
    import torch

    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else torch.get_num_threads()


def _machine() -> dict[str, str]:
    """What cannot be set."""
    import torch

    return {
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }
