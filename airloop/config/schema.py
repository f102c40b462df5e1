"""Every key a run can have: its type, default, bounds and one sentence of help.

Nothing is coerced and nothing is ignored: an unknown key, or a string where a number belongs, is refused.
What two keys must not say together is in `rules.py`.
"""

from __future__ import annotations

import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from airloop.config import rules
from airloop.envs import files

ENV_SYNONYMS = {"air_mlgym": "mlgym", "seconds-0/beautiful-soup-env": "soup", "vf-musique": "musique"}
DEFAULT_ENV = "tune"


class Section(BaseModel):
    # built on first use, so that `air --help` does not wait for it
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class ModelConfig(Section):
    name: str = Field(
        default="HuggingFaceTB/SmolLM2-135M-Instruct",
        min_length=1,
        description="The model to train: a hub id or a directory.",
    )
    chat_template: str | None = Field(
        default=None, description="A Jinja file that replaces the tokenizer's own chat template."
    )
    adapter: str | None = Field(default=None, description="A PEFT adapter directory to start from.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="Where the one copy of the weights is."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the frozen weights; auto is bfloat16 on CUDA and the faster of both on the CPU.",
    )


class WandbConfig(Section):
    project: str = Field(default="air", min_length=1, description="The Weights & Biases project to log to.")
    name: str | None = Field(default=None, description="The name of the run in the project; by default the run's own.")
    offline: bool | None = Field(
        default=None,
        description="Log to disk only, to be synchronised later; by default so where no key is found.",
    )
    samples: int = Field(default=3, ge=0, le=20, description="Trajectories per step that go to a table (0: none).")


class TensorboardConfig(Section):
    samples: int = Field(default=3, ge=0, le=20, description="Trajectories per step that are shown as text (0: none).")


class CkptConfig(Section):
    interval: int = Field(default=5, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(
        default=2, ge=1, description="How many of the latest checkpoints are kept (the best is too)."
    )


class AcConfig(Section):
    freq: int = Field(
        default=1, ge=1, description="Checkpoint the activations of every freq-th block (1: all of them)."
    )


class LoraConfig(Section):
    rank: int = Field(default=16, ge=1, description="Rank of the adapter's matrices.")
    alpha: float = Field(default=32, gt=0, description="The adapter's output is scaled by alpha / rank.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Must be 0: sampler and trainer would differ.")
    target_modules: list[str] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="Names of the linear layers that get an adapter.",
    )
    last_layers: int | None = Field(
        default=None,
        ge=1,
        description="Only the last so many blocks get an adapter, and the backward pass ends there; by default all.",
    )


class TrainerModelConfig(Section):
    seq_len: int = Field(
        default=2048,
        ge=16,
        description="The longest sequence trained on; follows orchestrator.seq_len where not given.",
    )
    impl: Literal["auto", "hf"] = Field(
        default="auto",
        description="What training runs: our forward pass where the architecture is known, or transformers' layers.",
    )
    train: Literal["lora", "full"] = Field(default="lora", description="Train an adapter, or all the weights.")
    ac: AcConfig | None = Field(default=None, description="Activation checkpointing; off without this table.")
    lora: LoraConfig = Field(default_factory=LoraConfig, description="The adapter, for train = lora.")


class OptimConfig(Section):
    lr: float = Field(default=1e-4, gt=0, description="Learning rate of AdamW.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    max_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm.")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's two decay rates, each below 1.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which lr rises linearly from zero.")
    offload: bool = Field(
        default=False,
        description="Keep the optimiser's state and fp32 weights in the CPU's memory: less GPU memory, slower updates.",
    )

    @field_validator("betas", mode="before")
    @classmethod
    def _from_array(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value  # TOML has arrays only

    @field_validator("betas")
    @classmethod
    def _below_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("expected two numbers, each at least 0 and below 1")
        return value


class LossConfig(Section):
    """docs/losses.md has the formulas. A key that the chosen loss does not have is None, and refused if given."""

    type: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"] = Field(
        default="grpo", description="The policy-gradient loss."
    )
    kl_beta: float = Field(default=0.0, ge=0, description="Weight of the KL term to the starting model (0: none).")
    kl_estimator: Literal["k1", "k2", "k3"] | None = Field(
        default=None, description="The KL term: k1 off the advantage, k2 or k3 in the loss; by default k3."
    )
    clip_low: float | None = Field(
        default=None, gt=0, le=1, description="The ratio is clipped below 1 - clip_low; by default 0.2, gspo 0.0003."
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        description="The ratio is clipped above 1 + clip_high; by default 0.2, dapo 0.28, gspo 0.0004, cispo 4.",
    )
    scale_rewards: bool = Field(
        default=True, description="Divide advantages by a standard deviation; by default not for dr_grpo and rloo."
    )
    scale_by: Literal["group", "batch"] | None = Field(
        default=None, description="The rewards whose standard deviation that is; by default the group's."
    )
    importance_cap: float = Field(
        default=2.0, ge=1, description="Cap on the weight that corrects for sampler and trainer differing."
    )
    importance_mode: Literal["truncate", "mask"] = Field(
        default="truncate", description="Weights above the cap are cut to it, or their tokens left out."
    )
    importance_floor: float | None = Field(
        default=None, gt=0, lt=1, description="With mask: tokens with a weight below this are left out too."
    )
    overlong: Literal["off", "reply", "episode"] = Field(
        default="off", description="Penalise replies near max_tokens, or episodes near the context's end."
    )
    overlong_share: float | None = Field(
        default=None, gt=0, le=1, description="The last share of the limit, where the penalty grows; by default 0.2."
    )
    overlong_penalty: float | None = Field(
        default=None, gt=0, description="The penalty at the limit, in units of reward; by default 1."
    )
    passes: int = Field(default=1, ge=1, description="Optimiser updates over one batch.")
    credit: Literal["trajectory", "turn"] = Field(
        default="trajectory",
        description="One advantage for a whole trajectory, or one per turn from the rewards that follow it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        return rules.loss_defaults(data) if isinstance(data, dict) else data


class TrainerConfig(Section):
    token_budget: int = Field(
        default=4096,
        ge=16,
        description="Tokens in one forward and backward; gradient accumulation follows from it.",
    )
    processes: int | None = Field(
        default=None,
        ge=1,
        description="Processes that sample and train together; by default one for each of trainer_gpu_ids, or one.",
    )
    model: TrainerModelConfig = Field(default_factory=TrainerModelConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    loss: LossConfig = Field(default_factory=LossConfig)


class SamplingConfig(Section):
    max_tokens: int = Field(default=128, ge=1, description="Most tokens in one reply.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature in training.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample from the smallest set with this probability.")
    top_k: int = Field(default=0, ge=0, description="Sample from the k likeliest tokens (0: all).")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="Leave out tokens below this share of the likeliest.")


class BufferConfig(Section):
    online_difficulty_filtering: bool = Field(
        default=False,
        description="Leave out groups whose rewards are all equal; oversampling_factor > 1 samples others instead.",
    )


class EvalConfig(Section):
    interval: int = Field(default=0, ge=0, description="Steps between evaluations (0: only before and after).")
    num_examples: int = Field(default=48, ge=1, description="Tasks in an evaluation.")
    rollouts_per_example: int = Field(default=1, ge=1, description="Episodes per task in an evaluation.")
    split: str = Field(default="eval", min_length=1, description="The split evaluated during training.")
    test_split: str = Field(default="test", min_length=1, description="The split evaluated before and after only.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature in evaluations (0: greedy).")


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe messages that are shown."
    )


class EnvConfig(Section):
    id: str = Field(min_length=1, description='As `air tasks` lists it, or a file and class: "./my_env.py:MyEnv".')
    name: str | None = Field(default=None, min_length=1, description="What it is called in metrics; by default its id.")
    args: dict[str, Any] = Field(default_factory=dict, description="The environment's own settings.")
    rewards: dict[str, float] | None = Field(
        default=None, description="Weight of each reward component; by default the environment's own."
    )

    @property
    def title(self) -> str:
        """What it is called in metrics and file names."""
        return self.name or (files.title(self.id) if files.is_file_id(self.id) else self.id)

    @field_validator("id")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return ENV_SYNONYMS.get(value, value)

    @field_validator("args")
    @classmethod
    def _writable(cls, value: dict[str, Any]) -> dict[str, Any]:
        """What cannot be written to the resolved TOML could not be loaded back from it."""
        if (stray := not_toml(value)) is not None:
            raise ValueError(f"expected values that TOML can hold, not {stray!r}")
        return value


def not_toml(value: Any) -> object | None:
    """The first value inside `value` that TOML has no form for; "null" stands for None."""
    if isinstance(value, dict):
        strays = [not_toml(v) if isinstance(k, str) else k for k, v in value.items()]
        return next((stray for stray in strays if stray is not None), None)
    if isinstance(value, list):
        return next((stray for stray in map(not_toml, value) if stray is not None), None)
    known = (str, bool, int, float, datetime.datetime, datetime.date, datetime.time)
    return None if isinstance(value, known) else ("null" if value is None else value)


class OrchestratorConfig(Section):
    batch_size: int = Field(default=32, ge=2, description="Trajectories per step.")
    rollouts_per_example: int = Field(default=8, ge=1, description="Trajectories per task: the group of the baseline.")
    seq_len: int = Field(default=2048, ge=16, description="The longest trajectory, in tokens.")
    trajectory_strategy: Literal["interleaved", "branching"] = Field(
        default="interleaved",
        description="One sequence per trajectory, or one per turn; the loss weights are the same.",
    )
    oversampling_factor: float = Field(
        default=1.0,
        ge=1,
        description="With online_difficulty_filtering: sample at most this many times the groups of a step.",
    )
    max_concurrent: int = Field(default=64, ge=1, description="Most episodes under way at once.")
    episode_timeout_s: float = Field(default=600, gt=0, description="An episode's deadline in seconds.")
    retries: int = Field(
        default=2, ge=0, description="Attempts after infrastructure trouble before an episode is dropped."
    )
    workers_per_env: int | None = Field(
        default=None, ge=1, description="Worker processes of each environment that has some; by default its own choice."
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    buffer: BufferConfig = Field(default_factory=BufferConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    env: list[EnvConfig] = Field(
        default_factory=lambda: [EnvConfig(id=DEFAULT_ENV)], min_length=1, description="The environments."
    )


class InferenceModelConfig(Section):
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="The sampler's context is the smaller of this and orchestrator.seq_len.",
    )
    enforce_eager: bool | None = Field(default=None, description="No decode graphs on CUDA (the CPU has none).")
    tool_call_parser: Literal["auto", "hermes", "json"] = Field(
        default="auto", description="How tool calls are read from a reply; auto takes both forms."
    )
    enable_auto_tool_choice: bool | None = Field(default=None, description="The model decides when to call a tool.")


class InferenceConfig(Section):
    backend: Literal["embedded", "vllm"] = Field(
        default="embedded", description="The engine that samples (vllm: not in this version)."
    )
    gpu_memory_utilization: float = Field(
        default=0.5, gt=0, le=1, description="Share of the free CUDA memory that holds keys and values."
    )
    max_batch: int = Field(default=64, ge=1, description="Most sequences decoded at once.")
    kv_tokens: int | None = Field(
        default=None,
        ge=16,
        description="Key/value memory in tokens; by default what max_batch needs, within 2 GiB or the GPU share.",
    )
    page_size: int = Field(default=64, ge=1, description="Tokens in one page of key/value memory.")
    model: InferenceModelConfig = Field(default_factory=InferenceModelConfig)


class WarmstartConfig(Section):
    steps: int = Field(default=30, ge=1, description="Supervised steps.")
    batch_size: int = Field(default=16, ge=1, description="Demonstrations per supervised step.")
    lr: float = Field(default=5e-4, gt=0, description="Learning rate of the supervised start.")
    episodes: int = Field(default=256, ge=1, description="Demonstrations to collect.")
    min_reward: float | None = Field(default=None, description="Demonstrations that score less are left out.")
    source: str = Field(
        default="demo",
        min_length=1,
        description="A scripted policy, or a run directory whose best trajectories count.",
    )


class BudgetConfig(Section):
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="The whole run is planned into this time: fewer steps, episodes and evaluated tasks where need be.",
    )


class LogbookConfig(Section):
    goal: str | None = Field(default=None, description="What the run is to find out; `air log` shows it.")
    parent: str | None = Field(
        default=None,
        min_length=1,
        description="The run that this one follows, by name or path; by default the task's latest in output_dir.",
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, description="What the machine costs in an hour, in your currency: gives the run's cost."
    )
    major: int = Field(default=1, ge=0, le=9999, description="The series in the run's name: exp{major}.{minor}-….")


class Config(Section):
    """One run, resolved: every key has its value."""

    max_steps: int = Field(default=20, ge=0, description="Training steps.")
    seed: int = Field(default=0, ge=0, description="Tasks, episode seeds and their order follow from it.")
    deterministic: bool = Field(
        default=False, description="Lock-step scheduling and fp32: same seed, same run, bit for bit."
    )
    output_dir: str = Field(default="outputs", min_length=1, description="Where run directories are made.")
    run_name: str | None = Field(
        default=None, min_length=1, description="What the run is called after; by default its environments."
    )
    seq_len: int | None = Field(
        default=None,
        ge=16,
        description="Sets trainer.model.seq_len and orchestrator.seq_len where these are not given.",
    )
    inference_gpu_ids: list[int] | None = Field(default=None, min_length=1, description="Same as trainer_gpu_ids.")
    trainer_gpu_ids: list[int] | None = Field(
        default=None, min_length=1, description="The GPUs to use, as in [0]; on each, a process samples and trains."
    )
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    wandb: WandbConfig | None = Field(default=None, description="Weights & Biases; off without this table.")
    tensorboard: TensorboardConfig | None = Field(
        default=None, description="Event files for TensorBoard, in the run's directory; off without this table."
    )
    logbook: LogbookConfig = Field(default_factory=LogbookConfig)
    ckpt: CkptConfig = Field(default_factory=CkptConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    orchestrator: OrchestratorConfig = Field(default_factory=OrchestratorConfig)
    inference: InferenceConfig = Field(default_factory=InferenceConfig)
    warmstart: WarmstartConfig | None = Field(
        default=None, description="A supervised start before the first step; none without this table."
    )

    @property
    def context(self) -> int:
        """The sampler's context: prompt and replies of one episode, in tokens."""
        limit = self.inference.model.max_model_len
        return min(self.orchestrator.seq_len, limit) if limit else self.orchestrator.seq_len

    @property
    def gpus(self) -> list[int]:
        """The GPUs named for this run."""
        return self.trainer_gpu_ids or self.inference_gpu_ids or []

    @property
    def gpu(self) -> int | None:
        """The first GPU named for this run, if any is."""
        return self.gpus[0] if self.gpus else None

    @property
    def ranks(self) -> int:
        """How many processes train this run together."""
        return self.trainer.processes or (max(1, len(self.gpus)) if self.model.device != "cpu" else 1)

    @property
    def task(self) -> str:
        """What the run is called after: its own name, or its environments."""
        return self.run_name or "-".join(env.title for env in self.orchestrator.env)

    def warnings(self) -> list[str]:
        """What is allowed but seldom meant."""
        return [str(caution) for caution in rules.cautions(self)]

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, data: Any) -> Any:
        return rules.fill_budget(rules.spread_seq_len(data)) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _no_conflicts(self, info: ValidationInfo) -> Self:
        """`load_config` passes a list, to report conflicts with file and line; others get an error."""
        found = rules.conflicts(self)
        if isinstance(info.context, list):
            info.context.extend(found)
        elif found:
            raise ValueError("; ".join(conflict.problem for conflict in found))
        return self
