"""What a config may say about MLGym, and the sandboxes that follow from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, existing
from airloop.sandbox.base import Limits
from airloop_envs.mlgym.commands import DIRECTORY, SETUP, TOOLS_PATH, WINDOW_VARIABLE
from airloop_envs.mlgym.researchers import EXPERTS
from airloop_envs.mlgym.workspace import Sandboxes

Source = Literal["auto", "builtin", "checkout"]


class MlgymArgs(EnvArgs):
    task_configs: list[str] = Field(
        default=["titanic.yaml", "prisonersDilemma.yaml", "battleOfSexes.yaml"],
        description="tasks by name or YAML file; `air tasks list` shows all",
    )
    mlgym_root: Annotated[str | None, Anchored(existing)] = Field(
        default=None, description="an MLGym checkout; by default AIR_MLGYM_ROOT"
    )
    source: Source = Field(
        default="auto", description="where tasks come from; auto: a checkout's if it has the name, else ours"
    )
    num_examples_per_task: int = Field(default=10, ge=1, description="examples of each task in an epoch")
    max_turns: int = Field(default=20, ge=1, description="replies in an episode")
    prompt: Literal["full", "short"] = Field(default="full", description="short: for small models, 100 tokens")
    history: int = Field(default=0, ge=0, description="earlier observations shown in full; 0: all")
    observation_chars: int = Field(default=8000, ge=200, description="longer output is cut in the middle")
    window: int = Field(default=1000, ge=10, description="lines that `open` shows at once")
    command_timeout_s: float = Field(default=25.0, gt=0, description="for a command that runs no training")
    training_timeout_s: float | None = Field(default=None, gt=0, description="for one that does; by default the task's")
    max_gradings: int = Field(
        default=10, ge=1, description="gradings of an episode of a checkout's task; the last is kept for the end"
    )
    score: Literal["last", "best"] = Field(default="last", description="which valid score of an episode counts")
    tool_reward: Literal["mean", "sum"] = Field(default="mean", description="how turns' tool rewards become one")
    metrics: dict[str, Any] = Field(
        default_factory=dict, description='what counts in a task: { mytask = { metric = "…", direction = "up" } }'
    )
    sandbox: Literal["bubblewrap", "container"] = Field(default="bubblewrap", description="where commands run")
    container_image: str = Field(default="", description="the image's name, for the container sandbox")
    container_runtime: str = Field(
        default="", description='by what the engine runs it, as "runsc"; by default the engine\'s own choice'
    )
    syscalls: Literal["", "strict"] = Field(
        default="", description="strict: only system calls that are known to be used, under bubblewrap"
    )
    python: str = Field(default="", description="the interpreter agents use; by default the one air runs on")
    env_gpu: str | None = Field(
        default=None, description='GPUs visible to agents, by id ("7" or "0,1"); by default none'
    )
    network: list[str] = Field(default_factory=list, description="hosts that agents may reach; by default none")
    memory_mb: int = Field(default=4096, ge=64, description="memory of one agent's sandbox")
    disk_mb: int = Field(default=1024, ge=16, description="files of one agent's sandbox, in memory")
    processes: int = Field(default=256, ge=8, description="processes and threads of one agent's sandbox")
    cpus: float = Field(default=4.0, gt=0, description="cores that one agent's sandbox may keep busy")
    demo_skill: float = Field(
        default=EXPERTS, ge=0, le=1, description="share of the supervised start's demonstrations that an expert gives"
    )
    standby: int = Field(default=2, ge=0, description="sandboxes kept ready for each task")
    save_trajectories: bool = Field(default=True, description="always true: a run keeps every trajectory")
    trajectory_dir: str | None = Field(default=None, description="not used: trajectories are in the run's directory")

    @model_validator(mode="after")
    def _known_elsewhere(self) -> Self:
        if not self.save_trajectories:
            raise ValueError("air saves every trajectory of a run; remove save_trajectories = false")
        if self.trajectory_dir is not None:
            raise ValueError(
                "trajectories are saved in <output_dir>/trajectories; remove trajectory_dir and set output_dir instead"
            )
        if self.sandbox == "container" and not self.container_image:
            raise ValueError('the container sandbox needs an image: add container_image = "NAME"')
        return self

    def sandboxes(self) -> Sandboxes:
        limits = Limits(memory_mb=self.memory_mb, disk_mb=self.disk_mb, processes=self.processes, cpus=self.cpus)
        return Sandboxes(
            limits=limits,
            env=((WINDOW_VARIABLE, str(self.window)),),
            binds=((DIRECTORY, TOOLS_PATH),),
            setup=SETUP,
            gpus=tuple(part.strip() for part in (self.env_gpu or "").split(",") if part.strip()),
            network=tuple(self.network),
            container=self.container_image,
        )
