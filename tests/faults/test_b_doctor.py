"""Family B, as the doctor reports it, from the model's small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.examined import TINY, results, silent, trouble

from airloop.models.tiny import save_tiny

ONE_CALL = """{%- for m in messages %}
{%- if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one call only') }}{% endif %}
<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|im_end|>
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def model(path: Path, **changes: object) -> list[str]:
    """The tiny model in a directory, with other words in its config.json."""
    save_tiny(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return [*TINY, "--model.name", str(path)]


def test_B1_a_vision_language_model(tmp_path: Path) -> None:
    argv = model(tmp_path / "Qwen2.5-VL-7B-Instruct", model_type="qwen2_5_vl", vision_config={"depth": 1})
    ids, finding = trouble(argv, "B1")
    assert ids == ("B1",) and finding.verdict == "fail" and "multimodal" in finding.seen
    assert finding.fix.endswith("Qwen/Qwen2.5-7B-Instruct")


def test_B2_a_type_that_transformers_does_not_know(tmp_path: Path) -> None:
    ids, finding = trouble(model(tmp_path / "m", model_type="ministral9"), "B2")
    assert ids == ("B2",) and "'ministral9'" in finding.seen and "pip install -U transformers" in finding.fix


def test_B3_a_name_that_is_nowhere_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    argv = [*TINY, "--model.name", "nobody/nothing-7b"]
    ids, finding = trouble(argv)
    assert ids == ("B3",) and "nobody/nothing-7b" in finding.seen and "not in the Hugging Face cache" in finding.seen
    assert "give the directory" in finding.fix
    told = {r.check.name: r.not_done for r in results(argv)}
    assert told["tokenizer_fits"] == told["replies_fit"] == "it needs what model_is_found found to be wrong"


def test_B5_a_template_for_one_call(tmp_path: Path) -> None:
    (tmp_path / "one.jinja").write_text(ONE_CALL)
    argv = ["--model.name", "tiny:llama", "--model.chat_template", str(tmp_path / "one.jinja")]
    tools = ["--orchestrator.env.0.id", "musique"]
    ids, finding = trouble([*argv, *tools], "template_takes_calls")
    assert ids == ("B5",) and "0, 1 and 2 tool calls" in finding.seen and "at most one" in finding.seen
    assert "model.chat_template" in finding.lines
    assert silent([*argv, "--orchestrator.env.0.id", "arith"], "template_takes_calls"), "nobody calls tools there"
    assert silent(["--model.name", "tiny:llama", *tools], "template_takes_calls")


def test_B8_a_tokenizer_with_more_tokens_than_the_model_has_rows(tmp_path: Path) -> None:
    ids, finding = trouble(model(tmp_path / "m", vocab_size=200, eos_token_id=3, pad_token_id=4), "B8")
    assert ids == ("B8",) and "259 tokens, but the model has rows for 200" in finding.seen
    assert "tokenizer.json" in finding.fix


def test_B_a_whole_model_is_silent(tmp_path: Path) -> None:
    assert silent(model(tmp_path / "m"))
