"""What keys must not say together, and what this version refuses, each with its reason and its correction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from air.errors import AirError

if TYPE_CHECKING:
    from air.config.schema import Config

NOT_YET = ("vllm", "turn")  # in the schema, so that they are refused with a reason rather than as unknown
LORA_LR_FLOOR = 1e-5  # below it, runs of weeks showed no visible update (A10)


@dataclass(frozen=True)
class Conflict:
    """A value, or several, that cannot stand. `changes` are the corrected keys."""

    keys: tuple[str, ...]
    problem: str
    changes: dict[str, Any] = field(default_factory=dict)


def conflicts(config: Config) -> list[Conflict]:
    return [*_groups(config), *_lengths(config), *_gpus(config), *_not_in_this_version(config)]


def _groups(config: Config) -> Iterator[Conflict]:
    batch, group = config.orchestrator.batch_size, config.orchestrator.rollouts_per_example
    if group < 2:
        changes = {"orchestrator.rollouts_per_example": 8 if batch % 8 == 0 else 2}
        if batch % 2:
            changes["orchestrator.batch_size"] = batch + 1
        yield Conflict(
            ("orchestrator.rollouts_per_example",),
            "rollouts_per_example = 1 makes every advantage zero: the baseline is the mean of the group, "
            "and a group of one is its own mean",
            changes,
        )
    elif batch % group:
        yield Conflict(
            ("orchestrator.batch_size", "orchestrator.rollouts_per_example"),
            f"batch_size = {batch} trajectories cannot be split into groups of "
            f"rollouts_per_example = {group}: {batch} / {group} leaves {batch % group}",
            {"orchestrator.batch_size": max(group, round(batch / group) * group)},
        )


def _lengths(config: Config) -> Iterator[Conflict]:
    sampling, trainer = config.orchestrator.sampling.max_tokens, config.trainer.model.seq_len
    given = config.seq_len
    if given is not None and given not in (trainer, config.orchestrator.seq_len):
        yield Conflict(
            ("seq_len", "trainer.model.seq_len", "orchestrator.seq_len"),
            f"seq_len = {given} at top level would have no effect, as trainer.model.seq_len = {trainer} "
            f"and orchestrator.seq_len = {config.orchestrator.seq_len} are both given",
            {"trainer.model.seq_len": given, "orchestrator.seq_len": given},
        )
    elif config.context > trainer:
        yield Conflict(
            ("trainer.model.seq_len", "orchestrator.seq_len", "inference.model.max_model_len"),
            f"trajectories may grow to {config.context} tokens, "
            f"but trainer.model.seq_len = {trainer} is the longest that is trained on",
            {"trainer.model.seq_len": config.context},
        )
    if sampling >= config.context:
        yield Conflict(
            ("orchestrator.sampling.max_tokens", "orchestrator.seq_len", "inference.model.max_model_len"),
            f"max_tokens = {sampling} leaves no room for the prompt in a context of {config.context} tokens "
            "(the smaller of orchestrator.seq_len and inference.model.max_model_len)",
            {"orchestrator.sampling.max_tokens": max(1, config.context // 4)},
        )


def _gpus(config: Config) -> Iterator[Conflict]:
    trainer, inference = config.trainer_gpu_ids, config.inference_gpu_ids
    ids = trainer or inference or []
    one = {"inference_gpu_ids": ids[:1], "trainer_gpu_ids": ids[:1]}
    embedded = config.inference.backend == "embedded"
    if trainer and inference and set(trainer) != set(inference) and embedded:
        yield Conflict(
            ("inference_gpu_ids", "trainer_gpu_ids"),
            f"inference_gpu_ids = {inference} and trainer_gpu_ids = {trainer} are different GPUs, but the "
            "embedded backend samples on the trainer's own weights, on the trainer's GPU"
            + ("; this version trains on one GPU (several come later)" if len(trainer) > 1 else ""),
            one,
        )
        return
    if trainer and len(trainer) > 1:
        yield Conflict(
            ("trainer_gpu_ids",),
            f"trainer_gpu_ids = {trainer}: this version trains on one GPU (several come later)",
            one if inference else {"trainer_gpu_ids": ids[:1]},
        )
    elif not trainer and inference and len(inference) > 1 and embedded:
        yield Conflict(
            ("inference_gpu_ids",),
            f"inference_gpu_ids = {inference}: the embedded backend samples on the trainer's GPU, one in "
            "this version (several come later)",
            {"trainer_gpu_ids": ids[:1]},
        )
    for key, values in (("trainer_gpu_ids", trainer), ("inference_gpu_ids", inference)):
        if any(gpu < 0 for gpu in values or []):
            yield Conflict((key,), f"{key} = {values}: a GPU's number is 0 or more", {key: [0]})


def _not_in_this_version(config: Config) -> Iterator[Conflict]:
    if config.warmstart is not None and config.model.adapter:
        yield Conflict(
            ("model.adapter", "warmstart"),
            f"model.adapter = {config.model.adapter!r} is what a supervised start would make, so [warmstart] would not "
            "be run: delete the [warmstart] table, or model.adapter",
            {},
        )
    factor = config.orchestrator.oversampling_factor
    if factor > 1 and not config.orchestrator.buffer.online_difficulty_filtering:
        yield Conflict(
            ("orchestrator.oversampling_factor",),
            f"oversampling_factor = {factor} has no effect here without online_difficulty_filtering: "
            "every episode of a step is waited for, and more are sampled only in place of groups without signal",
            {"orchestrator.buffer.online_difficulty_filtering": True},
        )
    if config.inference.backend == "vllm":
        yield Conflict(
            ("inference.backend",),
            'backend = "vllm" is not in this version; use backend = "embedded", '
            "which samples on the trainer's own weights",
            {"inference.backend": "embedded"},
        )
    if config.trainer.loss.credit == "turn":
        yield Conflict(
            ("trainer.loss.credit",),
            'credit = "turn" is not in this version: advantages are computed per trajectory, '
            "from the weighted sum of its rewards",
            {"trainer.loss.credit": "trajectory"},
        )
    if config.inference.model.enforce_eager is False:
        yield Conflict(
            ("inference.model.enforce_eager",),
            "enforce_eager = false asks for decode graphs, which come in a later version",
            {"inference.model.enforce_eager": True},
        )
    if config.inference.model.enable_auto_tool_choice is False:
        yield Conflict(
            ("inference.model.enable_auto_tool_choice",),
            "enable_auto_tool_choice = false would keep the model from choosing when to call a tool, "
            "and that choice is what is trained: air always leaves it to the model",
            {"inference.model.enable_auto_tool_choice": True},
        )
    if config.trainer.model.lora.dropout > 0:
        yield Conflict(
            ("trainer.model.lora.dropout",),
            f"dropout = {config.trainer.model.lora.dropout} must be 0 in RL: the trainer would drop units "
            "that the sampler used, so their log-probs would differ",
            {"trainer.model.lora.dropout": 0.0},
        )
    if config.deterministic and config.model.dtype == "bfloat16":
        yield Conflict(
            ("model.dtype", "deterministic"),
            'dtype = "bfloat16" and deterministic = true exclude each other: deterministic runs are in fp32',
            {"model.dtype": "float32"},
        )


def spread_seq_len(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in a seq_len that is not given: from the top level, and the trainer's from the sampler's."""
    data = dict(data)
    orchestrator, trainer = _given(data.get("orchestrator")), _given(data.get("trainer"))
    model = _given(trainer.get("model")) if trainer is not None else None
    if orchestrator is None or trainer is None or model is None:
        return data  # a section of the wrong type: the schema refuses it
    if data.get("seq_len") is not None:
        orchestrator.setdefault("seq_len", data["seq_len"])
        model.setdefault("seq_len", data["seq_len"])
    if "seq_len" in orchestrator:
        model.setdefault("seq_len", orchestrator["seq_len"])
    for name, section, parent in (
        ("model", model, trainer),
        ("trainer", trainer, data),
        ("orchestrator", orchestrator, data),
    ):
        if section:
            parent[name] = section
    return data


def _given(section: Any) -> dict[str, Any] | None:
    """The keys that were given in a section, as a dict of our own; None if it is no section at all."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return dict(section or {}) if section is None or isinstance(section, dict) else None


def warnings(config: Config) -> list[str]:
    found = []
    lr, sampling = config.trainer.optim.lr, config.orchestrator.sampling
    if config.trainer.model.train == "lora" and lr < LORA_LR_FLOOR:
        found.append(
            f"trainer.optim.lr = {lr:g} is small for LoRA, where 1e-5 to 5e-4 is usual: expect no visible "
            "update. Try --trainer.optim.lr 1e-4"
        )
    truncated = [
        f"{name} = {value:g}"
        for name, value, off in (
            ("top_p", sampling.top_p, 1),
            ("top_k", sampling.top_k, 0),
            ("min_p", sampling.min_p, 0),
        )
        if value != off
    ]
    if truncated:
        found.append(
            f"orchestrator.sampling has {', '.join(truncated)}: training samples from a truncated "
            "distribution, but the log-probs on both sides are those of the untruncated softmax, so the "
            "gradient is biased. Leave them out to train on what is sampled"
        )
    if config.model.device == "cpu" and config.gpu is not None:
        found.append(f'model.device = "cpu": the GPU named in trainer_gpu_ids ({config.gpu}) is not used')
    return found


def check_wandb(config: Config) -> None:
    """Refuse online logging without a key now, not after the model has loaded (A7)."""
    if config.wandb is None or config.wandb.offline or os.environ.get("WANDB_API_KEY"):
        return
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    if netrc.is_file() and host in netrc.read_text(encoding="utf-8", errors="replace"):
        return
    raise AirError(
        "[wandb] offline = false needs a Weights & Biases key, and there is none: "
        f"WANDB_API_KEY is not set and {netrc} has no entry for {host}.",
        "log offline and run `wandb sync` later:\n    [wandb]\n    offline = true\n"
        "  or set the key: export WANDB_API_KEY=…",
    )
