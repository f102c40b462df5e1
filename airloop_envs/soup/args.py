"""What a config may say about BeautifulSoup tasks. The names are those people know from beautiful-soup-env."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airloop.envs.base import EnvArgs

Difficulty = Literal["mixed", "primer", "easy", "medium", "hard", "expert"]

# Which levels a mode has, and how many examples of a level's kinds for one of the others.
MODES: dict[str, dict[str, int]] = {
    "all": {"primer": 1, "easy": 1, "medium": 1, "hard": 1, "expert": 1},
    "tiered": {"primer": 1, "easy": 2, "medium": 3, "hard": 2, "expert": 1},
    "bootstrap": {"primer": 1, "easy": 1},
    "hard_only": {"hard": 1, "expert": 1},
}


_HELD_OUT = 'training is on split = "train"; held-out tasks are evaluated with `air eval --split {}`'
_LOCAL = 'code runs in the sandbox of this machine, in milliseconds: write executor_backend = "local"'
_PHASES = 'phases of development are no levels: write mode = "all", "tiered", "bootstrap" or "hard_only"'
FOREIGN: dict[tuple[str, Any], str] = {
    ("split", "eval"): _HELD_OUT.format("eval"),
    ("split", "bench"): _HELD_OUT.format("bench"),
    ("executor_backend", "prime"): _LOCAL,
    ("executor_backend", "pooled"): _LOCAL,
    ("network_access", True): "pages come with the task and code has no network: write network_access = false",
    ("mode", "mvp"): _PHASES,
    ("mode", "phase2"): _PHASES,
}


class SoupArgs(EnvArgs):
    mode: Literal["all", "tiered", "bootstrap", "hard_only"] = Field(
        default="all",
        description="all: every kind alike; tiered: more of the middle levels; bootstrap: primer and easy, with "
        "process credit; hard_only: hard and expert",
    )
    difficulty: Difficulty = Field(default="mixed", description="one level, or mixed: all levels of the mode")
    kinds: list[str] = Field(default_factory=list, description="only these kinds of task, by name; empty: all")
    num_examples_per_kind: int = Field(default=100, ge=1, description="training examples of a kind in an epoch")
    seed: int = Field(default=0, ge=0, description="which training examples; held-out ones are always the same")
    max_turns: int = Field(default=10, ge=1, description="replies in an episode")
    prompt: Literal["full", "short"] = Field(default="full", description="short: for small models")
    timeout_s: float = Field(default=10.0, gt=0, le=120, description="for one run_python")
    max_output_chars: int = Field(default=4000, ge=100, description="of one call; longer output is cut in the middle")
    process_credit: bool = Field(
        default=False, description="up to 0.3 for how a wrong episode worked; mode bootstrap turns it on"
    )
    demo_accuracy: float = Field(default=0.7, ge=0, le=1, description="how often the demonstrations are right")
    sandbox: Literal["bubblewrap", "container"] = Field(default="bubblewrap", description="where code runs")
    container_image: str = Field(default="", description="the image's name, for the container sandbox")
    container_runtime: str = Field(
        default="", description='by what the engine runs it, as "runsc"; by default the engine\'s own choice'
    )
    syscalls: Literal["", "strict"] = Field(
        default="", description="strict: only system calls that are known to be used, under bubblewrap"
    )
    python: str = Field(default="", description="the interpreter agents use; by default the one air runs on")
    sandboxes: int = Field(default=32, ge=1, description="sandboxes at one time; more episodes than that take turns")
    memory_mb: int = Field(default=512, ge=128, description="memory of one sandbox")
    split: Literal["train"] = Field(default="train", description="always train: a run says what it evaluates on")
    executor_backend: Literal["local"] = Field(default="local", description="always local: the sandbox here")
    network_access: Literal[False] = Field(default=False, description="always false: pages come with the task")

    @field_validator("split", "executor_backend", "network_access", "mode", mode="before")
    @classmethod
    def _known_elsewhere(cls, value: Any, info: ValidationInfo) -> Any:
        """Values that beautiful-soup-env has and air has not are answered with what to write instead."""
        if (why := FOREIGN.get((str(info.field_name), value))) is not None:
            raise ValueError(why)
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.difficulty != "mixed" and self.difficulty not in MODES[self.mode]:
            known = ", ".join(MODES[self.mode])
            raise ValueError(f'mode "{self.mode}" has the levels {known}; choose one of them, or mode = "all"')
        if self.sandbox == "container" and not self.container_image:
            raise ValueError('the container sandbox needs an image with bs4: add container_image = "NAME"')
        return self

    @property
    def levels(self) -> dict[str, int]:
        """Examples of a level's kinds, relative to each other."""
        chosen = MODES[self.mode]
        return chosen if self.difficulty == "mixed" else {self.difficulty: 1}

    @property
    def credits_process(self) -> bool:
        return self.process_credit or self.mode == "bootstrap"
