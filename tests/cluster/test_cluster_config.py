"""[cluster]: how many ranks, what it excludes, and the page's scripts for Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.installation import EXTRAS

from airloop import extras
from airloop.config import ClusterConfig, Config, load_config
from airloop.doctor.preflight import _for_one
from airloop.errors import AirError
from airloop.launch.monitor import config_for_rank

ROOT = Path(__file__).parents[2]
SCRIPTS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs/cluster.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


def config_of(*words: str) -> Config:
    return load_config(["--orchestrator.env.0.id", "arith", *words])


def test_ranks_are_counted_over_all_nodes() -> None:
    gpus = config_of("--cluster.nodes", "4", "--cluster.gpus_per_node", "8")
    assert (gpus.ranks, gpus.ranks_per_node, gpus.gpus) == (32, 8, list(range(8)))
    cpus = config_of("--cluster.nodes", "2", "--model.device", "cpu")
    assert (cpus.ranks, cpus.ranks_per_node, cpus.gpus) == (2, 1, [])
    shared = config_of("--cluster.nodes", "2", "--model.device", "cpu", "--trainer.processes", "6")
    assert (shared.ranks, shared.ranks_per_node) == (6, 3)
    here = config_of("--cluster.gpus_per_node", "2")
    assert (here.ranks, here.gpus) == (2, [0, 1])


def test_a_rank_and_the_doctor_know_nothing_of_other_machines() -> None:
    config = config_of("--cluster.nodes", "2", "--cluster.gpus_per_node", "2")
    for alone in (config_for_rank(config, "cuda"), _for_one(config)):
        assert alone.ranks == 1 and alone.gpu == 0 and alone.cluster == ClusterConfig()


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        ("--cluster.nodes 2", "how many GPUs are used on each of them is not said", "--cluster.gpus_per_node"),
        ("--cluster.nodes 2 --trainer_gpu_ids [0,1]", "GPUs of one machine", "--cluster.gpus_per_node 2"),
        ("--cluster.gpus_per_node 2 --model.device cpu", 'has no effect with device = "cpu"', ""),
        ("--cluster.nodes 2 --model.device cpu --trainer.processes 3", "cannot be shared evenly", "processes 4"),
        ("--cluster.nodes 2 --cluster.gpus_per_node 2 --trainer.processes 2", "4 GPUs of 2 machines", "processes 4"),
        ("--cluster.nodes 3 --model.device cpu --inference.backend vllm", "does not say which", "roles.sampler 2"),
        ("--cluster.launcher ray", "is for several machines, and cluster.nodes = 1", ""),
        ("--cluster.nodes 2 --model.device cpu --cluster.launcher local", "is for one machine", ""),
        ("--cluster.nodes 0", "greater than or equal to 1", ""),
    ],
)
def test_what_excludes_each_other_is_refused(words: str, problem: str, fix: str) -> None:
    with pytest.raises(AirError) as refused:
        config_of(*words.split())
    assert problem in str(refused.value) and fix in str(refused.value)


ROLES = "--cluster.nodes 3 --cluster.gpus_per_node 8 --cluster.roles.learner 1 --cluster.roles.sampler 2"


def test_roles_share_the_machines_out_and_say_what_samples() -> None:
    config = config_of(*ROLES.split())
    assert (config.ranks, config.ranks_per_node, config.learner_nodes, config.sampler_nodes) == (8, 8, 1, 2)
    assert (config.inference.backend, config.inference.vllm.adapters, config.dtype_apart) == (
        "vllm",
        "http",
        "bfloat16",
    )
    cpus = config_of(*CPUS.split(), "--trainer.processes", "4")
    assert (cpus.ranks, cpus.ranks_per_node, cpus.dtype_apart) == (4, 2, "float32")
    both = config_of("--cluster.nodes", "3", "--model.device", "cpu")
    assert both.cluster.roles is None and (both.learner_nodes, both.sampler_nodes, both.ranks) == (3, 0, 3)


CPUS = "--cluster.nodes 3 --model.device cpu --cluster.roles.learner 2 --cluster.roles.sampler 1"


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        (f"{ROLES} --cluster.nodes 4", "learner = 1 and sampler = 2, 3 machines together, and cluster.nodes = 4", "3"),
        (f"{ROLES} --cluster.roles.learner 0", "has no learner, and one machine at least trains", "learner 1"),
        (f"{ROLES} --cluster.roles.sampler 0", "has no sampler, and one machine at least samples", "sampler 2"),
        ("--cluster.nodes 3 --model.device cpu --cluster.roles.sampler 1", "has no learner", "learner 2"),
        (f"{ROLES} --cluster.roles.grader 1", "[cluster.roles] has learner, sampler", ""),
        (f"{ROLES} --inference.backend embedded", "such machines need servers of vLLM", "--inference.backend vllm"),
        (f"{ROLES} --inference.vllm.adapters files", "they pull adapters", "adapters http"),
        (f'{ROLES} --inference.vllm.urls ["http://a:1"]', "names others that run already", "leave"),
        (f"{ROLES} --trainer.model.train full", "with samplers on machines of their own", "train lora"),
        (f"{ROLES} --trainer_gpu_ids [0]", "GPUs of one machine", "gpus_per_node 8"),
        (f"{ROLES} --inference_gpu_ids [1]", "GPUs of one machine", "gpus_per_node 8"),
        (f"{ROLES} --trainer.processes 24", "each of the 8 GPUs", "processes 8"),
        (f"{CPUS} --trainer.processes 3", "cannot be shared evenly by cluster.roles.learner = 2", "processes 4"),
        (f"{ROLES} --deterministic true", "a server's batches follow from the clock", "deterministic false"),
    ],
)
def test_roles_that_cannot_be_are_refused(words: str, problem: str, fix: str) -> None:
    with pytest.raises(AirError) as refused:
        config_of(*words.split())
    assert problem in str(refused.value) and fix in str(refused.value)
    assert "mistakes" not in str(refused.value), "one mistake is told once"


def test_who_is_no_rank_of_such_a_run_samples_for_itself() -> None:
    """A doctor, an evaluation; ranks keep their servers."""
    config = config_of(*ROLES.split())
    here = config.sampled_here()
    assert (here.inference.backend, here.cluster.roles, here.ranks) == ("embedded", None, 8)
    assert Config.model_validate(here.model_dump()) == here, "no rule is broken"
    for alone in (_for_one(config), config_for_rank(config, "cuda")):
        assert alone.ranks == 1 and alone.cluster == ClusterConfig() and alone.model.dtype == "bfloat16"
    assert _for_one(config).inference.backend == "embedded"
    assert config_for_rank(config, "cuda").inference.backend == "vllm"
    assert config_of("--cluster.nodes", "2", "--model.device", "cpu").sampled_here().cluster.nodes == 2


@pytest.mark.slow
def test_without_ray_the_line_that_installs_it_is_said(
    air: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before there is a run. (Whatever this Python has.)"""
    monkeypatch.setattr(
        extras, "_requirements", lambda name: [f"{one}; extra == 'cluster'" for one in EXTRAS["cluster"]]
    )
    monkeypatch.setattr(extras, "_is_installed", lambda name: name != "ray")
    words = ["--orchestrator.env.0.id", "arith", "--cluster.nodes", "2", "--model.device", "cpu"]
    code, _, problem = air("train", *words, "--output_dir", tmp_path / "out")
    assert code == 1 and "needs ray, which is not installed" in problem and "pip install 'ray" in problem
    assert not (tmp_path / "out").exists()


def said_by(script: str, folder: Path, **variables: str) -> list[list[str]]:
    """The commands that a script would have Slurm run: `srun` and `scontrol` are stand-ins that say their words."""
    for name, line in {"srun": 'printf "%q " "$@"; echo', "scontrol": "echo node7"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", script], env=env, capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_the_pages_script_for_slurm_is_a_run_on_its_nodes(tmp_path: Path) -> None:
    (words,) = said_by(SCRIPTS[0], tmp_path, SLURM_NNODES="3", SLURM_JOB_NODELIST="node[7-9]")
    start, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert start == ["ray", "symmetric-run", "--address", "node7:6379", "--min-nodes", "3"]
    assert command[:4] == ["air", "train", "@", "c.toml"] and command[-1] == "--continue"
    assert config_of(*command[4:-1]).ranks == 24


def test_the_pages_sweep_is_an_array_of_runs_in_ten_lines(tmp_path: Path) -> None:
    assert len(SCRIPTS[1].splitlines()) == 10
    settings = set()
    for task in range(6):
        (words,) = said_by(SCRIPTS[1], tmp_path, SLURM_ARRAY_TASK_ID=str(task))
        assert words[:4] == ["air", "train", "@", "c.toml"] and words[-1] == "--continue"
        config = config_of(*words[4:-1])
        settings.add((config.trainer.optim.lr, config.seed, config.run_name))
    assert len(settings) == 6
