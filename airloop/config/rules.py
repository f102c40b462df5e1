"""What keys must not say together, and what this version refuses, each with its reason and its correction."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from airloop.errors import AirError
from airloop.extras import install_line

if TYPE_CHECKING:
    from airloop.config.schema import Config

NOT_YET = ("vllm", "mps")  # in the schema, so that they are refused with a reason rather than as unknown
LORA_LR_FLOOR = 1e-5  # below it, runs of weeks showed no visible update (A10)
# What each loss has of the keys that not every loss has, with the values of its paper (docs/losses.md).
LOSS_KEYS: dict[str, dict[str, Any]] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.2, "scale_rewards": True},
    "dr_grpo": {"clip_low": 0.2, "clip_high": 0.2, "scale_rewards": False},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "scale_rewards": True},
    "gspo": {"clip_low": 0.0003, "clip_high": 0.0004, "scale_rewards": True},
    "cispo": {"clip_high": 4.0, "scale_rewards": True},
    "rloo": {"scale_rewards": False},
}


# Steps of a run that has a budget of time and no max_steps of its own: more than any such run will have.
MOST_STEPS = 1000


@dataclass(frozen=True)
class Conflict:
    """A value, or several, that cannot stand. `changes` are the corrected keys."""

    keys: tuple[str, ...]
    problem: str
    changes: dict[str, Any] = field(default_factory=dict)
    id: str = "A11"  # of the failure catalogue


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


def conflicts(config: Config) -> list[Conflict]:
    rules = (_groups, _lengths, _loss, _gpus, _budget, _not_in_this_version)
    return [conflict for rule in rules for conflict in rule(config)]


def _budget(config: Config) -> Iterator[Conflict]:
    if config.budget.minutes is not None and config.deterministic:
        yield Conflict(
            ("budget.minutes", "deterministic"),
            "deterministic = true promises the same run every time, and with budget.minutes the number of steps "
            "follows from the clock",
            {"deterministic": False},
        )


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
            "A5",
        )
    elif batch % group:
        yield Conflict(
            ("orchestrator.batch_size", "orchestrator.rollouts_per_example"),
            f"batch_size = {batch} trajectories cannot be split into groups of "
            f"rollouts_per_example = {group}: {batch} / {group} leaves {batch % group}",
            {"orchestrator.batch_size": max(group, round(batch / group) * group)},
            "A5",
        )


def _lengths(config: Config) -> Iterator[Conflict]:
    trainer = config.trainer.model.seq_len
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
            "A4",
        )


def _loss(config: Config) -> Iterator[Conflict]:
    loss = config.trainer.loss
    has = LOSS_KEYS[loss.type]
    idle = {
        "clip_low": "clip_low" not in has and f'type = "{loss.type}", which does not clip from below',
        "clip_high": "clip_high" not in has and f'type = "{loss.type}", which does not clip',
        "kl_estimator": loss.kl_beta == 0 and "kl_beta = 0, which leaves the KL term out",
        "scale_by": not loss.scale_rewards and "scale_rewards = false",
        "importance_floor": loss.importance_mode != "mask" and f'importance_mode = "{loss.importance_mode}"',
        "overlong_share": loss.overlong == "off" and 'overlong = "off"',
        "overlong_penalty": loss.overlong == "off" and 'overlong = "off"',
    }
    for key, why in idle.items():
        value = getattr(loss, key)
        if why and value is not None:
            name = f"trainer.loss.{key}"
            shown = f'"{value}"' if isinstance(value, str) else f"{value:g}"
            yield Conflict((name,), f"{key} = {shown} has no effect with {why}", {name: None})
    if loss.type == "rloo" and loss.passes > 1:
        yield Conflict(
            ("trainer.loss.passes", "trainer.loss.type"),
            f'passes = {loss.passes} does not go with type = "rloo": it has neither ratio nor clip, so after the first '
            "update it would go on as if the batch came from the new policy",
            {"trainer.loss.passes": 1},
        )
    if loss.credit == "turn":
        yield from _turn_credit(config)


def _turn_credit(config: Config) -> Iterator[Conflict]:
    """A trajectory knows its environment's id: two entries of one id cannot weigh their turns differently."""
    first: dict[str, int] = {}
    for index, entry in enumerate(config.orchestrator.env):
        before = first.setdefault(entry.id, index)
        if entry.rewards != config.orchestrator.env[before].rewards:
            yield Conflict(
                (f"orchestrator.env.{index}.rewards", "trainer.loss.credit"),
                f'with credit = "turn", both environments with id = "{entry.id}" need the same rewards',
                {"trainer.loss.credit": "trajectory"},
            )


def loss_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in what the chosen loss has and what a key that was given brings along."""
    chosen = data.get("type", "grpo")
    filled = dict(LOSS_KEYS.get(chosen, {})) if isinstance(chosen, str) else {}
    if data.get("scale_rewards", filled.get("scale_rewards")) is True:
        filled["scale_by"] = "group"
    if isinstance(beta := data.get("kl_beta"), int | float) and beta > 0:
        filled["kl_estimator"] = "k3"
    if data.get("overlong") in ("reply", "episode"):
        filled |= {"overlong_share": 0.2, "overlong_penalty": 1.0}
    return filled | {key: value for key, value in data.items() if value is not None or key not in filled}


def _gpus(config: Config) -> Iterator[Conflict]:
    trainer, inference, gpus = config.trainer_gpu_ids, config.inference_gpu_ids, config.gpus
    if trainer and inference and set(trainer) != set(inference) and config.inference.backend == "embedded":
        yield Conflict(
            ("inference_gpu_ids", "trainer_gpu_ids"),
            f"inference_gpu_ids = {inference} and trainer_gpu_ids = {trainer} are different GPUs, but the "
            "embedded backend samples on the trainer's own weights: each GPU samples and trains, so that none is lost",
            dict.fromkeys(("inference_gpu_ids", "trainer_gpu_ids"), sorted({*trainer, *inference})),
        )
        return
    for key, values in (("trainer_gpu_ids", trainer), ("inference_gpu_ids", inference)):
        if any(gpu < 0 for gpu in values or []):
            yield Conflict((key,), f"{key} = {values}: a GPU's number is 0 or more", {key: [0]})
        elif values and len(set(values)) < len(values):
            yield Conflict((key,), f"{key} = {values} names a GPU twice", {key: sorted(set(values))})
    processes = config.trainer.processes
    if gpus and processes not in (None, len(gpus)) and config.model.device != "cpu":
        yield Conflict(
            ("trainer.processes", "trainer_gpu_ids" if trainer else "inference_gpu_ids"),
            f"trainer.processes = {processes}, but there is one process for each of the {len(gpus)} GPUs {gpus}",
            {"trainer.processes": len(gpus)},
        )


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
    if config.model.device == "mps":
        yield Conflict(
            ("model.device",),
            'device = "mps" is not in this version: on a Mac, models run on the CPU',
            {"model.device": "cpu"},
        )
    if config.inference.backend == "vllm":
        yield Conflict(
            ("inference.backend",),
            'backend = "vllm" is not in this version; use backend = "embedded", '
            "which samples on the trainer's own weights",
            {"inference.backend": "embedded"},
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


def fill_budget(data: dict[str, Any]) -> dict[str, Any]:
    """A run that is given minutes and no number of steps has as many as fit."""
    if isinstance(budget := data.get("budget"), dict) and budget.get("minutes") is not None:
        return {"max_steps": MOST_STEPS, **data}
    return data


def _given(section: Any) -> dict[str, Any] | None:
    """The keys that were given in a section, as a dict of our own; None if it is no section at all."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return dict(section or {}) if section is None or isinstance(section, dict) else None


def cautions(config: Config) -> list[Caution]:
    return [*_small_lr(config), *_loss_cautions(config), *_truncated(config), *_idle_gpu(config), *_uneven(config)]


def _small_lr(config: Config) -> Iterator[Caution]:
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


def _truncated(config: Config) -> Iterator[Caution]:
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


def _idle_gpu(config: Config) -> Iterator[Caution]:
    if config.model.device == "cpu" and config.gpu is not None:
        yield Caution(
            "A11",
            f'model.device = "cpu" and trainer_gpu_ids = {config.gpus}',
            "the GPU is not used",
            "delete one of the two lines",
        )


def _uneven(config: Config) -> Iterator[Caution]:
    groups, size = divmod(config.orchestrator.batch_size, config.orchestrator.rollouts_per_example)[0], config.ranks
    if groups % size:
        even = -(-groups // size) * size * config.orchestrator.rollouts_per_example
        yield Caution(
            "A5",
            f"{groups} groups a step (batch_size / rollouts_per_example) are not evenly shared by {size} processes",
            "whole groups are sampled by one process, so some wait for the others",
            f"take batch_size = {even}",
            {"orchestrator.batch_size": even},
        )


def _loss_cautions(config: Config) -> Iterator[Caution]:
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
    usual = LOSS_KEYS[loss.type]
    clips = [
        f"{key} = {getattr(loss, key):g}" for key in ("clip_low", "clip_high") if getattr(loss, key) != usual.get(key)
    ]
    if clips:
        yield Caution(
            "A11",
            f"trainer.loss has {', '.join(clips)} with passes = 1",
            "nothing is ever clipped: each batch is sampled from the newest weights and used for one update",
            "it acts from --trainer.loss.passes 2 on",
            {"trainer.loss.passes": 2},
        )
    if loss.type in ("gspo", "cispo"):
        same = {"gspo": "grpo", "cispo": "dapo"}[loss.type]
        yield Caution(
            "A11",
            f'trainer.loss.type = "{loss.type}" with passes = 1',
            f'it has the gradient of "{same}" then',
            "they differ from --trainer.loss.passes 2 on",
            {"trainer.loss.passes": 2},
        )


def wandb_key() -> tuple[bool, str]:
    """Whether there is a Weights & Biases key, and where it was found or looked for."""
    if os.environ.get("WANDB_API_KEY"):
        return True, "WANDB_API_KEY"
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    if netrc.is_file() and host in netrc.read_text(encoding="utf-8", errors="replace"):
        return True, str(netrc)
    return False, f"WANDB_API_KEY is not set and {netrc} has no entry for {host}"


def check_wandb(config: Config) -> None:
    """Refuse online logging without a key now, not after the model has loaded (A7)."""
    if config.wandb is None or config.wandb.offline is not False:
        return
    found, where = wandb_key()
    if not found:
        raise AirError(
            f"[wandb] offline = false needs a Weights & Biases key, and there is none: {where}.",
            "log offline and run `wandb sync` later:\n    [wandb]\n    offline = true\n"
            "  or set the key: export WANDB_API_KEY=…",
        )


def check_sinks(config: Config) -> None:
    """Refuse what the config asks to log to and this machine has not installed."""
    for name, asked in (("wandb", config.wandb), ("tensorboard", config.tensorboard)):
        if asked is not None and not _installed(name):
            raise AirError(
                f"The config has a [{name}] section, but the package {name} is not installed.",
                f"{install_line(name)}\n  or delete the section: metrics.jsonl is always written.",
            )


def _installed(name: str) -> bool:
    """A directory `wandb` where the command is started looks like a package, too: it has no file of its own."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None
