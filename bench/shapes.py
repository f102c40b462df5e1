"""Models of well-known shapes with random weights, made on the device itself: no download, no slow start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONTEXT = 32768

# Architecture; hidden, MLP, layers, heads, key/value heads, head size, vocabulary; tied embeddings?
SHAPES: dict[str, tuple[str, int, int, int, int, int, int, int, bool]] = {
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen2.5-7b": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False),
    "smollm2-1.7b": ("llama", 2048, 8192, 24, 32, 32, 64, 49152, True),
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "tiny": ("qwen3", 64, 128, 2, 4, 2, 16, 512, True),
}


def make_config(shape: str) -> Any:
    """The transformers config of a shape."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, hidden, mlp, layers, heads, kv_heads, dim, vocabulary, tied = SHAPES[shape]
    return CONFIG_MAPPING[kind](
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


def make_model(
    shape: str,
    device: str | torch.device,
    dtype: torch.dtype,
    lora_rank: int | None = None,
    seed: int = 0,
) -> tuple[PreTrainedModel, PeftModel | None]:
    """The model in eval mode, and PEFT's wrapper when it has an adapter (on every linear layer, alpha = 2 r).

    Every matrix is drawn from a normal distribution of width 0.02; an adapter's B matrices too, so that its
    products count in what is computed.
    """
    from transformers import AutoModelForCausalLM

    place = torch.device(device)
    with place:
        model = AutoModelForCausalLM.from_config(
            make_config(shape), dtype=dtype, attn_implementation="sdpa", trust_remote_code=False
        )
    model.tie_weights()
    model = model.to(place).eval()
    generator = torch.Generator(place).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0) if "norm" in name else parameter.zero_()
    if lora_rank is None:
        return model, None
    from airloop.learn.lora import attach_lora, use_fp32_adapters

    with place:
        peft = attach_lora(model, lora_rank, 2.0 * lora_rank, TARGETS)
    use_fp32_adapters(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.02, generator=generator)
    return model, peft
