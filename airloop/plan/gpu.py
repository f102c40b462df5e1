"""How much memory a GPU has: asked of the machine, or told."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from airloop.errors import AirError

UNITS = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def gpu_memory(told: str | None, index: int | None) -> int:
    """Bytes of the GPU that a run would use; `told` (as in "80GiB") goes before what the machine has."""
    if told is not None:
        return parse_size(told)
    if not _may_have_one() or not (torch := _torch()).cuda.is_available():
        raise AirError(
            "How much memory the GPU has is not known: there is no CUDA device here.",
            "say it: air plan @ x.toml --gpu-memory 80GiB",
        )
    if (index or 0) >= torch.cuda.device_count():
        raise AirError(
            f"The config names GPU {index}, but there are {torch.cuda.device_count()} here.",
            "name one that is here in trainer_gpu_ids, or give --gpu-memory to plan for another machine.",
        )
    return int(torch.cuda.get_device_properties(index or 0).total_memory)


def _may_have_one() -> bool:
    """Importing torch takes seconds, and on Linux a file tells that there is no use."""
    names = ("nvidia*", "nvhost*", "nvgpu", "dxg", "kfd")  # a card's, a Jetson's (two), WSL's, AMD's
    return not sys.platform.startswith("linux") or any(found for name in names for found in Path("/dev").glob(name))


def _torch() -> Any:
    import torch

    return torch


def parse_size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    unit = {name.lower(): size for name, size in UNITS.items()}.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise AirError(
            f"--gpu-memory {text}: this is not a size.", f"write a number and one of {', '.join(UNITS)}: 80GiB"
        )
    return int(float(found[1]) * unit)
