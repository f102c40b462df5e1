"""Keys and flags that people know from other trainers: what each is called here, or why there is none.

Nothing is guessed: a name is in a table or it is not. A table says one of three things of a key: the key here that
means the same; that nothing is lost without it; or that there is no equivalent, so that the user has to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airloop.config.flag_values import parse_flag
from airloop.config.keys import field_at
from airloop.learn.losses import POLICY_LOSSES


@dataclass(frozen=True)
class Answer:
    """What to say of one key with its value."""

    why: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    instead: str = ""  # what to do where no key does it
    choice: bool = False  # without the key another run is trained: the user has to decide
    id: str = "A2"  # of the failure catalogue
    done: bool = False  # it says what air does anyway: taken as it is, without a word


# Some depend on the value, or on what else is configured.
Read = Callable[[Any, Mapping[str, Any]], Answer]


@dataclass(frozen=True)
class Alias:
    """The key here (with a fixed value, or the value given), or no key and the reason."""

    key: str = ""
    why: str = ""
    value: Any = None
    id: str = "A2"
    instead: str = ""
    choice: bool = False
    read: Read | None = None

    def changes(self, given: Any) -> dict[str, Any]:
        if not self.key:
            return {}
        if self.value is not None:
            return {self.key: self.value}
        return {self.key: typed(self.key, given)}

    def answer(self, given: Any, tree: Mapping[str, Any]) -> Answer:
        if self.read is not None:
            return self.read(given, tree)
        if self.key and self.value is True and given in (False, "false"):  # a switch that was left off
            return Answer(self.why, {self.key: False}, id=self.id)
        return Answer(self.why, self.changes(given), self.instead, self.choice, self.id)


def typed(key: str, given: Any) -> Any:
    """A flag's text as the key's type; what came from a file is what it is."""
    field = field_at(tuple(int(part) if part.isdigit() else part for part in key.split(".")))
    value = parse_flag(given, field.annotation) if isinstance(given, str) and field else given
    return True if value is None else value


def to(key: str, why: str = "") -> Alias:
    return Alias(key, why)


def drop(why: str, instead: str = "") -> Alias:
    """Nothing of what is trained is lost without it."""
    return Alias(why=why, instead=instead)


def none(why: str, instead: str) -> Alias:
    return Alias(why=why, instead=instead, choice=True)


def number(given: Any) -> float | None:
    try:
        return float(given)
    except (TypeError, ValueError):
        return None


def is_on(given: Any) -> bool:
    return given is None or str(given).lower() in ("true", "1", "yes", "on")


def _both_clips(given: Any, _: Mapping[str, Any]) -> Answer:
    value = typed("trainer.loss.clip_low", given)
    return Answer(
        "the ratio is clipped on both sides", {"trainer.loss.clip_low": value, "trainer.loss.clip_high": value}
    )


def _group(given: Any, _: Mapping[str, Any]) -> Answer:
    if number(given) != 1:
        return Answer(changes={"orchestrator.rollouts_per_example": typed("orchestrator.rollouts_per_example", given)})
    return Answer(
        "one reply per task has no baseline here: an advantage is a reward less the mean of its group",
        instead="write orchestrator.rollouts_per_example = 2, or more",
        choice=True,
        id="A5",
    )


group = Alias(read=_group)


def _schedule(given: Any, _: Mapping[str, Any]) -> Answer:
    if str(given) in ("constant", "constant_with_warmup"):
        return Answer("it is constant after trainer.optim.warmup_steps by default")
    if str(given) in ("linear", "cosine"):
        return Answer("it falls from the warm-up to the last step", {"trainer.optim.schedule": str(given)})
    return Answer(
        f"lr falls by {given} there, and has no equivalent here", instead="see trainer.optim.schedule", choice=True
    )


def _ratios(given: Any, tree: Mapping[str, Any]) -> Answer:
    """One for each environment, in their order."""
    values = given if isinstance(given, list) else str(given).strip("[] ").split(",")
    orchestrator = tree.get("orchestrator")
    envs = orchestrator.get("env") if isinstance(orchestrator, Mapping) else None
    if isinstance(envs, list) and len(envs) == len(values) and None not in map(number, values):
        each = {f"orchestrator.env.{i}.ratio": typed("orchestrator.env.0.ratio", v) for i, v in enumerate(values)}
        return Answer("each environment has its own, here in their order", each)
    said = ", ".join(f"ratio = {value}" for value in values)
    return Answer(
        "each environment has its own", instead=f"write in the [[orchestrator.env]]s, in turn: {said}", choice=True
    )


def _peft(given: Any, _: Mapping[str, Any]) -> Answer:
    return Answer("an adapter, or all the weights", {"trainer.model.train": "lora" if is_on(given) else "full"})


def _level(given: Any, _: Mapping[str, Any]) -> Answer:
    if given == "token":
        return Answer("ratios are per token unless the loss is gspo")
    return Answer("one ratio for a sequence is the loss gspo", {"trainer.loss.type": "gspo"})


def when_off(why: str, instead: str) -> Alias:
    """A switch or weight that has no equivalent, unless it says that there is none of it."""

    def read(given: Any, _: Mapping[str, Any]) -> Answer:
        off = given is not None and (str(given).lower() in ("false", "none", "no", "", "[]") or number(given) == 0)
        return Answer("off here, too") if off else Answer(f"no equivalent here: {why}", instead=instead, choice=True)

    return Alias(read=read)


def beta(which: int) -> Alias:
    def read(given: Any, tree: Mapping[str, Any]) -> Answer:
        betas = [0.9, 0.999]
        optim = tree.get("trainer", {}).get("optim", {}) if isinstance(tree.get("trainer"), Mapping) else {}
        for index, names in enumerate((("betas1", "adam_beta1"), ("betas2", "adam_beta2"))):
            betas[index] = next((optim[name] for name in names if name in optim), betas[index])
        if (value := number(given)) is not None:
            betas[which] = value
        return Answer("AdamW's decay rates are one key", {"trainer.optim.betas": betas})

    return Alias(read=read)


def _dropout(given: Any, _: Mapping[str, Any]) -> Answer:
    if number(given) == 0:
        return Answer("there is no dropout in RL", done=True)
    return Answer(
        "it must be 0 in RL: the trainer would drop units that the sampler used, so their log-probs would differ",
        id="A11",
    )


dropout = Alias(read=_dropout)


def _tool_choice(given: Any, _: Mapping[str, Any]) -> Answer:
    if is_on(given):
        return Answer("the model decides when to call a tool", done=True)
    return Answer(
        "it would keep the model from choosing when to call a tool, and that choice is what is trained: air always "
        "leaves it to the model",
        id="A11",
    )


tool_choice = Alias(read=_tool_choice)


def _context(given: Any, tree: Mapping[str, Any]) -> Answer:
    length, said = typed("seq_len", given), tree.get("seq_len")
    if isinstance(length, int) and isinstance(said, int) and said <= length:
        return Answer("the engine's context is seq_len, which is given")
    return Answer("the engine's context is seq_len", {"seq_len": length})


context = Alias("seq_len", read=_context)
# Keys with one value that can be used: it is taken, in files and in the configs of earlier runs, any other refused.
SETTLED: dict[str, Alias] = {
    "trainer.model.lora.dropout": dropout,
    "inference.model.enable_auto_tool_choice": tool_choice,
}

OWN_RANKS = "air starts its processes itself, one for each of trainer_gpu_ids, and each samples and trains"
ONE_COPY = "the sampler uses the trainer's own weights"
_PER_STEP = "air counts a batch in trajectories per step, over all devices and accumulation steps"
_ENV_DATA = "data sets belong to the environment"
_ENV_ARGS = (
    'name it in the environment\'s args, as in [[orchestrator.env]] id = "prompts", args = { dataset = …, prompt = …, '
    "rewards = … }"
)
_ALWAYS_CUT = "a reply that is cut off is scored and trained as it is"

# Flags of the MuSiQue command lines and of TRL (GRPOConfig and what it inherits), also met as keys in TOML files. All
# are refused with the equivalent, not translated: a batch size there is per device and per accumulation step, and that
# is easy to overlook.
ALIASES: dict[str, Alias] = {
    "model": to("model.name"),
    "model_name_or_path": to("model.name"),
    "model_name": to("model.name"),
    "lora_r": to("trainer.model.lora.rank"),
    "lora_rank": to("trainer.model.lora.rank"),
    "lora_alpha": to("trainer.model.lora.alpha"),
    "lora_dropout": dropout,
    "lora_target_modules": to("trainer.model.lora.target_modules"),
    "use_peft": Alias(read=_peft),
    "no_peft": Alias("trainer.model.train", "without an adapter, all the weights are trained", "full"),
    "loss_type": to("trainer.loss.type"),
    "kl_beta": to("trainer.loss.kl_beta"),
    "beta": to("trainer.loss.kl_beta", "the weight of the KL term"),
    "epsilon": Alias(read=_both_clips),
    "epsilon_high": to("trainer.loss.clip_high"),
    "num_iterations": to("trainer.loss.passes", "updates over one batch"),
    "importance_sampling_level": Alias(read=_level),
    "vllm_importance_sampling_cap": to("trainer.loss.importance_cap"),
    "scale_rewards": Alias("trainer.loss.scale_rewards", "it is on by default", True),
    "no_scale_rewards": Alias("trainer.loss.scale_rewards", "it is on by default", False),
    "learning_rate": to("trainer.optim.lr"),
    "max_grad_norm": to("trainer.optim.max_norm"),
    "adam_beta1": beta(0),
    "adam_beta2": beta(1),
    "lr_scheduler_type": Alias(read=_schedule),
    "bf16": Alias("model.dtype", "on CUDA it is the default", "bfloat16"),
    "num_generations": group,
    "group_size": group,
    "batch_size": to("orchestrator.batch_size", _PER_STEP),
    "per_device_train_batch_size": to("orchestrator.batch_size", _PER_STEP),
    "gradient_accumulation_steps": drop(
        f"{_PER_STEP}; accumulation follows from trainer.token_budget, the tokens in one forward"
    ),
    "max_completion_length": to("orchestrator.sampling.max_tokens", "it is counted per reply"),
    "datasets": to("orchestrator.env.0.args.datasets", _ENV_DATA),
    "num_processes": to("trainer.processes", OWN_RANKS),
    "data_parallel_size": drop(f"{ONE_COPY}: {OWN_RANKS}"),
    "config_file": drop(f"there is nothing else to launch; full fine-tuning is sharded by itself: {OWN_RANKS}"),
    "deepspeed": drop(f"full fine-tuning is sharded by itself: {OWN_RANKS}"),
    "save_steps": to("ckpt.interval"),
    "save_total_limit": to("ckpt.keep_last"),
    "eval_steps": to("orchestrator.eval.interval"),
    "vllm_gpu_memory_utilization": to("inference.gpu_memory_utilization"),
    "vllm_max_model_length": context,
    "use_vllm": drop(f"{ONE_COPY}, in an engine of air's own"),
    "vllm_mode": drop(f"{ONE_COPY}, in the same process"),
    "vllm_tensor_parallel_size": drop(f"{ONE_COPY}: {OWN_RANKS}"),
    "logging_steps": drop("every step is logged"),
    "log_completions": drop("every trajectory is saved; `air view` shows them"),
    "report_to": drop("metrics.jsonl is always written", "for W&B write a [wandb] table"),
    "resume_from_checkpoint": drop("a run goes on with its own config", "run `air train --resume RUN`"),
    "attn_implementation": drop("air has its own attention"),
    "torch_dtype": to("model.dtype"),
    "mask_truncated_completions": when_off(_ALWAYS_CUT, 'trainer.loss.overlong = "reply" penalises long replies'),
    "zero_truncated_completions": when_off(_ALWAYS_CUT, 'trainer.loss.overlong = "reply" penalises long replies'),
    "reward_funcs": none(
        "rewards belong to the environment",
        'functions of TRL\'s form are used as they are: [[orchestrator.env]] id = "prompts", args = { dataset = …, '
        'rewards = ["./rewards.py:correct"] }; anything else is an environment (`air init` writes one)',
    ),
    "reward_weights": none(
        "here each component is weighed by its name", "write [[orchestrator.env]] rewards = { NAME = weight }"
    ),
    "dataset_name": none(_ENV_DATA, _ENV_ARGS),
    "dataset_config": none(_ENV_DATA, _ENV_ARGS),
    "dataset_subset": none(_ENV_DATA, _ENV_ARGS),
    "env_ratios": Alias(read=_ratios),
    "num_train_epochs": none("a run is counted in steps", "write max_steps"),
    "warmup_ratio": when_off("warming up is counted in steps", "write trainer.optim.warmup_steps"),
    "max_prompt_length": drop("a prompt is never cut: prompt and reply share seq_len"),
    "steps_per_generation": none("every batch is sampled from the newest weights", "see trainer.loss.passes"),
    "generation_batch_size": none("every batch is sampled from the newest weights", "see orchestrator.batch_size"),
    "repetition_penalty": none("log-probs of what is sampled are the model's own", "leave sampling as it is"),
    "delta": none("there is no second clip", "see trainer.loss.clip_low and clip_high"),
    "top_entropy_quantile": none("every sampled token is trained", "see docs/losses.md"),
    "sync_ref_model": when_off("the KL term is to the starting model", "see trainer.loss.kl_beta"),
    "load_in_4bit": when_off("weights are not quantised", "train an adapter on a smaller model"),
    "load_in_8bit": when_off("weights are not quantised", "train an adapter on a smaller model"),
    "fp16": when_off("weights are in bfloat16 or float32", "write model.dtype"),
    "optim": drop("the optimiser is AdamW"),
    "entity": to("wandb.entity"),
    "resume_step": drop("a run goes on with its own config", "run `air train --resume RUN`"),
}

# By a leaf of these names alone it cannot be told what was meant, wherever it stands.
AMBIGUOUS = {"beta", "epsilon", "delta", "model", "optim", "datasets", "entity", "batch_size"}


def _async_level(given: Any, tree: Mapping[str, Any]) -> Answer:
    """Where it can be had: with several trainer processes and no servers, sampling and training take turns."""
    training, sampling = ({*(tree.get(key) or ())} for key in ("trainer_gpu_ids", "inference_gpu_ids"))
    apart = training and sampling and not training & sampling
    level = number(given)
    if level is None or level < 1:
        return Answer("sampling and training take turns here unless orchestrator.max_staleness says otherwise")
    if len(training | sampling) > 1 and not apart:
        return Answer("with several trainer processes sampling is strictly on-policy, from the newest weights")
    loss = tree.get("trainer", {}).get("loss", {}) if isinstance(tree.get("trainer"), Mapping) else {}
    region = {} if "importance_mode" in loss or "anchor" in loss else {"trainer.loss.importance_mode": "mask"}
    return Answer(
        "how many updates old a token may be when it is trained, with a trust region around the policy that sampled it",
        {"orchestrator.max_staleness": int(level), **region},
    )


_ASYNC = Alias("orchestrator.max_staleness", read=_async_level)
_BOUND = drop("orchestrator.max_staleness is a bound that always holds: nothing is begun that would become too old")

# Keys of other trainers' TOML files, wherever they were written.
FOREIGN_KEYS: dict[str, Alias] = {
    "fsdp_cpu_offload": Alias(
        "trainer.model.ac.freq",
        "with LoRA, CPU offload breaks with a device mismatch between CPU and CUDA; "
        "activation checkpointing saves the memory instead",
        1,
        "C3",
    ),
    "enable_auto_tool_choice": tool_choice,
    "max_model_len": context,
    "lora_name": drop("there is one adapter, and it is always the served one"),
    "env_worker_logs": drop("worker errors always reach the main log"),
    "max_async_level": _ASYNC,
    "async_level": _ASYNC,
    "strict_async_level": _BOUND,
    "max_off_policy_steps": _BOUND,
    "micro_batch_size": drop("sequences are packed into trainer.token_budget tokens, whatever their number"),
    "gradient_checkpointing": Alias("trainer.model.ac.freq", "activation checkpointing is a table here", 1),
}

_TYPES = f"see docs/losses.md for the {len(POLICY_LOSSES)} there are"
_OWN_LOSS = 'write type = "./my_loss.py:loss" (docs/losses.md has what such a function takes and gives)'
_PARSER = "auto reads hermes, json, mistral and qwen3_coder, and `air doctor` shows whether the model's are read"
# Values that other trainers know for a key that is here, too.
FOREIGN_VALUES: dict[str, dict[str, Answer]] = {
    "trainer.loss.type": {
        "bnpo": Answer(
            "its mean over the tokens of a batch is that of dapo, clipped on both sides alike",
            {"trainer.loss.type": "dapo", "trainer.loss.clip_high": 0.2},
        ),
        "default": Answer("prime-rl's own loss has no equivalent here", instead=_TYPES, choice=True),
        "ipo": Answer("it has no equivalent here", instead=_TYPES, choice=True),
        "custom": Answer("a loss of your own is named by its file here", instead=_OWN_LOSS, choice=True),
        "sft": Answer(
            "learning from a teacher's replies has no equivalent here",
            instead="[warmstart] learns from demonstrations before the first step",
            choice=True,
        ),
    },
    "trainer.model.impl": {
        name: Answer("air chooses its forward pass itself", {"trainer.model.impl": "auto"})
        for name in ("custom", "liger_kernel", "torch")
    },
    "inference.model.tool_call_parser": {
        **{
            name: Answer("calls of this form are not read here", instead=_PARSER, choice=True)
            for name in ("glm45", "glm47", "pythonic", "deepseek_v3")
        },
        "llama3_json": Answer("so it is called here", {"inference.model.tool_call_parser": "json"}),
        "qwen3_xml": Answer("so it is called here", {"inference.model.tool_call_parser": "qwen3_coder"}),
    },
    "model.dtype": {
        name: Answer("so it is called here", {"model.dtype": ours})
        for name, ours in (("bf16", "bfloat16"), ("torch.bfloat16", "bfloat16"), ("fp32", "float32"))
    },
}
