"""A run on two machines as Slurm would start it: Ray's own command around `air train`, a network between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import warm_process
from support.interop_world import ROOT, interpreter
from support.rank_runs import FLAGS, same, started_from, the_run, words

pytestmark = [pytest.mark.interop, pytest.mark.soak]
APART = ["unshare", "--pid", "--fork", "--mount-proc", "--net", "--mount", "--kill-child"]
WAIT_S = 280


def can_be_apart() -> bool:
    return bool(shutil.which("ip")) and subprocess.run([*APART, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_be_apart(), reason="needs root and iproute2: two machines are made of namespaces")
def test_two_machines_with_a_network_between_them_make_the_run_that_one_makes(tmp_path: Path) -> None:
    start = {**FLAGS, **started_from(tmp_path / "start")}
    here = {**start, "trainer.processes": "2", "output_dir": str(tmp_path / "here")}
    assert warm_process.run(["train", "--skip-proofs", *words(here)]).returncode == 0
    there = {**start, "cluster.nodes": "2", "model.device": "cpu", "output_dir": str(tmp_path / "there")}
    ray = ["ray", "symmetric-run", "--address", "10.77.0.1:6379", "--min-nodes", "2"]
    ray += ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    command = [*APART, "bash", str(ROOT / "tests/support/srun_two.sh"), *ray, "--", "air", "train", "--skip-proofs"]
    bin = str(Path(interpreter("ray")).parent)
    env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT": "120"}
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [*command, *words(there)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert the_run(tmp_path / "there").status()["status"] == "completed", done.stdout + done.stderr
    same(the_run(tmp_path / "here"), the_run(tmp_path / "there"))
