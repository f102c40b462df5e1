"""Files and replies from somebody else that would keep one waiting: each is a sentence within a second."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airloop.chat.actions import parse
from airloop.chat.native import as_text
from airloop.config import load_config
from airloop.envs.rows import read_rows
from airloop.errors import AirError
from airloop.files import parse_json, read_lines, read_object
from airloop.learn.lora import attach_lora, check_patterns, load_lora
from airloop.models import loading
from airloop.models import sources as model_sources
from airloop.models.chat import ChatTokenizer
from airloop.models.chat_forms import CHATML
from airloop.models.gguf_header import check_header
from airloop.models.template_time import at_most
from airloop.models.tiny import save_tiny, tiny_model, tiny_tokenizer
from airloop.plan.model_shape import find_shape
from airloop.runs.run import Run, read_trajectories
from airloop_envs.mlgym.traj import read_recording

DEEP = "[" * 100_000


@contextmanager
def within(seconds: float = 1.0) -> Iterator[None]:
    """Of this process's own time: the machine may be busy."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


# --- chat templates ---------------------------------------------------------------------------------------

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "a range": "{% for i in range(10**9) %}{% endfor %}",
    "a long range": "{% for i in range(1000000000) %}{% endfor %}",
    "loops in loops": LOOP,
    "loops that say something": "{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}",
    "a power": "{% set x = 9 ** 9 ** 9 %}",
    "a hidden power": "{% set x = (9 ** 9) ** (9 ** 9) %}",
    "a large number": "{{ 'a' * 100_000_000_000 }}",
    "a large float": "{{ 'a' * (1e12 | int) }}",
    "a macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "only with tools": "{% if tools %}" + LOOP + "{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_B13_a_chat_template_that_never_ends_is_refused_within_a_second(name: str, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATES[name] + CHATML)
    ChatTokenizer(tiny_tokenizer(), name="a model")  # imports what is needed
    with within(1.5), pytest.raises(AirError, match="the chat template of a model"):
        _ = ChatTokenizer(tiny_tokenizer(), name="a model", chat_template=file).supports_tools


def test_a_template_that_waits_for_its_chance_is_stopped_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% if 'now' in messages[0]['content'] %}" + LOOP + "{% endif %}" + CHATML)
    tokenizer = ChatTokenizer(tiny_tokenizer(), name="a model", chat_template=file)
    assert "later" in tokenizer.render([{"role": "user", "content": "later"}])
    monkeypatch.setattr("airloop.models.chat.RENDER_S", 0.3)
    with within(), pytest.raises(AirError, match=r"did not end within 0\.3 s"):
        tokenizer.render([{"role": "user", "content": "now"}])
    assert "later" in tokenizer.render([{"role": "user", "content": "later"}])


def test_time_that_passes_elsewhere_is_not_the_templates() -> None:
    with at_most(0.05, "a model"):
        time.sleep(0.3)


# --- GGUF -------------------------------------------------------------------------------------------------


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def gguf(*keys: bytes, tensors: tuple[bytes, ...] = (), counts: tuple[int, int] | None = None) -> bytes:
    said = counts or (len(tensors), len(keys))
    return b"GGUF" + struct.pack("<IQQ", 3, *said) + b"".join((*keys, *tensors))


def tensor(name: str, *sides: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, 0, 0)


LLAMA = key("general.architecture", 8, text("llama"))
EMBEDDING = tensor("token_embd.weight", 64, 300)
HUGE = 1 << 60
GGUFS = {
    "an array": gguf(LLAMA, key("a", 9, struct.pack("<IQ", 0, HUGE))),
    "an array that fits a file of its size": gguf(LLAMA, key("a", 9, struct.pack("<IQ", 4, 1 << 22)), counts=(0, 2)),
    "arrays of arrays": gguf(LLAMA, key("a", 9, struct.pack("<IQ", 9, 1) * 10_000)),
    "strings": gguf(LLAMA, key("a", 9, struct.pack("<IQ", 8, HUGE))),
    "a string": gguf(LLAMA, key("a", 8, struct.pack("<Q", HUGE))),
    "a string of almost everything": gguf(LLAMA, key("a", 8, struct.pack("<Q", (1 << 64) - 1))),
    "keys": gguf(LLAMA, counts=(0, HUGE)),
    "tensors": gguf(LLAMA, counts=(HUGE, 1)),
    "a type": gguf(LLAMA, key("a", 99, b"")),
    "dimensions": gguf(LLAMA, tensors=(text("t") + struct.pack("<I", 1 << 31),)),
    "layers": gguf(LLAMA, key("llama.block_count", 4, struct.pack("<I", 1 << 30)), tensors=(EMBEDDING,)),
    "more layers than tensors": gguf(LLAMA, key("llama.block_count", 4, struct.pack("<I", 9)), tensors=(EMBEDDING,)),
    "width": gguf(LLAMA, key("llama.embedding_length", 10, struct.pack("<Q", HUGE)), tensors=(EMBEDDING,)),
    "heads": gguf(
        LLAMA,
        key("llama.attention.head_count", 4, struct.pack("<I", 200)),
        key("llama.attention.key_length", 4, struct.pack("<I", 200)),
        tensors=(EMBEDDING,),
    ),
    "nothing": b"",
    "a beginning": b"GGUF",
}


@pytest.mark.parametrize("name", GGUFS)
def test_a_gguf_with_absurd_lengths_is_refused_within_a_second(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(GGUFS[name])
    with within(), pytest.raises(AirError, match=r"m\.gguf is not a whole GGUF file"):
        check_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_a_gguf_as_it_should_be_passes(order: str, tmp_path: Path) -> None:
    import gguf as library
    import numpy as np

    writer = library.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=library.GGUFEndian[order])
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_key_length(16)
    writer.add_vocab_size(300)
    writer.add_token_list([f"token{i}" for i in range(300)])
    writer.add_token_scores([0.5] * 300)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, shape in {"token_embd.weight": (300, 64), "blk.0.w": (64, 64), "blk.1.w": (64, 64)}.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["an array", "layers"])
def test_plans_and_conversions_look_at_a_ggufs_header_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUFS[name])
    for look in (lambda: model_sources.locate(str(path)), lambda: find_shape(str(path), context=512)):
        with pytest.raises(AirError, match="not a whole GGUF file"):
            look()


@pytest.mark.parametrize(
    ("key", "value"), [("num_hidden_layers", 10**9), ("hidden_size", 10**9), ("vocab_size", 10**12)]
)
def test_a_config_with_absurd_sizes_is_refused_within_a_second(key: str, value: int, tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, key: value}))
    for look in (
        lambda: loading.load(str(path), device="cpu", dtype="float32"),
        lambda: loading.load_tokenizer(str(path)),
        lambda: find_shape(str(path), context=512),
    ):
        with within(), pytest.raises(AirError, match=f"{key} = {value}"):
            look()


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern"])
def test_an_adapter_whose_patterns_would_take_for_ever_is_refused_within_a_second(key: str, tmp_path: Path) -> None:
    model = tiny_model().model
    attach_lora(model, 2, 4, ["q_proj"]).save_pretrained(str(tmp_path))
    check_patterns(tmp_path)
    file, slow = tmp_path / "adapter_config.json", "([a-z_.0-9]+)+!"
    said = {**json.loads(file.read_text()), key: {slow: 2} if key == "rank_pattern" else slow}
    file.write_text(json.dumps(said))
    with within(), pytest.raises(AirError, match=f"{key} has .* for ever"):
        load_lora(tiny_model().model, tmp_path)


# --- brackets without end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_json_without_end_is_a_mistake_like_any_other(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.jsonl").write_text('{"kind": "train"}\n' + text + "\n")
    with within():
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
        with pytest.raises(AirError, match=r"a\.json is not JSON"):
            read_object(tmp_path / "a.json")
        with pytest.raises(AirError, match=r"a\.jsonl, line 2 is not JSON"):
            read_lines(tmp_path / "a.jsonl")
        with pytest.raises(AirError, match="is not a trajectory of ours"):
            read_trajectories(tmp_path)
        with pytest.raises(AirError, match="is not JSON"):
            read_recording(tmp_path / "a.json")
        with pytest.raises(AirError, match="is not JSON"):
            read_rows(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_a_model_with_json_without_end_is_named(file: str, tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    (path / file).write_text(DEEP)
    with pytest.raises(AirError, match=file.replace(".", r"\.")):
        loading.load(str(path), device="cpu", dtype="float32")


def test_a_safetensors_header_without_end_is_named(tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m")
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(DEEP)) + DEEP.encode())
    with pytest.raises(AirError, match=r"model\.safetensors has a broken header"):
        loading.load(str(path), device="cpu", dtype="float32")


@pytest.mark.parametrize("file", ["status.json", "metrics.jsonl", "config.toml"])
def test_a_run_directory_with_brackets_without_end_is_named(file: str, tmp_path: Path) -> None:
    flags = {"model.name": "tiny:llama", "output_dir": str(tmp_path), "orchestrator.env.0.id": "arith"}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    run = Run.create(config, "arith")
    run.close()
    (run.path / file).write_text(f"a = {DEEP}\n" if file.endswith("toml") else f"{DEEP}\n")
    with within(), pytest.raises(AirError, match=file.replace(".", r"\.")):
        opened = Run.open(run.path)
        opened.status()
        opened.metrics("train")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a = {DEEP}", "nested too deeply"),
        ("a = " + "{a = " * 100_000, "nested too deeply|not valid TOML"),
        (f"max_steps = {'9' * 10_000}", "digits|integer"),
        (f"[{'.'.join(['a'] * 5000)}]", "cannot be read|not"),
    ],
)
def test_a_config_with_brackets_without_end_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with within(), pytest.raises(AirError, match=says):
        load_config(["@", str(tmp_path / "c.toml")])


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 100_000])
@pytest.mark.parametrize("closed", [True, False])
def test_a_call_with_brackets_without_end_is_a_sentence_to_the_agent(depth: int, closed: bool) -> None:
    brackets = "[" * depth + "]" * depth * closed
    call = f'{{"name": "f", "arguments": {{"x": {brackets}}}}}'
    with within():
        for said, parser in ((f"<tool_call>{call}</tool_call>", "hermes"), (call, "json")):
            (action, *_), _ = parse(said, "tools", parser)
            assert action.kind == "invalid" and "Malformed JSON" in action.text
        native: dict[str, Any] = {"tool_calls": [{"function": {"name": "f", "arguments": f'{{"x": {brackets}}}'}}]}
        (action, *_), _ = parse(as_text(native), "tools")
        assert action.kind == "invalid"


def test_a_call_with_a_few_brackets_is_a_call() -> None:
    (action,), _ = parse('<tool_call>{"name": "f", "arguments": {"x": [[[{"y": [1]}]]]}}</tool_call>', "tools")
    assert action.kind == "tool" and action.arguments == {"x": [[[{"y": [1]}]]]}


@pytest.mark.parametrize("file", ["status.json", "metrics.jsonl"])
def test_a_list_of_runs_shows_the_others(file: str, tmp_path: Path, air: Any) -> None:
    flags = {"model.name": "tiny:llama", "output_dir": str(tmp_path), "orchestrator.env.0.id": "arith"}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    for name in ("one", "two"):
        Run.create(config, name).close()
    first = next(tmp_path.glob("*-one-*"))
    (first / file).write_text(f"{DEEP}\n")
    code, listed, errors = air("log", "list", "--dir", tmp_path)
    assert code == 0 and "two" in listed, errors
