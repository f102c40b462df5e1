"""The second half of a block: norm, gate and up, down, added to the residual stream.

What lies between is several times as wide as the stream: over a long micro-batch it would be the largest thing that a
block computes with. Each token's is its own, so a block that is checkpointed computes it there for one part of the
tokens after the other, forward and backward. One that is not keeps it all, as it was asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from airloop.learn.block_ops import Linears, gated, gradients_of, products, project, rms_norm
from airloop.limits import mlp_part


@dataclass(frozen=True)
class Mlp:
    norm: Tensor
    gate_up: Linears
    down: Linears
    eps: float

    def tensors(self) -> list[Tensor]:
        return [self.norm, *self.gate_up.tensors(), *self.down.tensors()]

    def trained(self) -> list[Tensor]:
        return [t for t in self.tensors() if t.requires_grad]

    def part(self, tokens: int) -> int:
        """So many of the tokens at once. Gradients of whole matrices would be added up beside them, part by part: with
        those in training nothing is gained."""
        whole = any(w.requires_grad for w in (*self.gate_up.weights, *self.down.weights))
        return tokens if whole else mlp_part(tokens)

    def open(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The stream once more, and what the last product takes."""
        stream, normed = rms_norm(stream, self.norm, self.eps)
        gate, up = project(normed, self.gate_up)
        return stream, gated(gate, up)


def run_mlp(stream: Tensor, mlp: Mlp) -> Tensor:
    """[T, width] -> [T, width], all at once and differentiable."""
    stream, opened = mlp.open(stream)
    return project(opened, mlp.down, stream)[0]


@torch.no_grad()
def mlp_forward(stream: Tensor, mlp: Mlp) -> Tensor:
    """Keeps nothing."""
    rows = mlp.part(len(stream))
    if rows == len(stream):
        return _product_of(stream, mlp)
    out = torch.empty_like(stream)
    for piece, into in zip(stream.split(rows), out.split(rows), strict=True):
        into.copy_(_product_of(piece, mlp))
    return out


def _product_of(stream: Tensor, mlp: Mlp) -> Tensor:
    stream, opened = mlp.open(stream)
    return products(opened, mlp.down, stream)[0][0]


@torch.no_grad()
def mlp_backward(d: Tensor, stream: Tensor, mlp: Mlp, of_stream: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    """Gradients of the stream, if asked for, and of what is trained, from the gradient of the output and the stream
    alone. The last product, which they do not need, is not computed again."""
    rows = mlp.part(len(stream))
    if rows == len(stream):
        return _backward_of(d, stream, mlp, of_stream)
    dstream = torch.empty_like(stream) if of_stream else None
    sums: list[Tensor | None] = [None] * len(mlp.trained())
    for i, piece in enumerate(stream.split(rows)):
        here = slice(i * rows, i * rows + len(piece))
        dpiece, found = _backward_of(d[here], piece, mlp, of_stream)
        if dstream is not None and dpiece is not None:
            dstream[here] = dpiece
        sums = [_added(total, more) for total, more in zip(sums, found, strict=True)]
    return dstream, [g if g is None else g.to(t.dtype) for g, t in zip(sums, mlp.trained(), strict=True)]


def _added(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    """In float32 at least, as inside one product over all tokens."""
    if total is None or more is None:
        return total if more is None else more.to(torch.promote_types(more.dtype, torch.float32))
    return total.add_(more)


def _backward_of(d: Tensor, stream: Tensor, mlp: Mlp, of_stream: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    trained = mlp.trained()
    with torch.enable_grad():
        leaf = stream.detach().requires_grad_(of_stream)
        along, opened = mlp.open(leaf)
    found = _last_product(d, opened.detach(), mlp.down)
    dopened = found.pop(0)
    by_id = {id(t): g for t, g in zip(_flat(mlp.down), found, strict=True) if t is not None}
    others = [t for t in trained if id(t) not in by_id]
    wanted = [leaf, *others] if of_stream else others
    ends = [(t, g) for t, g in ((along, d), (opened, dopened)) if t.requires_grad and wanted]
    if ends:
        outs, gradients = zip(*ends, strict=True)
        inner = torch.autograd.grad(outs, wanted, gradients, allow_unused=True)
        by_id |= {id(t): g for t, g in zip(wanted, inner, strict=True)}
    return by_id.get(id(leaf)), [by_id[id(t)] for t in trained]


def _flat(linears: Linears) -> list[Tensor | None]:
    return [*linears.weights, *linears.biases, linears.down, *linears.ups]


def _last_product(d: Tensor, opened: Tensor, down: Linears) -> list[Tensor | None]:
    small = None if down.down is None else torch.nn.functional.linear(opened, down.down)
    needs = [t is not None and t.requires_grad for t in _flat(down)]
    return gradients_of([d], opened, small, down, True, needs[:1], needs[1:])
