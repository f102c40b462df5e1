"""Family G, fast: where a run writes, and whether there is room for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Case

GIB = 2**30
# On disk a token of an episode takes 25 (prompt) to 37 bytes (sampled: id, both log-probs, text), measured on runs of
# `tune` and `mlgym`.
BYTES_PER_TOKEN = 40
# float32: a trained weight, and the two moments of AdamW.
LORA_BYTES = 12
# The weights in their own type, the optimiser's float32 masters and moments.
FULL_BYTES = 2 + 12
# Beside those that are kept: the best, and the one that is being written.
MORE_CHECKPOINTS = 2


@check("G-output", stage="fast", title="a run can be written")
def output_can_be_written(case: Case) -> Finding:
    root = Path(case.config.output_dir).expanduser().absolute()
    nearest = _nearest(root)
    try:  # a system's own directories say one thing about rights and do another
        with tempfile.TemporaryDirectory(prefix=".air-doctor-", dir=nearest):
            return passed(f"to {root}")
    except OSError as error:
        what = str(error)
    return Finding(
        "fail",
        f"output_dir = {case.config.output_dir!r} cannot be made: {what}",
        "no run directory could be made there",
        "name another place",
        {"output_dir": "outputs"},
    )


@check("G4", stage="fast", title="the disk has room for the run")
def disk_has_room(case: Case) -> Finding:
    """Checkpoints must fit. Episodes are estimated as if each filled the context, so they only warn."""
    root = _nearest(Path(case.config.output_dir).expanduser().absolute())
    total, _, free = shutil.disk_usage(root)
    if total == 0:
        return passed(f"{root} is on no disk")
    checkpoints, episodes = checkpoint_bytes(case), episode_bytes(case)
    seen = (
        f"checkpoints take {_size(checkpoints)} ({case.config.ckpt.keep_last} kept, the best, and the one being "
        f"written) and episodes at most {_size(episodes)}; {root} has {_size(free)} free"
    )
    if checkpoints + episodes <= free:
        return passed(seen)
    if checkpoints <= free:
        return Finding(
            "warn",
            seen,
            "if episodes are as long as they may be, the disk is full before the last step: the run then stops with "
            "everything saved, and can be resumed",
            "make room, or name a larger disk with output_dir",
            {"output_dir": "/path/on/a/larger/disk"},
        )
    lines = {"ckpt.keep_last": 1} if case.config.ckpt.keep_last > 1 else {"output_dir": "/path/on/a/larger/disk"}
    return Finding("fail", seen, "the disk would be full at a checkpoint", "make room, or keep fewer", lines)


def checkpoint_bytes(case: Case) -> int:
    """All checkpoints that are on the disk at one time."""
    model = case.config.trainer.model
    count = min(case.config.ckpt.keep_last, max(1, case.config.max_steps)) + MORE_CHECKPOINTS
    linears = _linears(case.model_config)
    layers = int(case.model_config.get("num_hidden_layers") or 0)
    if model.train == "full":
        embeddings = int(case.model_config["vocab_size"]) * int(case.model_config["hidden_size"])
        copies = 1 if case.model_config.get("tie_word_embeddings") else 2
        return count * FULL_BYTES * (copies * embeddings + layers * sum(a * b for a, b in linears.values()))
    chosen = [sum(sides) for name, sides in linears.items() if name in model.lora.target_modules]
    return count * LORA_BYTES * model.lora.rank * min(model.lora.last_layers or layers, layers) * sum(chosen)


def _linears(settings: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a block's linear layers, by the names that nearly all families give them. An estimate:
    counting exactly would mean to build the model, which takes a second of imports."""
    hidden = int(settings["hidden_size"])
    heads = int(settings.get("num_attention_heads") or 1)
    dim = int(settings.get("head_dim") or hidden // heads)
    keys = dim * int(settings.get("num_key_value_heads") or heads)
    inner = int(settings.get("intermediate_size") or 4 * hidden)
    return {
        "q_proj": (hidden, dim * heads),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (dim * heads, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def episode_bytes(case: Case) -> int:
    """All episodes of the run, and of its evaluations, at full length."""
    o = case.config.orchestrator
    evaluations = 2 + (case.config.max_steps // o.eval.interval if o.eval.interval else 0)
    episodes = case.config.max_steps * o.batch_size * o.oversampling_factor
    episodes += evaluations * o.eval.num_examples * o.eval.rollouts_per_example
    return int(episodes * case.config.seq_len * BYTES_PER_TOKEN)


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
