"""Writing a run's weights: its adapter, or the whole model that base and adapter are together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.eval.trained import Checkpoint
from airloop.files import read_object

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded


def write_adapter(directory: Path, adapter: Path, base: str) -> None:
    shutil.copytree(adapter, directory, dirs_exist_ok=True)
    path = directory / "adapter_config.json"
    config = read_object(path)
    path.write_text(json.dumps({**config, "base_model_name_or_path": base}, indent=2, sort_keys=True) + "\n")


def write_whole(directory: Path, base: Path, checkpoint: Checkpoint, dtype: str, loaded: Loaded) -> None:
    """Merged in fp32 and rounded once."""
    import torch

    from airloop.models.silence_transformers import silenced

    model = whole_model(base, checkpoint)
    model.config.use_cache = True  # training switched it off
    with silenced():
        model.to(getattr(torch, dtype)).save_pretrained(str(directory))
        loaded.tokenizer.hf.save_pretrained(str(directory))


def whole_model(base: Path, checkpoint: Checkpoint) -> Any:
    """In fp32, with what was trained merged into it."""
    model = plain_model(base if checkpoint.adapter else checkpoint.path / "model")
    return merge(model, checkpoint.adapter) if checkpoint.adapter else model


def merge(model: Any, adapter: Path) -> Any:
    from peft import PeftModel

    from airloop.learn.lora import check_patterns

    check_patterns(adapter)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()


def plain_model(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from airloop.models.silence_transformers import silenced

    with silenced():
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(directory),
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
        )
        return model.eval()
