"""The process of a server of vLLM that was started by its keeper."""

from __future__ import annotations

from pathlib import Path

from airloop.engine.vllm.server import VllmServer


def pid_of(server: VllmServer) -> int:
    assert server._process is not None
    keeper = child_of(server._process.pid)
    return child_of(keeper)


def child_of(pid: int) -> int:
    (found,) = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    return found


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()
