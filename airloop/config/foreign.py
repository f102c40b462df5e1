"""Keys and flags that people know from other trainers, and what each is called here or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airloop.config.keys import field_at
from airloop.config.sources import KeyPath, parse_flag


@dataclass(frozen=True)
class Alias:
    """The key here (with a fixed value, or the value given), or no key and the reason."""

    key: str = ""
    why: str = ""
    value: Any = None
    id: str = "A2"  # of the failure catalogue

    def changes(self, given: Any) -> dict[str, Any]:
        if not self.key:
            return {}
        if self.value is not None:
            return {self.key: self.value}
        field = field_at(tuple(self.key.split(".")))
        typed = parse_flag(given, field.annotation) if isinstance(given, str) and field else given
        return {self.key: True if typed is None else typed}


_OWN_RANKS = "air starts its processes itself, one for each of trainer_gpu_ids, and each samples and trains"
_PER_STEP = "air counts a batch in trajectories per step, over all devices and accumulation steps"

# Flags of the MuSiQue command lines (also met as keys in TOML files). All are refused with the equivalent,
# not translated: `--batch-size` there is per device and per accumulation step, and that is easy to overlook.
ALIASES: dict[str, Alias] = {
    "model": Alias("model.name"),
    "lora_r": Alias("trainer.model.lora.rank"),
    "lora_alpha": Alias("trainer.model.lora.alpha"),
    "no_peft": Alias("trainer.model.train", "without an adapter, all the weights are trained", "full"),
    "loss_type": Alias("trainer.loss.type"),
    "kl_beta": Alias("trainer.loss.kl_beta"),
    "scale_rewards": Alias("trainer.loss.scale_rewards", "it is on by default", True),
    "no_scale_rewards": Alias("trainer.loss.scale_rewards", "it is on by default", False),
    "learning_rate": Alias("trainer.optim.lr"),
    "max_grad_norm": Alias("trainer.optim.max_norm"),
    "bf16": Alias("model.dtype", "on CUDA it is the default", "bfloat16"),
    "num_generations": Alias("orchestrator.rollouts_per_example"),
    "batch_size": Alias("orchestrator.batch_size", _PER_STEP),
    "gradient_accumulation_steps": Alias(
        why=f"{_PER_STEP}; accumulation follows from trainer.token_budget, the tokens in one forward"
    ),
    "max_completion_length": Alias("orchestrator.sampling.max_tokens", "it is counted per reply"),
    "datasets": Alias("orchestrator.env.0.args.datasets", "data sets belong to the environment"),
    "num_processes": Alias("trainer.processes", _OWN_RANKS),
    "data_parallel_size": Alias(why=f"the sampler uses the trainer's own weights: {_OWN_RANKS}"),
    "config_file": Alias(why=f"there is nothing else to launch; full fine-tuning is sharded by itself: {_OWN_RANKS}"),
}

# Keys of other trainers' TOML files, wherever they were written.
FOREIGN_KEYS: dict[str, Alias] = {
    "fsdp_cpu_offload": Alias(
        "trainer.model.ac.freq",
        "with LoRA, CPU offload breaks with a device mismatch between CPU and CUDA; "
        "activation checkpointing saves the memory instead",
        1,
        "C3",
    ),
    "lora_name": Alias(why="there is one adapter, and it is always the served one"),
    "env_worker_logs": Alias(why="worker errors always reach the main log"),
    "max_async_level": Alias(why="sampling is strictly on-policy: every batch comes from the newest weights"),
    "async_level": Alias(why="sampling is strictly on-policy: every batch comes from the newest weights"),
    "micro_batch_size": Alias(why="sequences are packed into trainer.token_budget tokens, whatever their number"),
    "gradient_checkpointing": Alias("trainer.model.ac.freq", "activation checkpointing is a table here", 1),
}

# Settings of the environments that are often written one level too high.
ENV_ARGS = {
    *("max_turns", "task_configs", "num_examples_per_task", "env_gpu", "save_trajectories", "trajectory_dir"),
    *("mlgym_root", "mode", "difficulty", "executor_backend", "network_access", "timeout_s"),
    *("datasets", "noise_rate", "retriever"),
}


def buffer_type(value: Any) -> tuple[str, dict[str, Any]]:
    online = isinstance(value, str) and "online" in value.lower()
    why = "the buffer has no types; what differs is one switch"
    return why, {"orchestrator.buffer.online_difficulty_filtering": online}


# Keys that are wrong in one place only. Each gives the reason and the corrected keys.
FOREIGN_PATHS: dict[KeyPath, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    ("orchestrator", "buffer", "type"): buffer_type,
    ("trainer", "model", "experimental"): lambda value: (
        "the experimental section is gone; what was in it is in [trainer.model]",
        {"trainer.model": value},
    ),
}
