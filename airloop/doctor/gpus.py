"""The GPUs of this machine and who uses them, asked of nvidia-smi: it makes no CUDA context, which would itself take
memory and could not be handed on to the processes of a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from airloop.config import Config

MIB = 1 << 20
# A driver that does not answer within this is broken, and would hold the run up as well.
ANSWER_S = 5.0


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    user: str  # empty: the process is not ours to see, in another container perhaps
    name: str
    bytes: int

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, user {self.user or 'unknown'}): {self.bytes / 2**30:.1f} GiB"


@dataclass(frozen=True)
class Gpu:
    index: int  # as the driver counts
    uuid: str
    name: str
    total: int
    used: int
    holders: tuple[GpuProcess, ...] = ()

    @property
    def free(self) -> int:
        return self.total - self.used


def listed() -> list[Gpu]:
    """All GPUs of the machine, with the processes on them that are not this one; none where nvidia-smi gives none."""
    rows = _ask("--query-gpu=index,uuid,name,memory.total,memory.used")
    apps = _ask("--query-compute-apps=gpu_uuid,pid,process_name,used_memory") if rows else []
    return [
        Gpu(int(index), uuid, name, int(total) * MIB, int(used) * MIB, tuple(_holders(apps, uuid)))
        for index, uuid, name, total, used in rows
        if index.isdigit() and total.isdigit() and used.isdigit()
    ]


def used_by(config: Config) -> list[Gpu]:
    """Those that a run of `config` would use. With device = "auto" a GPU that torch cannot use is none."""
    if config.model.device == "cpu":
        return []
    found = listed()
    if found and config.model.device == "auto" and not config.gpus:
        import torch

        if not torch.cuda.is_available():
            return []
    wanted = config.gpus or list(range(config.ranks_per_node))
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = [visible[i] if i < len(visible) else "" for i in wanted] if visible else [str(i) for i in wanted]
    return [gpu for gpu in found if str(gpu.index) in names or gpu.uuid in names]


def _ask(question: str) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, question, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    width = question.count(",") + 1
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == width]


def _holders(apps: list[list[str]], uuid: str) -> list[GpuProcess]:
    """Memory that nvidia-smi cannot see ("[N/A]", inside containers) counts as zero; the GPU's own figure has it."""
    return [
        GpuProcess(int(pid), _user(int(pid)), Path(name).name, int(used) * MIB if used.isdigit() else 0)
        for owner, pid, name, used in apps
        if owner == uuid and pid.isdigit() and int(pid) != os.getpid()
    ]


def _user(pid: int) -> str:
    with contextlib.suppress(OSError, KeyError, ImportError):
        import pwd  # not on Windows

        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    return ""
