"""Remote agents: they request episodes of the run, play them against its endpoint and report their rewards.

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
from airloop.programs.episode_queue import EpisodeQueue, EpisodeResult, PendingEpisode
from airloop.programs.remote_api import RemoteServer
from airloop.rollout.program import Address, ProgramCrashed, ProgramOutcome
from airloop.text.keys import note_keys, without_keys
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


class RemoteAgents:
    """Runs each episode with a remote agent that requests it."""

    scorer_name = "A remote agent"

    def __init__(self, args: RemoteArgs) -> None:
        self.args = args
        self.queue = EpisodeQueue()
        self._server: RemoteServer | None = None
        self._opening = threading.Lock()

    async def play(self, task: Task, seed: int, address: Address) -> tuple[float | dict[str, float], ProgramOutcome]:
        await asyncio.to_thread(self._open)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        episode = PendingEpisode(task.id, task.payload, seed, address, lambda: _set_event(loop, changed))
        self.queue.add(episode)
        try:
            await _within(self.args.patience_s, changed, lambda: episode.taken)
            if episode.taken:
                await _within(address.seconds, changed, lambda: episode.result is not None)
        finally:
            result = self.queue.close(episode)
        if result is not None and result.error:
            result = replace(result, error=without_keys(result.error, address.variables()))
        return _score(result, episode, self.args.patience_s)

    def _open(self) -> None:
        with self._opening:
            if self._server is None:
                server = RemoteServer(self.queue, read_key(self.args), self.args.host, self.args.port)
                server.start()
                self._server = server

    def lacks(self) -> Sequence[MissingRequirement]:
        try:
            read_key(self.args)
        except AirError as error:
            return [MissingRequirement(error.problem, error.fix)]
        return ()

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        return ()

    def abandon(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.abandon)


def _score(
    result: EpisodeResult | None, episode: PendingEpisode, patience_s: float
) -> tuple[float | dict[str, float], ProgramOutcome]:
    if result is None:
        seconds = episode.address.seconds if episode.taken else patience_s
        lost = "its agent did not finish it" if episode.taken else "no remote agent asked for the episode"
        raise InfraError(f"{lost} within {seconds:.0f} s")
    if result.abandoned:
        raise InfraError(f"its agent gave it up: {result.error or 'it did not say why'}")
    if result.rewards is None:
        raise ProgramCrashed(result.error)
    return result.rewards, ProgramOutcome({}, crash=result.error)


def read_key(args: RemoteArgs) -> str:
    """The admin's key, from a variable or a file that only the user can read."""
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
    note_keys(key)
    return key


def _set_event(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.set)


async def _within(seconds: float, changed: asyncio.Event, reached: Callable[[], bool]) -> None:
    """Waits until `reached`, or until the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not reached():
                await changed.wait()
                changed.clear()
