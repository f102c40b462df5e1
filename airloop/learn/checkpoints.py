"""Checkpoints: the adapter in PEFT's format (or the whole model), the optimiser, the random states, and
where the run stands. A directory appears complete or not at all."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from airloop.errors import AirError
from airloop.files import whole_directory
from airloop.learn.learner import Learner
from airloop.learn.lora import save_adapter


def save_checkpoint(directory: Path, learner: Learner, step: int, drawn: dict[str, Any] | None = None) -> Path:
    """State after `step` updates. The step is the data position too: tasks are a function of seed and step. `drawn`:
    the random states of then, where something may have been drawn since.

    Every rank calls it and the first one writes: whole tensors, so any number of ranks can go on from them.
    """
    path = directory / f"step_{step}"
    state, weights = learner.state(), learner.optimiser.whole_weights()
    if not learner.ranks.first:
        return path
    with whole_directory(path) as beside:
        _write_weights(learner, weights, beside)
        torch.save({"learner": state, "random": drawn or random_states()}, beside / "state.pt")
        (beside / "position.json").write_text(json.dumps({"step": step, "version": learner.policy.version}))
    return path


def save_weights(learner: Learner, directory: Path) -> None:
    """`adapter/` for LoRA, `model/` for full fine-tuning. Every rank calls it and the first one writes."""
    weights = learner.optimiser.whole_weights()
    if learner.ranks.first:
        _write_weights(learner, weights, directory)


def _write_weights(learner: Learner, weights: dict[str, torch.Tensor] | None, directory: Path) -> None:
    from airloop.models.silence_transformers import silenced

    policy = learner.policy
    if policy.peft is not None:
        save_adapter(policy.peft, directory / "adapter")
    else:
        with silenced():
            policy.model.save_pretrained(str(directory / "model"), state_dict=weights)


def load_checkpoint(path: Path, learner: Learner) -> int:
    """Put a checkpoint's state into a learner that was built from the same config; returns its step.

    Everything is read before anything is changed, so that after a damaged checkpoint an older one can be taken.
    """
    try:
        position = json.loads((path / "position.json").read_text(encoding="utf-8"))
        step, version = int(position["step"]), int(position["version"])
        # Of a sharded optimiser each rank needs its part only: what it does not touch is not read into memory.
        state = read_state(path / "state.pt", mapped=learner.shards is not None)
        updated, drawn = state["learner"], state["random"]
        tensors = _read_weights(path, learner)
    except AirError:
        raise
    except Exception as error:  # torch, pickle, safetensors and json each have their own
        raise AirError(
            f"The checkpoint {path} cannot be read: {type(error).__name__}: {error}.",
            "delete it and resume from the one before.",
        ) from error
    learner.set_weights(tensors)
    learner.load_state(updated)
    learner.policy.version = version
    set_random_states(drawn)
    return step


class _Numpy:
    """What stands for numpy's names in the state.pt of before: keeps what is said about an array and computes nothing.
    Numpy's own would take pointers and types from the file as they are."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


_RECONSTRUCT = "multiarray._reconstruct"
NUMPY_NAMES = ("numpy.ndarray", "numpy.dtype", f"numpy.core.{_RECONSTRUCT}", f"numpy._core.{_RECONSTRUCT}")


def read_state(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Tensors, numbers and texts, and no code: a run may be somebody else's, and a pickle can call what it likes."""
    try:
        with torch.serialization.safe_globals([(_Numpy, name) for name in NUMPY_NAMES]):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        said = f"it names the code {named[1]}" if named else "it is damaged, or holds more than numbers"
        raise AirError(
            f"{path} was not opened: {said}, and a state of ours holds tensors and numbers only.",
            "if the run is from somebody else, do not trust it; delete the checkpoint to resume from the one before.",
        ) from None
    kind, keys, *rest = state["random"]["numpy"]
    if isinstance(keys, _Numpy):  # the last thing said of an array is its bytes
        state["random"]["numpy"] = (kind, np.frombuffer(keys.state[-1], "<u4"), *rest)
    return state


def load_weights(path: Path, learner: Learner) -> None:
    learner.set_weights(_read_weights(path, learner))


def _read_weights(path: Path, learner: Learner) -> dict[str, torch.Tensor]:
    """The trainable parameters that a checkpoint holds, by the model's own names."""
    from safetensors.torch import load_file

    if (path / "adapter").is_dir():
        saved = load_file(str(path / "adapter" / "adapter_model.safetensors"))
        prefix = "base_model.model."
        tensors = {k.removeprefix(prefix).replace(".weight", ".default.weight"): v for k, v in saved.items()}
    else:
        files = sorted((path / "model").glob("*.safetensors"))
        tensors = {k: v for file in files for k, v in load_file(str(file)).items()}
    missing = [n for n, _ in learner.policy.trainable() if n not in tensors]
    if missing:
        raise AirError(
            f"The checkpoint {path} does not fit this model: {len(missing)} tensors are missing, such as {missing[0]}.",
            "resume with the config the run was started with.",
        )
    return tensors


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """All whole checkpoints, oldest first."""
    found = [(int(m[1]), p) for p in directory.glob("step_*") if (m := re.fullmatch(r"step_(\d+)", p.name))]
    return sorted(found)


def prune(directory: Path, keep_last: int, best: int | None) -> None:
    for step, path in checkpoints(directory)[:-keep_last]:
        if step != best:
            shutil.rmtree(path)


def random_states() -> dict[str, Any]:
    """Tensors and numbers only: they are saved, and what is read back must need no code."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        # A rank sees its own GPU only; the run may have been saved by a process that saw several.
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]][: torch.cuda.device_count()])
