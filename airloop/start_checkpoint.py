"""A supervised start that is being made, on disk: demonstrations as they are played and, every so often, weights and
optimiser. A run that is killed goes on with them. Tensors are in safetensors, all else in JSON: none of it is code."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.events import Say
from airloop.files import whole_directory, write_json
from airloop.rollout.schedule import place_in_step
from airloop.runs.run import read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.types import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from airloop.learn.learner import Learner

# In a run's directory.
KEPT = "warmstart"
# Between two checkpoints: what takes less is soon made again. A large model's take longer, and no more than a twentieth
# of the time.
EVERY_S, SHARE = 5.0, 20.0


@dataclass
class Progress:
    """The supervised steps that are made."""

    metrics: list[dict[str, Any]] = field(default_factory=list)  # a line for each
    seconds: list[float] = field(default_factory=list)  # of each
    changes: dict[str, Any] = field(default_factory=dict)  # of the config, which a budget of time made meanwhile


class StartCheckpoint:
    """In a folder that only one process uses; without one, nothing is kept. `name`: of the start that is made, by all
    that goes into it. `fence` raises where another process has taken the folder over (Run.fence)."""

    def __init__(self, folder: Path | None, name: str, fence: Callable[[], None] = lambda: None) -> None:
        self._folder, self._fence = folder, fence
        self._directory = folder / name if folder else None
        self._saved, self._cost = time.monotonic(), 0.0

    def demonstrations(self) -> dict[tuple[int, int], Trajectory]:
        """Those that were played, by their place. What the machinery spoilt is tried again, unless steps were made
        without it."""
        from airloop.learn.checkpoints import checkpoints

        if self._directory is None:
            return {}
        found = read_trajectories(self._directory / "demonstrations")
        good = {place_in_step(t.id): t for t in found if t.ending != "infra_error"}
        return {place_in_step(t.id): t for t in found} | good if checkpoints(self._directory) else good

    def keep(self, demonstration: Trajectory) -> None:
        if self._directory is not None:
            self._fence()
            write_json(self._directory / "demonstrations" / f"{demonstration.id}.json", to_json(demonstration))

    def is_due(self) -> bool:
        waited = time.monotonic() - self._saved
        return self._directory is not None and waited >= max(EVERY_S, SHARE * self._cost)

    def save(self, learner: Learner, progress: Progress, say: Say) -> None:
        """Where the disk has no room the start goes on without."""
        from airloop.learn.checkpoints import prune

        assert self._directory is not None
        self._fence()
        began = time.monotonic()
        try:
            _write(self._directory / f"step_{len(progress.metrics)}", learner, progress)
            prune(self._directory, keep_last=1, best=None)
        except (AirError, OSError) as error:
            say(f"note: a supervised start that is killed from here on begins anew: {error}")
            self._directory = None
        self._saved = time.monotonic()
        self._cost = self._saved - began

    def load(self, learner: Learner, say: Say) -> Progress:
        """What was made, with the learner as it was then. Everything is read before anything is changed."""
        from safetensors.torch import load_file

        from airloop.learn.checkpoints import checkpoints

        for _, path in reversed(checkpoints(self._directory) if self._directory else []):
            try:
                facts = json.loads((path / "progress.json").read_text(encoding="utf-8"))
                updates, progress = int(facts.pop("updates")), Progress(**facts)
                tensors = load_file(str(path / "learner.safetensors"))
                weights = {name: tensors[f"weight.{name}"] for name in learner.optimiser.names}
                state = _state(learner, tensors, updates)
            except Exception as error:  # safetensors and json each have their own
                say(f"note: {path} cannot be used ({type(error).__name__}: {error}): these steps are made again")
                shutil.rmtree(path, ignore_errors=True)  # else it would be taken for the latest
                continue
            learner.set_weights(weights)
            learner.load_state(state)
            return progress
        return Progress()

    def remove(self) -> None:
        """The start is made."""
        if self._folder is not None:
            self._fence()
            shutil.rmtree(self._folder, ignore_errors=True)


UNKEPT = StartCheckpoint(None, "")


def _write(directory: Path, learner: Learner, progress: Progress) -> None:
    from safetensors.torch import save_file

    with whole_directory(directory) as beside:
        save_file(_tensors(learner), str(beside / "learner.safetensors"))
        facts = {**asdict(progress), "updates": learner.updates}
        (beside / "progress.json").write_text(json.dumps(facts), encoding="utf-8")


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """Of one process, which has them whole."""
    state, optimiser = learner.state(), learner.optimiser
    found = {f"weight.{name}": w for name, w in zip(optimiser.names, optimiser.weights, strict=True)}
    found |= {f"master.{i}": master for i, master in enumerate(state["masters"])}
    for i, entry in state["optimiser"]["state"].items():
        found |= {f"adam.{i}.{key}": value for key, value in entry.items()}
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def _state(learner: Learner, tensors: Mapping[str, Tensor], updates: int) -> dict[str, Any]:
    """As Learner.load_state takes it: the settings are a new optimiser's, its memory is the saved one's. ValueError
    where those were made in another dtype, as on another machine."""
    fresh = learner.state()
    if (saved := sum(name.startswith("master.") for name in tensors)) != len(fresh["masters"]):
        raise ValueError(f"{saved} master weights where there are {len(fresh['masters'])}")
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "adam":
            number, _, key = rest.partition(".")
            memory.setdefault(int(number), {})[key] = tensor
    masters = [tensors[f"master.{i}"] for i in range(len(fresh["masters"]))]
    return {"optimiser": {**fresh["optimiser"], "state": memory}, "masters": masters, "updates": updates}
