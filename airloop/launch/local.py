"""Ranks on this machine. Those on the CPU are forked from one process that has imported everything; those on GPUs are
started anew (C7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Literal

from airloop.config import Config
from airloop.errors import AirError
from airloop.events import Say
from airloop.forkserver import CannotFork, Forked, ForkServer
from airloop.launch.base import OnOutput, RankSpec
from airloop.ranks import ALL_GPUS

if TYPE_CHECKING:
    from airloop.runs.run import Run

# What every rank imports.
PRELOADED = ("airloop.rank", "airloop.training", "airloop.engine.embedded", "torch.distributed.fsdp")


def local_launcher(_: Say) -> LocalLauncher:
    return LocalLauncher()


class LocalLauncher:
    """Implements Launcher. Each rank has a pipe as its stdin that is never written to: its end shows the rank that this
    process has ended."""

    settle_s = 0.0  # the kernel reports its end at once

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._fork_server_tried = False  # once
        self._stdin_ends: list[int] = []  # our ends of the ranks' stdins
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def rank_specs(self, run: Run, resuming: bool) -> list[RankSpec]:
        self._folder = tempfile.TemporaryDirectory(prefix="air-ranks-")
        size, gpus = run.config.ranks, devices(run.config)
        device = "cuda" if gpus else "cpu"
        return [
            RankSpec(str(run.path), rank, size, self._folder.name, device, resuming, gpus[rank] if gpus else "", size)
            for rank in range(size)
        ]

    def spawn(self, spec: RankSpec, on_output: OnOutput) -> Forked | subprocess.Popen[bytes]:
        (events, events_end), (output, output_end), (stdin, stdin_end) = os.pipe(), os.pipe(), os.pipe()
        self._stdin_ends.append(stdin_end)
        try:
            process = self._start(spec, stdin, output_end, events_end)
        finally:
            for fd in (events_end, output_end, stdin):
                os.close(fd)
        _read_all("event", events, on_output)
        _read_all("line", output, on_output)
        return process

    def _start(self, spec: RankSpec, stdin: int, output: int, events: int) -> Forked | subprocess.Popen[bytes]:
        environment = {**os.environ, **_surroundings(spec), **spec.environment}
        spec = replace(spec, environment={})
        self.prepare(spec.device)
        if server := self._server:
            words = [json.dumps(asdict(spec))]
            return server.start("airloop.rank:main", words, [stdin, output, output, events], environment)
        return subprocess.Popen(
            [sys.executable, "-m", "airloop.rank", json.dumps(asdict(replace(spec, events=events)))],
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[events],
            start_new_session=True,  # a terminal's Ctrl-C reaches this process only, which forwards it once
        )

    def prepare(self, device: str) -> None:
        """Import what the first rank would import."""
        if device == "cpu" and not self._fork_server_tried:
            self._fork_server_tried = True
            self._server = fork_server()

    def close(self) -> None:
        for fd in self._stdin_ends:
            os.close(fd)
        self._stdin_ends.clear()
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            self._folder.cleanup()


def fork_server(*more: str) -> ForkServer | None:
    """It has imported what every run does, and these modules; None where nothing can be forked: start anew."""
    try:
        return ForkServer([*PRELOADED, *more])
    except (CannotFork, ChildProcessError):
        return None


def devices(config: Config) -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES for each rank, or nothing where they train on the CPU."""
    if config.model.device == "cpu":
        return []
    import torch

    found, named = torch.cuda.device_count(), config.gpus or list(range(config.ranks))
    if found == 0 and not config.gpus and config.model.device == "auto":
        return []
    if max(named) >= found:
        raise AirError(
            f"The run wants the GPUs {named}, but this machine has {found}.",
            f"trainer_gpu_ids = {list(range(found))}" if found else 'model.device = "cpu" with trainer.processes',
        )
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [visible[gpu] if visible else str(gpu) for gpu in named]


def _read_all(kind: Literal["event", "line"], fd: int, on_output: OnOutput) -> None:
    def read(stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                on_output(kind, raw.decode(errors="replace").rstrip())

    threading.Thread(target=read, args=(os.fdopen(fd, "rb"),), daemon=True).start()


def _surroundings(spec: RankSpec) -> dict[str, str]:
    """Each rank sees its own GPU, as number 0, and has its share of the cores; those of one machine talk on it only."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if spec.address else ("GLOO_SOCKET_IFNAME",)
    here = {name: os.environ.get(name, spec.interface) for name in names if spec.interface}
    if spec.device == "cuda":
        seen = {} if spec.address else {ALL_GPUS: os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        return {**here, **seen, "CUDA_VISIBLE_DEVICES": spec.gpu}
    share = max(1, (os.cpu_count() or 1) // spec.here)
    return {**here, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share))}
