"""The memory plan: its parts against what is really allocated, its verdicts, its advice, its command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_runs import write_config

from airloop.assemble import learner_settings
from airloop.config import Config
from airloop.errors import AirError
from airloop.learn.advantages import Batch
from airloop.learn.batches import PackedPlan, Row, micro_batches
from airloop.learn.learner import Learner
from airloop.learn.lora import attach_lora, use_fp32_adapters
from airloop.models.fp32_matmul import are_slow, widen_products
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_config, tiny_model
from airloop.plan import MOMENTS, Memory, MemoryPlan, Shape, find_shape, memory, plan, read_shape, shape_of
from airloop.plan.advice import advise, advise_gpus, apply
from airloop.plan.counted import count
from airloop.plan.gpu import gpu_memory, parse_size
from airloop.plan.model_shape import built
from airloop.plan.report import make_report
from airloop.plan.servers import WORKSPACE
from airloop.policy import Policy

GIB = 1 << 30
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# model type; hidden, MLP, layers, heads, key/value heads, head size, vocabulary; tied; parameters as published
SHAPES = {
    "135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True, 134_515_008),
    "1.7b": ("llama", 2048, 8192, 24, 32, 32, 64, 49152, True, 1_711_376_384),
    "4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True, 4_022_468_096),
    "7b": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False, 7_615_616_512),
}


def config_json(name: str) -> dict[str, Any]:
    kind, hidden, mlp, layers, heads, kv_heads, dim, vocabulary, tied, _ = SHAPES[name]
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
    }


@pytest.fixture(scope="module")
def shapes() -> dict[str, Shape]:
    return {name: shape_of(config_json(name)) for name in SHAPES}


def make(gpus: Sequence[int] = (0,), **keys: Any) -> Config:
    """A config from keys with `__` for the dots."""
    tree: dict[str, Any] = {"trainer_gpu_ids": list(gpus)}
    for key, value in keys.items():
        node = tree
        *sections, leaf = key.split("__")
        for section in sections:
            node = node.setdefault(section, {})
        if value is not None:
            node[leaf] = value
    return Config.model_validate(tree, context=[])


# --- shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SHAPES))
def test_parameters_are_counted_exactly(shapes: dict[str, Shape], name: str) -> None:
    shape = shapes[name]
    assert shape.parameters == SHAPES[name][-1]
    assert shape.own_forward and shape.qk_norm == (name == "4b")
    assert shape.kv_values == SHAPES[name][3] * 2 * SHAPES[name][5] * SHAPES[name][6]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_loaded_model_and_its_config_have_one_shape(kind: str) -> None:
    model = tiny_model(kind).model
    from_config = shape_of(model.config.to_dict())
    assert read_shape(model) == from_config
    attach_lora(model, 4, 8, TARGETS)
    assert read_shape(model) == from_config
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert from_config.adapter(4, TARGETS) == trainable


def test_shapes_are_found_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json("7b")))
    assert find_shape(str(tmp_path), context=4096).parameters == SHAPES["7b"][-1]
    assert find_shape("tiny:qwen3", context=512).layers == 2
    with pytest.raises(AirError, match="more than"):
        find_shape(str(tmp_path), context=1 << 17)


def test_a_gguf_is_planned_from_its_header(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(300)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = find_shape(str(tmp_path / "m.gguf"), context=512)
    assert (shape.hidden, shape.layers, shape.inner, shape.kv_heads) == (64, 2, 128, 2)
    with pytest.raises(AirError, match="no GGUF file"):
        find_shape(str(tmp_path / "other.gguf"), context=512)


# --- parts, against what is really there ----------------------------------------------------------------------------


def tiny_policy(kind: str, dtype: torch.dtype, train: str, hidden: int = 64, layers: int = 2) -> Policy:
    model = tiny_model(kind, hidden=hidden, layers=layers, dtype=str(dtype).removeprefix("torch.")).model
    widen_products(are_slow(model))
    if train == "lora":
        attach_lora(model, 16, 32, TARGETS)
        use_fp32_adapters(model)
    else:
        model.requires_grad_(True)
    return Policy(model, logits_head(model))


def rows_of(tokens: int) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(0, 250, (tokens,), generator=generator).tolist())
    return [Row("a#0", ids, (False,) + (True,) * (tokens - 1), (0.0,) * tokens, 1.0, 1 / tokens)]


@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_optimiser_are_what_the_learner_has(train: str, dtype: str) -> None:
    policy = tiny_policy("qwen2", getattr(torch, dtype), train)
    config = make(model__dtype=dtype, trainer__model__train=train)
    learner = Learner(policy, learner_settings(config))
    held: list[int] = []
    take = learner.optimiser.take_gradients

    def weighed() -> list[torch.Tensor | None]:
        found = take()
        held.append(sum(g.numel() * g.element_size() for g in found if g is not None))
        return found

    learner.optimiser.take_gradients = weighed  # type: ignore[method-assign]
    rows = rows_of(64)
    learner.update(Batch(tuple(rows), {}, 1))
    made = plan(config, read_shape(policy.model), 80 * GIB)
    base = [p for name, p in policy.model.named_parameters() if "lora_" not in name]
    assert made.sampling.weights == sum(p.numel() * p.element_size() for p in base)
    moments = [t for state in learner.optimiser.adam.state.values() for t in state.values() if t.dim()]
    weights = {id(w) for w in learner.optimiser.weights}
    masters = [m for m in learner.optimiser.masters if id(m) not in weights]
    assert made.sampling.optimiser == sum(t.numel() * t.element_size() for t in [*moments, *masters])
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert held == [made.update.gradients]
    narrow = policy.dtype != torch.float32
    if train == "lora":
        assert made.backward.gradients == trained * (4 + policy.dtype.itemsize)
    else:  # added up in float32; the largest one, before it is added
        largest = max(p.numel() for p in learner.parameters)
        assert made.backward.gradients == 4 * trained + 2 * largest * narrow


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_transformers_layers_keep_is_counted(kind: str) -> None:
    policy = tiny_policy(kind, torch.bfloat16, "lora", hidden=256, layers=4)
    policy.model.train()
    tokens = 128
    packed = PackedPlan(next(micro_batches(rows_of(tokens), 4096)), torch.device("cpu"))
    kept = saved_bytes(policy, packed)
    sizes = memory.read_sizes(make(trainer__model__impl="hf"), read_shape(policy.model), 1)
    assert kept / tokens == pytest.approx(memory._kept(sizes), rel=0.08)


def saved_bytes(policy: Policy, packed: PackedPlan) -> int:
    """Of every storage, other than the weights, that autograd keeps for the backward pass."""
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            seen[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = policy.hidden(packed)  # alive until counted: what is freed could be met again at the same place
    assert out.requires_grad
    return sum(t.untyped_storage().nbytes() for t in seen.values())


# --- the plan ---------------------------------------------------------------------------------------------------


def test_peaks_are_sums_of_parts(shapes: dict[str, Shape]) -> None:
    made = plan(make(trainer__model__ac={"freq": 1}, trainer__token_budget=16384), shapes["4b"], 140 * GIB)
    for moment in (made.sampling, made.log_probs, made.backward, made.update):
        assert moment.total == sum(getattr(moment, f.name) for f in fields(Memory))
    assert made.peak == max(made.sampling_peak, made.training_peak) == getattr(made, made.moment).total
    assert made.fits and made.keep_kv
    name, size = made.largest
    assert size == max(getattr(getattr(made, made.moment), f.name) for f in fields(Memory)) and hasattr(Memory, name)


def test_keys_are_kept_only_where_both_fit(shapes: dict[str, Shape]) -> None:
    config = make(trainer__model__ac={"freq": 1}, trainer__token_budget=16384, seq_len=4096)
    large, small = (plan(config, shapes["7b"], size * GIB) for size in (140, 30))
    assert large.keep_kv and large.backward.key_values == large.sampling.key_values > 0
    assert large.kv_tokens == 64 * 4096
    assert not small.keep_kv and small.backward.key_values == 0 < small.sampling.key_values and small.fits
    assert 4096 <= small.kv_tokens < large.kv_tokens
    assert plan(make(inference__kv_tokens=5000), shapes["7b"], 140 * GIB).kv_tokens == 5000


def test_checkpointing_and_shorter_batches_cost_less(shapes: dict[str, Shape]) -> None:
    peaks = [
        plan(make(trainer__token_budget=tokens, **ac), shapes["4b"], 140 * GIB).backward.activations
        for tokens in (8192, 16384)
        for ac in ({"trainer__model__ac": {"freq": 1}}, {"trainer__model__ac": {"freq": 2}}, {})
    ]
    assert peaks[:3] == sorted(peaks[:3]) and peaks[3:] == sorted(peaks[3:])
    assert peaks[3] == 2 * peaks[0]
    hf = plan(make(trainer__token_budget=8192, trainer__model__impl="hf"), shapes["4b"], 140 * GIB)
    assert hf.backward.activations > peaks[2]


def test_the_largest_micro_batch_is_what_a_step_can_hold() -> None:
    shape = find_shape("tiny:llama", context=512)

    def tokens(**keys: Any) -> int:
        return plan(make(**keys), shape, GIB).tokens

    assert tokens(seq_len=512, trainer__token_budget=4096) == 4096
    assert tokens(seq_len=8192, trainer__token_budget=4096) == 8192  # a longer sequence goes alone
    assert tokens(seq_len=512, trainer__token_budget=1 << 20) == 32 * 512  # the whole batch
    assert tokens(gpus=[0, 1], seq_len=512, trainer__token_budget=1 << 20) == 16 * 512


def test_full_fine_tuning_is_sharded_and_gathered_to_sample(shapes: dict[str, Shape]) -> None:
    shape = shapes["4b"]
    one, four = (plan(make(gpus, trainer__model__train="full"), shape, 140 * GIB) for gpus in ([0], [0, 1, 2, 3]))
    whole = shape.parameters * 2
    assert (one.sampling.weights, four.sampling.weights) == (whole, whole + 2 * whole // 4)  # shards are float32
    assert four.update.weights == 2 * whole // 4 and four.sampling.optimiser == 4 * whole // 4
    assert four.update.weights < four.backward.weights < four.sampling.weights
    assert one.sampling.optimiser == shape.parameters * 12 and one.sampling.adapters == 0
    offloaded = plan(make(trainer__model__train="full", trainer__optim__offload=True), shape, 140 * GIB)
    assert offloaded.sampling.optimiser == 0 and offloaded.peak <= one.peak - one.sampling.optimiser


def test_replicas_share_episodes_and_nothing_else(shapes: dict[str, Shape]) -> None:
    one, two = (plan(make(gpus), shapes["4b"], 140 * GIB) for gpus in ([0], [0, 1]))
    for moment in MOMENTS[1:]:
        without_keys = [replace(getattr(made, moment), key_values=0) for made in (one, two)]
        assert without_keys[0] == without_keys[1]
    assert two.sampling.weights == one.sampling.weights and two.kv_tokens == one.kv_tokens // 2


def long_contexts(gpus: Sequence[int] = tuple(range(8)), **keys: Any) -> Config:
    """A 4B model in contexts of 32K, 16 episodes a step in groups of 8."""
    keys = {"orchestrator__batch_size": 16, "orchestrator__rollouts_per_example": 8, **keys}
    return make(gpus, seq_len=32768, trainer__token_budget=32768, trainer__model__ac={"freq": 1}, **keys)


def test_contexts_of_32k_fit_eight_gpus_of_24_gib_by_shards_and_parts(shapes: dict[str, Shape]) -> None:
    shape = shapes["4b"]
    report = make_report(long_contexts(), shape, 24 * GIB)
    assert report["fits"] and report["base_shards"] and report["peak_at"] == "backward"
    assert report["peak"] / GIB == pytest.approx(21.3, abs=0.05)
    for said in ("The frozen base is in 8 shards while training, and whole while it samples.", "It fits: 21.3 GiB"):
        assert said in report["text"]
    # Parts of the MLP alone are not enough: with a whole base, and for one GPU, which cannot share it.
    whole = plan(long_contexts(trainer__model__shard=False), shape, 24 * GIB)
    assert not whole.fits and not whole.base_shards and whole.peak / GIB == pytest.approx(26.8, abs=0.1)
    assert plan(long_contexts([0]), shape, 24 * GIB).peak == pytest.approx(whole.peak, rel=0.01)
    servers = long_contexts(inference_gpu_ids=[8, 9])
    served = plan(servers, shape, 24 * GIB)
    assert served.fits and served.base_shards and served.kv_tokens == 0
    assert "whole between updates" in make_report(servers, shape, 24 * GIB)["text"]


def test_shards_alone_are_not_enough_either(shapes: dict[str, Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "mlp_part", lambda tokens: tokens)
    made = plan(long_contexts(), shapes["4b"], 24 * GIB)
    assert made.base_shards and not made.fits and made.peak / GIB == pytest.approx(22.8, abs=0.1)
    whole = plan(long_contexts(trainer__model__shard=False), shapes["4b"], 24 * GIB)
    assert whole.peak / GIB == pytest.approx(28.3, abs=0.05)  # with neither


def test_a_base_is_in_shards_where_it_must_be_or_where_that_is_asked(shapes: dict[str, Shape]) -> None:
    shape, ample = shapes["4b"], 140 * GIB
    whole, asked = (plan(long_contexts(trainer__model__shard=said), shape, ample) for said in (None, True))
    assert not whole.base_shards and asked.base_shards
    blocks, rest = shape.layers * shape.block, shape.parameters - shape.layers * shape.block
    assert whole.backward.weights == whole.sampling.weights == 2 * shape.parameters
    assert asked.backward.weights == 2 * (blocks // 8 + 2 * shape.block + rest)
    assert asked.sampling.weights == 2 * (shape.parameters + blocks // 8)  # gathered, besides the shard
    assert asked.backward.activations == whole.backward.activations
    assert not plan(make(range(8), trainer__model__train="full"), shape, 24 * GIB).base_shards


def test_a_kl_term_holds_the_starting_weights(shapes: dict[str, Shape]) -> None:
    without, with_kl = (plan(make(trainer__loss__kl_beta=beta), shapes["4b"], 140 * GIB) for beta in (0.0, 0.1))
    trainable = shapes["4b"].adapter(16, TARGETS)
    assert without.backward.reference == 0
    assert with_kl.backward.reference == with_kl.sampling.reference == 4 * trainable
    assert with_kl.log_probs.reference == 8 * trainable


@pytest.mark.slow
@given(
    gpu=st.integers(8, 200),
    budget=st.sampled_from([1024, 4096, 16384]),
    train=st.sampled_from(["lora", "full"]),
    batch=st.sampled_from([1, 8, 64]),
    context=st.sampled_from([512, 4096]),
)
def test_a_plan_never_promises_more_than_there_is(gpu: int, budget: int, train: str, batch: int, context: int) -> None:
    shape = _four_b()
    config = make(
        trainer__token_budget=budget, trainer__model__train=train, inference__max_batch=batch, seq_len=context
    )
    made, larger = plan(config, shape, gpu * GIB), plan(config, shape, (gpu + 8) * GIB)
    assert made.fits == (made.peak + made.outside <= int(gpu * GIB * (1 - memory.SLACK)))
    assert context <= made.kv_tokens <= max(context, batch * context) and made.kv_tokens <= larger.kv_tokens
    assert larger.fits or not made.fits


_CACHE: list[Shape] = []


def _four_b() -> Shape:
    if not _CACHE:
        _CACHE.append(shape_of(config_json("4b")))
    return _CACHE[0]


# --- advice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "keys", "expected"),
    [
        (24, {"trainer__token_budget": 16384}, "trainer.model.ac.freq"),
        (19, {"trainer__token_budget": 32768, "trainer__model__ac": {"freq": 1}}, "trainer.token_budget"),
        (24, {"inference__kv_tokens": 1 << 20}, "inference.kv_tokens"),
        (24, {"trainer__model__train": "full"}, "trainer.optim.offload"),
        (20, {"trainer__model__train": "full"}, "trainer.model.train"),
        (19, {"seq_len": 32768, "trainer__token_budget": 32768, "trainer__model__ac": {"freq": 1}}, "seq_len"),
    ],
)
def test_advice_makes_it_fit(shapes: dict[str, Shape], gpu: int, keys: dict[str, Any], expected: str) -> None:
    config = make(**keys)
    assert not plan(config, shapes["7b"], gpu * GIB).fits
    advice = advise(config, shapes["7b"], gpu * GIB)
    assert advice.plan.fits and expected in advice.changes
    changed = apply(config, advice.changes)
    assert changed is not None and plan(changed, shapes["7b"], gpu * GIB) == advice.plan
    for key in advice.changes:  # none is needless
        fewer = apply(config, {k: v for k, v in advice.changes.items() if k != key})
        assert fewer is None or not plan(fewer, shapes["7b"], gpu * GIB).fits


def test_advice_says_when_nothing_helps(shapes: dict[str, Shape]) -> None:
    advice = advise(make(), shapes["7b"], 12 * GIB)
    assert not advice.plan.fits
    assert advise_gpus(make(), shapes["7b"], 12 * GIB) is None  # to sample, every GPU must hold all of it


def test_full_fine_tuning_may_take_more_gpus(shapes: dict[str, Shape]) -> None:
    assert plan(make(trainer__model__train="full", trainer__model__ac__freq=1), shapes["4b"], 80 * GIB).fits
    advice = advise_gpus(make(trainer__model__train="full"), shapes["7b"], 80 * GIB)
    assert advice is not None and advice.plan.fits and advice.changes["trainer_gpu_ids"] == [0, 1]


def test_more_gpus_may_share_an_adapters_base(shapes: dict[str, Shape]) -> None:
    advice = advise_gpus(long_contexts([0]), shapes["4b"], 24 * GIB)
    assert advice is not None and advice.plan.fits and advice.plan.base_shards
    assert advice.changes == {"trainer_gpu_ids": list(range(advice.plan.gpus))}
    assert advise_gpus(long_contexts([0], trainer__model__shard=False), shapes["4b"], 24 * GIB) is None


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command(air: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    code, text, _ = air("plan", "@", config, "--gpu-memory", "8GiB")
    assert code == 0 and "It fits" in text and "keys and values" in text and "CUDA context" in text
    code, text, _ = air("plan", "@", config, "--gpu-memory", "8GiB", "--json")
    made = json.loads(text)
    assert code == 0 and made["fits"] and made["peak"] == max(made["sampling_peak"], made["training_peak"])
    assert set(MOMENTS) <= made.keys() and "text" not in made


def test_the_command_on_a_model_that_does_not_fit(air: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json("7b")))
    words = ("plan", "--model.name", tmp_path, "--trainer.token_budget", 16384, "--gpu-memory")
    code, text, _ = air(*words, "24GiB")
    assert code == 1 and "It does not fit" in text and "[trainer.model.ac]\n    freq = 1" in text
    code, text, _ = air(*words, "24GiB", "--json")
    assert code == 1 and json.loads(text)["advice"]["changes"]["trainer.model.ac.freq"] == 1
    code, text, _ = air(*words, "8GiB")
    assert code == 1 and "No key makes it fit" in text


def test_the_command_says_what_it_needs(air: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    if not torch.cuda.is_available():
        code, _, problem = air("plan", "@", config)
        assert code == 1 and "--gpu-memory 80GiB" in problem
    assert air("plan", "@", config, "--gpu-memory", "80")[0] == 1
    code, text, _ = air("plan", "--help")
    assert code == 0 and "--gpu-memory" in text and "token_budget" in text


def test_sizes() -> None:
    assert parse_size("80GiB") == 80 * GIB == gpu_memory("80 gib", None)
    assert parse_size("1.5GB") == 1_500_000_000 and parse_size("512MiB") == GIB // 2
    for wrong in ("80", "GiB", "80 parsecs", ""):
        with pytest.raises(AirError, match="not a size"):
            parse_size(wrong)


def test_a_plan_is_plain_data(shapes: dict[str, Shape]) -> None:
    made: MemoryPlan = plan(make(), shapes["135m"], 24 * GIB)
    assert json.loads(json.dumps(made.as_json()))["sampling"]["weights"] == made.sampling.weights
    assert tiny_config("llama").vocab_size == find_shape("tiny:llama", context=16).vocabulary


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_shape_by_arithmetic_is_that_of_the_model(kind: str, tied: bool, biased: bool) -> None:
    settings = {**config_json("135m"), "model_type": kind, "num_hidden_layers": 3, "tie_word_embeddings": tied}
    settings |= {"attention_bias": biased, "mlp_bias": biased, "sliding_window": None, "use_sliding_window": False}
    assert count(settings) == built(settings)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gemma"},
        {"num_key_value_heads": None},
        {"tie_word_embeddings": None},
        {"model_type": "mistral"},  # its class has a window where the file says nothing
        {"model_type": "qwen2", "use_sliding_window": True},
        {"model_type": "qwen3", "head_dim": None},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"layer_types": ["sliding_attention"] * 30},
    ],
)
def test_what_config_json_alone_does_not_decide_is_asked_of_the_model(change: dict[str, Any]) -> None:
    assert count({**config_json("135m"), **change}) is None


def test_rotary_types_that_we_know_are_counted() -> None:
    scaled = {**config_json("135m"), "num_hidden_layers": 2, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert count(scaled) == built(scaled)


def test_servers_have_gpus_of_their_own() -> None:
    """What trains needs no room for keys and values, and a server none for training."""
    shape = shape_of(config_json("7b"))
    ids = {"trainer_gpu_ids": [1, 2], "inference_gpu_ids": [0], "trainer": {"model": {"ac": {"freq": 1}}}}
    alone = plan(Config(**{**ids, "inference_gpu_ids": [1, 2]}), shape, 24 * GIB)
    report = make_report(Config(**ids), shape, 24 * GIB)
    assert report["fits"] and report["kv_tokens"] == 0 and report["sampling_peak"] < alone.sampling_peak
    assert report["servers"]["weights"] == 2 * shape.parameters and "A server of vLLM" in report["text"]
    # Weights and what else a server needs, then as many tokens as are left.
    room = report["servers"]["share"] - report["servers"]["weights"] - report["servers"]["adapters"] - WORKSPACE
    assert report["servers"]["kv_tokens"] == room // (2 * shape.kv_values) > 2048
    narrow = make_report(Config(**ids, inference={"gpu_memory_utilization": 0.65}), shape, 24 * GIB)
    assert not narrow["fits"] and not narrow["servers"]["fits"] and "It does not fit there" in narrow["text"]


def test_servers_on_machines_of_their_own() -> None:
    shape = shape_of(config_json("7b"))
    roles = {"nodes": 5, "gpus_per_node": 4, "roles": {"learner": 2, "sampler": 3}}
    report = make_report(Config(cluster=roles, trainer={"model": {"ac": {"freq": 1}}}), shape, 24 * GIB)
    assert (report["gpus"], report["servers"]["gpus"], report["servers"]["nodes"]) == (8, 12, 3)
    assert report["kv_tokens"] == 0 and "on 8 GPUs of 24.0 GiB, of 2 machines that train" in report["text"]
    assert "On 3 machines that only sample, 12 servers of vLLM, each on a GPU of its own" in report["text"]
    both = make_report(Config(cluster={"nodes": 2, "gpus_per_node": 4}), shape, 24 * GIB)
    assert "servers" not in both and both["gpus"] == 8
