"""Family B of FAILURES.md: the wrong model, tokenizer or template, told before anything is trained."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airloop.errors import AirError
from airloop.models import checks, loading, tokenizer_checks
from airloop.models import sources as model_sources
from airloop.models.chat import ChatTokenizer
from airloop.models.tiny import save_tiny, tiny_tokenizer


def refusal(config: dict[str, Any], name: str) -> AirError:
    with pytest.raises(AirError) as error:
        checks.check_config(config, name)
    assert name in error.value.problem
    return error.value


# --- B1: a vision-language checkpoint given to a text trainer ------------------------------------------


def test_B1_a_vision_language_model_is_refused_from_its_config_alone(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "vision_config": {"depth": 27},
        "text_config": {"model_type": "qwen3_vl_text"},
    }
    error = refusal(config, "Qwen/Qwen3-VL-8B-Instruct")
    assert "multimodal" in error.problem and "vision_config" in error.problem
    assert error.fix.endswith("Qwen/Qwen3-8B")
    assert refusal(config, "Qwen/Qwen2.5-VL-7B-Instruct").fix.endswith("Qwen/Qwen2.5-7B-Instruct")
    (tmp_path / "config.json").write_text(json.dumps(config))  # no weights needed to say so
    with pytest.raises(AirError, match="multimodal"):
        loading.load(str(tmp_path))


@pytest.mark.parametrize("kind", ["llava", "mllama", "qwen2_5_omni", "idefics3", "paligemma", "smolvlm"])
def test_B1_multimodal_types_are_known_by_name(kind: str) -> None:
    assert "multimodal" in refusal({"model_type": kind}, f"some/{kind}").problem


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "olmo2", "smollm3", "granite"])
def test_B1_text_models_pass(kind: str) -> None:
    checks.check_config({"model_type": kind, "architectures": [f"{kind.title()}ForCausalLM"]}, "some/model")
    checks.check_config({"model_type": kind}, "some/model")


# --- B2: a model type that the installed transformers does not know ------------------------------------


def test_B2_an_unknown_model_type_is_told_with_version_and_neighbours() -> None:
    import transformers

    config = {
        "model_type": "ministral9",
        "architectures": ["Ministral9ForCausalLM"],
        "transformers_version": "9.1",
    }
    error = refusal(config, "mistralai/Ministral-9")
    assert "'ministral9'" in error.problem and transformers.__version__ in error.problem
    assert "ministral" in error.problem.split("nearest that it knows: ")[1] and "9.1" in error.problem
    assert "pip install -U transformers" in error.fix
    own_code = refusal({"model_type": "zzz", "auto_map": {"AutoModel": "x"}}, "a/b")
    assert "own code" in own_code.problem and "nearest" not in own_code.problem


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "does not write text"),
        ({"model_type": "bert"}, "does not write text"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}, "reward model"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        (
            {"model_type": "gpt_oss", "num_local_experts": 32},
            "mixture of experts .gpt_oss, num_local_experts = 32",
        ),
        ({"model_type": "mixtral"}, "mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "mixture of experts"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "mixture of experts"),
        ({"model_type": "mamba2"}, "recurrent state"),
        ({"model_type": "some", "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, "attn_logit_softcapping"),
        ({}, "names no model_type"),
    ],
)
def test_B2_models_off_the_plain_path_are_refused_by_name(config: dict[str, Any], says: str) -> None:
    import re

    assert re.search(says, refusal(config, "some/model").problem)


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "fp8", "mxfp4"])
def test_B2_quantised_checkpoints_are_refused_with_the_reason(method: str) -> None:
    config = {"model_type": "qwen2", "quantization_config": {"quant_method": method}}
    error = refusal(config, "Qwen/Qwen2.5-7B-Instruct-AWQ")
    assert f"quantised ({method})" in error.problem
    assert error.fix.endswith("Qwen/Qwen2.5-7B-Instruct")


# --- B3: a model id that is on no hub -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("hub", "says", "fix"),
    [
        ("not found", "there is no model nobody/none", "spelling"),
        ("no access", "does not show", "hf auth login"),
        ("unreachable (dns)", "cannot be fetched", "give its directory"),
    ],
)
def test_B3_a_model_on_no_hub_is_told_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hub: str, says: str, fix: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(model_sources, "ask_hub", lambda name: hub)
    for find in (model_sources.locate, model_sources.find_config):
        with pytest.raises(AirError, match=says) as error:
            find("nobody/none")
        assert fix in error.value.fix
        for place in (str(Path("nobody/none").absolute()), str(tmp_path / "hf"), f"huggingface.co: {hub}"):
            assert place in error.value.problem


def test_B3_offline_is_honoured_and_a_lost_path_is_not_asked_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def must_not_ask(name: str) -> str:
        raise AssertionError("asked the hub")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(model_sources, "ask_hub", must_not_ask)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AirError, match="HF_HUB_OFFLINE forbids"):
        model_sources.locate("nobody/none")
    for lost in ("./runs/none", "/none/at/all", "a/b/c"):
        with pytest.raises(AirError, match="no such directory"):
            model_sources.locate(lost)


def test_B3_the_answer_comes_in_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Against the real hub or its absence: whichever it is, not in minutes."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    import httpx  # noqa: F401  imported before the clock starts

    start = time.perf_counter()
    with pytest.raises(AirError):
        model_sources.locate("nobody-has-this-name/at-all-9f3a")
    assert time.perf_counter() - start < 20


# --- B5: a template that allows a single tool call ------------------------------------------------------

TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
ONE_CALL = (  # as Llama 3's
    TOOLS + "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
)
DROPS_CALLS = ONE_CALL.replace("!= 1", "== 0")  # shows the first and says nothing


@pytest.mark.parametrize("template", [ONE_CALL, DROPS_CALLS])
def test_B5_a_single_call_template_is_found_by_trial(tmp_path: Path, template: str) -> None:
    (tmp_path / "t.jinja").write_text(template)
    chat = ChatTokenizer(tiny_tokenizer(), name="m", chat_template=tmp_path / "t.jinja")
    assert chat.supports_tools and chat.supports_tool_role
    assert not chat.supports_parallel_calls
    assert any("one tool call" in note for note in chat.tool_notes)


def test_B5_a_template_for_several_calls_passes() -> None:
    chat = ChatTokenizer(tiny_tokenizer(), name="m")
    assert chat.supports_parallel_calls and not chat.tool_notes


# --- B8: the tokenizer of another model -----------------------------------------------------------------


def edit(path: Path, **changes: Any) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **changes}))


def test_B8_a_tokenizer_with_more_tokens_than_the_model_has_rows(tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    edit(path / "config.json", vocab_size=250, eos_token_id=None, pad_token_id=None)
    with pytest.raises(AirError, match=r"259 tokens, but the model has rows for 250.*another model"):
        loading.load(str(path), device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"eos_token_id": 151645, "vocab_size": 151936},
            "stops at token 151645",
        ),  # Qwen's config, a tiny tokenizer
        ({"bos_token_id": 4000}, "bos_token_id = 4000"),
        ({"eos_token_id": 65}, "token 65, to its tokenizer 'A', an ordinary word"),
    ],
)
def test_B8_special_ids_that_do_not_fit(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    edit(path / "config.json", **changes)
    with pytest.raises(AirError, match=says):
        loading.load(str(path), device="cpu", dtype="float32")


def test_B8_a_tokenizer_that_loses_text(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading.load("tiny:llama", device="cpu")
    monkeypatch.setattr(loaded.tokenizer, "encode", lambda text: list(text.lower().encode()))
    with pytest.raises(AirError, match="does not give back"):
        tokenizer_checks.check_tokenizer(loaded.model.config, loaded.tokenizer)


def test_B8_rows_beyond_the_vocabulary_are_normal(tmp_path: Path) -> None:
    loaded = loading.load("tiny:llama", device="cpu")
    loaded.model.config.vocab_size = 320  # padded for speed, as Qwen's
    tokenizer_checks.check_tokenizer(loaded.model.config, loaded.tokenizer)


# --- B9: no stop token ------------------------------------------------------------------------------------


def test_B9_a_template_that_closes_no_turn_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    with pytest.raises(AirError, match=r"no stop token after.*<\|im_end\|> \(257\)"):
        ChatTokenizer(tiny_tokenizer(), name="m", chat_template=tmp_path / "t.jinja")


def test_B9_the_template_s_end_of_turn_stops_even_if_the_config_names_another_token(tmp_path: Path) -> None:
    """Base-model configs end at <|endoftext|> while the chat template closes turns with <|im_end|>."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|pad|>"
    chat = ChatTokenizer(tokenizer, extra_stop_ids=[258])
    assert chat.stop_ids == (257, 258)
    path = save_tiny(tmp_path / "m")
    edit(path / "config.json", eos_token_id=258)
    edit(path / "generation_config.json", eos_token_id=[258, 256])
    assert loading.load(str(path), device="cpu", dtype="float32").tokenizer.stop_ids == (257, 258, 256)


def test_B9_a_template_that_leaves_the_reply_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}<|im_end|>")
    with pytest.raises(AirError, match="leaves out the assistant's message"):
        ChatTokenizer(tiny_tokenizer(), name="m", chat_template=tmp_path / "t.jinja")
