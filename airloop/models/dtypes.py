"""Which dtype a model is computed in, and which kernels: on a GPU bf16, on a CPU what is measured to be faster."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any

from airloop.threads import one_thread

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "bfloat16", "float16")
# fp32 is the more exact; bf16 has to be faster by more than timing noise to be chosen on a CPU.
BF16_MARGIN = 1.25


def choose_dtype(asked: str, device: torch.device, config: Any) -> tuple[str, str]:
    """The dtype, and a sentence about it where it was measured."""
    import torch

    if asked != "auto":
        return asked, ""
    if device.type != "cpu":
        good = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        if good:
            return "bfloat16", ""
        return "float32", f"{torch.cuda.get_device_name(device)} has no bf16, so the model runs in fp32"
    if not multiplies_bf16():
        return "float32", ""
    gain = bf16_gain(int(config.hidden_size), int(getattr(config, "intermediate_size", 4 * config.hidden_size)))
    if gain >= BF16_MARGIN:
        return (
            "bfloat16",
            f"on this CPU bf16 is {gain:.1f} times as fast as fp32 at this model's size: bf16 it is",
        )
    return "float32", ""


def multiplies_bf16() -> bool:
    """Whether torch has kernels for bf16 products on this CPU. Without, one is not even tried: on a Neoverse-N1 it
    takes 300 times as long (unless fp32_matmul.py does it), and makes torch switch oneDNN off for the process."""
    import torch

    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_kernels() -> None:
    """On ARM cores without bf16, OpenBLAS is quicker at fp32 products than oneDNN (Neoverse-N1, SmolLM2: 1.24 times at
    decoding 32 replies, 1.06 at prompts and at updates; `bench/cpu.py --kernels`). Other CPUs keep torch's choice, and
    so do deterministic runs, whose bits depend on it."""
    import torch

    if platform.machine() == "aarch64" and not multiplies_bf16():
        torch.backends.mkldnn.set_flags(False)


def bf16_gain(hidden: int, inner: int, seconds: float = 0.25) -> float:
    """How many times faster a bf16 linear layer is than an fp32 one, here, now, at these sizes.

    A row count for sampling and one for training, the smaller gain of the two: CPUs without bf16
    instructions can be faster at one and ten times slower at the other. On one thread, the two dtypes in
    turn, the best time of each: so that what else the machine is doing does not decide.
    """
    import torch
    from torch.nn.functional import linear

    def gain(rows: int) -> float:
        best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
        operands = {d: (torch.ones(rows, hidden, dtype=d), torch.ones(inner, hidden, dtype=d)) for d in best}
        for x, weight in operands.values():  # the first call prepares kernels
            linear(x, weight)
        deadline = time.perf_counter() + seconds / 2
        while time.perf_counter() < deadline:
            for d, (x, weight) in operands.items():
                start = time.perf_counter()
                linear(x, weight)
                best[d] = min(best[d], time.perf_counter() - start)
        return best[torch.float32] / best[torch.bfloat16]

    inner = max(1, min(inner, 2**22 // hidden))  # 4 million weights say as much as 60 million, in the time given
    with torch.inference_mode(), one_thread():
        return min(gain(rows) for rows in (8, 128))
