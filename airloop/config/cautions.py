"""What a config may say and seldom means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airloop.config.schema import RunConfig
from airloop.config.trainer import LoraConfig
from airloop.learn.losses import LOSSES

LORA_LR_FLOOR = 1e-5  # below it, runs of weeks showed no visible update (A10)


@dataclass(frozen=True)
class Caution:
    """What is allowed but seldom meant: what was seen, why it matters, what to change."""

    id: str
    seen: str
    why: str
    fix: str
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.seen}: {self.why}. {self.fix[0].upper()}{self.fix[1:]}"


def cautions(config: RunConfig) -> list[Caution]:
    looks = (_small_lr, _warming_up, _no_adapter, _loss_cautions, _truncated, _idle_gpu, _uneven, _rows)
    return [caution for look in looks for caution in look(config)]


def _small_lr(config: RunConfig) -> Iterator[Caution]:
    optim = config.trainer.optim
    if config.trainer.model.train == "lora" and optim.lr < LORA_LR_FLOOR:
        clip = f" (clipping, max_norm = {optim.max_norm:g}, changes little: AdamW's steps have the size of lr)"
        yield Caution(
            "A10",
            f"trainer.optim.lr = {optim.lr:g} with LoRA",
            "it is small for LoRA, where 1e-5 to 5e-4 is usual: expect no visible update"
            + (clip if optim.max_norm < 1 else ""),
            "try --trainer.optim.lr 1e-4",
            {"trainer.optim.lr": 1e-4},
        )


def _warming_up(config: RunConfig) -> Iterator[Caution]:
    optim, steps = config.trainer.optim, config.max_steps
    if optim.warmup_steps and optim.warmup_steps >= steps:
        yield Caution(
            "A10",
            f"trainer.optim.warmup_steps = {optim.warmup_steps} with max_steps = {steps}",
            f"the rate rises all the while, to {steps / optim.warmup_steps:.0%} of lr, and no schedule begins",
            f"take warmup_steps = {steps // 10}",
            {"trainer.optim.warmup_steps": steps // 10},
        )


def _no_adapter(config: RunConfig) -> Iterator[Caution]:
    lora = config.trainer.model.lora
    said = [name for name in LoraConfig.model_fields if getattr(lora, name) != getattr(LoraConfig(), name)]
    if config.trainer.model.train == "full" and said:
        named = ", ".join(f"{name} = {getattr(lora, name)}" for name in said)
        yield Caution(
            "A11",
            f'trainer.model.lora has {named} with train = "full"',
            "all the weights are trained, and there is no adapter",
            "say --trainer.model.train lora, or leave [trainer.model.lora] out",
            {"trainer.model.train": "lora"},
        )


def _truncated(config: RunConfig) -> Iterator[Caution]:
    sampling = config.orchestrator.sampling
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    found = {name: getattr(sampling, name) for name, none in off.items() if getattr(sampling, name) != none}
    if found:
        yield Caution(
            "F7",
            f"orchestrator.sampling has {', '.join(f'{name} = {value:g}' for name, value in found.items())}",
            "training samples from a truncated distribution, but the log-probs on both sides are those of the "
            "untruncated softmax, so the gradient is biased",
            "leave them out to train on what is sampled",
            {f"orchestrator.sampling.{name}": off[name] for name in found},
        )


def _idle_gpu(config: RunConfig) -> Iterator[Caution]:
    if config.model.device == "cpu" and config.gpu is not None:
        yield Caution(
            "A11",
            f'model.device = "cpu" and trainer_gpu_ids = {config.gpus}',
            "the GPU is not used",
            "delete one of the two lines",
        )


def _uneven(config: RunConfig) -> Iterator[Caution]:
    groups, size = divmod(config.orchestrator.batch_size, config.orchestrator.rollouts_per_example)[0], config.ranks
    if groups % size and not config.orchestrator.max_staleness:  # beside training the first samples for all
        even = -(-groups // size) * size * config.orchestrator.rollouts_per_example
        yield Caution(
            "A5",
            f"{groups} groups a step (batch_size / rollouts_per_example) are not evenly shared by {size} processes",
            "whole groups are sampled by one process, so some wait for the others",
            f"take batch_size = {even}",
            {"orchestrator.batch_size": even},
        )


def _rows(config: RunConfig) -> Iterator[Caution]:
    if config.orchestrator.trajectory_strategy == "branching":
        yield Caution(
            "A11",
            'orchestrator.trajectory_strategy = "branching"',
            'it trains the same tokens, behind the same context and with the same weights, as "interleaved": the rows '
            "of an episode are one a turn instead of one",
            "nothing need be changed",
        )


def _loss_cautions(config: RunConfig) -> Iterator[Caution]:
    """On the first pass every ratio is 1: what only acts on ratios acts from the second on."""
    loss = config.trainer.loss
    if loss.credit == "turn" and config.orchestrator.buffer.online_difficulty_filtering:
        yield Caution(
            "E2",
            'orchestrator.buffer.online_difficulty_filtering with trainer.loss.credit = "turn"',
            "groups whose rewards are equal as a whole are left out, also those whose turns differ and could be "
            "learned from",
            "switch one of the two off",
            {"orchestrator.buffer.online_difficulty_filtering": False},
        )
    if loss.passes > 1:
        return
    spec = LOSSES.get(loss.type)
    if spec is None:  # one of the user's own: what it makes of ratios, only its file says
        return
    clips = [
        f"{key} = {getattr(loss, key):g}"
        for key in ("clip_low", "clip_high")
        if getattr(loss, key) != spec.defaults.get(key)
    ]
    if clips:
        yield Caution(
            "A11",
            f"trainer.loss has {', '.join(clips)} with passes = 1",
            "nothing is ever clipped: each batch is sampled from the newest weights and used for one update",
            "it acts from --trainer.loss.passes 2 on",
            {"trainer.loss.passes": 2},
        )
    if spec.like:
        yield Caution(
            "A11",
            f'trainer.loss.type = "{loss.type}" with passes = 1',
            f'it has the gradient of "{spec.like}" then',
            "they differ from --trainer.loss.passes 2 on",
            {"trainer.loss.passes": 2},
        )
