"""What computes a run, in words: a GPU's name or a processor's, and how many. Never the host's."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine_name(device: Any, ranks: int) -> str:
    """`device`: torch's, of one of the ranks."""
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
        return f"{ranks} × {name}" if ranks > 1 else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {_processor()}" + (f" ({device.type})" if device.type != "cpu" else "")


def _processor() -> str:
    """As Linux names it; on an ARM it has numbers only, and then the architecture is what is left."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8", errors="replace").splitlines() if facts.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
