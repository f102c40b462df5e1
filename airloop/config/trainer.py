"""The keys of [trainer]: what is trained, by which optimiser, on which loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from airloop.config.defaults import fill_loss
from airloop.learn.losses import LOSSES, POLICY_LOSSES
from airloop.own_code import is_file_id
from airloop.section import Section

if TYPE_CHECKING:
    LossType = str
else:  # for the help, and for what is misspelt; a file and function of the user's own is taken, too
    LossType = Literal[POLICY_LOSSES]


def _defaults_of(key: str) -> str:
    """The first loss's default, then those that differ: "0.2, dapo 0.28"."""
    found = {name: LOSSES[name].defaults[key] for name in POLICY_LOSSES if key in LOSSES[name].defaults}
    usual = next(iter(found.values()))
    return ", ".join([f"{usual:g}", *(f"{name} {value:g}" for name, value in found.items() if value != usual)])


_UNSCALED = " and ".join(name for name in POLICY_LOSSES if not LOSSES[name].scale_rewards)


class AcConfig(Section):
    freq: int = Field(
        default=1, ge=1, description="Checkpoint the activations of every freq-th block (1: all of them)."
    )


class LoraConfig(Section):
    rank: int = Field(default=16, ge=1, description="Rank of the adapter's matrices.")
    alpha: float = Field(default=32, gt=0, description="The adapter's output is scaled by alpha / rank.")
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
    impl: Literal["auto", "hf"] = Field(
        default="auto",
        description="What training runs: our forward pass where the architecture is known, or transformers' layers.",
    )
    train: Literal["lora", "full"] = Field(default="lora", description="Train an adapter, or all the weights.")
    shard: bool | None = Field(
        default=None,
        description="Keep an adapter's frozen base in shards while several GPUs train; by default where it must be.",
    )
    ac: AcConfig | None = Field(default=None, description="Activation checkpointing; off without this table.")
    lora: LoraConfig = Field(default_factory=LoraConfig, description="The adapter, for train = lora.")


class OptimConfig(Section):
    lr: float = Field(default=1e-4, gt=0, description="Learning rate of AdamW.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    max_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm.")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's two decay rates, each below 1.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which lr rises linearly from zero.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How lr falls after the warm-up, towards the last of max_steps."
    )
    decay_steps: int | None = Field(
        default=None,
        ge=1,
        description="It falls over so many of the last steps; by default over all after the warm-up.",
    )
    min_lr: float | None = Field(default=None, ge=0, description="What lr falls to; by default to zero.")
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

    type: LossType = Field(
        default="grpo", description='The policy-gradient loss; one of your own by its file: "./my_loss.py:loss".'
    )
    advantage: str | None = Field(
        default=None,
        description='Advantages by a function of your own, "./my_advantage.py:advantage"; by default the loss\'s.',
    )
    kl_beta: float = Field(default=0.0, ge=0, description="Weight of the KL term to the starting model (0: none).")
    kl_estimator: Literal["k1", "k2", "k3"] | None = Field(
        default=None, description="The KL term: k1 off the advantage, k2 or k3 in the loss; by default k3."
    )
    entropy_beta: float = Field(
        default=0.0, ge=0, description="Weight of the policy's entropy, which keeps replies different (0: none)."
    )
    clip_low: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=f"The ratio is clipped below 1 - clip_low; by default {_defaults_of('clip_low')}.",
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        description=f"The ratio is clipped above 1 + clip_high; by default {_defaults_of('clip_high')}.",
    )
    scale_rewards: bool = Field(
        default=True, description=f"Divide advantages by a standard deviation; by default not for {_UNSCALED}."
    )
    scale_by: Literal["group", "batch"] | None = Field(
        default=None, description="The rewards whose standard deviation that is; by default the group's."
    )
    anchor: Literal["trainer", "sampler"] = Field(
        default="trainer",
        description="The ratio is clipped by the log-probs of the trainer before the update, or of the sampler.",
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
    geo_mask_low: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="A trajectory whose weights have a geometric mean below this is left out as a whole (0: none).",
    )
    geo_mask_high: float | None = Field(
        default=None, gt=1, description="One whose weights have a geometric mean above this, too; by default none."
    )
    sequence_mask_low: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="A trajectory with any token of a weight below this is left out as a whole (0: none).",
    )
    sequence_mask_high: float | None = Field(
        default=None, gt=1, description="One with any token of a weight above this, too; by default none."
    )
    overlong: Literal["off", "reply", "episode"] = Field(
        default="off",
        description="Penalise replies near max_tokens, or episodes near the context's end, in groups that have signal.",
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

    @field_validator("type", mode="wrap")
    @classmethod
    def _of_a_file(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, str) and is_file_id(value) else handler(value)

    @field_validator("advantage")
    @classmethod
    def _is_a_file(cls, value: str | None) -> str | None:
        if value is not None and not is_file_id(value):
            raise ValueError('expected a file and a function in it, as in "./my_advantage.py:advantage"')
        return value

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        return fill_loss(data) if isinstance(data, dict) else data


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
    rank_timeout_s: float = Field(
        default=1800.0,
        gt=0,
        description="Seconds that these wait for one that neither moves nor computes; less where it is known how long "
        "what it is at takes, six times as long for one that computes.",
    )
    model: TrainerModelConfig = Field(default_factory=TrainerModelConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
