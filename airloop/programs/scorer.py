"""The scorer of agents that are commands: a function of the user's that reads the files an agent has left.

It runs outside the sandbox, after the sandbox has ended with every process in it, on a copy of the workspace that has
files and folders and nothing else: no links to follow, no pipes to wait for. Neither its file nor its environment is
ever visible to an agent.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from airloop import own_code
from airloop.errors import AirError, InfraError
from airloop.programs.workers import SCORER, Workers
from airloop.rollout.deadline import OutOfTime, within
from airloop.rollout.program import ProgramCrashed
from airloop.sandbox.base import WORKSPACE, SandboxLost

SCORE_S = 300.0
MOST_FILES = 20_000  # of a workspace
PREFIX = "air-workspace-"
AT_ONCE = 4  # copies that are in memory
HOST_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)


class Scorer:
    def __init__(self, named: str) -> None:
        self.path = own_code.check_file(named, "scorer", 'args = { scorer = "./score.py:score" }.')
        self._workers = Workers(self.path, own_code.split_id(named)[2], role=SCORER)

    async def score(self, task: Mapping[str, Any], folder: Path, output: str) -> float | dict[str, float]:
        """The function's score for a task and the folder of the agent's files. AirError where it fails: the agent is
        not at fault, so it gets no score."""
        try:
            return await within(SCORE_S, "the scorer", self._workers.run(task, {}, [str(folder), output]))
        except OutOfTime as error:
            raise InfraError(str(error)) from error
        except ProgramCrashed as error:
            raise AirError(
                f"The scorer failed: {error}",
                f"mend {self.path}; whatever an agent has left there, it must give a score.",
            ) from error

    def close(self) -> None:
        self._workers.close()


class WorkspaceCopies:
    """Makes copies of agents' workspaces, each in a folder that is removed after scoring."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        reap()

    async def make(self, pack: Callable[[int], Awaitable[bytes]], limit_bytes: int) -> tempfile.TemporaryDirectory[str]:
        """`pack` is the method of a sandbox; SandboxLost where the workspace cannot be copied."""
        folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
        try:
            async with self._turns:
                await asyncio.to_thread(unpack, await pack(limit_bytes), Path(folder.name))
        except BaseException:
            folder.cleanup()
            raise
        return folder


def reap() -> None:
    """Removes copies that killed runs have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not left.is_symlink() and not _is_alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no number of a process
        pass
    return True


def unpack(packed: bytes, folder: Path) -> None:
    """Files and folders of a workspace. Links, pipes and devices are left out, and so is what would lie elsewhere."""
    root = WORKSPACE.lstrip("/") + "/"
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            for member in tar:
                parts = member.name.removeprefix(root).split("/")
                if not member.name.startswith(root) or {"", ".", ".."} & set(parts):
                    continue
                count += 1
                if count > MOST_FILES:
                    raise SandboxLost(f"the workspace has more than {MOST_FILES} files")
                place = folder.joinpath(*parts)
                if member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                elif member.isreg():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    _write(place, tar.extractfile(member))
    except (tarfile.TarError, OSError, ValueError) as error:  # a name too long, a file where a folder is
        ours = isinstance(error, OSError) and error.errno in HOST_ERRNOS
        raise (InfraError if ours else SandboxLost)(f"the workspace cannot be copied: {error}") from error


def _write(place: Path, content: Any) -> None:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        while data := content.read(1 << 20):
            file.write(data)
