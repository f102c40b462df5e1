"""Family C. Where a GPU is needed it is simulated: a program called nvidia-smi on the path says what there is."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.examined import TINY, silent, trouble
from support.tiny_runs import write_config

from airloop.config import load_config
from airloop.doctor.base import Finding
from airloop.doctor.case import Case
from airloop.doctor.checks import memory
from airloop.doctor.report import fix_text
from airloop.errors import AirError
from airloop.learn.learner import Learner
from airloop.learn.memory import memory_told
from airloop.models import dtypes
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display
from airloop.watch.metrics import facts

GIB = 2**30
QWEN_7B = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "eos_token_id": 151645, "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM2 = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "eos_token_id": 2, "tie_word_embeddings": True,
}  # fmt: skip
ON_GPU = [*TINY, "--model.device", "cuda", "--trainer_gpu_ids", "[0]"]


@pytest.fixture
def seven(tmp_path: Path) -> list[str]:
    """A 7B model of which there is only the config.json."""
    (tmp_path / "7b").mkdir()
    (tmp_path / "7b" / "config.json").write_text(json.dumps(QWEN_7B))
    return ["--model.name", str(tmp_path / "7b"), "--model.device", "cuda", "--orchestrator.env.0.id", "arith"]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SIMULATED: two GPUs of 24 GiB, and who holds how much (MiB) of the first."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def simulate(*holders: tuple[int, str, int]) -> None:
        used = sum(memory for _, _, memory in holders)
        apps = "".join(f"GPU-a, {pid}, {name}, {memory}\\n" for pid, name, memory in holders)
        rows = f"0, GPU-a, H200, 24576, {used}\\n1, GPU-b, H200, 24576, 3\\n"
        script = f'#!/bin/sh\ncase "$1" in *compute-apps*) printf "{apps}";; *) printf "{rows}";; esac\n'
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "nvidia-smi").write_text(script)
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return simulate


def test_C1_keys_and_values_that_take_more_than_is_left(seven: list[str]) -> None:
    argv = [*seven, "--inference.kv_tokens", "2000000"]
    ids, finding = trouble(argv, "C1", gpu_memory=80 * GIB)
    assert ids == ("C1",) and finding.verdict == "fail" and "largest part is key values" in finding.seen
    assert "GiB available" in finding.seen and "inference.kv_tokens" in finding.lines
    assert "GiB per GPU" in finding.detail, "the plan, per part"
    assert silent(seven, "C1", gpu_memory=80 * GIB)


def test_C2_a_backward_pass_without_activation_checkpointing(seven: list[str]) -> None:
    argv = [*seven, "--trainer.token_budget", "32768", "--seq_len", "16384"]
    ids, finding = trouble(argv, "C2", gpu_memory=80 * GIB)
    assert ids == ("C2",) and "at the peak (backward)" in finding.seen and "activations" in finding.seen
    assert "[trainer.model.ac]\n    freq = 1" in fix_text(finding)
    assert silent([*argv, "--trainer.model.ac.freq", "1"], "C2", gpu_memory=80 * GIB)


@pytest.mark.slow
def test_C2_logits_are_never_held_in_full() -> None:
    """The head is asked for a chunk at a time, forward and backward."""
    import torch

    from airloop.learn.logprobs import CHUNK_BYTES, token_logprobs

    vocabulary, tokens = 50_000, 1000
    head = torch.nn.Linear(8, vocabulary)
    sizes: list[int] = []
    head.register_forward_hook(lambda _, __, logits: sizes.append(logits.numel() * 4))
    hidden = torch.randn(tokens, 8, requires_grad=True)
    logprobs, _ = token_logprobs(head, hidden, torch.zeros(tokens, dtype=torch.long), 1.0, vocabulary)
    logprobs.sum().backward()
    assert hidden.grad is not None and len(sizes) >= 6
    assert max(sizes) <= CHUNK_BYTES < tokens * vocabulary * 4


def test_C3_cpu_offload_with_lora_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[trainer.model]\nfsdp_cpu_offload = true\n")
    ids, finding = trouble(["@", str(tmp_path / "run.toml")], "C3")
    assert ids == ("C3",) and "with LoRA, CPU offload breaks" in finding.seen and "[trainer.model.ac]" in finding.fix
    assert silent(TINY, "C3")


def test_C4_a_gpu_held_by_another_simulated(gpus) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:  # a real process, of a user
        try:
            gpus((other.pid, "/opt/conda/bin/python", 24000))
            ids, finding = trouble(ON_GPU, "C4")
            assert other.poll() is None, "it is never ended"
        finally:
            other.kill()
    assert ids == ("C4",) and finding.verdict == "fail"
    assert f"pid {other.pid} (python, user {getpass.getuser()}): 23.4 GiB" in finding.seen
    assert "not into the 0.6 GiB that are free" in finding.why
    assert finding.lines == {"trainer_gpu_ids": [1]}, "the other one is free"


def test_C4_enough_left_is_a_warning_and_a_desktop_is_nothing_simulated(gpus) -> None:
    gpus((1, "python", 12000))
    ids, finding = trouble(ON_GPU, "C4")
    assert ids == ("C4",) and finding.verdict == "warn"
    gpus((1, "Xorg", 300))
    assert silent(ON_GPU, "C4")
    gpus()
    assert silent(ON_GPU, "C4") and silent([*ON_GPU[:-1], "[1]"], "C4")


def test_C4_what_another_container_holds_is_seen_without_its_process_simulated(gpus, tmp_path: Path) -> None:
    gpus((1, "python", 20000))
    script = tmp_path / "bin" / "nvidia-smi"
    script.write_text(script.read_text().replace("GPU-a, 1, python, 20000", ""))
    _, finding = trouble(ON_GPU, "C4")
    assert "no process is shown: it may be in another container" in finding.seen


def test_C5_full_fine_tuning_of_7b_on_one_card(seven: list[str]) -> None:
    ids, finding = trouble([*seven, "--trainer.model.train", "full"], "C5", gpu_memory=40 * GIB)
    assert ids == ("C5",) and finding.verdict == "fail"
    assert "the largest part is optimiser" in finding.seen
    assert finding.lines == {"trainer.optim.offload": True}  # gradients are added up where the masters are
    changed = [word for key, value in finding.lines.items() for word in (f"--{key}", str(value).lower())]
    assert silent([*seven, "--trainer.model.train", "full", *changed], "C5", gpu_memory=40 * GIB)
    _, finding = trouble([*seven, "--trainer.model.train", "full"], "C5", gpu_memory=24 * GIB)
    assert finding.lines == {"trainer.model.ac.freq": 1, "trainer.optim.offload": True}
    _, finding = trouble([*seven, "--trainer.model.train", "full"], "C5", gpu_memory=20 * GIB)
    assert finding.lines["trainer.model.train"] == "lora"
    assert silent(seven, "C5", gpu_memory=40 * GIB)
    _, finding = trouble([*seven, "--trainer.model.train", "full"], "C5", gpu_memory=80 * GIB)
    assert "on 2 such GPUs it is sharded and fits with trainer.model.ac.freq = 1; on these, " in finding.fix


def test_C5_what_offload_puts_into_the_machines_memory_is_said(
    seven: list[str], gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters, moments and gradients of 7.6 billion weights: who takes more than there is, is ended without a word."""
    full = [*seven, "--trainer.model.train", "full"]
    _, finding = trouble(full, "C5", gpu_memory=40 * GIB)
    assert "with 113 GiB of the machine's own memory" in finding.fix
    gpus((1, "python", 100))
    offloaded = [*full, "--trainer_gpu_ids", "[0]", "--trainer.optim.offload", "true", "--trainer.model.ac.freq", "1"]
    monkeypatch.setattr("airloop.watch.metrics.facts.available_mib", lambda: 64.0 * 1024)
    ids, finding = trouble(offloaded, "C5")
    assert ids == ("C5",) and finding.verdict == "warn"
    assert "puts 113.5 GiB into the machine's memory, and 64.0 GiB are available" in finding.seen
    monkeypatch.setattr("airloop.watch.metrics.facts.available_mib", lambda: 128.0 * 1024)
    assert silent(offloaded, "C5")


def test_C_a_device_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    ids, finding = trouble(ON_GPU, "C-device")
    assert ids == ("C-device",) and "torch sees 0 CUDA devices" in finding.seen
    assert finding.lines == {"model.device": "cpu"}


FORKS = """
import asyncio, os
forks = []
os.register_at_fork(before=lambda: forks.append(1))
from airloop.envs.base import load_environment

async def work():
    env = load_environment("tune", {"workers": 1, "cache": False})
    task = env.tasks("train")[0]
    await env.pool.fit(task.payload["dataset"], task.payload["seed"], {"model": "knn", "k": 3, "scale": False},
                       task.payload["digest"])
    await env.close()

asyncio.run(work())
print("forked", len(forks))
if os.fork() == 0:
    os._exit(0)
print("seen", len(forks))
"""


@pytest.mark.slow
def test_C7_no_process_is_forked() -> None:
    """Workers are started by exec: nothing of the parent's memory, and no CUDA context, goes with them. (Ranks and
    sandboxes are too: what starts them is subprocess.)"""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:2] == ["forked 0", "seen 1"], done.stderr[-2000:]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 308.00 MiB. GPU 0 has a total capacity of …"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
    ],
)
def test_C2_an_update_without_memory_says_what_to_change_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
):
    """The plan fitted, and then others took the memory."""
    original = Learner.update

    def starved(self: Learner, *args: Any) -> Any:
        if self.policy.version == 1:
            raise error
        return original(self, *args)

    config = load_config(["@", str(write_config(tmp_path)), "--ckpt.interval", "1"])
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "update", starved)
        with pytest.raises(AirError, match="too little memory for the update") as told:
            start(config, Display(quiet=True), skip_proofs=True)
    assert "trainer.token_budget = 2048 (it is 4096)" in told.value.fix and "air train --resume" in told.value.fix
    [path] = (tmp_path / "outputs").glob("exp*")
    done = start(Run.open(path).config, Display(quiet=True), resume=path, skip_proofs=True)
    assert [m["step"] for m in done.run.metrics("train")] == [0, 1]


def test_another_error_in_an_update_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes"), memory_told(torch.device("cpu"), 4096, "go on"):
        raise RuntimeError("shapes differ")


def test_C2_an_update_that_a_small_machine_has_no_memory_for_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2's shape on 4 GiB: the kernel had ended such runs in their first update."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(SMOLLM2))
    words = ["--model.name", str(tmp_path / "small"), "--model.device", "cpu", "--seq_len", "1024"]
    words += ["--orchestrator.env.0.id", "arith", "--trainer.token_budget", "4096"]
    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: False)

    def found(mib: float, *more: str) -> list[Finding]:
        monkeypatch.setattr(facts, "available_mib", lambda: mib)
        with Case(load_config([*words, *more]), print) as case:
            return [memory.cpu_memory_suffices(case)]

    (narrow,) = found(3400)
    assert narrow.verdict == "warn" and narrow.lines == {"trainer.token_budget": 2048} and "C2" in narrow.ids
    assert found(3400, "--trainer.token_budget", "2048")[0].verdict == "pass"  # what it says, suffices
    for mib in (6000, 64000):
        assert found(mib)[0].verdict == "pass"
    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: True)
    assert found(3400)[0].verdict == "pass"  # bf16, perhaps: half as much
    assert found(3400, "--model.dtype", "float32")[0].verdict == "warn"
    (least,) = found(300)
    assert least.verdict == "warn" and not least.lines and "smaller model" in least.fix
