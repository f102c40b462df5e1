"""Every key a run can have: its type, default, bounds and one sentence of help.

Nothing is coerced and nothing is ignored: an unknown key, or a string where a number belongs, is refused.
What two keys must not say together is in `rules.py`, which `Config` (config.py) holds them to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, create_model, model_validator

from airloop.config.defaults import fill_backend, fill_budget, fill_roles
from airloop.config.engines import ENGINES
from airloop.config.launchers import LAUNCHERS
from airloop.config.orchestrator import OrchestratorConfig
from airloop.config.trainer import TrainerConfig
from airloop.envs.files import VERIFIERS
from airloop.own_code import is_file_id
from airloop.section import Section
from airloop.sinks import SINKS

if TYPE_CHECKING:
    Backend = str
    LauncherName = str
else:  # for the help, and for what is misspelt
    Backend, LauncherName = Literal[tuple(ENGINES)], Literal[tuple(LAUNCHERS)]


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


class CkptConfig(Section):
    interval: int = Field(default=5, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(
        default=2, ge=1, description="How many of the latest checkpoints are kept (the best is too)."
    )


class InferenceModelConfig(Section):
    enforce_eager: bool | None = Field(default=None, description="No decode graphs on CUDA (the CPU has none).")
    tool_call_parser: Literal["auto", "hermes", "json", "mistral", "qwen3_coder"] = Field(
        default="auto", description="How tool calls are read from a reply; auto takes any of these forms."
    )


class VllmConfig(Section):
    """Servers of vLLM: those that air starts, one for each of inference_gpu_ids, or those at `urls`."""

    python: str | None = Field(
        default=None, min_length=1, description="An interpreter that has vLLM; by default the one that air runs in."
    )
    urls: list[str] = Field(default_factory=list, description="Servers that run already: none is started.")
    api_key_env: str = Field(
        default="VLLM_API_KEY",
        min_length=1,
        description="The environment variable that holds the key of those at urls.",
    )
    adapters: Literal["files", "http"] = Field(
        default="files",
        description="How servers get the policy: from files that they see, or pulled from this run by air's plugin.",
    )
    adapters_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="An address of this machine that servers reach it by; others than they need no way to it.",
    )
    adapters_port: int = Field(default=0, ge=0, le=65535, description="There; 0: any that is free.")


class InferenceConfig(Section):
    backend: Backend = Field(
        default="embedded",
        description="The engine that samples: on the trainer's own weights, or servers of vLLM, as for GPUs apart.",
    )
    gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the free CUDA memory that holds keys and values, default 0.5; of a vLLM server's, 0.9.",
    )
    max_batch: int = Field(default=64, ge=1, description="Most sequences decoded at once.")
    kv_tokens: int | None = Field(
        default=None,
        ge=16,
        description="Key/value memory in tokens; by default what max_batch needs, within 2 GiB or the GPU share.",
    )
    page_size: int = Field(default=64, ge=1, description="Tokens in one page of key/value memory.")
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="For backend = vllm.")
    model: InferenceModelConfig = Field(default_factory=InferenceModelConfig)

    @property
    def own_weights(self) -> bool:
        """Whether the engine samples on the trainer's own weights, in each process that trains."""
        return ENGINES[self.backend].own_weights


class RolesConfig(Section):
    """What each of several machines does: how many of them train, and how many have servers of vLLM that sample."""

    learner: int = Field(default=0, ge=0, description="Machines that train: processes on all of their GPUs.")
    sampler: int = Field(default=0, ge=0, description="Machines that sample: a server of vLLM on each of their GPUs.")


class ClusterConfig(Section):
    """Machines that Ray has joined (docs/cluster.md)."""

    nodes: int = Field(
        default=1, ge=1, description="Machines that train together, those that Ray has; 1 is this one, without Ray."
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="GPUs that are used on each of them; with model.device = cpu, trainer.processes are shared out.",
    )
    launcher: LauncherName | None = Field(
        default=None,
        description="What starts the processes that train; by default Ray on several machines, on this one air itself.",
    )
    roles: RolesConfig | None = Field(
        default=None,
        description="How many of them train and how many sample, with vLLM; without this table each does both.",
    )


class WarmstartConfig(Section):
    steps: int = Field(default=30, ge=1, description="Supervised steps.")
    batch_size: int = Field(default=16, ge=1, description="Demonstrations per supervised step.")
    lr: float = Field(default=5e-4, gt=0, description="Learning rate of the supervised start.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How lr falls after the warm-up, towards the last of these steps."
    )
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
        examples=[12],
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


SEQ_LEN = 2048


class _FirstKeys(Section):
    max_steps: int = Field(default=20, ge=0, le=10**9, description="Training steps.")
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Tasks, episode seeds and their order follow from it.")
    deterministic: bool = Field(
        default=False, description="Lock-step scheduling and fp32: same seed, same run, bit for bit."
    )
    output_dir: str = Field(default="outputs", min_length=1, description="Where run directories are made.")
    run_name: str | None = Field(
        default=None, min_length=1, description="What the run is called after; by default its environments."
    )
    seq_len: int = Field(
        default=SEQ_LEN, ge=16, description="What an episode may grow to, prompt and replies, in tokens."
    )
    inference_gpu_ids: list[int] | None = Field(
        default=None,
        min_length=1,
        description="If they are none of trainer_gpu_ids, a server of vLLM on each of them; else the same as those.",
    )
    trainer_gpu_ids: list[int] | None = Field(
        default=None, min_length=1, description="The GPUs to use, as in [0]; on each, a process that trains."
    )
    cluster: ClusterConfig = Field(default_factory=ClusterConfig, description="For several machines.")
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)


if TYPE_CHECKING:
    _WithSinks = _FirstKeys
else:  # a section for each sink
    _sinks = {
        name: (spec.section | None, Field(default=None, description=spec.section.__doc__))
        for name, spec in SINKS.items()
    }
    _WithSinks = create_model("_WithSinks", __base__=_FirstKeys, **_sinks)


class RunConfig(_WithSinks):
    """One run, resolved: every key has its value, each right by itself."""

    logbook: LogbookConfig = Field(default_factory=LogbookConfig)
    ckpt: CkptConfig = Field(default_factory=CkptConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    orchestrator: OrchestratorConfig = Field(default_factory=OrchestratorConfig)
    inference: InferenceConfig = Field(default_factory=InferenceConfig)
    warmstart: WarmstartConfig | None = Field(
        default=None, description="A supervised start before the first step; none without this table."
    )

    @property
    def sinks(self) -> dict[str, Section]:
        """The sections of those that the run logs to, by their names."""
        return {name: asked for name in SINKS if (asked := getattr(self, name)) is not None}

    @property
    def gpus(self) -> list[int]:
        """The GPUs that train, on each machine; the embedded engine samples on them as well."""
        if self.cluster.gpus_per_node is not None:
            return list(range(self.cluster.gpus_per_node))
        both = self.inference.own_weights
        return self.trainer_gpu_ids or (self.inference_gpu_ids if both else None) or []

    @property
    def gpu(self) -> int | None:
        """The first GPU named for this run, if any is."""
        return self.gpus[0] if self.gpus else None

    @property
    def ranks(self) -> int:
        """How many processes train this run together."""
        each = max(1, len(self.gpus)) if self.model.device != "cpu" else 1
        return self.trainer.processes or self.learner_nodes * each

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.learner_nodes

    @property
    def learner_nodes(self) -> int:
        """Machines that train."""
        roles = self.cluster.roles
        return max(1, roles.learner) if roles else self.cluster.nodes  # at least one, also where a rule is about to ask

    @property
    def sampler_nodes(self) -> int:
        """Machines that have servers of vLLM and train nothing."""
        return self.cluster.roles.sampler if self.cluster.roles else 0

    @property
    def dtype_apart(self) -> str:
        """Where samplers are other machines than learners, each may not choose for itself what is faster there."""
        if self.model.dtype != "auto":
            return self.model.dtype
        return "bfloat16" if self.gpus and not self.model.name.startswith("tiny:") else "float32"

    def sampled_here(self) -> Self:
        """The same for a process that is no rank of a run with samplers elsewhere, such as an evaluation: it samples
        on its own weights."""
        if self.cluster.roles is None:
            return self
        inference = self.inference.model_copy(update={"backend": "embedded", "vllm": VllmConfig()})
        model = self.model.model_copy(update={"dtype": self.dtype_apart})
        nodes = self.cluster.model_copy(update={"nodes": self.learner_nodes, "roles": None})
        return self.model_copy(update={"inference": inference, "model": model, "cluster": nodes})

    @property
    def own_code(self) -> list[str]:
        """Code of the user's own that the run names by its files; in an environment's args, by whole paths: any other
        text there may mean something else to it. `files` there is an agent's program, perhaps a whole folder."""
        ids = (env.id.removeprefix(VERIFIERS) for env in self.orchestrator.env)
        named = [*ids, self.trainer.loss.type, self.trainer.loss.advantage]
        within = [text for env in self.orchestrator.env for text in _texts(env.args) if Path(text).is_absolute()]
        folders = [
            found for env in self.orchestrator.env if Path(found := str(env.args.get("files", ""))).is_absolute()
        ]
        return [*(name for name in (*named, *within) if name is not None and is_file_id(name)), *folders]

    @property
    def task(self) -> str:
        """What the run is called after: its own name, or its environments."""
        return self.run_name or "-".join(env.title for env in self.orchestrator.env)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        return fill_roles(fill_backend(fill_budget(data))) if isinstance(data, dict) else data


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value if isinstance(value, list) else value.values():
            yield from _texts(part)
