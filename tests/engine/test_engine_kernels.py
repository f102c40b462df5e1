"""The Triton kernels against plain torch: on a GPU for real, elsewhere in Triton's interpreter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import support.plain_ops
import support.triton_interpreter  # noqa: F401
import torch

from airloop.engine.embedded import ops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(4, 2, 32), (9, 3, 64), (7, 1, 32), (8, 2, 128)]  # heads, kv heads, head size
PAGE = 16


def pages(heads: int, kv_heads: int, dim: int, slots: int = 3, each: int = 5) -> tuple[torch.Tensor, ...]:
    keys, values = torch.randn(2, slots * each + 1, PAGE, kv_heads, dim, device=DEVICE)
    table = torch.randperm(slots * each, device=DEVICE).view(slots, each).to(torch.int32)
    return keys, values, table


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert torch.allclose(got.float().cpu(), wanted.float().cpu(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [48, 576])
def test_add_norm(width: int) -> None:
    from airloop.engine.embedded.kernels import rows

    x, wide, weight = torch.randn(5, width, device=DEVICE), torch.randn(5, width + 16, device=DEVICE), torch.rand(width)
    add, weight = wide[:, :width], weight.to(DEVICE)
    for extra in (None, add):
        got = rows.add_norm(x, extra, weight, 1e-6)
        wanted = ops.add_norm(x.cpu(), None if extra is None else extra.cpu(), weight.cpu(), 1e-6)
        for a, b in zip(got, wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rotary_write(shape: tuple[int, int, int], normed: bool) -> None:
    from airloop.engine.embedded.kernels import rows

    heads, kv_heads, dim = shape
    keys, values, table = pages(*shape)
    qkv = torch.randn(4, (heads + 2 * kv_heads) * dim + 16, device=DEVICE)
    slots = torch.tensor([2, 0, 1, 1], device=DEVICE)
    positions = torch.tensor([0, 17, 33, 34], device=DEVICE)
    angles = torch.randn(2, 80, dim // 2, device=DEVICE).unbind(0)
    norms = (torch.rand(dim, device=DEVICE), torch.rand(dim, device=DEVICE)) if normed else None
    wanted_keys, wanted_values = keys.cpu().clone(), values.cpu().clone()
    wanted = ops.rotary_write(
        qkv.cpu(), wanted_keys, wanted_values, table.cpu(), slots.cpu(), positions.cpu(),
        tuple(a.cpu() for a in angles), None if norms is None else tuple(n.cpu() for n in norms), 1e-6, heads,
    )  # fmt: skip
    got = rows.rotary_write(qkv, keys, values, table, slots, positions, angles, norms, 1e-6, heads)
    close(got, wanted)
    close(keys, wanted_keys)
    close(values, wanted_values)


def test_gated() -> None:
    from airloop.engine.embedded.kernels import rows

    both = torch.randn(3, 2 * 1100 + 16, device=DEVICE)
    close(rows.gated(both, 1100), ops.gated(both.cpu(), 1100))


@pytest.mark.parametrize(("tokens", "rank"), [(3, 48), (70, 48), (20, 144)])
def test_add_product(tokens: int, rank: int) -> None:
    from airloop.engine.embedded.kernels import adapter

    both, up = torch.randn(tokens, 200 + rank, device=DEVICE), torch.randn(rank, 200, device=DEVICE)
    wanted = both[:, :200] + both[:, 200:] @ up
    adapter.add_product(both[:, :200], both[:, 200:], up)
    close(both[:, :200], wanted, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("programs", [1, 64])
def test_decode_attention(shape: tuple[int, int, int], programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from airloop.engine.embedded.kernels import attention

    monkeypatch.setattr(attention, "PROGRAMS", programs)  # 1: no split; 64: 8 splits and more of 5 pages
    keys, values, table = pages(*shape)
    query = torch.randn(4, shape[0], shape[2], device=DEVICE)
    slots = torch.tensor([2, 0, 1, 1], device=DEVICE)
    positions = torch.tensor([0, 15, 47, 70], device=DEVICE)
    got = attention.decode(query, keys, values, table, slots, positions, 0.3)
    here = [x.cpu() for x in (query, keys, values, table, slots, positions)]
    close(got, ops.attend_decode(*here, 0.3))


@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_attention(shape: tuple[int, int, int]) -> None:
    from airloop.engine.embedded.kernels import attention

    keys, values, table = pages(*shape)
    size = attention.block_tokens(*shape[:2])
    chunks = [(0, 30, 0, 2), (30, 1, 40, 0), (31, 37, 20, 1)]  # row, tokens, position, slot
    parts = [
        (row + at, min(size, n - at), place + at, slot) for row, n, place, slot in chunks for at in range(0, n, size)
    ]
    blocks = tuple(torch.tensor(parts, device=DEVICE).t().contiguous().unbind(0))
    query = torch.randn(68, shape[0], shape[2], device=DEVICE)
    got, wanted = torch.zeros_like(query), torch.zeros_like(query).cpu()
    ops.attend_prefill(*(x.cpu() for x in (query, keys, values, table)), tuple(b.cpu() for b in blocks), wanted, 0.3)
    for _, tokens, place, slot in chunks:  # cells that are not filled yet hold what was there before
        page = keys.shape[1]
        for cell in range(place + tokens, page * -(-(place + tokens) // page)):
            keys[table[slot, cell // page], cell % page] = values[table[slot, cell // page], cell % page] = torch.nan
    attention.prefill(query, keys, values, table, blocks, got, 0.3)
    close(got, wanted)


def drawn(
    logits: torch.Tensor, heat: float, at: int = 0, seed: int = 5, floor: float | None = None
) -> tuple[int, float]:
    from airloop.engine.embedded.kernels import draw

    def whole(value: int) -> torch.Tensor:
        return torch.tensor([0, value], device=DEVICE)

    out = (torch.zeros(2, 1, dtype=torch.int64, device=DEVICE), torch.zeros(2, 1, device=DEVICE))
    tokens, positions, count = whole(0), whole(7), whole(at)
    draw.draw(
        logits[None].to(DEVICE), torch.tensor([1], device=DEVICE), torch.tensor([0.0, heat], device=DEVICE),
        whole(seed), count, None if floor is None else torch.tensor([floor], device=DEVICE), tokens, positions,
        whole(7 if at else 9), out, torch.tensor(1, device=DEVICE),
    )  # fmt: skip
    assert tokens[1] == out[0][1, 0] and positions[1] == (7 if at else 8) and count[1] == at + 1
    return int(out[0][1, 0]), float(out[1][1, 0])


@pytest.mark.long
def test_draws_have_the_scaled_probabilities_and_their_logprob(monkeypatch: pytest.MonkeyPatch) -> None:
    from airloop.engine.embedded.kernels import draw

    monkeypatch.setattr(draw, "BLOCK", 32)
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0])
    logits = torch.cat([logits, torch.full((40,), -30.0)])  # two blocks
    wanted = (logits / 0.7).log_softmax(0)
    found = [drawn(logits, 0.7, at=1 + i) for i in range(150)]
    for token in range(3):
        share = sum(t == token for t, _ in found) / len(found)
        p = math.exp(wanted[token])
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / len(found))
    assert all(abs(lp - wanted[t].item()) < 1e-5 for t, lp in found)
    assert drawn(logits, 0.7, at=3) == found[2]  # seed and place fix the draw
    assert {drawn(logits, 0.7, at=1, seed=s)[0] for s in range(20)} >= {0, 2}


@pytest.mark.slow
def test_greedy_and_floors() -> None:
    logits = torch.randn(5000)
    token, logprob = drawn(logits, 0.0)
    assert token == int(logits.argmax()) and abs(logprob - logits.log_softmax(0).max().item()) < 1e-4
    floor = float(logits.topk(2).values[1])
    tops = set(logits.topk(2).indices.tolist())
    found = {drawn(logits, 5.0, at=1 + i, floor=floor)[0] for i in range(20)}
    assert found == tops


@pytest.mark.parametrize("heat", [0.55, 0.6, 0.7, 0.85, 1.1, 1.3])
def test_the_likeliest_token_is_never_below_its_own_floor(heat: float) -> None:
    """Scaled on one side by a quotient and on the other by a product, it was, and token 0 was drawn instead."""
    limits = (torch.tensor([1]), torch.tensor([1.0]), torch.tensor([0.0]))
    for seed in range(6):
        logits = torch.randn(40, generator=torch.Generator().manual_seed(seed)) * 7
        logits[0] = -50.0
        floor = float(ops.floors(logits[None], torch.tensor([0]), torch.tensor([heat]), limits)[0])
        assert drawn(logits, heat, floor=floor)[0] == int(logits.argmax())


def test_floors_obey_top_k_top_p_and_min_p() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    slots, heat = torch.arange(4), torch.ones(4)
    limits = (torch.tensor([2, 0, 0, 0]), torch.tensor([1.0, 0.85, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.5, 0.0]))
    found = ops.floors(logits, slots, heat, limits)
    assert (logits >= found[:, None]).sum(-1).tolist() == [2, 3, 2, 4]


@pytest.mark.long
@pytest.mark.skipif(DEVICE == "cuda", reason="there the tests above compile them")
def test_every_kernel_compiles_for_a_gpu() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).parents[1] / "support" / "compile_kernels.py"
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "all kernels compile" in done.stdout, done.stderr[-2000:]
