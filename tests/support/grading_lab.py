"""What the tests of grading share: one loop and one backend, an agent's attempt, a task made on the spot."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airloop.sandbox.base import Image
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop_envs.mlgym.grading import Grade, Grader, Submission, collect
from airloop_envs.mlgym.spec import TaskSpec, Yardstick
from airloop_envs.mlgym.workspace import agent_image


class Lab:
    """One loop and one backend for all tests: to start a backend takes longer than a test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.backend = self.loop.run_until_complete(self._backend())
        self.grader = Grader(self.backend, call_s=20.0)

    async def _backend(self) -> Bubblewrap:
        return Bubblewrap()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def attempt(self, spec: TaskSpec, command: str, files: dict[str, str] | None = None) -> Submission | None:
        """What an agent hands in that writes `files` and runs a command."""
        return self.run(self._attempt(spec, command, files or {}))

    async def _attempt(self, spec: TaskSpec, command: str, files: dict[str, str]) -> Submission | None:
        sandbox = await self.backend.start(agent_image(spec))
        try:
            for name, text in files.items():
                await sandbox.put(name, textwrap.dedent(text).encode())
            result = await sandbox.run(command, 60.0)
            assert result.exit_code == 0, result.output
            return await collect(spec, sandbox)
        finally:
            await sandbox.close()

    def shown(self, image: Image, command: str = "find . -type f | sort") -> str:
        return self.run(self._shown(image, command))

    async def _shown(self, image: Image, command: str) -> str:
        sandbox = await self.backend.start(image)
        try:
            return (await sandbox.run(command, 20.0)).output
        finally:
            await sandbox.close()

    def grade(self, spec: TaskSpec, submission: Submission | None, timeout: float = 60.0) -> Grade:
        return self.run(self.grader.grade(spec, submission, timeout))


@contextmanager
def open_lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    assert not lab.backend.sandboxes, "a grading left a sandbox behind"
    lab.run(lab.backend.close())
    lab.loop.close()


def make_task(directory: Path, entry_point: str, files: dict[str, str], **more: Any) -> TaskSpec:
    """A task of our own in `directory`: `files` are its starter code."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(textwrap.dedent(text))
    starter = dict.fromkeys(directory / Path(name).parts[0] for name in files)
    given = {
        "key": "own", "id": "own", "name": "own", "description": "", "root": directory, "entry_point": entry_point,
        "training_timeout": 60.0, "starter_code": tuple(starter), "evaluation_paths": ("evaluate.py",),
        "baseline_paths": (), "datasets": (), "yardstick": Yardstick("Score", "up", None, None),
    }  # fmt: skip
    return TaskSpec(**(given | more))
