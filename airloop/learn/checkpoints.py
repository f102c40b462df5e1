"""Checkpoints: the adapter in PEFT's format (or the whole model), the optimiser, the random states, and
where the run stands. A directory appears complete or not at all."""

from __future__ import annotations

import json
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


def save_checkpoint(directory: Path, learner: Learner, step: int) -> Path:
    """State after `step` updates. The step is the data position too: tasks are a function of seed and step.

    Every rank calls it and the first one writes: whole tensors, so any number of ranks can go on from them.
    """
    path = directory / f"step_{step}"
    state, weights = learner.state(), _joined_weights(learner)
    if not learner.world.first:
        return path
    with whole_directory(path) as beside:
        _write_weights(learner, weights, beside)
        torch.save({"learner": state, "random": random_states()}, beside / "state.pt")
        (beside / "position.json").write_text(json.dumps({"step": step, "version": learner.policy.version}))
    return path


def save_weights(learner: Learner, directory: Path) -> None:
    """`adapter/` for LoRA, `model/` for full fine-tuning. Every rank calls it and the first one writes."""
    weights = _joined_weights(learner)
    if learner.world.first:
        _write_weights(learner, weights, directory)


def _joined_weights(learner: Learner) -> dict[str, torch.Tensor] | None:
    """Weights that are in shards, joined; None where the model has them whole."""
    return learner.optimiser.whole_weights() if learner.shards else None


def _write_weights(learner: Learner, weights: dict[str, torch.Tensor] | None, directory: Path) -> None:
    from airloop.models import quiet

    policy = learner.policy
    if policy.peft is not None:
        policy.peft.save_pretrained(str(directory / "adapter"))
        (directory / "adapter" / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
    else:
        with quiet():
            policy.model.save_pretrained(str(directory / "model"), state_dict=weights)


def load_checkpoint(path: Path, learner: Learner) -> int:
    """Put a checkpoint's state into a learner that was built from the same config; returns its step.

    Everything is read before anything is changed, so that after a damaged checkpoint an older one can be taken.
    """
    try:
        position = json.loads((path / "position.json").read_text(encoding="utf-8"))
        step, version = int(position["step"]), int(position["version"])
        # Of a sharded optimiser each rank needs its part only: what it does not touch is not read into memory.
        mapped = learner.shards is not None
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=False, mmap=mapped)
        tensors = _read_weights(path, learner)
    except AirError:
        raise
    except Exception as error:  # torch, pickle, safetensors and json each have their own
        raise AirError(
            f"The checkpoint {path} cannot be read: {type(error).__name__}: {error}.",
            "delete it and resume from the one before.",
        ) from error
    learner.set_weights(tensors)
    learner.load_state(state["learner"])
    learner.policy.version = version
    set_random_states(state["random"])
    return step


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
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        # A rank sees its own GPU only; the run may have been saved by a process that saw several.
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]][: torch.cuda.device_count()])
