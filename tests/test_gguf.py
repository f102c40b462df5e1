"""A real GGUF file, small, turned into a model directory."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from airloop.errors import AirError
from airloop.models.gguf import conversion, convert
from airloop.models.gguf_rope import LLAMA3, frequency_factors, scaled_positions
from airloop.models.tiny import _byte_characters, tiny_config
from airloop.watch.display.phase import Phase

LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def a_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )


def write_gguf(path: Path, model: Qwen2ForCausalLM, ends: Mapping[str, tuple[torch.Tensor, Any]] | None = None) -> None:
    """`ends`: the embeddings, by their names, each with the type it is quantised to."""
    config, weights = model.config, {name: w.detach() for name, w in model.named_parameters()}
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("small")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    words = [*_byte_characters().values(), "ab", "cd", *(f"w{i}" for i in range(42))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    ends = ends or {"token_embd.weight": (weights["model.embed_tokens.weight"], gguf.GGMLQuantizationType.F32)}
    for name, (weight, kind) in ends.items():
        writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for name, own in LAYER.items():
            writer.add_tensor(f"blk.{layer}.{name}", weights[f"model.layers.{layer}.{own}"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_is_read_once_and_has_the_models_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every word of a vocabulary takes most of a conversion: of a Qwen2 half a minute each time."""
    model = a_model()
    write_gguf(tmp_path / "small.gguf", model)
    readings = []

    class Counted(gguf.GGUFReader):
        def __init__(self, *args: Any) -> None:
            readings.append(args)
            super().__init__(*args)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    made = convert(tmp_path / "small.gguf", conversion(tmp_path, "small"), name="small", say=lambda _: None)
    assert len(readings) == 1 and gguf.GGUFReader is Counted
    loaded = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.bfloat16)
    wanted = {name: w.bfloat16() for name, w in model.named_parameters()}
    assert all(torch.equal(w, wanted[name]) for name, w in loaded.named_parameters())


def test_a_conversion_says_how_far_it_is_and_how_long_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: gigabytes take minutes, in one call of another library."""
    monkeypatch.setattr("airloop.models.gguf.GLANCE_S", 0.05)
    said, dequantize = [], gguf.dequantize

    def slow(*args: Any) -> Any:
        time.sleep(0.02)
        said.append(Phase("loading the model").line())
        return dequantize(*args)

    monkeypatch.setattr(gguf, "dequantize", slow)
    write_gguf(tmp_path / "small.gguf", a_model())
    convert(tmp_path / "small.gguf", conversion(tmp_path, "small"), name="small", say=lambda _: None)
    assert "waiting for small.gguf in safetensors" in said[0]  # nothing is promised of what has not begun
    assert re.search(r"small.gguf in safetensors: \d+ of \d+ MB of weights read, \d+ s left for them", said[-1]), said


@pytest.mark.parametrize("precise", ["input", "output", "untied"])
def test_embeddings_that_are_stored_apart_are_one_matrix_again(precise: str, tmp_path: Path) -> None:
    """llama.cpp may store a tied matrix twice, at different precision; trained apart, both would drift."""
    model = a_model()
    words = model.get_input_embeddings().weight.detach()
    head = torch.randn_like(words) * words.std() if precise == "untied" else words
    fine, coarse = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
    kinds = (fine, coarse) if precise == "input" else (coarse, fine)
    write_gguf(
        tmp_path / "small.gguf", model, {"token_embd.weight": (words, kinds[0]), "output.weight": (head, kinds[1])}
    )
    made = convert(tmp_path / "small.gguf", conversion(tmp_path, "small"), name="small", say=lambda _: None)
    loaded = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.bfloat16)
    tied = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert tied == bool(loaded.config.tie_word_embeddings) == (precise != "untied")
    said = f"stored apart ({kinds[0].name} and {kinds[1].name}), are one matrix, Q8_0"
    assert (said in made.note) == tied, made.note
    kept = gguf.quants.dequantize(gguf.quants.quantize(head.numpy(), fine), fine)
    assert torch.equal(loaded.get_output_embeddings().weight, torch.tensor(kept).bfloat16())


def test_scaled_positions_are_known_by_their_factors_or_refused() -> None:
    """Left out, a Llama 3 would compute something else, a little more with every token."""
    config = tiny_config("llama")
    wanted = {**LLAMA3, "rope_type": "llama3", "rope_theta": config.rope_parameters["rope_theta"], "factor": 32.0}
    factors = frequency_factors(config, wanted)
    assert factors[0] == pytest.approx(1.0) and factors[-1] == pytest.approx(32.0)
    assert scaled_positions(config, factors, "it") == pytest.approx(wanted)
    with pytest.raises(AirError, match="scales its positions in a way that air does not know"):
        scaled_positions(config, factors[::-1], "it")
