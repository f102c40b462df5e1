"""Makes an archive of a run as one version of the package left it, for test_legacy.py: a run of a tiny model that was
killed after its third step, its supervised start, and a cache with the fits of a second, finished run.

    git worktree add /tmp/then COMMIT && cd /tmp/then && python THIS/make.py PACKAGE ARCHIVE.tar.xz

PACKAGE is what the trainer was imported as at COMMIT. The paths inside are of /tmp/air-legacy, wherever it is made.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

PLACE = Path("/tmp/air-legacy")
KILLED = """
max_steps = 6
seq_len = 48
output_dir = "/tmp/air-legacy/outputs"
[model]
name = "tiny:llama"
[ckpt]
interval = 1
keep_last = 1
[trainer.model.lora]
rank = 4
[trainer.optim]
lr = 1e-2
[orchestrator]
batch_size = 16
rollouts_per_example = 8
[orchestrator.sampling]
max_tokens = 3
[orchestrator.eval]
num_examples = 8
[[orchestrator.env]]
id = "arith"
args = { max_number = 4, split_by = "none", demo_accuracy = 0.35 }
[warmstart]
steps = 150
episodes = 60
batch_size = 40
lr = 2e-2
"""
FINISHED = """
max_steps = 1
seq_len = 600
output_dir = "/tmp/air-legacy/outputs"
[model]
name = "tiny:llama"
[trainer.model.lora]
rank = 1
target_modules = ["q_proj"]
[orchestrator]
batch_size = 2
rollouts_per_example = 2
[orchestrator.sampling]
max_tokens = 8
[orchestrator.eval]
num_examples = 2
[[orchestrator.env]]
id = "tune"
args = { max_turns = 1 }
[warmstart]
steps = 1
episodes = 4
"""


def main() -> None:
    package, archive = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    env = {**os.environ, "AIR_CACHE": str(PLACE / "cache"), "OMP_NUM_THREADS": "1"}
    for name, config in (("killed", KILLED), ("finished", FINISHED)):
        (PLACE / f"{name}.toml").write_text(config)
    train = [sys.executable, "-m", f"{package}.cli", "train", "--skip-proofs", "@"]
    process = subprocess.Popen([*train, str(PLACE / "killed.toml")], env=env)
    while steps_of(PLACE / "outputs") < 3:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*train, str(PLACE / "finished.toml")], env=env, check=True)
    shutil.rmtree(PLACE / "cache" / "tune" / "tables", ignore_errors=True)  # data sets, not ours to pass on
    with tarfile.open(archive, "w:xz") as file:
        for path in ("outputs", "cache"):
            file.add(PLACE / path, path)
    shutil.rmtree(PLACE)


def steps_of(outputs: Path) -> int:
    files = [*outputs.glob("exp*/metrics.jsonl")]
    return files[0].read_text().count('"kind": "train"') if files else 0


if __name__ == "__main__":
    main()
