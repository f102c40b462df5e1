"""Compiles every kernel for a Hopper GPU, which needs none: the interpreter takes programs that the compiler refuses.

Run as a script, by test_engine_kernels.py: TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from airloop.engine.embedded.kernels import adapter, attention, draw, rows

POINTERS = {
    "i64": [
        "slots",
        "positions",
        "starts",
        "counts",
        "seeds",
        "drawn",
        "tokens",
        "caps",
        "out_tokens",
        "counter",
    ],
    "i32": ["table", "places"],
    "fp32": ["cos", "sin", "parts", "sums", "heat", "floors", "scores", "best", "total", "out_logprobs"],
}
SCALARS = {"fp32": ["eps", "scale"]}


def compile_kernel(kernel: Any, constants: dict[str, Any], other: dict[str, str] | None = None) -> None:
    """Arguments that are not constants: pointers to bf16 unless named above; numbers are int32."""
    signature: dict[str, str] = {}
    kinds = {name: f"*{kind}" for kind, names in POINTERS.items() for name in names}
    kinds |= {name: kind for kind, names in SCALARS.items() for name in names}
    kinds |= {name: "i32" for name in kernel.arg_names if name.endswith("stride") or name in WHOLE}
    for name in kernel.arg_names:
        default = "constexpr" if name in constants else kinds.get(name, "*bf16")
        signature[name] = (other or {}).get(name, default)
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


WHOLE = ("rows", "rank", "width", "splits", "vocabulary", "blocks")


def main() -> None:
    for add in (False, True):
        compile_kernel(rows._add_norm, {"HAS_ADD": add, "BLOCK": 4096}, {"total": "*bf16"})
    for heads, kv, half, norm in ((32, 8, 64, True), (28, 4, 64, False), (9, 3, 32, False)):
        padded = {"HEADS_P": triton.next_power_of_2(heads), "KV_P": triton.next_power_of_2(kv)}
        fixed = {"HEADS": heads, "KV": kv, "HALF": half, "PAGE": 64, "HAS_NORM": norm, **padded}
        compile_kernel(rows._rotary_write, fixed)
        group = {"KV": kv, "GROUP": heads // kv, "D": 2 * half, "PAGE": 64}
        for whole in (False, True):
            compile_kernel(attention._decode, {**group, "GROUP_P": 16, "WHOLE": whole})
        wide = triton.next_power_of_2(heads // kv)
        compile_kernel(attention._prefill, {**group, "GROUP_P": wide, "TOKENS": 128 // wide}, {"places": "*i64"})
    for tall, wide in ((16, 32), (64, 32), (64, 128)):
        compile_kernel(adapter._add_product, {"TALL": tall, "WIDE": wide, "RANK": 64})
    compile_kernel(rows._gated, {"BLOCK": 1024})
    compile_kernel(attention._merge, {"D": 128, "MOST": 32})
    for floor in (False, True):
        compile_kernel(draw._race, {"BLOCK": 4096, "FLOOR": floor})
    compile_kernel(draw._settle, {"MOST": 64})
    print("all kernels compile")


if __name__ == "__main__":
    main()
