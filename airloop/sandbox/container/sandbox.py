"""One sandbox made by Docker or Podman: its container, its shell, its files and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.sandbox.base import HOME, START_S, WORKSPACE, Clock, Image, Result, Sandbox, SandboxLost, Snapshot, inside
from airloop.sandbox.container import request
from airloop.sandbox.container.docker_api import STDOUT, Done, Engine, Refused, Stream
from airloop.sandbox.container.doorway import Doorway
from airloop.sandbox.container.leftovers import maker_labels, remove
from airloop.sandbox.container.signaller import Signaller
from airloop.sandbox.door.doorkeeper import FILES_LIMIT, archive
from airloop.sandbox.shell import Shell

log = logging.getLogger(__name__)

IDLE_BYTES, IDLE_S = 1 << 16, 0.25  # so much of what is written when nobody waits for it is read at once
LISTED_BYTES = 16 << 20
LISTED = 10_000
KILLED = 137
NOTICE_S = 20.0  # for a busy machine's engine to notice that a container has ended
NOT_RUN = 125  # and above: engines' codes for what could not be started, and shells' for what was killed


class ContainerSandbox(Sandbox):
    def __init__(
        self,
        engine: Engine,
        image: Image,
        runtime: str,
        wishes: request.Wishes,
        closed: Callable[[ContainerSandbox], None],
    ) -> None:
        """`runtime`: of OCI, or the engine's own choice. `closed` is called as soon as the sandbox begins to close."""
        self.runtime = runtime
        self.wishes = wishes
        self._when_closed = closed
        self.engine = engine
        self.image = image
        self.id = ""
        self.shell: Shell | None = None
        self._stream: Stream | None = None
        self._reading: asyncio.Task[None] | None = None
        self._signaller: Signaller | None = None
        self._doorway = Doorway() if image.door else None
        self._said = b""  # by the first process itself
        self._command_started = 0.0
        self._listening = asyncio.Event()  # set while somebody waits for output
        self._listening.set()
        self._over = False
        self._given_up = False
        self._clock = Clock()
        self._frozen = ""  # "engine" or "signals", by which
        self._closed = False

    # --- opening ------------------------------------------------------------------------------------------

    async def open(self, saved: Snapshot | None) -> None:
        mark = Shell.new_mark()
        binds = (*self.image.binds, *([self._doorway.bind] if self._doorway else []))
        image = replace(self.image, binds=binds)
        body = request.create_body(image, mark, maker_labels(), self.engine.podman, self.wishes)
        if self.runtime:
            body["HostConfig"]["Runtime"] = self.runtime
        made = await self.engine.ask("POST", "/containers/create", body, START_S)
        self.id = str(made["Id"])
        await self._check_runtime()
        try:
            await self._attach(mark)  # before it starts: nothing it says is missed
            await self.engine.ask("POST", f"/containers/{self.id}/start", timeout=START_S)
        except Refused as refused:
            raise (self._unfit("it has no /bin/sh") if '"/bin/sh"' in refused.message else refused) from None
        assert self.shell is not None
        try:
            await self.shell.begin(WORKSPACE, "")
        except SandboxLost:
            raise await self._cause_at_start() from None
        await self._open_places()
        await self._check_gpus()
        await self._fill(saved)
        self._signaller = await Signaller.start(self.engine, self.id, START_S)
        if self._doorway:
            self.passage = await self._doorway.open(self.engine, self.id, self.image.container, self.image.door)
        if self.image.setup:
            await self.shell.prepare(WORKSPACE, self.image.setup)

    async def _attach(self, mark: str) -> None:
        self._stream = await self.engine.raw(f"/containers/{self.id}/attach?stream=1&stdin=1&stdout=1&stderr=1")
        self.shell = Shell(self._stream.write, self._interrupt, mark, self.image.limits.output_bytes, self._clock)
        self._reading = asyncio.create_task(self._read(self._stream, self.shell))

    async def _read(self, stream: Stream, shell: Shell) -> None:
        idle = 0  # bytes that nobody waited for, since the last rest
        while (frame := await stream.frame()) is not None:
            kind, data = frame
            if self._closed:
                continue
            if kind == STDOUT:
                shell.received(data)
            elif len(self._said) < 2000:
                self._said += data
            idle = 0 if self._listening.is_set() else idle + len(data)
            if idle > IDLE_BYTES:  # a flood of the background, between commands: there is no hurry to drop it
                idle = 0
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._listening.wait(), IDLE_S)
        self._over = True
        shell.ended()

    async def _open_places(self) -> None:
        assert self.shell is not None
        places = " ".join(request.quoted(place) for place in request.own_places(self.image))
        told = await self.shell.run(f'for place in {places}; do [ -w "$place" ] || echo "$place"; done', START_S)
        if told.output:  # root inside has no rights but those of an owner, and these are its own
            await self._must("its directories", ["chmod", "1777", *told.output.splitlines()], user="0:0")
            await self.shell.run(f"mkdir -p {WORKSPACE}", START_S)
            await self.shell.begin(WORKSPACE, "")

    async def _cause_at_start(self) -> Exception:
        state = await self._end_state()
        said = self._said.decode(errors="replace").strip()
        missing = int(state.get("ExitCode") or 0) - request.NO_TOOL
        if 0 <= missing < len(request.TOOLS.split()):
            return self._unfit(f"it has no {request.TOOLS.split()[missing]}")
        return InfraError(f"the container ended at its start with exit code {state.get('ExitCode')}: {said}")

    async def _end_state(self) -> Mapping[str, Any]:
        """Of a container that has ended; the engine may not have noticed it yet."""
        deadline = time.monotonic() + NOTICE_S
        while True:
            state: Mapping[str, Any] = (await self.engine.ask("GET", f"/containers/{self.id}/json"))["State"]
            if not state.get("Running") and state.get("Status") not in ("created", "stopping"):
                return state
            if time.monotonic() > deadline:
                return state
            await asyncio.sleep(0.1)

    def _unfit(self, why: str) -> AirError:
        return AirError(
            f"The image {self.image.container} cannot carry a sandbox: {why}.",
            f"build one with {request.TOOLS.replace(' ', ', ')} and /bin/sh (any Debian or Ubuntu image has them).",
        )

    async def _check_runtime(self) -> None:
        """An engine may leave this out without a word, too: Podman 4.3 does."""
        if not (wanted := self.runtime):
            return
        found = await self.engine.runtime_of(self.id)
        if Path(found).name != Path(wanted).name:
            raise AirError(
                f"{self.engine.version} runs the container by {found or 'its own choice'}, not by container_runtime = "
                f"{wanted!r}.",
                "Docker: name it in daemon.json under runtimes; Podman: start its service with --runtime, and say the "
                "same here, or leave container_runtime out.",
            )

    async def _check_gpus(self) -> None:
        """An engine that does not understand the request for GPUs may leave it out without a word."""
        if not self.image.gpus:
            return
        found = await self._execute(["sh", "-c", "ls -d /dev/nvidia[0-9]* /dev/dxg 2>/dev/null"])
        if not found.stdout.strip():
            raise AirError(
                f"{self.engine.version} started a container without the GPUs {', '.join(self.image.gpus)}.",
                "Docker: install the NVIDIA container toolkit and try `docker run --gpus all IMAGE nvidia-smi`; "
                "Podman: version 5 or newer and `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`.",
            )

    async def _fill(self, saved: Snapshot | None) -> None:
        if saved is not None:
            script, content = request.RESTORE, saved.archive
        elif self.image.files:
            script = request.PUT
            content = archive((inside(path), data, mode) for path, data, mode in self.image.files)
        else:
            return
        await self._must("the image's files", ["bash", "-c", script, "unpack", str(len(content))], content)

    async def _must(self, what: str, command: list[str], stdin: bytes = b"", user: str = request.USER) -> None:
        done = await self._execute(command, stdin, user=user)
        if done.code != 0:
            raise InfraError(f"{what} could not be put into the container: {done.stderr or done.code}")

    # --- processes inside ---------------------------------------------------------------------------------

    async def _execute(
        self, command: list[str], stdin: bytes = b"", limit: int = 1 << 20, user: str = request.USER
    ) -> Done:
        """A sandbox that is full of processes lets no other start: then what the agent left running is ended first."""
        why = await self._tried(command, stdin, limit, user)
        if isinstance(why, Done):
            return why
        if not await self._running():
            raise await self._cause(SandboxLost("the sandbox has ended"))
        log.warning("sandbox %s starts no process (%s): what the agent left running is ended", self.id[:12], why)
        await self._signal("others", 0)
        why = await self._tried(command, stdin, limit, user)
        if isinstance(why, Done):
            return why
        raise SandboxLost(f"the agent's sandbox can start no process any more: {why}")

    async def _tried(self, command: list[str], stdin: bytes, limit: int, user: str) -> Done | str:
        """What it did, or why it did not start or did not get to its end."""
        try:
            done = await self.engine.execute(self.id, command, user, stdin, limit)
        except Refused as refused:
            return refused.message
        return done if done.code < NOT_RUN else done.stderr or f"exit code {done.code}"

    async def _interrupt(self, how: str) -> None:
        """Acts on what the running command has started; what earlier commands left running goes on."""
        if not await self._signal(how, self._command_started) and how == "shell":
            log.warning("sandbox %s does not obey: it is ended", self.id[:12])
            self._given_up = True
            with contextlib.suppress(InfraError):
                await self.engine.ask("POST", f"/containers/{self.id}/kill", signal="SIGKILL")

    async def _signal(self, how: str, since: float) -> bool:
        assert self.shell is not None
        for _ in range(2):  # the agent may have killed the signaller, with everything else that is its own
            try:
                if self._signaller is None:
                    self._signaller = await Signaller.start(self.engine, self.id)
                await self._signaller.send(how, since, self.shell.pid)
                return True
            except (InfraError, TimeoutError) as error:
                log.info("sandbox %s: no signals (%s)", self.id[:12], error)
                if self._signaller is not None:
                    self._signaller.close()
                self._signaller = None
        return False

    # --- the contract -------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.shell is not None and not self._over and not self._closed

    def _check_open(self) -> None:
        if self._closed or self.shell is None:
            raise InfraError(f"the sandbox {self.id[:12]} is closed")

    async def run(self, command: str, timeout: float) -> Result:
        self._check_open()
        if self._frozen:
            raise InfraError(f"the sandbox {self.id[:12]} is frozen and can run nothing")
        assert self.shell is not None
        self._command_started = time.monotonic()
        self._listening.set()
        try:
            return await self.shell.run(command, timeout, self.image.setup)
        except SandboxLost as lost:
            raise await self._cause(lost) from None
        finally:
            self._listening.clear()

    async def _running(self) -> bool:
        return bool((await self.engine.ask("GET", f"/containers/{self.id}/json"))["State"].get("Running"))

    async def _cause(self, lost: SandboxLost) -> Exception:
        """Nothing inside can send the first process a deadly signal, but the agent's use of memory can."""
        if self._given_up:
            return SandboxLost("nothing could interrupt the command, so its sandbox was ended")
        try:
            state = await self._end_state()
        except InfraError as error:
            return error
        if state.get("Running"):  # and the engine answers: only who is inside can have stopped the talk
            return SandboxLost("its shell can be talked to no more, though its container runs")
        if state.get("ExitCode") == KILLED and not state.get("OOMKilled"):
            return InfraError(f"the sandbox {self.id[:12]} was killed from outside")
        return lost

    async def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._check_open()
        packed = archive([(inside(path), content, mode)])
        done = await self._execute(["bash", "-c", request.PUT, "unpack", str(len(packed))], packed)
        if done.code != 0:  # its disk is full, or it made a file where a directory has to be
            raise SandboxLost(f"{path} cannot be written in the agent's sandbox: {done.stderr or done.code}")

    async def get(self, path: str, limit_bytes: int = 256 << 20) -> bytes | None:
        self._check_open()
        numbers = [str(limit_bytes), str(limit_bytes + 1)]  # files of /proc say they are empty
        name = request.spelled(inside(path))
        done = await self._execute(["bash", "-c", request.GET, "get", name, *numbers], limit=limit_bytes)
        return done.stdout if done.code == 0 and not done.cut else None

    async def list(self, pattern: str) -> list[str]:
        self._check_open()
        done = await self._execute(["sh", "-c", request.LIST], limit=LISTED_BYTES)
        names = [name.decode("utf-8", "surrogateescape")[2:] for name in done.stdout.split(b"\0")[:-1]]
        wanted = tuple(pattern.split("/"))
        return sorted(name for name in names if matches(tuple(name.split("/")), wanted))[:LISTED]

    async def snapshot(self) -> Snapshot:
        self._check_open()
        limit = min(FILES_LIMIT, (self.image.limits.disk_mb << 20) * 2)  # a tar is larger than what is in it
        done = await self._packed(HOME, limit)
        if done.cut or done.code > 1:  # 1: a file changed as it was read
            raise InfraError(f"no snapshot could be made: {done.stderr or 'it is larger than its limit'}")
        return Snapshot(replace(self.image, files=()), done.stdout)

    async def pack(self, limit_bytes: int) -> bytes:
        self._check_open()
        done = await self._packed(WORKSPACE, limit_bytes)
        if done.cut or done.code > 1:
            raise SandboxLost(f"the workspace cannot be read: {done.stderr or 'it is larger than its limit'}")
        return done.stdout

    async def _packed(self, place: str, limit: int) -> Done:
        skip = tuple(os.path.normpath(to) for _, to in self.image.binds if to.startswith(HOME + "/"))
        return await self._execute(["bash", "-c", request.pack(place, skip)], limit=limit)

    async def starved(self) -> bool:
        state = (await self.engine.ask("GET", f"/containers/{self.id}/json"))["State"]
        return bool(state.get("OOMKilled"))

    async def freeze(self) -> None:
        if not self.alive or self._frozen:
            return
        self._clock.stop()
        self._frozen = "engine"
        try:
            await self.engine.ask("POST", f"/containers/{self.id}/pause")
        except Refused as refused:  # without root and with control groups of version 1, Podman cannot
            log.info("container %s cannot be paused (%s): signals stop it", self.id[:12], refused.message)
            self._frozen = "signals"
            for _ in range(2):  # what the first missed was started by what it met
                if not await self._signal("stop", 0):
                    await self.thaw()
                    raise SandboxLost("the agent's processes could not be stopped") from None

    async def thaw(self) -> None:
        if not self._frozen:
            return
        by, self._frozen = self._frozen, ""
        with contextlib.suppress(InfraError):
            if by == "engine":
                await self.engine.ask("POST", f"/containers/{self.id}/unpause")
            else:
                await self._signal("go", 0)
        self._clock.go_on()

    async def close(self) -> None:
        if self._closed:
            return
        await self.thaw()  # not every engine can remove what it has paused
        self._closed = True
        self._listening.set()  # an engine that is not rid of its output does not end
        self._when_closed(self)
        for helper in (self._signaller, self._doorway):
            if helper is not None:
                helper.close()
        if self.id:
            try:
                await remove(self.engine, self.id)
            except InfraError as error:
                log.warning("container %s could not be removed: %s", self.id[:12], error)
        if self._stream is not None:
            self._stream.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def abandon(self) -> None:
        """The backend removes the container; nobody waits for its streams any more."""
        self._closed = True
        if self._doorway:
            self._doorway.remove()


def matches(name: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """A path against a glob, both in parts; "**" is any number of directories."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(matches(name[skip:], pattern[1:]) for skip in range(len(name)))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and matches(name[1:], pattern[1:])
