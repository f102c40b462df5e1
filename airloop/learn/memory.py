"""An update for which there was too little memory: what was held by whom, and what to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from airloop.errors import AirError

GIB = 2**30
# What torch says where the machine's own memory is used up, which is a plain RuntimeError.
OF_THE_CPU = "DefaultCPUAllocator"
LEAST_BUDGET = 512


@contextlib.contextmanager
def memory_told(device: torch.device, token_budget: int, resume: str) -> Iterator[None]:
    """`resume`: how to go on, a command."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and OF_THE_CPU not in str(error):
            raise
        smaller, said = max(LEAST_BUDGET, token_budget // 2), str(error).splitlines()[0].split(". GPU")[0]
        budget = f"set trainer.token_budget = {smaller} (it is {token_budget}), or " if smaller < token_budget else ""
        raise AirError(
            f"There was too little memory for the update ({said}). {held(device)}",
            f"{budget}wait until others have ended: {resume}. The step's episodes are saved.",
        ) from error


def held(device: torch.device) -> str:
    if device.type != "cuda":
        return "It is the machine's own: `free -h` says who holds how much."
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    others = max(0, total - free - own)
    return (
        f"Of the GPU's {total / GIB:.1f} GiB this process holds {own / GIB:.1f}, others hold {others / GIB:.1f} "
        "(`nvidia-smi` names them)."
    )
