"""Agents that live elsewhere: they ask the run for episodes, play them at its address and say what they were worth.

args = { remote = true, tasks = "tasks.jsonl" }            # the admin's key: AIR_REMOTE_KEY, or key_file
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, existing
from airloop.errors import AirError, InfraError, MissingRequirement
from airloop.programs.desk import Desk, Offered, Said
from airloop.programs.remote_door import RemoteDoor
from airloop.programs.workers import masked
from airloop.rollout.program import Address, Played, ProgramCrashed
from airloop.types import Task

KEY = "AIR_REMOTE_KEY"
SHORTEST_KEY = 16  # characters
KEY_FIX = f"export {KEY}=$(python3 -c 'import secrets; print(secrets.token_hex(32))'), there and where the agents are."


class RemoteArgs(EnvArgs):
    remote: bool = Field(default=False, description="the agents live elsewhere, and ask the run for episodes")
    host: str = Field(default="127.0.0.1", description="where remote agents reach the run")
    port: int = Field(default=8400, ge=1, le=65535, description="where remote agents reach the run")
    key_file: Annotated[str, Anchored(existing)] = Field(
        default="", description=f"a file, readable by you alone, with the remote agents' key; by default {KEY} holds it"
    )
    patience_s: float = Field(default=3600, gt=0, description="that an episode waits for a remote agent to ask for it")


def check_remote(args: RemoteArgs) -> None:
    given = [name for name in ("host", "port", "key_file", "patience_s") if name in args.model_fields_set]
    if given and not args.remote:
        raise ValueError(f"{given[0]} is for agents that live elsewhere: add remote = true")


class Elsewhere:
    """Plays episodes with whoever asks for them."""

    who = "A remote agent"

    def __init__(self, args: RemoteArgs) -> None:
        self.args = args
        self.desk = Desk()
        self._door: RemoteDoor | None = None
        self._opening = threading.Lock()

    async def play(self, task: Task, seed: int, address: Address) -> tuple[float | dict[str, float], Played]:
        await asyncio.to_thread(self._open)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        episode = Offered(task.id, task.payload, seed, address, lambda: _tell(loop, changed))
        self.desk.offer(episode)
        try:
            await _within(self.args.patience_s, changed, lambda: episode.taken)
            if episode.taken:
                await _within(address.seconds, changed, lambda: episode.said is not None)
        finally:
            said = self.desk.close(episode)
        if said is not None and said.error:
            said = replace(said, error=masked(said.error, {**address.variables(), KEY: read_key(self.args)}))
        return _result(said, episode, self.args.patience_s)

    def _open(self) -> None:
        with self._opening:
            if self._door is None:
                door = RemoteDoor(self.desk, read_key(self.args), self.args.host, self.args.port)
                door.start()
                self._door = door

    def lacks(self) -> Sequence[MissingRequirement]:
        try:
            read_key(self.args)
        except AirError as error:
            return [MissingRequirement(error.problem, error.fix)]
        return ()

    async def check_world(self) -> Sequence[MissingRequirement]:
        return ()

    def abandon(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.abandon)


def _result(said: Said | None, episode: Offered, patience_s: float) -> tuple[float | dict[str, float], Played]:
    if said is None:
        seconds = episode.address.seconds if episode.taken else patience_s
        lost = "its agent did not finish it" if episode.taken else "no remote agent asked for the episode"
        raise InfraError(f"{lost} within {seconds:.0f} s")
    if said.abandoned:
        raise InfraError(f"its agent gave it up: {said.error or 'it did not say why'}")
    if said.rewards is None:
        raise ProgramCrashed(said.error)
    return said.rewards, Played({}, crash=said.error)


def read_key(args: RemoteArgs) -> str:
    """The admin's, from where nobody else reads it."""
    if not args.key_file:
        key, place = os.environ.get(KEY, "").strip(), KEY
        if not key:
            raise AirError(f"Remote agents need a key, and {KEY} is not set.", KEY_FIX)
    else:
        path, place = Path(args.key_file).expanduser(), args.key_file
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise AirError(f"Others than you can open {place}, which holds a key.", f"chmod 600 {place}")
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AirError(
                f"The key of remote agents cannot be read: {error}.", "correct args = { key_file = … }."
            ) from None
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise AirError(f"The key in {place} is no key: it needs {SHORTEST_KEY} letters and digits at least.", KEY_FIX)
    return key


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.set)


async def _within(seconds: float, changed: asyncio.Event, reached: Callable[[], bool]) -> None:
    """Until it is so, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not reached():
                await changed.wait()
                changed.clear()
