"""What keys must not say together, and what this version refuses, each with its reason and its correction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airloop.config.cluster_rules import cluster_conflicts
from airloop.config.conflict import Conflict
from airloop.config.schema import RunConfig
from airloop.config.stream_rules import stream_conflicts
from airloop.config.toml import toml_value
from airloop.config.vllm_rules import vllm_conflicts
from airloop.learn.losses import LOSSES, LossSpec

NOT_YET = ("mps",)  # in the schema, so that they are refused with a reason rather than as unknown


def conflicts(config: RunConfig) -> list[Conflict]:
    rules = (_groups, _schedule, _loss, _gpus, _shards, _remote, _budget, _not_in_this_version)
    others = (vllm_conflicts, cluster_conflicts, stream_conflicts)
    return [conflict for rule in (*rules, *others) for conflict in rule(config)]


def _budget(config: RunConfig) -> Iterator[Conflict]:
    if config.budget.minutes is not None and config.deterministic:
        yield Conflict(
            ("budget.minutes", "deterministic"),
            "deterministic = true promises the same run every time, and with budget.minutes the number of steps "
            "follows from the clock",
            {"deterministic": False},
        )


def _groups(config: RunConfig) -> Iterator[Conflict]:
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


def _schedule(config: RunConfig) -> Iterator[Conflict]:
    optim = config.trainer.optim
    for key in ("decay_steps", "min_lr"):
        if optim.schedule == "constant" and (value := getattr(optim, key)) is not None:
            yield Conflict(
                (f"trainer.optim.{key}", "trainer.optim.schedule"),
                f'{key} = {_shown(value)} does nothing with schedule = "constant"',
                {"trainer.optim.schedule": "linear"},
            )
    if optim.min_lr is not None and optim.min_lr > optim.lr:
        yield Conflict(
            ("trainer.optim.min_lr", "trainer.optim.lr"),
            f"lr = {optim.lr:g} falls to min_lr, which is higher: {optim.min_lr:g}",
            {"trainer.optim.min_lr": optim.lr / 10},
        )


def _loss(config: RunConfig) -> Iterator[Conflict]:
    loss, spec = config.trainer.loss, LOSSES.get(config.trainer.loss.type)
    if spec is not None:  # what the file of one of the user's own says is asked where its code may be run
        yield from loss_conflicts(spec, loss.model_dump())
    own = loss.advantage is not None and f'advantage = "{loss.advantage}", which says for itself whether it divides'
    idle = {
        "kl_estimator": loss.kl_beta == 0 and "kl_beta = 0, which leaves the KL term out",
        "scale_by": not loss.scale_rewards and (own or "scale_rewards = false"),
        "importance_floor": loss.importance_mode != "mask" and f'importance_mode = "{loss.importance_mode}"',
        "overlong_share": loss.overlong == "off" and 'overlong = "off"',
        "overlong_penalty": loss.overlong == "off" and 'overlong = "off"',
    }
    for key, why in idle.items():
        if why and getattr(loss, key) is not None:
            yield _idle(key, getattr(loss, key), why)
    if loss.anchor == "sampler" and loss.importance_mode == "mask":
        yield _idle("importance_mode", "mask", 'anchor = "sampler", whose clip is the correction')
    if own and loss.scale_rewards:
        yield _idle("scale_rewards", True, own)


def loss_conflicts(spec: LossSpec, loss: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is said in [trainer.loss] and the chosen loss does not have."""
    lacks = {
        "clip_low": spec.clip_low is None and f'type = "{spec.name}", which does not clip from below',
        "clip_high": spec.clip_high is None and f'type = "{spec.name}", which does not clip',
    }
    for key, why in lacks.items():
        if why and loss.get(key) is not None:
            yield _idle(key, loss[key], why)
    if loss.get("anchor") == "sampler" and not spec.anchors:
        yield Conflict(
            ("trainer.loss.anchor", "trainer.loss.type"),
            f'anchor = "sampler" does not go with type = "{spec.name}", which does not clip the ratio of each token on '
            "both sides",
            {"trainer.loss.anchor": "trainer", "trainer.loss.importance_mode": "mask"},
        )
    if spec.once and loss.get("passes", 1) > 1:
        yield Conflict(
            ("trainer.loss.passes", "trainer.loss.type"),
            f'passes = {loss["passes"]} does not go with type = "{spec.name}": {spec.once}',
            {"trainer.loss.passes": 1},
        )


def _idle(key: str, value: Any, why: str) -> Conflict:
    name = f"trainer.loss.{key}"
    return Conflict((name,), f"{key} = {_shown(value)} has no effect with {why}", {name: None})


def _shown(value: Any) -> str:
    return toml_value(value) if isinstance(value, str | bool) else f"{value:g}"


def _gpus(config: RunConfig) -> Iterator[Conflict]:
    trainer, inference, gpus = config.trainer_gpu_ids, config.inference_gpu_ids, config.gpus
    if trainer and inference and set(trainer) != set(inference) and config.inference.own_weights:
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
    processes, all_gpus = config.trainer.processes, len(gpus) * config.learner_nodes
    if gpus and processes not in (None, all_gpus) and config.model.device != "cpu":
        named = "trainer_gpu_ids" if trainer else "inference_gpu_ids" if inference else "cluster.gpus_per_node"
        where = f" of {config.learner_nodes} machines" if config.learner_nodes > 1 else f" {gpus}"
        yield Conflict(
            ("trainer.processes", named),
            f"trainer.processes = {processes}, but there is one process for each of the {all_gpus} GPUs{where}",
            {"trainer.processes": all_gpus},
        )


def _shards(config: RunConfig) -> Iterator[Conflict]:
    model = config.trainer.model
    if model.shard and config.ranks == 1:
        yield Conflict(
            ("trainer.model.shard",),
            "shard = true spreads the base over the GPUs that train, and here one process has all of it",
            {"trainer.model.shard": False},
        )
    if model.shard is False and config.ranks > 1 and model.train == "full":
        yield Conflict(
            ("trainer.model.shard", "trainer.model.train"),
            'shard = false does not go with train = "full" on several GPUs, where all weights are in shards',
            {"trainer.model.shard": True},
        )


def _remote(config: RunConfig) -> Iterator[Conflict]:
    """Agents that live elsewhere know one address, and every process that trains would open one."""
    if config.ranks == 1 or not any(e.id == "program" and e.args.get("remote") for e in config.orchestrator.env):
        return
    roles = config.cluster.roles
    one: dict[str, Any] = {
        "trainer_gpu_ids": config.trainer_gpu_ids and config.gpus[:1],
        "inference_gpu_ids": config.inference.own_weights and config.inference_gpu_ids and config.gpus[:1],
        "cluster.gpus_per_node": config.cluster.gpus_per_node and 1,
        "cluster.nodes": (config.cluster.nodes > 1 and not roles) and 1,
        "cluster.roles.learner": (roles is not None and roles.learner > 1) and 1,
        "trainer.processes": config.trainer.processes and 1,
    }
    changes = {key: value for key, value in one.items() if value}
    if roles and roles.learner > 1:
        changes["cluster.nodes"] = 1 + roles.sampler
    yield Conflict(
        (*changes, "orchestrator.env"),
        f"agents that live elsewhere (args = {{ remote = true }}) ask one process for episodes, and {config.ranks} "
        "would train: not in this version",
        changes,
    )


def _base_evaluation(config: RunConfig) -> Iterator[Conflict]:
    """orchestrator.eval.base = true where the model itself cannot be asked, or is asked already."""
    if not config.orchestrator.eval.base:
        return
    why = ""
    if config.warmstart is None:
        why = "has no effect without [warmstart]: the evaluation `before` is of the model itself then"
    elif config.trainer.model.train == "full":
        why = 'does not go with train = "full": behind the supervised start the model as it was is gone'
    elif not config.inference.own_weights:
        why = 'is for backend = "embedded" in this version: judge the model with `air eval @ x.toml --agent model`'
    elif config.budget.minutes is not None:
        why = "does not go with budget.minutes, which plans for one evaluation before the first step"
    if why:
        yield Conflict(("orchestrator.eval.base",), f"eval.base = true {why}", {"orchestrator.eval.base": False})


def _not_in_this_version(config: RunConfig) -> Iterator[Conflict]:
    if config.warmstart is not None and config.model.adapter:
        yield Conflict(
            ("model.adapter", "warmstart"),
            f"model.adapter = {config.model.adapter!r} is what a supervised start would make, so [warmstart] would not "
            "be run: delete the [warmstart] table, or model.adapter",
            {},
        )
    yield from _base_evaluation(config)
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
    if config.deterministic and config.model.dtype == "bfloat16":
        yield Conflict(
            ("model.dtype", "deterministic"),
            'dtype = "bfloat16" and deterministic = true exclude each other: deterministic runs are in fp32',
            {"model.dtype": "float32"},
        )
