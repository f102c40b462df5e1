"""The Triton kernels, in the interpreter where there is no GPU, against plain torch and its autograd in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from airloop.learn.block_ops import _plain_norm, rotate
from airloop.learn.kernels.gated import gated_backward, gated_forward
from airloop.learn.kernels.merge import merge_rows_
from airloop.learn.kernels.norm import norm_backward, norm_forward
from airloop.learn.kernels.rotary import rotary_backward, rotary_forward
from airloop.learn.kernels.softmax import read_rows_

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def near(found: Tensor | None, wanted: Tensor | None, tolerance: float = 1e-5) -> None:
    assert found is not None and wanted is not None
    torch.testing.assert_close(found.float(), wanted.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("along", [False, True])
def test_norm(width: int, along: bool) -> None:
    x, weight, d, more = draw(7, width).requires_grad_(), draw(width).requires_grad_(), draw(7, width), draw(7, width)
    out, inverse = norm_forward(x.detach(), weight.detach(), 1e-5)
    wanted = _plain_norm(x, weight, 1e-5)
    near(out, wanted)
    right = torch.autograd.grad((wanted * d).sum() + ((x * more).sum() if along else 0), (x, weight))
    dx, dweight = norm_backward(d, more if along else None, x.detach(), weight.detach(), inverse, True)
    near(dx, right[0])
    near(dweight, right[1])
    assert norm_backward(d, None, x.detach(), weight.detach(), inverse, False)[1] is None


@pytest.mark.parametrize("heads", [3, 4])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dim", [16, 24])
def test_rotary(heads: int, normed: bool, dim: int) -> None:
    tokens = 5
    x, d = draw(tokens, heads * dim + 8)[:, : heads * dim].view(tokens, heads, dim), draw(tokens, heads, dim)
    weight = draw(dim).requires_grad_() if normed else None
    angles = draw(tokens, dim // 2).repeat(1, 2)
    leaf = x.detach().cpu().requires_grad_()
    plain_weight = None if weight is None else weight.detach().cpu().requires_grad_()
    wanted = rotate(leaf, plain_weight, angles.cos().cpu(), angles.sin().cpu(), 1e-6)
    out = rotary_forward(x, None if weight is None else weight.detach(), angles.cos(), angles.sin(), 1e-6)
    near(out.cpu(), wanted)
    (wanted * d.cpu()).sum().backward()
    shape = d if weight is None else x
    dx, dweight = rotary_backward(
        d, shape, None if weight is None else weight.detach(), angles.cos(), angles.sin(), 1e-6, normed
    )
    near(dx.cpu(), leaf.grad)
    if plain_weight is not None and dweight is not None:
        near(dweight.cpu(), plain_weight.grad)


def test_gated() -> None:
    gate, up, d = draw(9, 300).requires_grad_(), (draw(9, 300) + 0.5).requires_grad_(), draw(300, 9).T.contiguous()
    wanted = torch.nn.functional.silu(gate) * up
    near(gated_forward(gate.detach(), up.detach()), wanted)
    right = torch.autograd.grad((wanted * d).sum(), (gate, up))
    for found, one in zip(gated_backward(d, gate.detach(), up.detach()), right, strict=True):
        near(found, one)


def test_they_round_as_transformers_does() -> None:
    """To the model's type before each weight, so that its log-probs are those of its own modules. In fp16: the
    interpreter cuts bf16 off instead of rounding it."""
    half = torch.float16
    gate, up = draw(4, 500, dtype=half), draw(500, 4, dtype=half).T.contiguous()
    x, weight = draw(6, 64, dtype=half), draw(64, dtype=half)
    pairs = [
        (gated_forward(gate, up), torch.nn.functional.silu(gate) * up),
        (norm_forward(x, weight, 1e-6)[0], _plain_norm(x, weight, 1e-6)),
    ]
    for found, wanted in pairs:
        same = (found == wanted).float().mean().item()
        assert same > 0.98, f"{same:.2%} are equal"  # sums in another order may round differently
        torch.testing.assert_close(found, wanted, atol=0, rtol=2**-9)


@pytest.mark.parametrize("rows", [slice(3, 7), [8, 1, 2, 5]])
def test_merge(rows: slice | list[int]) -> None:
    from airloop.learn.tree_attention import merge_

    out, lse, more, more_lse = draw(9, 3, 12), draw(3, 9), draw(4, 3, 12), draw(3, 4) * 5
    place = rows if isinstance(rows, slice) else torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    plain_out, plain_lse = out.cpu().clone(), lse.cpu().clone()
    merge_(plain_out, plain_lse, more.cpu(), more_lse.cpu(), rows if isinstance(rows, slice) else torch.tensor(rows))
    merge_rows_(out, lse, more, more_lse, place)
    near(out.cpu(), plain_out)
    near(lse.cpu(), plain_lse)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_softmax_rows(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airloop.learn.kernels.softmax.BLOCK", 64)  # several blocks in a row, the last one not full
    logits, targets = draw(5, 333) * 4, torch.tensor([0, 332, 64, 63, 100], device=DEVICE)
    logits[1, 300:] = -40.0
    leaf = logits.clone().requires_grad_()
    logprobs = (leaf / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    (right,) = torch.autograd.grad(chosen.sum(), leaf)
    for gradient in (False, True):
        work = logits.clone()
        found, spread = read_rows_(work, targets, temperature, gradient)
        near(found, chosen)
        near(spread, entropy, 1e-4)
        near(work, right if gradient else logits)
