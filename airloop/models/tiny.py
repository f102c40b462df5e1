"""A model of a hundred thousand random weights that is real in every other respect: for tests, and for
trying a config without downloading anything (`name = "tiny:llama"`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.models.chat import ChatTokenizer
from airloop.models.chat_forms import CHATML

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded

KINDS = ("llama", "qwen2", "qwen3", "mistral")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
CONTEXT = 8192


def tiny_tokenizer() -> Any:
    """A PreTrainedTokenizerFast whose ids 0 to 255 are the bytes, followed by three special tokens."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_vocabulary(),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def tiny_vocabulary() -> Any:
    """What it wraps, a Tokenizer of the package tokenizers, which is imported without transformers' seconds."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {character: byte for byte, character in _byte_characters().items()}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte, which tokenizers' ByteLevel expects."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in stand_ins:
            stand_ins[byte] = chr(256 + len(stand_ins) - len(plain))
    return stand_ins


def tiny_config(kind: str = "llama", *, hidden: int = 64, layers: int = 2, context: int = CONTEXT) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = tiny_settings(kind, hidden=hidden, layers=layers, context=context)
    return CONFIG_MAPPING[settings.pop("model_type")](**settings)


def tiny_settings(kind: str = "llama", *, hidden: int = 64, layers: int = 2, context: int = CONTEXT) -> dict[str, Any]:
    """What its config.json says."""
    if kind not in KINDS:
        raise AirError(f"there is no tiny model {kind!r}", f"use one of {', '.join('tiny:' + k for k in KINDS)}")
    settings: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": 256 + len(SPECIAL),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "tie_word_embeddings": kind == "qwen2",  # one kind with tied weights: real small models have them
        "initializer_range": hidden**-0.5,  # logits spread by about one: a flat softmax hides mistakes
    }
    if kind != "llama":  # said, so that no default of transformers' class counts
        settings |= {"sliding_window": None} if kind == "mistral" else {"use_sliding_window": False}
    return settings


def tiny_model(
    kind: str = "llama",
    *,
    seed: int = 0,
    hidden: int = 64,
    layers: int = 2,
    context: int = CONTEXT,
    device: str = "cpu",
    dtype: str = "float32",
) -> Loaded:
    """Randomly initialised, the same for the same seed; torch's own random state is left alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from airloop.models.loaded import Loaded

    config = tiny_config(kind, hidden=hidden, layers=layers, context=context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
        )
    model = model.to(device=torch.device(device), dtype=getattr(torch, dtype)).eval()
    model.config.use_cache = False
    name = f"tiny:{kind}"
    tokenizer = ChatTokenizer(tiny_tokenizer(), name=name)
    return Loaded(model, tokenizer, name, None, model.dtype, model.device, list(tokenizer.notes))


def save_tiny(path: str | Path, kind: str = "llama", **options: Any) -> Path:
    """Writes the tiny model in transformers form, as a model directory to be located and loaded."""
    from airloop.models.silence_transformers import silenced

    loaded = tiny_model(kind, **options)
    with silenced():
        loaded.model.save_pretrained(path)
        loaded.tokenizer.hf.save_pretrained(path)
    return Path(path)
