"""Raylets on this machine, which Ray takes for machines of their own: each has an address of the loopback's. All that
one starts is ended with it, by process ids."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_S = 300.0  # a few on a quiet machine, and a minute beside a whole suite


class Raylet:
    """`ray start --block`, in a session of its own."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)

    def wait_until_up(self) -> None:
        until = time.monotonic() + START_S
        while "Ray runtime started" not in (said := self._log.read_text(errors="replace")):
            assert self._process.poll() is None and time.monotonic() < until, said
            time.sleep(0.1)

    @property
    def up(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """To the raylet itself, not to what it has started."""
        (pid,) = [pid for pid in self._all() if _name(pid) == "raylet"]
        os.kill(pid, number)

    def end(self) -> None:
        for pid in self._all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _all(self) -> list[int]:
        """All that were started by it, or by those: while one of them lives, its children are still its own."""
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found


class Raylets:
    """A cluster of them; the first is the head."""

    def __init__(self, python: str) -> None:
        self._ray = str(Path(python).with_name("ray"))
        self._folder = Path(tempfile.mkdtemp(prefix="air-ray-"))  # short: sockets have their paths in it
        self._found: list[Raylet] = []
        self.address = f"127.0.0.2:{_free_port()}"

    def add(self, front: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Raylet:
        """`front`: what the command is started by."""
        number = len(self._found)
        joined = ["--address", self.address]
        if not self._found:
            port, client = self.address.rpartition(":")[2], str(_free_port())
            joined = ["--head", "--port", port, "--ray-client-server-port", client, "--include-dashboard=false"]
            joined += ["--temp-dir", str(self._folder)]
        own = ["--block", "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=80000000"]
        own += ["--node-ip-address", f"127.0.0.{number + 2}"]
        command = [*front, self._ray, "start", *(word for word in own if joined[0] == "--head" or "usage" not in word)]
        raylet = Raylet([*command, *joined], self._folder / f"{number}.log", {**os.environ, **(env or {})})
        self._found.append(raylet)
        raylet.wait_until_up()
        return raylet

    def close(self) -> None:
        for raylet in reversed(self._found):
            raylet.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        port: int = taken.getsockname()[1]
        return port
