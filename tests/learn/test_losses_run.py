"""Every loss drives a whole run from its config keys: sampling, shaping, advantages, updates, records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from airloop.assemble import learner_settings
from airloop.config import load_config
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display

CONFIG = """\
max_steps = 2
seq_len = 64
[model]
name = "tiny:llama"
[trainer.optim]
lr = 1e-2
[orchestrator]
batch_size = 8
rollouts_per_example = 4
[orchestrator.sampling]
max_tokens = 6
[orchestrator.eval]
num_examples = 1
[[orchestrator.env]]
id = "arith"
args = { max_number = 1, split_by = "none" }
[warmstart]
steps = 12
lr = 2e-2
episodes = 32
batch_size = 8
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all runs: the supervised start, after which replies differ in length, is made once."""
    return tmp_path_factory.mktemp("losses")


def run(directory: Path, **loss: Any) -> Run:
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in loss.items())
    (directory / "config.toml").write_text(f"{CONFIG}[trainer.loss]\n{keys}")
    config = load_config(["@", str(directory / "config.toml"), "--output_dir", str(directory)])
    return start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True).run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"])
def test_a_run_of_every_loss_with_a_price_for_length(outputs: Path, kind: str) -> None:
    done = run(outputs, type=kind, overlong="reply", overlong_share=1.0, passes=1 if kind == "rloo" else 2)
    lines = [
        json.loads(line) for s in range(2) for line in (done.path / f"tokens/step_{s:04d}.jsonl").open(encoding="utf-8")
    ]
    assert all(line["reward"] == pytest.approx(sum(line["rewards"].values())) for line in lines)
    assert len({line["rewards"]["overlong"] for line in lines}) > 1
    metrics = done.metrics("train")
    assert metrics[0]["learner"]["grad_norm"] > 0 and metrics[0]["components"]["overlong"] < 0
    assert {"clipped", "importance", "cut"} <= set(metrics[0]["learner"])


def test_a_run_with_the_other_keys(outputs: Path) -> None:
    keys = {"kl_beta": 0.1, "kl_estimator": "k1", "importance_mode": "mask", "importance_floor": 0.5}
    done = run(outputs, type="dapo", scale_by="batch", credit="turn", overlong="episode", overlong_share=1.0, **keys)
    assert all("kl" in m["learner"] for m in done.metrics("train"))
    assert done.metrics("train")[1]["learner"]["kl"] != 0


def test_the_losss_keys_reach_the_loss() -> None:
    keys = {
        "type": "gspo",
        "clip_low": 0.11,
        "clip_high": 0.12,
        "kl_beta": 0.13,
        "kl_estimator": "k2",
        "importance_cap": 1.14,
        "importance_mode": "mask",
        "importance_floor": 0.15,
        "entropy_beta": 0.16,
        "geo_mask_low": 0.17,
        "geo_mask_high": 1.18,
        "sequence_mask_low": 0.19,
        "sequence_mask_high": 1.2,
        "passes": 3,
    }
    found = learner_settings(load_config([f"--trainer.loss.{key}={value}" for key, value in keys.items()]))
    assert (found.loss, found.passes) == (keys.pop("type"), keys.pop("passes"))
    assert vars(found.loss_settings) == {**keys, "anchor": "trainer"}
    anchored = learner_settings(load_config(["--trainer.loss.anchor=sampler"]))  # which gspo does not have
    assert anchored.loss_settings.anchor == "sampler"
