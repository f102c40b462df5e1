"""A whole model as one GGUF file, for llama.cpp and Ollama.

Names of tensors and the arithmetic of quantisation are those of the `gguf` package, which llama.cpp maintains. It can
read K-quants and cannot write them: those are made by llama.cpp's own `llama-quantize`, from an f16 file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.export.gguf_words import OTHERWISE, add_words
from airloop.models.gguf_rope import TENSOR, frequency_factors

if TYPE_CHECKING:
    import numpy as np

    from airloop.models.chat import ChatTokenizer

KINDS = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
DEFAULT = "q8_0"
FEW_BITS = ("q5_1", "q5_0", "q4_1", "q4_0")
# By transformers' name, llama.cpp's.
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
ENDS = ("token_embd.weight", "output.weight")


@dataclass(frozen=True)
class About:
    """What the file says of itself."""

    name: str
    description: str
    base: str
    licence: str | None


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise AirError(
            f"--quantize {kind}: air writes {', '.join(KINDS)} into a GGUF, what the gguf package has a writer for.",
            "others, such as Q4_K_M, are made by llama.cpp of an f16 file: `llama-quantize IN.gguf OUT.gguf Q4_K_M`.",
        )


def check_architecture(config: Mapping[str, Any], name: str) -> None:
    """From config.json, before anything is loaded: what llama.cpp would compute otherwise than it was trained."""
    kind = str(config.get("model_type"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type") or rope.get("type") or "default"
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    problem = ""
    if kind not in ARCHITECTURES:
        problem = f"air writes GGUF files of {', '.join(ARCHITECTURES)}, and it is a {kind}"
    elif scaled != "default" and (scaled, ARCHITECTURES[kind]) != ("llama3", "llama"):
        problem = f"its positions are scaled ({scaled}), which the reader that checks the file does not know"
    elif window:
        problem = f"it attends to the last {window} tokens only, which llama.cpp does not do for a {kind}"
    if problem:
        raise AirError(f"{name} cannot be exported as GGUF: {problem}.", OTHERWISE)


def write_gguf(path: Path, model: Any, tokenizer: ChatTokenizer, kind: str, about: About) -> None:
    """`model`: whole, in fp32."""
    import gguf

    architecture = ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("model")
    writer.add_name(about.name)
    writer.add_description(about.description)
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, about.base)
    if about.licence:
        writer.add_license(about.licence)
    _add_shape(writer, model.config)
    asked = gguf.GGMLQuantizationType[kind.upper()]
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_words(writer, tokenizer, model.config.vocab_size)
    for name, weight in itertools.chain(_positions(model.config), _tensors(model, architecture)):
        own = _kind_of(name, weight, asked)
        writer.add_tensor(name, gguf.quants.quantize(weight, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: Any) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _positions(config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Of a Llama 3, whose low frequencies are lowered: by how much each."""
    if config.rope_parameters["rope_type"] != "default":
        yield TENSOR, frequency_factors(config, config.rope_parameters)


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """By llama.cpp's names; one matrix that is both ends of the model comes once."""
    import gguf

    config = model.config
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for own, weight in model.state_dict().items():
        name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise AirError(f"{own} has no place in a GGUF of a {architecture}: it would be lost.", OTHERWISE)
        if name == "output.weight" and tied:
            continue
        array = weight.detach().float().cpu().numpy()
        if architecture == "llama" and ".attn_q." in name:
            array = _for_pairs(array, config.num_attention_heads)
        elif architecture == "llama" and ".attn_k." in name:
            array = _for_pairs(array, config.num_key_value_heads)
        yield name, array


def _for_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns neighbouring rows of a Llama's head together, transformers the first half with the second."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _kind_of(name: str, weight: np.ndarray, asked: Any) -> Any:
    """Norms and biases are few and stay as they are; words are kept at eight bits where the rest has fewer, as every
    token depends on them; rows that no block fits are in f16."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    if weight.ndim == 1:
        return kinds.F32
    own = kinds.Q8_0 if name in ENDS and asked.name.lower() in FEW_BITS else asked
    return own if weight.shape[-1] % gguf.GGML_QUANT_SIZES[own][0] == 0 else kinds.F16


def write_modelfile(directory: Path, file: str, context: int) -> None:
    """What `ollama create` reads. Its own context is shorter than many episodes: what does not fit is cut off."""
    (directory / "Modelfile").write_text(f"FROM ./{file}\nPARAMETER num_ctx {context}\n", encoding="utf-8")
