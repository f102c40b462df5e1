"""air export --gguf: a file for llama.cpp that is, read again, what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from support.tiny_runs import tiny_run
from support.word_runs import ROWS, word_run, word_tokenizer

from airloop.errors import AirError
from airloop.export import export, format_report, gguf_file, gguf_words, weights
from airloop.export.check import TOLERANCES
from airloop.export.gguf_file import KINDS, check_architecture
from airloop.export.gguf_words import find_split


def quietly(_: str) -> None:
    pass


def write(out: Path, kind: str = "f32", run: Path | None = None, **options: Any) -> dict[str, Any]:
    return export(run or word_run(), out, gguf=kind, say=quietly, **options)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen2", "qwen3", "mistral", "llama3")]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", *SLOW])
def test_a_gguf_is_the_trained_policy(kind: str, tmp_path: Path) -> None:
    report = write(tmp_path / "out", run=word_run(kind))
    assert (report["form"], report["dtype"], report["step"]) == ("gguf", "f32", 2)
    assert report["check"]["max"] <= 1e-4 < report["check"]["training"] and report["check"]["carried"] > 0.99
    (file,) = (tmp_path / "out").glob("*.gguf")
    assert file.name == report["file"] == f"small-model-{word_run(kind).name}-F32.gguf"
    names = {tensor.name for tensor in gguf.GGUFReader(file).tensors}
    assert ("output.weight" in names) == (kind != "qwen2")  # tied: written once
    assert ("rope_freqs.weight" in names) == (kind == "llama3")
    assert (tmp_path / "out" / "Modelfile").read_text() == f"FROM ./{file.name}\nPARAMETER num_ctx 128\n"
    assert file.name in format_report(report)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_within_its_tolerance_and_has_its_types(kind: str, tmp_path: Path) -> None:
    report = write(tmp_path / "out", kind)
    check, limit = report["check"], TOLERANCES[kind]
    assert check["mean"] <= limit.mean and check["max"] <= limit.max
    reader = gguf.GGUFReader(tmp_path / "out" / report["file"])
    types = {tensor.name: tensor.tensor_type.name.lower() for tensor in reader.tensors}
    assert types["output_norm.weight"] == types["blk.0.attn_norm.weight"] == "f32"
    assert types["blk.1.ffn_down.weight"] == types["blk.0.attn_q.weight"] == kind
    assert types["token_embd.weight"] == ("q8_0" if kind in gguf_file.FEW_BITS else kind)
    assert gguf.LlamaFileType(reader.fields["general.file_type"].contents()).name.lower().endswith(kind)


def test_the_file_has_the_words_and_what_is_special_about_them(tmp_path: Path) -> None:
    report = write(tmp_path / "named.gguf" / "mine.gguf")
    assert report["file"] == "mine.gguf"
    fields = gguf.GGUFReader(tmp_path / "named.gguf" / "mine.gguf").fields

    def said(key: str) -> Any:
        return fields[f"tokenizer.ggml.{key}"].contents()

    tokenizer = word_tokenizer()
    words, kinds = said("tokens"), said("token_type")
    assert len(words) == ROWS and words[-1] == f"[PAD{ROWS - 1}]"
    assert all(words[id] == word for word, id in tokenizer.get_vocab().items())
    of = {word: gguf.TokenType(kind).name for word, kind in zip(words, kinds, strict=True)}
    assert (of["a"], of[words[-1]]) == ("NORMAL", "UNUSED")
    assert (of["<|im_end|>"], of["<tool_call>"]) == ("CONTROL", "USER_DEFINED")
    assert (said("model"), said("pre")) == ("gpt2", "qwen2")
    assert said("eos_token_id") == tokenizer.eos_token_id and said("add_bos_token") is False
    assert fields["tokenizer.chat_template"].contents() == tokenizer.chat_template
    assert "steps of reinforcement learning on arith" in fields["general.description"].contents()


def refused(tmp_path: Path, match: str, **options: Any) -> AirError:
    with pytest.raises(AirError, match=match) as error:
        write(tmp_path / "out", **options)
    assert error.value.fix and not list(tmp_path.iterdir())  # nothing is left behind
    return error.value


def test_G3_a_gguf_without_its_adapter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "merge", lambda model, adapter: model)
    refused(tmp_path, "it is the base model")
    refused(tmp_path, "% of what training changed is in it: rounding swallowed it, or it was not merged", kind="q4_0")


def test_heads_in_the_order_of_transformers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "_for_pairs", lambda weight, heads: weight)
    refused(tmp_path, "is not the trained policy")


def test_a_tokenizer_that_cuts_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = gguf_words.add_words

    class WithoutFirstMerge:
        def __init__(self, writer: Any) -> None:
            self.writer = writer

        def __getattr__(self, name: str) -> Any:
            return getattr(self.writer, name)

        def add_token_merges(self, merges: list[str]) -> None:
            self.writer.add_token_merges(merges[-1:])

    monkeypatch.setattr(gguf_file, "add_words", lambda writer, *rest: add(WithoutFirstMerge(writer), *rest))
    refused(tmp_path, "cuts the run's episodes into other tokens")


def test_what_has_no_form_in_a_gguf_is_refused(tmp_path: Path) -> None:
    assert "llama-quantize" in refused(tmp_path, "--quantize q4_k_m: air writes f32, f16", kind="q4_k_m").fix
    refused(tmp_path, "always a whole model", merged=True)
    refused(tmp_path, "always a whole model", dtype="float32")
    refused(tmp_path, "has no merges", run=tiny_run())
    for config, why in (
        ({"model_type": "gemma"}, "it is a gemma"),
        ({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 8.0}}, r"scaled \(yarn\)"),
        ({"model_type": "qwen2", "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, r"scaled \(llama3\)"),
        ({"model_type": "mistral", "sliding_window": 4096}, "the last 4096 tokens only"),
    ):
        with pytest.raises(AirError, match=why):
            check_architecture(config, "it")
    check_architecture({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "it")


def test_the_way_of_cutting_text_is_named_or_refused() -> None:
    spec = json.loads(word_tokenizer().backend_tokenizer.to_str())
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    assert find_split(spec, "it") == "qwen2"
    assert find_split({**spec, "pre_tokenizer": bytes_only}, "it") == "gpt-2"
    both = {"type": "Sequence", "pretokenizers": [digits, bytes_only]}
    assert find_split({**spec, "pre_tokenizer": both}, "it") == "smollm"
    together = {**digits, "individual_digits": False}
    for other in ({"type": "Sequence", "pretokenizers": [together, bytes_only]}, {**bytes_only, "use_regex": False}):
        with pytest.raises(AirError, match="knows no name of llama"):
            find_split({**spec, "pre_tokenizer": other}, "it")
    with pytest.raises(AirError, match="no byte-level BPE"):
        find_split({**spec, "model": {**spec["model"], "byte_fallback": True}}, "it")


def test_options_that_would_do_nothing_are_refused(air: Any, tmp_path: Path) -> None:
    code, _, problem = air("export", word_run(), "--out", tmp_path / "x", "--quantize", "q8_0")
    assert code == 1 and "add --gguf" in problem
    code, _, problem = air("export", word_run(), "--out", tmp_path / "x", "--private")
    assert code == 1 and "add --push OWNER/NAME" in problem
