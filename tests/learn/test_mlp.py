"""An MLP in parts of a long micro-batch: the numbers of the whole, and the memory that the plan counts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_forward import ALL, KINDS, answers, make_policy, same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from airloop.config import Config
from airloop.learn import mlp
from airloop.learn.block_ops import Linears
from airloop.learn.mlp import Mlp, mlp_backward, mlp_forward
from airloop.limits import MLP_PART, MLP_WHOLE, mlp_part
from airloop.plan import Shape, memory

EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}


def in_parts(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(mlp, "mlp_part", lambda tokens: -(-tokens // -(-tokens // most)))


def test_long_micro_batches_are_cut_evenly() -> None:
    assert mlp_part(MLP_WHOLE) == MLP_WHOLE
    assert mlp_part(MLP_WHOLE + 1) == -(-(MLP_WHOLE + 1) // 3) and mlp_part(32768) == MLP_PART == 8192


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("freq", [1, 2])
@pytest.mark.parametrize("targets", [ALL, ["down_proj", "gate_proj"], ["q_proj"]], ids=["all", "mlp", "attention"])
def test_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch, kind: str, freq: int, targets: list[str]) -> None:
    """In float64: only products of other shapes and sums over parts in another order can differ."""
    whole = answers(make_policy(kind, targets, "auto"), freq)
    in_parts(monkeypatch, 16)
    same(answers(make_policy(kind, targets, "auto"), freq), whole, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_in_few_bits(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The adapter's gradients are sums over tokens. In float32 the sum itself is in the type of its terms, and in
    another order it is off by as many roundings as a walk of so many steps gets far: the root of their number. In
    bfloat16 it is added up in float32, by the product and then over parts, and what counts is that each part is rounded
    once more: two units for the parts, of the largest one's size, two for the sums, however many parts there are."""
    torch.manual_seed(0)
    tokens, made = 512, small_mlp(dtype, 32, 96, 4)
    stream, d = (torch.randn(tokens, 32).to(dtype) for _ in range(2))
    found = []
    for most in (tokens, 64):
        in_parts(monkeypatch, most)
        found.append((mlp_forward(stream, made), *mlp_backward(d, stream, made, True)))
    (out, dstream, trained), (part_out, part_dstream, part_trained) = found
    unit = EPS[dtype]
    units = tokens**0.5 if dtype == torch.float32 else 4
    for one, other in ((out, part_out), (dstream, part_dstream)):  # each token's own: a product of fewer rows
        assert one is not None and other is not None
        assert (one - other).abs().max() <= 2 * unit * one.abs().max()
    for one, other in zip(trained, part_trained, strict=True):
        assert one is not None and other is not None and one.dtype == other.dtype == dtype
        assert (one - other).abs().max() <= units * unit * one.abs().max()


def test_whole_matrices_in_training_are_not_cut() -> None:
    made = small_mlp(torch.float32, 8, 16, 2)
    assert made.part(4 * MLP_WHOLE) == MLP_PART
    made.down.weights[0].requires_grad_()
    assert made.part(4 * MLP_WHOLE) == 4 * MLP_WHOLE


def small_mlp(dtype: torch.dtype, hidden: int, inner: int, rank: int) -> Mlp:
    def linears(outs: int, width: int, into: int) -> Linears:
        weights = tuple((torch.randn(into, width) / width**0.5).to(dtype) for _ in range(outs))
        down = (torch.randn(outs * rank, width) / width**0.5).to(dtype).requires_grad_()
        ups = tuple((torch.randn(into, rank) / rank).to(dtype).requires_grad_() for _ in range(outs))
        return Linears(weights, (None,) * outs, down, ups)

    return Mlp(torch.ones(hidden, dtype=dtype), linears(2, hidden, inner), linears(1, inner, hidden), 1e-6)


class Peak(TorchDispatchMode):
    """The most bytes of storages, made in here, that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in before and storage._cdata not in self._known:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()

        def gone(_: Any) -> None:
            self.now -= size
            del self._known[place]

        self._known[place] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def peak_of(work: Callable[[], Any]) -> int:
    gc.collect()
    with Peak() as found:
        kept = work()
    del kept
    return found.most


@pytest.mark.parametrize("most", [1024, 256, 128])
def test_the_memory_of_parts_is_what_the_plan_counts(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    tokens, hidden, inner = 1024, 64, 512
    shape = Shape(0, 0, 1, hidden, inner, 1, 1, 8, 16, qk_norm=False, own_forward=True, linears=())
    in_parts(monkeypatch, most)
    monkeypatch.setattr(memory, "mlp_part", mlp.mlp_part)
    config = Config(seq_len=tokens, model={"dtype": "float32"}, trainer={"model": {"ac": {"freq": 1}}})
    sizes = replace(memory.read_sizes(config, shape, 1), tokens=tokens)
    made = small_mlp(torch.float32, hidden, inner, 4)
    stream, d = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    measured = peak_of(lambda: mlp_backward(d, stream, made, True))
    planned = memory._block_backward(sizes) + 4 * hidden * tokens  # and the gradient that it makes
    if most == tokens:  # what the MLP saves is then counted with the block's other half
        planned += 4 * tokens * (hidden + 3 * inner)
    # The plain gate of the CPU keeps its activated half, which the kernel on CUDA computes again.
    assert measured == pytest.approx(planned + 4 * most * inner, rel=0.06)
