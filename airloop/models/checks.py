"""Refusals that need only a model's small files: its config.json and the headers of its weights.

The engine and the learner run one plain path: a decoder-only text model with causal attention over all
earlier tokens, dense layers and weights that are numbers. What is not that is refused here, by name,
before anything large is downloaded or loaded, because half of it would otherwise run and quietly compute
something else.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.files import parse_json

# Run end to end by our tests or used daily by our users: no need to import transformers to know them.
PLAIN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})

MULTIMODAL_KEYS = (
    "vision_config",
    "audio_config",
    "thinker_config",
    "speech_config",
    "vision_tower",
    "visual",
)
MULTIMODAL_WORDS = re.compile(r"(^|_)(vl|vlm|omni|vision|llava|idefics\d*|mllama|paligemma|multimodal|smolvlm)(_|$)")
EXPERT_KEYS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
)
EXPERT_TYPES = re.compile(r"moe|mixtral|gpt_oss|deepseek_v\d|dbrx|jamba|minimax|longcat|dots1|llama4|arctic|grok")
RECURRENT_TYPES = re.compile(r"mamba|rwkv|recurrent|xlstm|zamba|bamba|falcon_h1|lfm2|kimi_linear|hybrid|nemotron_h|hrm")
# Several times what the largest models have.
MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1000),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim"), 1 << 20),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim"), 1 << 14),
    "vocab_size": 1 << 24,
}
FULL_LAYERS = {"full_attention", "attention", "sliding_attention"}


def read_config(directory: Path, name: str) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AirError(
            f"{directory} has no config.json, so it is not a model in transformers form",
            "give the directory that holds config.json and the *.safetensors files, or a .gguf file",
        ) from error
    except (OSError, ValueError) as error:
        raise AirError(f"{path} cannot be read: {error}", f"fetch {name} again") from error
    if not isinstance(config, dict):
        raise AirError(f"{path} holds no JSON object", f"fetch {name} again")
    return config


def check_config(config: Mapping[str, Any], name: str) -> None:
    """Refuses, from config.json alone, a model that cannot be trained here."""
    model_type = str(config.get("model_type") or "")
    architectures = [str(a) for a in config.get("architectures") or []]
    if not model_type:
        raise AirError(f"the config.json of {name} names no model_type: it is no language model in transformers form")
    _refuse_foreign_kernel(config, name)
    _refuse_absurd_sizes(config, name)
    _refuse_multimodal(config, name, model_type, architectures)
    _refuse_experts(config, name, model_type)
    _refuse_recurrent(config, name, model_type)
    _refuse_unknown_type(config, name, model_type)
    _refuse_not_causal(config, name, model_type, architectures)
    _refuse_quantised(config, name)
    if config.get("attn_logit_softcapping", 50.0 if model_type == "gemma2" else None):
        raise AirError(
            f"{name} ({model_type}) caps its attention scores (attn_logit_softcapping), "
            "which the plain attention used here does not do",
            "choose a model without it, for example Qwen/Qwen3-4B-Instruct-2507",
        )


def _refuse_foreign_kernel(config: Mapping[str, Any], name: str) -> None:
    """transformers takes a name such as "somebody/attention" for a repository and runs what is in it."""
    asked = str(config.get("attn_implementation") or config.get("_attn_implementation") or "")
    if "/" in asked:
        raise AirError(
            f"the config.json of {name} asks for attention by {asked[:80]}, code of the hub that air does not run",
            "take attn_implementation out of its config.json",
        )


def _refuse_absurd_sizes(config: Mapping[str, Any], name: str) -> None:
    """A model is built before its weights are read, one layer after the other."""
    for key, most in MOST.items():
        said = config.get(key)
        if isinstance(said, int) and said > most:
            raise AirError(
                f"the config.json of {name} says {key} = {said}, more than any model has (at most {most} here)",
                f"fetch {name} again",
            )


def _refuse_multimodal(config: Mapping[str, Any], name: str, model_type: str, architectures: list[str]) -> None:
    has_part = next((key for key in MULTIMODAL_KEYS if config.get(key)), "")
    if not has_part and not MULTIMODAL_WORDS.search(model_type):
        return
    seen = f"its config.json has {has_part}" if has_part else f"model type {model_type}"
    raise AirError(
        f"{name} is a multimodal model ({seen}, {', '.join(architectures) or model_type}): air trains text models only",
        _text_only_hint(name, model_type),
    )


def _text_only_hint(name: str, model_type: str) -> str:
    short = name.rstrip("/").rsplit("/", 1)[-1]
    if qwen := re.match(r"(Qwen[\d.]+)-(?:VL|Omni)-([\d.]+B)(?!-A)", short):
        family, size = qwen.groups()
        text_size = {("Qwen3", "2B"): "1.7B", ("Qwen2", "2B"): "1.5B"}.get((family, size), size)
        ending = "" if family == "Qwen3" else "-Instruct"  # Qwen3's chat models carry no suffix
        return f"take the text model of the family: Qwen/{family}-{text_size}{ending}"
    if "gemma" in model_type:
        return "take a text model of about its size, for example Qwen/Qwen3-4B-Instruct-2507"
    if "mistral" in model_type or "pixtral" in model_type:
        return "take a text model of the family, for example mistralai/Mistral-7B-Instruct-v0.3"
    if "llama" in model_type:
        return "take a text model of the family, for example meta-llama/Llama-3.2-3B-Instruct"
    return "take the text-only model of the family, or for example Qwen/Qwen3-4B-Instruct-2507"


def _refuse_experts(config: Mapping[str, Any], name: str, model_type: str) -> None:
    key = next((k for k in EXPERT_KEYS if isinstance(config.get(k), int) and config[k] > 1), "")
    if not key and not EXPERT_TYPES.search(model_type):
        return
    count = f", {key} = {config[key]}" if key else ""
    raise AirError(
        f"{name} is a mixture of experts ({model_type}{count}), which air does not train: the experts chosen "
        "when sampling and when training can differ, and then the log-probabilities do too",
        "choose a dense model, for example Qwen/Qwen3-4B-Instruct-2507",
    )


def _refuse_recurrent(config: Mapping[str, Any], name: str, model_type: str) -> None:
    layers = {str(kind) for kind in config.get("layer_types") or []}
    other = sorted(layers - FULL_LAYERS)
    if not other and not RECURRENT_TYPES.search(model_type) and "next" not in model_type.split("_"):
        return
    seen = f"layers of the kinds {', '.join(other)}" if other else f"model type {model_type}"
    raise AirError(
        f"{name} is not a plain attention model ({seen}): the engine keeps keys and values, "
        "and has no place for a recurrent state",
        "choose a plain transformer, for example Qwen/Qwen3-4B-Instruct-2507",
    )


def _refuse_unknown_type(config: Mapping[str, Any], name: str, model_type: str) -> None:
    if model_type in PLAIN_TYPES:
        return
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type in CONFIG_MAPPING_NAMES:
        return
    known = sorted(CONFIG_MAPPING_NAMES)
    family = re.match(r"[a-z]+", model_type.lower())
    near = difflib.get_close_matches(model_type, known, n=4, cutoff=0.7)
    near += [k for k in known if family and len(family[0]) > 2 and k.startswith(family[0]) and k not in near]
    nearby = f"; nearest that it knows: {', '.join(near[:6])}" if near else ""
    written_with = config.get("transformers_version")
    newer = f" The model was written with transformers {written_with}." if written_with else ""
    code = " It brings its own code (auto_map), which air does not run." if config.get("auto_map") else ""
    raise AirError(
        f"{name} has model type {model_type!r}, which the installed transformers {transformers.__version__} "
        f"does not know{nearby}.{newer}{code}",
        "install a transformers that knows it (pip install -U transformers), or choose another model",
    )


def _refuse_not_causal(config: Mapping[str, Any], name: str, model_type: str, architectures: list[str]) -> None:
    if config.get("is_encoder_decoder"):
        raise AirError(
            f"{name} ({model_type}) is an encoder-decoder model; air trains decoder-only models",
            "choose a chat model whose architecture ends in ForCausalLM",
        )
    causal = any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in architectures)
    if not architectures and model_type not in PLAIN_TYPES:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

        causal = CAUSAL.get(model_type, "").endswith("ForCausalLM")
    if causal or (not architectures and model_type in PLAIN_TYPES):
        return
    what = ", ".join(architectures) or model_type
    raise AirError(
        f"{name} ({what}) does not write text: it is an encoder, a classifier or a reward model",
        "choose a chat model whose architecture ends in ForCausalLM",
    )


def _refuse_quantised(config: Mapping[str, Any], name: str) -> None:
    quantised = config.get("quantization_config") or config.get("compression_config")
    if not quantised:
        return
    method = "unknown method"
    if isinstance(quantised, Mapping):
        method = str(quantised.get("quant_method") or quantised.get("format") or method)
    plain = re.sub(r"[-_](AWQ|GPTQ|FP8|bnb|4bit|8bit|Int[48]|INT[48]|w\d+a\d+)\b.*", "", name, flags=re.I)
    hint = f"take the unquantised model{': ' + plain if plain != name else ''}"
    raise AirError(
        f"the weights of {name} are quantised ({method}): its base is shared by sampling and training, which "
        "need the same plain bf16 or fp32 numbers, and quantised kernels differ between the two",
        hint,
    )


# --- context --------------------------------------------------------------------------------------------


def check_context(config: Any, context: int, name: str = "the model") -> None:
    """Refuses a context in which the model's attention would not be plain causal attention.

    `config` is a transformers config or the object in config.json; defaults are the model class's own.
    """
    settings = _resolved(config)
    limit = settings.get("max_position_embeddings")
    if isinstance(limit, int) and context > limit:
        raise AirError(
            f"a context of {context} tokens is more than {name} was made for (max_position_embeddings = {limit})",
            f"set seq_len to {limit} or less",
        )
    window = active_window(settings)
    if window is not None and context > window:
        raise AirError(
            f"{name} sees the last {window} tokens only (sliding_window), and the context is {context}; "
            "the plain attention used here would see more than the model was trained on",
            f"set seq_len to {window} or less, or choose a model without a sliding window",
        )
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") if isinstance(rope, Mapping) else None
    if kind in ("dynamic", "longrope"):
        original = rope.get("original_max_position_embeddings") or settings.get("original_max_position_embeddings")
        short = int(original or limit or 0)
        if context > short:
            raise AirError(
                f"{name} changes its position encoding beyond {short} tokens ({kind} rope), which would make "
                "what was sampled differ from what is trained",
                f"set seq_len to {short} or less",
            )


def active_window(settings: Mapping[str, Any]) -> int | None:
    """The sliding window that some layer really uses, or None."""
    window = settings.get("sliding_window")
    if not isinstance(window, int) or window <= 0 or settings.get("use_sliding_window") is False:
        return None
    layers = settings.get("layer_types")
    if layers and not any("sliding" in str(kind) for kind in layers):
        return None
    return window


def _resolved(config: Any) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        return dict(config.to_dict())
    if _says_it_all(config):
        return dict(config)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return dict(CONFIG_MAPPING[config["model_type"]].from_dict(dict(config)).to_dict())


def _says_it_all(config: Mapping[str, Any]) -> bool:
    """Whether no default of the model's class can matter to its context: to know them takes seconds of imports."""
    if config.get("model_type") not in PLAIN_TYPES or not isinstance(config.get("max_position_embeddings"), int):
        return False
    no_window = "sliding_window" in config and not config["sliding_window"]
    return config["model_type"] == "llama" or no_window or config.get("use_sliding_window") is False


# --- weights --------------------------------------------------------------------------------------------


def check_weights(directory: Path, name: str) -> None:
    """Every weight file that should be there is, and is as long as its own header says."""
    files = sorted(directory.glob("*.safetensors"))
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            wanted = sorted(set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise AirError(f"{index} cannot be read: {error!r}", f"fetch {name} again") from error
        missing = [file for file in wanted if not (directory / file).exists()]
        if missing:
            raise AirError(
                f"{directory} lacks {len(missing)} of {len(wanted)} weight files, first {missing[0]}",
                f"fetch {name} again",
            )
    if not files:
        pickled = next(iter(sorted(directory.glob("*.bin")) + sorted(directory.glob("*.pt*"))), None)
        if pickled:
            raise AirError(
                f"{directory} has its weights as a pickle ({pickled.name}), which runs code when opened",
                "convert it: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) writes safetensors",
            )
        raise AirError(f"{directory} has no *.safetensors file", f"fetch {name} again")
    for file in files:
        _check_safetensors(file, name)


def _check_safetensors(path: Path, name: str) -> None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if path.stat().st_size < 1024 and path.read_bytes().startswith(b"version https://git-lfs"):
            raise AirError(f"{path} is a Git LFS pointer, not the weights", "run `git lfs pull` in its directory")
        if size < 8 or length > min(size - 8, 100_000_000):
            raise AirError(
                f"{path} is not a whole safetensors file ({size} bytes, its header alone claims {length})",
                f"delete it and fetch {name} again",
            )
        try:
            header = parse_json(stream.read(length))
            end = max((t["data_offsets"][1] for key, t in header.items() if key != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AirError(f"{path} has a broken header: {error!r}", f"delete it and fetch {name} again") from error
    if 8 + length + end != size:
        raise AirError(
            f"{path} is {size} bytes, but its header says {8 + length + end}: it was cut off or changed",
            f"delete it and fetch {name} again",
        )
