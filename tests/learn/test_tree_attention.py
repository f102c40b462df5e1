"""Tree attention by parts and merging, against the plain computation row by row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from airloop.learn import tree_attention
from airloop.learn.part_kernels import _PROBE, FlashKernel, TorchKernel, close, flash_kernel
from airloop.learn.tree_attention import Tree, nodes_of

CPU = torch.device("cpu")
Segments = tuple[list[int], list[int], list[tuple[int, ...]]]


def segments(parents: Sequence[int], lengths: Sequence[int]) -> Segments:
    """Any list of choices as a tree in depth-first order: segment i hangs below one on the path of segment i - 1,
    or starts a tree of its own."""
    ancestors: list[tuple[int, ...]] = []
    for i, choice in enumerate(parents):
        path = (*ancestors[-1], i - 1) if ancestors else ()
        ancestors.append(path[: choice % (len(path) + 1)])
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return starts, list(lengths), ancestors


def plain(q: Tensor, k: Tensor, v: Tensor, tree: Segments, scale: float) -> Tensor:
    starts, lengths, ancestors = tree
    seen = torch.zeros(len(q), len(q), dtype=torch.bool)
    for i, path in enumerate(ancestors):
        rows = slice(starts[i], starts[i] + lengths[i])
        for a in path:
            seen[rows, starts[a] : starts[a] + lengths[a]] = True
        seen[rows, rows] = torch.ones(lengths[i], lengths[i], dtype=torch.bool).tril()
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v, d = (
        torch.randn(tokens, n, 8, generator=generator, dtype=torch.float64).requires_grad_() for n in (4, 2, 2, 4)
    )
    return q, k, v, d.detach()


def check(tree: Segments) -> Tree:
    q, k, v, d = inputs(sum(tree[1]))
    laid = Tree(nodes_of(*tree), CPU)
    out = laid.attend(q, k, v, 0.3, TorchKernel())
    wanted = plain(q, k, v, tree, 0.3)
    torch.testing.assert_close(out, wanted, atol=1e-10, rtol=0)
    found, right = (torch.autograd.grad((x * d).sum(), (q, k, v)) for x in (out, wanted))
    for one, two in zip(found, right, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=0)
    return laid


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=12),
    st.sampled_from([1, 20, 2_000]),
    st.sampled_from([8, 65_536]),
)
def test_any_tree_equals_the_plain_computation(choices: list[tuple[int, int]], call: int, gathered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "CALL_TOKENS", call)
        patch.setattr(tree_attention, "GATHERED_TOKENS", gathered)
        check(segments([p for p, _ in choices], [n for _, n in choices]))


def test_a_group_takes_two_calls_without_copies() -> None:
    prompt, members = 200, 8
    starts = [0, *range(prompt, prompt + 50 * members, 50)]
    tree = Tree(nodes_of(starts, [prompt, *[50] * members], [(), *[(0,)] * members]), CPU)
    # small enough for one gathering call; a prompt of thousands is not
    assert (len(tree.own), len(tree.cross)) == (1, 0)
    prompt = 4_000
    starts = [0, *range(prompt, prompt + 500 * members, 500)]
    tree = Tree(nodes_of(starts, [prompt, *[500] * members], [(), *[(0,)] * members]), CPU)
    assert (len(tree.own), len(tree.cross)) == (1, 1)
    assert tree.own[0].keys == slice(0, 8_000) and tree.own[0].queries == slice(0, 8_000)
    assert tree.cross[0].queries == slice(4_000, 8_000) and tree.cross[0].keys == slice(0, 4_000)


def test_turns_that_continue_each_other_are_one_sequence() -> None:
    ancestors = [tuple(range(i)) for i in range(30)]
    nodes = nodes_of(list(range(0, 300, 10)), [10] * 30, ancestors)
    assert [(n.start, n.end, n.last, n.path) for n in nodes] == [(0, 300, 300, ())]


def test_a_branching_trajectory_of_many_turns_takes_few_calls() -> None:
    """Every turn forks into the reply as sampled and the history as it is shown later."""
    lengths, ancestors, spine = [], [], ()
    for turn in range(40):
        here = 2 * turn
        lengths += [350, 200]
        ancestors += [spine, (*spine, here)]
        spine = (*spine, here)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    tree = Tree(nodes_of(starts, lengths, ancestors), CPU)
    assert len(tree.own) + len(tree.cross) <= 8
    small = [max(1, n // 50) for n in lengths]
    check(([sum(small[:i]) for i in range(len(small))], small, ancestors))


def test_a_kept_answer_is_not_computed_again() -> None:
    tree = segments([0, 1, 1, 2, 0], [5, 4, 3, 2, 6])
    q, k, v, d = inputs(20)
    laid = Tree(nodes_of(*tree), CPU)
    with torch.no_grad():
        kept = laid.forward(q, k, v, 0.3, TorchKernel())

    class OnlyBackward(TorchKernel):
        def forward(self, *_: object) -> tuple[Tensor, Tensor]:
            raise AssertionError("computed again")

    out = laid.attend(q, k, v, 0.3, OnlyBackward(), kept)
    found = torch.autograd.grad((out * d).sum(), (q, k, v))
    right = torch.autograd.grad((plain(q, k, v, tree, 0.3) * d).sum(), (q, k, v))
    for one, two in zip(found, right, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=0)


def test_the_first_check_sees_a_kernel_that_aligns_its_mask_elsewhere() -> None:
    class TopLeft(TorchKernel):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, part: object, scale: float) -> tuple[Tensor, Tensor]:
            out, lse = super().forward(q, k, v, part, scale)  # type: ignore[arg-type]
            return (out.roll(1, 0) if len(k) > len(q) else out), lse

    nodes = nodes_of(*_PROBE)
    generator = torch.Generator().manual_seed(0)
    assert close(TorchKernel(), nodes, (4, 2, 16), torch.bfloat16, generator)
    assert not close(TopLeft(), nodes, (4, 2, 16), torch.bfloat16, generator)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(32, 8, 128), (28, 4, 128), (32, 32, 64), (9, 3, 64)])
def test_the_flash_kernels_agree_on_large_trees(shape: tuple[int, int, int]) -> None:
    device = torch.device("cuda")
    assert flash_kernel(torch.empty(1, shape[0], shape[2], dtype=torch.bfloat16, device=device), shape[1]) is not None
    tree = segments([0, 1, 1, 2, 2, 0, 1, 2, 3, 1], [600, 40, 300, 129, 128, 500, 1, 64, 65, 257])
    generator = torch.Generator(device).manual_seed(0)
    assert close(FlashKernel(), nodes_of(*tree), shape, torch.bfloat16, generator)
