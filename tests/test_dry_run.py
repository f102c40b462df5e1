"""`air train --dry-run`: what is tried of a config, and that it is tried on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import warm_process
from support.vllm_standin import interpreter

from airloop.config import ClusterConfig, load_config, to_toml
from airloop.dry_run import CONTEXT, _told, _what, shrunk

# As people have them: some GPUs sample, others train.
APART = """
max_steps = 200
inference_gpu_ids = [0]
trainer_gpu_ids = [2, 3]
[model]
name = "Qwen/Qwen2.5-7B-Instruct"
[wandb]
project = "somebody"
[trainer.optim]
lr = 1e-4
[trainer.model.lora]
rank = 8
alpha = 32
[orchestrator]
batch_size = 128
rollouts_per_example = 8
seq_len = 8192
[[orchestrator.env]]
id = "arith"
"""
MLGYM = (
    '[[orchestrator.env]]\nid = "air_mlgym"\nargs = { env_gpu = "7", task_configs = ["titanic.yaml"], max_turns = 10 }'
)


def write(folder: Path, text: str = APART) -> str:
    (folder / "apart.toml").write_text(text)
    return str(folder / "apart.toml")


def test_what_costs_is_small_and_the_rest_is_its_own(tmp_path: Path) -> None:
    config = load_config(["@", write(tmp_path, APART.replace('[[orchestrator.env]]\nid = "arith"', MLGYM))])
    small = shrunk(config, tmp_path / "model", tmp_path)
    assert (small.ranks, small.inference.backend, small.model.device) == (2, "vllm", "cpu")
    assert small.wandb is None and Path(small.output_dir).parent == tmp_path and small.seq_len == CONTEXT
    assert small.orchestrator.env[0].args == {"task_configs": ["titanic.yaml"], "max_turns": 10}
    assert small.trainer.optim == config.trainer.optim and small.trainer.model.lora.rank == 8
    assert small.orchestrator.batch_size == 4 and small.max_steps == 2
    again = tmp_path / "small.toml"
    again.write_text(to_toml(small))
    assert load_config(["@", str(again)]) == small, "no rule is broken by it"


def test_samplers_on_other_machines_become_one_server_here(tmp_path: Path) -> None:
    ids = "inference_gpu_ids = [0]\ntrainer_gpu_ids = [2, 3]\n"
    roles = "[cluster]\nnodes = 3\ngpus_per_node = 2\nroles = { learner = 1, sampler = 2 }\n"
    config = load_config(["@", write(tmp_path, APART.replace(ids, "") + roles)])
    small = shrunk(config, tmp_path / "model", tmp_path)
    assert (small.ranks, small.inference.backend, small.inference.vllm.adapters) == (2, "vllm", "http")
    assert small.cluster == ClusterConfig() and "2 processes train, a server of vLLM samples" in _what(small)
    told = _told(config, small, {"steps": 2, "episodes": 8, "infra_errors": 0, "tokens_trained": 9, "seconds": 60.0})
    assert "the 3 machines (2 of them only to sample) and what is between them" in told
    (tmp_path / "small.toml").write_text(to_toml(small))
    assert load_config(["@", str(tmp_path / "small.toml")]) == small, "no rule is broken by it"


def test_it_goes_on_with_nothing() -> None:
    done = warm_process.run(["train", "--dry-run", "--resume", "anything"])
    assert done.returncode == 1 and "--dry-run tries a config" in done.stderr


def test_without_vllm_the_sentence_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = warm_process.run(["train", "@", write(tmp_path), "--dry-run"])
    assert done.returncode == 1 and "vLLM is not installed beside air" in done.stderr
    assert "inference.vllm.python" in done.stderr and "starting the processes" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", pytest.param("vllm", marks=pytest.mark.long)])
def test_every_part_is_tried_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Two ranks; a server of vLLM, for which a stand-in stands in, or each rank's own engine."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    how = ["--inference.vllm.python", str(interpreter(tmp_path))]
    if engine == "embedded":
        how = ["--inference.backend", "embedded", "--inference_gpu_ids", "[2, 3]"]
    done = warm_process.run(["train", "@", write(tmp_path), "--dry-run", "--json", *how])
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["processes"], facts["backend"], facts["steps"], facts["episodes"]) == (2, engine, 2, 8)
    assert facts["tokens_trained"] > 0 and facts["infra_errors"] == 0
    assert not list((tmp_path / "tmp").glob("air-dry-*")) and not list((tmp_path / "cache" / "vllm").glob("run-*"))
