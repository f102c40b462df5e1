"""Our own training pass against transformers' layers, and the frozen head against autograd."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from airloop.assemble import checkpoint_activations
from airloop.errors import AirError
from airloop.learn import forward
from airloop.learn.batches import PackedPlan, Row, micro_batches
from airloop.learn.block_ops import Linears, project
from airloop.learn.forward import plain, training_hidden
from airloop.learn.logprobs import frozen_head, token_logprobs
from airloop.learn.lora import LoraLinear, attach_lora
from airloop.learn.part_kernels import TorchKernel
from airloop.learn.tree_attention import Tree, nodes_of
from airloop.models.blocks import read_blocks
from airloop.models.fp32_matmul import are_slow, widen_products
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy

KINDS = ["llama", "qwen2", "qwen3", "mistral"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CPU = torch.device("cpu")


def make_policy(
    kind: str, targets: list[str] | None, impl: str, dtype: torch.dtype = torch.float64, layers: int = 3
) -> Policy:
    torch.manual_seed(7)
    model = tiny_model(kind, seed=1, layers=layers).model
    peft = attach_lora(model, 4, 12, targets) if targets else None
    for name, parameter in model.named_parameters():
        if "lora_B" in name or parameter.dim() == 1:  # zero, or one, at first: make them matter
            torch.nn.init.normal_(parameter, std=0.3)
    model.to(dtype)
    return Policy(model, logits_head(model), peft, impl)


def rows(seed: int = 0, groups: int = 2, members: int = 3) -> list[Row]:
    rng = random.Random(seed)
    found = []
    for g in range(groups):
        prompt = [rng.randrange(256) for _ in range(20)]
        for m in range(members):
            tokens = prompt + [rng.randrange(256) for _ in range(rng.randint(2, 20))]
            train = [i >= 20 for i in range(len(tokens))]
            found.append(Row(f"{g}-{m}", tuple(tokens), tuple(train), (0.0,) * len(tokens), 1.0, 1.0))
    return found


def answers(policy: Policy, freq: int = 0, groups: int = 2, members: int = 3) -> tuple[Tensor, dict[str, Tensor]]:
    if freq:
        checkpoint_activations(policy.model, freq)
    policy.model.train()
    (part,) = micro_batches(rows(0, groups, members), 10_000)
    plan = PackedPlan(part, CPU)
    found = training_hidden(policy, plan)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (found * weights.to(found.dtype)).sum().backward()
    return found.detach(), {n: p.grad for n, p in policy.trainable() if p.grad is not None}


def same(one: tuple[Tensor, dict[str, Tensor]], two: tuple[Tensor, dict[str, Tensor]], tolerance: float) -> None:
    torch.testing.assert_close(one[0], two[0], atol=tolerance, rtol=tolerance)
    assert one[1].keys() == two[1].keys() and one[1]
    for name in two[1]:
        size = two[1][name].abs().max().item()
        torch.testing.assert_close(one[1][name], two[1][name], atol=tolerance * size, rtol=tolerance, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [None, ALL, ["q_proj", "v_proj", "down_proj"]], ids=["full", "all", "some"])
@pytest.mark.parametrize("freq", [0, 1, 2])
def test_equal_to_transformers_layers(kind: str, targets: list[str] | None, freq: int) -> None:
    # transformers norms in float32 whatever the weights are, so do we: a rounding of 1e-7 may differ
    same(answers(make_policy(kind, targets, "auto"), freq), answers(make_policy(kind, targets, "hf")), 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_in_float32(kind: str) -> None:
    same(
        answers(make_policy(kind, ALL, "auto", torch.float32), 1),
        answers(make_policy(kind, ALL, "hf", torch.float32)),
        2e-4,
    )


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_in_bf16_the_error_is_not_larger_than_transformers(kind: str, device: str) -> None:
    """Log-probs of a bf16 model against the same weights in float32."""
    (part,) = micro_batches(rows(1, 6, 6), 10_000)
    plan = PackedPlan(part, torch.device(device))
    found = {}
    for name, impl, dtype in (("right", "hf", "float32"), ("theirs", "hf", "bfloat16"), ("ours", "auto", "bfloat16")):
        model = tiny_model(kind, seed=1, hidden=256, layers=4, dtype="bfloat16", device=device).model
        widen_products(are_slow(model))
        peft = attach_lora(model, 8, 16, ALL)
        for weight_name, parameter in model.named_parameters():
            if "lora_" in weight_name:
                torch.nn.init.trunc_normal_(parameter, std=0.05, generator=torch.Generator(device).manual_seed(1))
        policy = Policy(model.to(getattr(torch, dtype)), logits_head(model), peft, impl)
        with torch.no_grad():
            hidden = training_hidden(policy, plan).index_select(0, plan.sources)
            found[name], _ = token_logprobs(policy.head, hidden, plan.targets, 1.0, 259)
    ours, theirs = ((found[name] - found["right"]).abs().mean().item() for name in ("ours", "theirs"))
    assert 0 < ours <= 1.1 * theirs


def by_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CPU takes the GPU's way: tree attention with kept answers, by the plain kernel. Returns what was called."""
    called: list[str] = []
    original = PackedPlan.__init__

    def build(self: PackedPlan, batch: Any, device: torch.device) -> None:
        original(self, batch, device)
        segments = batch.segments
        nodes = nodes_of(
            [s.start for s in segments], [len(s.tokens) for s in segments], [s.ancestors for s in segments]
        )
        self._tree = Tree(nodes, device)

    class Counted(TorchKernel):
        def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
            called.append("forward")
            return super().forward(*arguments)

    kernel = Counted()
    monkeypatch.setattr(PackedPlan, "__init__", build)
    monkeypatch.setattr("airloop.learn.batches.flash_kernel", lambda q, kv_heads: kernel)
    return called


def test_the_residual_stream_is_rounded_once() -> None:
    """It is hundreds of times what a layer and its adapter add to it: with a second sum bf16 log-probs of a real model
    were up to four times as far from float32's as transformers' own."""
    draw = torch.Generator().manual_seed(0)
    x, weight, down, up = (
        torch.randn(*shape, generator=draw).bfloat16() for shape in ((64, 32), (48, 32), (8, 32), (48, 8))
    )
    residual = (1000 * torch.randn(64, 48, generator=draw)).bfloat16()
    (out,) = project(x, Linears((weight,), (None,), down, (up,)), residual)
    wide = [t.double() for t in (x, weight, down, up, residual)]
    exact = wide[4] + wide[0] @ wide[1].T + wide[0] @ wide[2].T @ wide[3].T
    once = (exact.bfloat16().double() - exact).abs().mean()
    assert (out.double() - exact).abs().mean() < 1.1 * once


@pytest.mark.parametrize("dear", [0.0, 1e9])
def test_checkpointing_may_keep_the_attention(dear: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answers(make_policy("qwen3", ALL, "hf"))
    called = by_parts(monkeypatch)
    monkeypatch.setattr(forward, "RECOMPUTE_RATIO", dear)
    same(answers(make_policy("qwen3", ALL, "auto"), 1), wanted, 2e-6)
    assert len(called) % 3 == 0  # three layers
    once = len(called)
    called.clear()
    same(answers(make_policy("qwen3", ALL, "auto")), wanted, 2e-6)
    assert once == len(called) * (1 if dear == 0.0 else 2)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs in Triton's interpreter")
@pytest.mark.parametrize(
    ("kind", "targets", "freq"), [("qwen3", ALL, 1), ("qwen3", None, 1), ("llama", ["q_proj", "down_proj"], 0)]
)
def test_the_kernels_in_their_place(
    kind: str, targets: list[str] | None, freq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's whole way but for its flash kernels: every Triton kernel, forward and backward, in a model."""
    pytest.importorskip("triton")
    wanted = answers(make_policy(kind, targets, "hf", torch.float32, 1), 0, 1, 2)
    by_parts(monkeypatch)
    monkeypatch.setattr("airloop.learn.tree_attention.CALL_TOKENS", 1)  # a cross part, to be merged
    monkeypatch.setattr(forward, "RECOMPUTE_RATIO", 0.0)
    monkeypatch.setattr("airloop.learn.block_ops.fused", lambda x: True)
    same(answers(make_policy(kind, targets, "auto", torch.float32, 1), freq, 1, 2), wanted, 2e-4)


def test_a_disabled_adapter_is_not_there() -> None:
    policy = make_policy("qwen3", ALL, "auto")
    bare = make_policy("qwen3", None, "hf")
    (part,) = micro_batches(rows(), 10_000)
    plan = PackedPlan(part, CPU)
    bare.model.load_state_dict(
        {n.replace(".base_layer", ""): p for n, p in policy.model.state_dict().items() if "lora_" not in n}
    )
    assert policy.peft is not None
    with torch.no_grad(), policy.peft.disable_adapter():
        torch.testing.assert_close(training_hidden(policy, plan), training_hidden(bare, plan), atol=2e-6, rtol=0)


@pytest.mark.parametrize("ours", [False, True])
def test_other_adapters_go_through_transformers(ours: bool) -> None:
    from peft import LoraConfig, get_peft_model

    model = tiny_model("llama").model
    config = LoraConfig(r=2, target_modules=["q_proj"], use_dora=True)
    if ours:
        config._register_custom_module({torch.nn.Linear: LoraLinear})
    get_peft_model(model, config)
    blocks = read_blocks(model)
    assert blocks is not None and not plain(blocks)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"lora_bias": True}, "lora_bias = True"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = ['lm_head']"),
        ({"use_rslora": True, "rank_pattern": {"v_proj": 4}, "alpha_pattern": {"q_proj": 3}}, ""),
    ],
)
def test_F10_an_adapter_is_computed_as_peft_does_or_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    """DoRA, biases and saved modules were loaded and left out: logits were off by as much as they are large."""
    from peft import LoraConfig, get_peft_model

    from airloop.learn.lora import load_lora

    torch.manual_seed(0)
    theirs = get_peft_model(tiny_model("llama").model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **more))
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(str(tmp_path))
    model = tiny_model("llama").model
    if said:
        with pytest.raises(AirError, match=re.escape(said)):
            load_lora(model, tmp_path)
        return
    load_lora(model, tmp_path)
    tokens = torch.tensor([rows()[0].tokens])
    theirs.base_model.model.set_attn_implementation("eager")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_frozen_head_gives_its_gradient_on_the_way(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 16, dtype=torch.float64)
    hidden = torch.randn(23, 16, dtype=torch.float64, requires_grad=True)
    targets, upstream = torch.randint(0, 50, (23,)), torch.randn(23, dtype=torch.float64)
    monkeypatch.setattr("airloop.learn.logprobs.CHUNK_BYTES", 4 * 50 * 5)
    logprobs, entropy = token_logprobs(lambda h: h @ weight.T, hidden, targets, temperature, 50, weight)
    assert not entropy.requires_grad
    wanted = (hidden @ weight.T / temperature).log_softmax(-1)
    chosen = wanted.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, chosen, atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy, -(wanted.exp() * wanted).sum(-1), atol=1e-10, rtol=0)
    found, right = (torch.autograd.grad((x * upstream).sum(), hidden)[0] for x in (logprobs, chosen))
    torch.testing.assert_close(found, right, atol=1e-10, rtol=0)
    with torch.no_grad():
        again, _ = token_logprobs(lambda h: h @ weight.T, hidden, targets, temperature, 50, weight)
    assert torch.equal(again, logprobs.detach()) and not again.requires_grad


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs in Triton's interpreter")
def test_a_frozen_head_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    weight, hidden = torch.randn(50, 16), torch.randn(9, 16, requires_grad=True)
    targets, upstream = torch.randint(0, 50, (9,)), torch.randn(9)
    found = []
    for kernel in (False, True):
        monkeypatch.setattr("airloop.learn.block_ops.fused", lambda x, kernel=kernel: kernel)
        logprobs, entropy = token_logprobs(lambda h: h @ weight.T, hidden, targets, 0.7, 50, weight)
        found.append([logprobs, entropy, torch.autograd.grad((logprobs * upstream).sum(), hidden)[0]])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=5e-5, rtol=1e-5)


def test_only_a_plain_frozen_head_is_taken() -> None:
    model = tiny_model("llama").model
    model.requires_grad_(False)
    head = logits_head(model)
    found = frozen_head(head, model)
    assert found is not None and found.data_ptr() == model.lm_head.weight.data_ptr()
    assert frozen_head(lambda h: head(h).tanh(), model) is None
    model.lm_head.weight.requires_grad_(True)
    assert frozen_head(head, model) is None


def test_a_plan_of_16k_tokens_costs_a_few_looks_at_each() -> None:
    """Some 20 ms where Python is fast. The model waits for it at every micro-batch."""
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(1_000)] for _ in range(2)]
    made = []
    for i in range(28):
        tokens = tuple(prompts[i % 2] + [rng.randrange(256) for _ in range(500)])
        made.append(Row(str(i), tokens, (False,) * 1_000 + (True,) * 500, (0.0,) * 1_500, 1.0, 1.0))
    (part,) = micro_batches(made, 20_000)
    assert part.computed_tokens == 16_000
    plan = PackedPlan(part, torch.device("meta"))
    assert len(plan.sources) == 14_000
    look = least_time(lambda: [token + 1 for row in made for token in row.tokens])
    assert least_time(lambda: PackedPlan(part, torch.device("meta"))) < 60 * look  # 20 measured


def least_time(work: Callable[[], object]) -> float:
    """Of the processor, of five times: other tests run beside this one."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)
