"""How much of a gap between engine and trainer is rounding: measured in the very network that the gap was seen in.

Nobody can say beforehand what rounding does to a network: 0.01 in one, 0.5 in another whose layers amplify it. So the
same tokens are computed twice by transformers' own layers, in the model's number format and in a wider one. The wider
answer is taken for the truth; how far the narrow one is from it is what rounding does here. Engine and trainer round
too, in another order, so each may be a few times as far from the truth as that, and no farther.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from airloop.learn.logprobs import token_logprobs

if TYPE_CHECKING:
    from airloop.learn.batches import Row
    from airloop.learn.learner import Learner
    from airloop.policy import Policy

WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
# How many times as far from the truth as transformers' own layers a healthy side may be, in the mean over some dozens
# of tokens: see docs/alarms.md for what was measured.
TIMES = 4.0
# Distances below this are never a failure: TF32 products, which some kernels use for float32, are 1e-3 off.
FLOOR = 1e-3
# Of a row so many tokens are looked at, and at least so many that were sampled.
ROW_TOKENS, LEAST_TRAINED = 2048, 32


@dataclass(frozen=True)
class Distances:
    """Mean distances from the truth, in nats a token."""

    engine: float
    trainer: float
    rounding: float  # of transformers' layers in the model's own format
    tokens: int

    def with_more(self, other: Distances) -> Distances:
        """Of the tokens of both measurements."""
        total = self.tokens + other.tokens

        def mean(a: float, b: float) -> float:
            return (a * self.tokens + b * other.tokens) / total

        return Distances(
            mean(self.engine, other.engine),
            mean(self.trainer, other.trainer),
            mean(self.rounding, other.rounding),
            total,
        )

    @property
    def most(self) -> float:
        return TIMES * self.rounding + FLOOR

    @property
    def healthy(self) -> bool:
        """What is no number is never healthy."""
        return math.isfinite(self.rounding) and self.engine <= self.most and self.trainer <= self.most

    def __str__(self) -> str:
        return (
            f"from the same {self.tokens} tokens computed in more bits the engine is {self.engine:.2g} away, the "
            f"trainer {self.trainer:.2g}, plain rounding {self.rounding:.2g}"
        )

    @property
    def wrong_side(self) -> str:
        """Which is too far away."""
        if self.healthy:
            return ""
        sides = {"the engine": self.engine, "the trainer": self.trainer}
        wrong = [name for name, value in sides.items() if not value <= self.most]
        return " and ".join(wrong) or "the model itself"


def other_beginnings(prompts: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """Ends of the prompts, each of another length. What rounding does to the first tokens is in all that follow, so
    rows that begin alike err alike, and however many of them are no more than one measurement."""
    found = []
    for i in range(count):
        prompt = prompts[i % len(prompts)]
        found.append(prompt[-max(1, len(prompt) * (i + 1) // count) :])
    return found


def distances(learner: Learner, rows: Sequence[Row], trainer: dict[str, list[float]]) -> Distances:
    """Of the engine's log-probs, which the rows hold, and the trainer's, at the learner's temperature. Of a long row
    its beginning: what comes later changes nothing before it, and wide numbers take memory."""
    rows = [_beginning(row) for row in rows]
    trainer = {row.key: trainer[row.key][: sum(row.train)] for row in rows}
    truth, plain = exact(learner, rows), reference(learner, rows)
    engine = {row.key: row.trained_logprobs for row in rows}
    count = sum(map(len, engine.values()))
    own, other, rounding = (mean_distance(x, truth) for x in (engine, trainer, plain))
    return Distances(own, other, rounding, count)


def _beginning(row: Row) -> Row:
    end = max(ROW_TOKENS, row.train.index(True) + LEAST_TRAINED)
    return replace(row, tokens=row.tokens[:end], train=row.train[:end], logprobs=row.logprobs[:end])


def mean_distance(a: dict[str, list[float]], b: dict[str, list[float]]) -> float:
    return statistics.fmean(abs(x - y) for key in a for x, y in zip(a[key], b[key], strict=True))


def exact(learner: Learner, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Log-probs of the rows' trained tokens by transformers' layers, in the next wider format."""
    with wide(learner.policy, WIDER[learner.policy.dtype]):
        return reference(learner, rows)


@torch.no_grad()
def reference(learner: Learner, rows: Sequence[Row]) -> dict[str, list[float]]:
    """By transformers' layers, each token seeing all before it in its row: neither the engine's pages nor the trainer's
    packing, nor the kernels of either. Short rows share a pass, in which every weight is read, and widened, once."""
    policy, temperature = learner.policy, learner.settings.temperature
    vocabulary = policy.model.config.vocab_size
    found: dict[str, list[float]] = {}
    for together in _passes(rows):
        plan = _Causal(together, policy.device)
        trained = [i for i, train in enumerate(train for row in together for train in row.train) if train]
        places = torch.tensor(trained, device=policy.device)
        hidden = policy.hidden(plan).index_select(0, places - 1)
        values = token_logprobs(policy.head, hidden, plan.tokens[places], temperature, vocabulary)[0]
        for row, part in zip(together, values.split([sum(row.train) for row in together]), strict=True):
            found[row.key] = part.tolist()
    return found


def _passes(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """As many rows as have together no more tokens than a long one alone: wide numbers take memory."""
    together: list[Row] = []
    for row in rows:
        if together and sum(len(r.tokens) for r in together) + len(row.tokens) > ROW_TOKENS:
            yield together
            together = []
        together.append(row)
    if together:
        yield together


class _Causal:
    """Implements policy.ForwardPlan for rows one after the other, of which none sees another."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self._lengths = [len(row.tokens) for row in rows]
        self.tokens = torch.tensor([token for row in rows for token in row.tokens], device=device)
        self.positions = torch.cat([torch.arange(length, device=device) for length in self._lengths])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        heads = query.shape[1] // key.shape[1]
        wide = (query, *(x.repeat_interleave(heads, 1) for x in (key, value)))
        parts = [
            scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=scale)[0].transpose(0, 1)
            for q, k, v in zip(*(x.transpose(0, 1).split(self._lengths, 1) for x in wide), strict=True)
        ]
        return torch.cat(parts)


@contextlib.contextmanager
def wide(policy: Policy, dtype: torch.dtype) -> Iterator[None]:
    """Forward passes of the policy's modules compute in `dtype`. Each module's weights are widened when it is called
    and dropped when it is done, so that there is never a second copy of the model; the parameters themselves are not
    touched. (Adapters are cast to their input's type in any case.)"""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    hooks: list[Any] = []
    for module in policy.model.modules():
        if isinstance(module, nn.Embedding):  # a row that is looked up is as wide before as after
            hooks.append(module.register_forward_hook(lambda m, _, out: out.to(dtype)))
        elif any(p is not None and p.is_floating_point() for p in module._parameters.values()):
            kept: dict[str, nn.Parameter | None] = dict(module._parameters)
            hooks.append(module.register_forward_pre_hook(_widen(dtype)))
            hooks.append(module.register_forward_hook(_narrow(kept), always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        torch.set_float32_matmul_precision(precision)


def _widen(dtype: torch.dtype) -> Any:
    def hook(module: nn.Module, _: Any) -> None:
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(weight.detach().to(dtype), requires_grad=False)

    return hook


def _narrow(kept: dict[str, nn.Parameter | None]) -> Any:
    def hook(module: nn.Module, *_: Any) -> None:
        module._parameters.update(kept)

    return hook
