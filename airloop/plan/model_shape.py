"""The shape of a model: by arithmetic or on a model without storage, from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.events import Say
from airloop.plan.counted import count
from airloop.plan.shape import Shape


def read_shape(model: Any) -> Shape:
    """The shape of a transformers model, with or without adapters, with or without storage."""
    from torch import nn

    from airloop.models.blocks import why_unknown

    config, decoder = model.config, model.get_decoder()
    base = [(name, p) for name, p in model.named_parameters() if "lora_" not in name]
    layers = decoder.layers
    linears = tuple(
        (name.removesuffix(".base_layer"), m.in_features + m.out_features)
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear) and "lora_" not in name
    )
    return Shape(
        parameters=sum(p.numel() for _, p in base),
        block=sum(p.numel() for name, p in layers[0].named_parameters() if "lora_" not in name),
        layers=len(layers),
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        qk_norm=hasattr(getattr(layers[0], "self_attn", None), "q_norm"),
        own_forward=why_unknown(model) is None,
        linears=linears,
    )


def find_shape(name: str, *, context: int, say: Say | None = None) -> Shape:
    """The shape of the model called `name` (hub id, directory, GGUF file, `tiny:…`). Reads no weights, but refuses
    what training would refuse."""
    from airloop.models.checks import check_config, check_context
    from airloop.models.sources import find_config

    path = Path(name).expanduser()
    settings = _gguf_config(path) if path.suffix.lower() == ".gguf" else find_config(name, say=say)
    check_config(settings, name)
    check_context(settings, context, name)
    return shape_of(settings)


def shape_of(settings: Mapping[str, Any]) -> Shape:
    """The shape that the object in a config.json describes."""
    return count(settings) or built(settings)


def built(settings: Mapping[str, Any]) -> Shape:
    """Of a model without storage: any architecture."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from airloop.models.silence_transformers import silenced

    config = CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings))
    with silenced(), torch.device("meta"):
        return read_shape(AutoModelForCausalLM.from_config(config, trust_remote_code=False))


def _gguf_config(path: Path) -> dict[str, Any]:
    """From the header of a GGUF file; find_config would convert the whole file first."""
    from transformers import AutoConfig

    from airloop.models.gguf_header import check_header
    from airloop.models.silence_transformers import silenced

    if not path.is_file():
        raise AirError(f"there is no GGUF file {path}", "give the path of a .gguf file, a directory or a hub id")
    check_header(path, weights=False)
    with silenced():
        try:
            settings = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False).to_dict()
        except Exception as error:
            raise AirError(
                f"transformers cannot read the header of {path}: {error}",
                "give the model in transformers form (a directory with config.json and safetensors)",
            ) from error
    settings.pop("quantization_config", None)  # air trains it dequantised
    return settings
