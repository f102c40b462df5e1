"""Products of bf16 and fp16 numbers on a CPU that has no instructions for them: computed in float32 and rounded once,
as hardware that has them does.

torch's own loop takes up to 300 times as long (Neoverse-N1, 128 × 896 × 4864: 13.3 s against 0.05 s, 2026-11-16). A
product's way through here costs some microseconds more, so this is for the time of a model in such numbers only.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

NARROW = (torch.bfloat16, torch.float16)
_library: torch.library.Library | None = None


def are_slow(model: nn.Module) -> bool:
    """Products of the model's numbers, here."""
    from airloop.models.dtypes import multiplies_bf16

    weight = next(model.parameters())
    return weight.device.type == "cpu" and weight.dtype in NARROW and not multiplies_bf16()


def widen_products(on: bool) -> None:
    """For all of this process, until it is said otherwise."""
    global _library
    if on and _library is None:
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there was a kernel before is the point
            for name, kernel in {"mm": _mm, "addmm": _addmm, "addmm_": _addmm_, "bmm": _bmm}.items():
                _library.impl(name, kernel, "CPU")
    elif not on and _library is not None:
        _library._destroy()
        _library = None


# (A product that is told where to put its result is another operator, whose kernel is still torch's own.)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], b.shape[1], dtype=_wide(a))
    return torch.mm(a.to(out.dtype), b.to(out.dtype), out=out).to(a.dtype)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    out = torch.empty(a.shape[0], b.shape[1], dtype=_wide(a))
    wide = (x.to(out.dtype) for x in (c, a, b))
    return torch.addmm(*wide, beta=beta, alpha=alpha, out=out).to(a.dtype)


def _addmm_(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return c.copy_(_addmm(c, a, b, beta=beta, alpha=alpha))


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=_wide(a))
    return torch.bmm(a.to(out.dtype), b.to(out.dtype), out=out).to(a.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in NARROW else x.dtype
