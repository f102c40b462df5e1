"""What a run was made on, in words: a figure without its machine says little."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from airloop.version import versions

if TYPE_CHECKING:
    import torch

# Of ARM, /proc/cpuinfo has numbers where x86 has a name: implementer and part, of those that are rented out.
ARM = {("0x41", "0xd0c"): "Neoverse-N1", ("0x41", "0xd40"): "Neoverse-V1", ("0x41", "0xd4f"): "Neoverse-V2"}


def describe_machine(device: torch.device, ranks: int = 1) -> dict[str, str]:
    """Processor and cores, accelerator where there is one, versions."""
    found = {"processor": f"{processor()}, {cores()} cores", "versions": versions()}
    if device.type == "cuda":
        import torch

        found["gpu"] = f"{f'{ranks} × ' if ranks > 1 else ''}{torch.cuda.get_device_name(device)}"
    return found


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Its name as people know it; else its kind."""
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    part = (facts.get("CPU implementer", ""), facts.get("CPU part", ""))
    return facts.get("model name") or ARM.get(part) or platform.machine()
