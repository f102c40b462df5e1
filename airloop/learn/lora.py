"""LoRA through PEFT: its configuration, its file format and its module tree, with our own forward pass.

PEFT runs fp32 adapters in fp32, which on a bf16 model casts every activation up and every sum down. Here the fp32
weights are the truth that the optimiser changes, and the two small products run in the activations' type, in
sampling and in training alike. Measured with bench/episodes.py --turns 1 on two AMX cores, 2026-11-15: 151 against
137 new tokens/s in our engine, 71 against 47 in transformers.generate (--lora peft).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.models import import_speedups  # noqa: F401

# isort: split
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.nn.functional import linear

from airloop.errors import AirError
from airloop.files import read_object
from airloop.text.patterns import is_quick

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER = "default"
# What an adapter may say of itself and still be two small matrices beside a linear layer, whose product is scaled: that
# is all that is computed here, when sampling and when training. The rest (DoRA's magnitudes, biases, whole modules that
# are saved with it, …) would be loaded and left out.
# fmt: off
KNOWN_KEYS = frozenset((
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out",
    "use_rslora", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
    "megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "runtime_config", "qalora_group_size", "ensure_weight_tying",
))
# fmt: on
NOTHING: tuple[Any, ...] = (None, False, "none", [], {}, "")


class LoraLinear(PeftLinear):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return result
        down: Tensor = self.lora_A[ADAPTER].weight.to(x.dtype)
        up = (self.lora_B[ADAPTER].weight * self.scaling[ADAPTER]).to(x.dtype)
        return result + linear(linear(x, down), up)


def attach_lora(
    model: PreTrainedModel, rank: int, alpha: float, target_modules: Sequence[str], last_layers: int | None = None
) -> PeftModel:
    """Freeze the model and put a trainable adapter beside the named linear layers (in place), of all blocks or of the
    last ones only: what lies before them then needs no backward pass."""
    layers = model.config.num_hidden_layers
    if last_layers is not None and last_layers > layers:
        raise AirError(
            f"trainer.model.lora.last_layers = {last_layers}, but the model has {layers} blocks.",
            "delete the line: by default every block has an adapter.",
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(target_modules),
        layers_to_transform=None if last_layers is None else list(range(layers - last_layers, layers)),
        bias="none",
        task_type="CAUSAL_LM",
    )
    config._register_custom_module({nn.Linear: LoraLinear})
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        names = sorted({n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
        raise AirError(
            f"trainer.model.lora.target_modules = {list(target_modules)} fits nothing in this model: {error}",
            f"choose from {names}.",
        ) from None


def load_lora(model: PreTrainedModel, path: Path) -> PeftModel:
    """Attach the adapter saved in PEFT's format at `path`, trainable."""
    if not (path / "adapter_config.json").is_file():
        raise AirError(
            f"{path} is not a PEFT adapter: it has no adapter_config.json.",
            "give the directory that holds adapter_config.json and adapter_model.safetensors.",
        )
    check_patterns(path)
    check_kind(path)
    config = LoraConfig.from_pretrained(str(path))
    config.inference_mode = False
    config._register_custom_module({nn.Linear: LoraLinear})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(model, str(path), is_trainable=True, config=config)


def check_patterns(path: Path) -> None:
    """PEFT matches what an adapter says of its layers with the name of every module."""
    said = read_object(path / "adapter_config.json")
    for key in ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"):
        found = said.get(key) or ()
        for pattern in [found] if isinstance(found, str) else list(found) if isinstance(found, list | dict) else ():
            if not is_quick(str(pattern), repeats=4, optional=8, longest=2000):
                raise AirError(
                    f"{path / 'adapter_config.json'}: {key} has {str(pattern)[:80]!r}, which could take for ever.",
                    "write the names of the layers there.",
                )


def check_kind(path: Path) -> None:
    said = read_object(path / "adapter_config.json")
    kind = said.get("peft_type", "LORA")
    others = [
        f"{key} = {said[key]!r}"[:80] for key in sorted(said) if key not in KNOWN_KEYS and said[key] not in NOTHING
    ]
    if kind == "LORA" and not others:
        return
    what = f"peft_type = {kind!r}" if kind != "LORA" else ", ".join(others)
    raise AirError(
        f"{path / 'adapter_config.json'}: {what}. Only plain LoRA is computed here; this adapter would act as another.",
        "merge it into its model (PEFT's merge_and_unload, then save_pretrained) and give the result as model.name.",
    )


def save_adapter(peft: PeftModel, directory: Path) -> None:
    """In PEFT's format. It is told what there is: a model's own state_dict would put a sharded base into shards."""
    found = {name: p.detach() for name, p in peft.named_parameters(remove_duplicate=False)}
    # PEFT's empty model card, whose template takes longer to compile than a small adapter to write.
    vars(peft)["create_or_update_model_card"] = lambda *_, **__: None
    try:
        peft.save_pretrained(str(directory), state_dict=found)
    finally:
        del vars(peft)["create_or_update_model_card"]
    (directory / "README.md").unlink(missing_ok=True)


def use_fp32_adapters(model: nn.Module) -> None:
    """The optimiser must see steps far smaller than bf16 can hold."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
