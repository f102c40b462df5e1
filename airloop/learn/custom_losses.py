"""Losses and advantages of a user's own, named by file and function: found, tried on a few tokens before anything is
trained, and refused in a sentence that says what to mend. docs/losses.md has the two signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from airloop.errors import AirError
from airloop.learn.losses.base import LossSettings, LossSpec, LossTerms
from airloop.own_code import check_file, line_of, load_module, split_id

# A group's rewards and its trajectories' sampled tokens in, [members] in float64 each; its advantages out.
Advantage = Callable[[Tensor, Tensor], Tensor]
LOSS_FORM = "define it as `def {}(terms, settings): return loss_of_each_token, {{}}` (docs/losses.md)."
ADVANTAGE_FORM = "define it as `def {}(rewards, lengths): return advantages` (docs/losses.md)."
# What the learner reports of every loss: a statistic of the user's must not stand in for it.
TAKEN = {"loss", "kl", "importance", "cut", "entropy", "lr", "grad_norm", "grad_norm_max", "seconds", "tokens_per_s"}
TAKEN |= {
    "cut_geo",
    "cut_sequence",
    "update_ratio",
    "weights_changed",
    "tokens_trained",
    "tokens_computed",
    "tokens_shared",
    "micro_batches",
}
TOKENS = 12  # of a trial: a few show what thousands would
GROUPS = ((0.0, 1.0, 0.5, 1.0), (0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0))


@functools.cache
def load_loss(file_id: str) -> LossSpec:
    found, path = _find(file_id, "loss", LOSS_FORM)
    if isinstance(found, LossSpec):
        spec = replace(found, name=file_id)
    else:  # a function by itself has GRPO's weights, advantages and clip, which [trainer.loss] may change
        spec = LossSpec(file_id, _function(found, file_id, 2, LOSS_FORM), clip_low=0.2, clip_high=0.2)
    for what, terms in _trials(spec):
        _try_loss(spec, what, terms, path)
    return spec


@functools.cache
def load_advantage(file_id: str) -> Advantage:
    found, path = _find(file_id, "advantage", ADVANTAGE_FORM)
    function: Advantage = _function(found, file_id, 2, ADVANTAGE_FORM)
    for rewards in GROUPS:
        try:
            check_advantages(file_id, function, rewards, range(3, 3 + len(rewards)))
        except AirError:
            raise
        except Exception as error:
            raise _raises(file_id, error, path, f"for a group with the rewards {list(rewards)}") from error
    return function


def check_advantages(
    file_id: str, function: Advantage, rewards: Sequence[float], lengths: Sequence[int]
) -> list[float]:
    """What the function makes of a group, if it can be trained on."""
    given = [torch.tensor(column, dtype=torch.float64) for column in (rewards, lengths)]
    found = function(*given)
    group = f"a group with the rewards {[round(reward, 6) for reward in rewards]}"
    if not isinstance(found, Tensor) or found.shape != given[0].shape:
        raise AirError(
            f"The advantage {file_id} gave {_shape(found)} for {group}.", "return a tensor with one number for each."
        )
    if not bool(found.isfinite().all()):
        equal = ": their standard deviation is 0" if len(set(rewards)) == 1 else ""
        raise AirError(f"The advantage {file_id} gave {found.tolist()} for {group}{equal}.", "return finite numbers.")
    return [float(value) for value in found.tolist()]


def _find(file_id: str, what: str, form: str) -> tuple[Any, Path]:
    _, _, name = split_id(file_id)
    path = check_file(file_id, what, "correct the path: in a file it is relative to the file's folder.")
    if not name:
        raise AirError(f"{file_id!r} names no function of the file.", f"write {file_id}:{what}")
    module = load_module(path)
    if (found := getattr(module, name, None)) is not None:
        return found, path
    own = [key for key, value in vars(module).items() if _is_own(value, module.__name__)]
    meant = f"did you mean {path}:{own[0]}?" if len(own) == 1 else form.format(name)
    raise AirError(f"{path} has no {name!r}.", meant)


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, LossSpec) or (inspect.isfunction(value) and value.__module__ == module)


def _function(found: Any, file_id: str, arguments: int, form: str) -> Any:
    name = split_id(file_id)[2]
    if not callable(found):
        raise AirError(f"{file_id} is a {type(found).__name__}, not a function.", form.format(name))
    try:
        inspect.signature(found).bind(*range(arguments))
    except (TypeError, ValueError) as error:
        takes = f"{name}{inspect.signature(found)}"
        raise AirError(f"{file_id}: {takes} cannot be called with two arguments: {error}.", form.format(name)) from None
    return found


def _trials(spec: LossSpec) -> Iterator[tuple[str, LossTerms]]:
    """As on the first pass over a batch, where every ratio is 1, and as on a later one."""
    draw = torch.Generator().manual_seed(0)
    columns = [torch.randn(TOKENS, generator=draw) for _ in range(6)]
    now = -columns[0].exp()
    weight = torch.full((TOKENS,), 1 / TOKENS)
    first = LossTerms(now, now, now + 0.1 * columns[2], None, columns[3], weight, entropy=-now.detach())
    yield "the first pass over a batch", first
    later = replace(first, old=now + 0.2 * columns[1], reference=now + 0.2 * columns[4])
    if not spec.once:
        yield "a later pass", replace(later, sequence=0.1 * columns[5] if spec.per_sequence else None)


def _try_loss(spec: LossSpec, what: str, terms: LossTerms, path: Path) -> None:
    settings = LossSettings(**spec.clips)

    def of(part: slice) -> tuple[Any, Any, Tensor]:
        chosen = {f.name: getattr(terms, f.name) for f in fields(terms)}
        cut = {name: value[part].clone() for name, value in chosen.items() if value is not None}
        cut["logprobs"].requires_grad_()
        try:
            given = spec.token_loss(LossTerms(**{"reference": None, **cut}), settings)
        except Exception as error:
            raise _raises(spec.name, error, path, f"as on {what}") from error
        if not isinstance(given, tuple) or len(given) != 2:
            raise AirError(f"The loss {spec.name} gave {_shape(given)}, not a pair.", LOSS_FORM.format("loss"))
        return *given, cut["logprobs"]

    whole, parts, logprobs = of(slice(None))
    _check_tokens(spec, whole, what)
    _check_parts(spec, parts)
    slopes = _slopes(spec, whole, logprobs, what)
    halves = [of(slice(0, TOKENS // 2)), of(slice(TOKENS // 2, None))]
    apart = torch.cat([_slopes(spec, loss, own, what) for loss, _, own in halves])
    if not torch.allclose(torch.cat([loss for loss, _, _ in halves]), whole) or not torch.allclose(apart, slopes):
        raise AirError(
            f"The loss {spec.name} gives a token another loss, or gradient, when fewer tokens stand beside it: its sum "
            "would depend on how a batch is cut into micro-batches.",
            "leave out means and sums over the tokens: `weight` of the LossSpec says how they are averaged.",
        )


def _check_tokens(spec: LossSpec, loss: Any, what: str) -> None:
    if not isinstance(loss, Tensor) or loss.shape != (TOKENS,):
        raise AirError(
            f"The loss {spec.name} gave {_shape(loss)} for {TOKENS} tokens.",
            "return the loss of each token, [tokens]: it is weighted and summed by the learner.",
        )
    if not bool(loss.isfinite().all()):
        bad = int((~loss.isfinite()).sum())
        raise AirError(
            f"The loss {spec.name} is not finite for {bad} of {TOKENS} ordinary tokens, as on {what}.",
            "see where it divides by 0 or takes a logarithm of something negative.",
        )


def _check_parts(spec: LossSpec, parts: Any) -> None:
    if not isinstance(parts, Mapping):
        raise AirError(f"The loss {spec.name} gave {_shape(parts)} for its statistics.", "return a dict, or {}.")
    for name, value in parts.items():
        if name in TAKEN or not str(name).isidentifier():
            raise AirError(f"The loss {spec.name} has a statistic {name!r}, a name that is taken.", "rename it.")
        if not isinstance(value, Tensor) or value.shape != (TOKENS,):
            raise AirError(
                f"The loss {spec.name} gave {_shape(value)} for the statistic {name!r} of {TOKENS} tokens.",
                "return a number for each token, [tokens]: the learner reports their mean.",
            )


def _slopes(spec: LossSpec, loss: Tensor, logprobs: Tensor, what: str) -> Tensor:
    if loss.requires_grad:
        (slopes,) = torch.autograd.grad(loss.sum(), logprobs, allow_unused=True)
        if slopes is not None and bool(slopes.isfinite().all()) and bool(slopes.any()):
            return slopes
        why = "is zero everywhere" if slopes is None or not slopes.isnan().any() else "is not finite"
    else:
        why = "is missing"
    raise AirError(
        f"The gradient of the loss {spec.name} by terms.logprobs {why}, as on {what}.",
        "only terms.logprobs has one: do not detach it, or turn it into numbers, on the way to the loss.",
    )


def _raises(file_id: str, error: Exception, path: Path, when: str) -> AirError:
    place = f"{path}{line_of(error, path)}"
    return AirError(f"{file_id} raises {type(error).__name__} {when}: {error} ({place}).", "mend the file.")


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
