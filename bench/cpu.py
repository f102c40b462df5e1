"""What a run costs on this CPU, and what makes it cheaper: matrix products, tokens per second, a supervised step.

    python bench/cpu.py                        # the quickstart's model and demonstrations
    python bench/cpu.py --layers 30 10 5       # adapters in the last so many blocks
    python bench/cpu.py --busy 0 2 4           # decoding beside so many busy processes, threads fixed and chosen
    python bench/cpu.py --kernels              # oneDNN's products against those of torch's BLAS

Seconds are of the clock, the best of several; ratios within one call are what counts, since machines are shared. A slow
machine is imitated on x86 with ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 and --model.dtype float32 after
`--`. Everything after `--` goes to the config.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from airloop.assemble import Components, assemble
from airloop.config import Config, load_config
from airloop.engine.base import Sampling
from airloop.engine.embedded.engine import EmbeddedEngine
from airloop.learn.advantages import demonstration_batch
from airloop.learn.batches import Row, micro_batches
from airloop.models.fp32_matmul import widen_products
from airloop.speed import measure_speed
from airloop.types import Trajectory
from airloop.warmstart import as_transcript, collect_demonstrations, demonstration_order
from airloop.watch.display.display import Display


def best(work: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def products(hidden: int = 576, inner: int = 1536, rows: int = 512) -> None:
    """GFLOP/s of the default model's widest product, by number format."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, w = torch.ones(rows, hidden, dtype=dtype), torch.ones(inner, hidden, dtype=dtype)
        few = x[:8]  # a machine without such kernels takes minutes for all of them
        seconds = best(lambda x=few, w=w: torch.nn.functional.linear(x, w), 3)
        if 2 * 8 * hidden * inner / seconds > 5e9:
            seconds = best(lambda x=x, w=w: torch.nn.functional.linear(x, w), 5) * 8 / rows
        print(f"| {str(dtype).removeprefix('torch.')} | {2 * 8 * hidden * inner / seconds / 1e9:.1f} GFLOP/s |")


def rows_of(config: Config, parts: Components, demonstrations: Sequence[Trajectory]) -> list[Row]:
    """The rows of the first supervised step."""
    assert config.warmstart is not None
    made = [as_transcript(t, parts.loaded.tokenizer) for t in demonstrations]
    return list(demonstration_batch(next(demonstration_order(made, config.warmstart.batch_size, 0))).rows)


async def look(config: Config, demonstrations: Sequence[Trajectory], layers: int) -> float:
    lora = {"last_layers": layers}
    model = config.trainer.model.model_copy(update={"lora": config.trainer.model.lora.model_copy(update=lora)})
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"model": model})})
    parts = assemble(config, lambda _: None)
    try:
        speed = await measure_speed(parts)
        rows = rows_of(config, parts, demonstrations)
        budget = config.trainer.token_budget
        computed = sum(part.computed_tokens for part in micro_batches(rows, budget))
        async with parts.engine.paused():
            shared = best(lambda: parts.learner.measure_pass(rows), 2)
            apart = best(lambda: [parts.learner.measure_pass([row]) for row in rows], 1)
    finally:
        await parts.close()
    whole = sum(len(row.tokens) for row in rows)
    print(f"| last {layers} blocks | {speed} | {shared:.1f} s, {computed} tokens | {apart:.1f} s, {whole} tokens |")
    return shared


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


async def decode(config: Config, busy: int) -> None:
    """Replies side by side with all threads at every step, and with as many as the steps tell (engine/threads.py)."""
    parts = assemble(config, lambda _: None)
    engine = parts.engine
    assert isinstance(engine, EmbeddedEngine)
    chosen = engine._threads
    try:
        for replies in (32, 4):
            speeds = []
            for threads in (None, chosen, None, chosen):
                engine._threads = threads
                asked = [engine.generate([5] * 32, Sampling(24, seed=i), f"{i:03d}") for i in range(replies)]
                began = time.perf_counter()
                await asyncio.gather(*asked)
                speeds.append(24 * replies / (time.perf_counter() - began))
            print(f"| {busy} | {replies} | {max(speeds[::2]):.1f} tokens/s | {max(speeds[1::2]):.1f} tokens/s |")
    finally:
        await parts.close()


async def kernels(config: Config, demonstrations: Sequence[Trajectory]) -> None:
    """Decoding, prompts and a supervised step with oneDNN and without, in turn."""
    parts = assemble(config, lambda _: None)
    rows = rows_of(config, parts, demonstrations)
    try:
        for round in range(2):
            for onednn in (True, False):
                torch.backends.mkldnn.set_flags(onednn)
                mark = 2 * round + onednn
                decoded = await seconds_of(parts, [[5] * 32 for _ in range(32)], 24, f"d{mark}")
                read = await seconds_of(parts, [[100 * mark + i, *[5] * 400] for i in range(4)], 1, f"p{mark}")
                async with parts.engine.paused():
                    step = best(lambda: parts.learner.measure_pass(rows), 1)
                name = "oneDNN" if onednn else "BLAS"
                print(f"| {name} | {32 * 24 / decoded:.1f} | {4 * 401 / read:.0f} | {step:.1f} s |", flush=True)
    finally:
        await parts.close()


def narrow() -> None:
    """bf16 products as torch does them here, in float32 with one rounding, and float32's own."""
    for rows, inner, outer in ((1, 576, 1536), (8, 576, 1536), (128, 576, 1536), (8, 896, 4864)):
        x, weight = (torch.randn(n, inner, dtype=torch.bfloat16) for n in (rows, outer))
        own = best(lambda: x @ weight.t(), 2)  # noqa: B023 - at once
        widen_products(True)
        wide = best(lambda: x @ weight.t(), 2)  # noqa: B023
        widen_products(False)
        a, b = x.float(), weight.float()
        full = best(lambda: a @ b.t(), 2)  # noqa: B023
        sizes = f"{rows} × {inner} × {outer}"
        print(f"| {sizes} | {own * 1e3:.1f} ms | {wide * 1e3:.2f} ms | {full * 1e3:.2f} ms | {own / wide:.0f} |")


async def seconds_of(parts: Components, prompts: Sequence[list[int]], tokens: int, name: str) -> float:
    """Of replies side by side; a prompt that was read before is in the cache, so each has a beginning of its own."""
    began = time.perf_counter()
    asked = [
        parts.engine.generate(prompt, Sampling(tokens, seed=i), f"{name}{i:03d}") for i, prompt in enumerate(prompts)
    ]
    await asyncio.gather(*asked)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--layers", type=int, nargs="+", default=[30, 15, 10])
    parser.add_argument("--busy", type=int, nargs="+", help="only decoding, beside so many busy processes")
    parser.add_argument("--kernels", action="store_true", help="only oneDNN against torch's BLAS")
    parser.add_argument("--narrow", action="store_true", help="only bf16 products, torch's own and by float32")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {time.strftime('%F')}")
    if options.narrow:
        print("\n| product | bf16, torch's own | by float32 | float32 | times as fast |\n|---|---|---|---|---|")
        narrow()
        return
    if options.busy:
        print("\n| busy processes | replies side by side | all threads | chosen by the steps |\n|---|---|---|---|")
        for busy in options.busy:
            with beside(busy):
                asyncio.run(decode(load_config([options.config, *options.flags]), busy))
        return
    config = load_config([options.config, *options.flags])
    demonstrations = asyncio.run(collect_demonstrations(config, Display(quiet=True)))
    if options.kernels:
        print("\n| products by | decoded tokens/s | prompt tokens/s | a supervised step |\n|---|---|---|---|")
        asyncio.run(kernels(config, demonstrations))
        return
    print("\n| product of 512 × 576 with 576 × 1536 | |\n|---|---|")
    products()
    print("\n| adapters in | speed | a supervised step, beginnings shared | each alone |\n|---|---|---|---|")
    seconds = {layers: asyncio.run(look(config, demonstrations, layers)) for layers in options.layers}
    first, *others = options.layers
    for layers in others:
        print(f"\n{first} → {layers} blocks: a supervised step in {seconds[layers] / seconds[first]:.2f} of the time")


if __name__ == "__main__":
    main()
