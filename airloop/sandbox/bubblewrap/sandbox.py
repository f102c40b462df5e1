"""One sandbox made by bubblewrap: its first process, its shell, its files and its end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from airloop.errors import InfraError
from airloop.sandbox import processes
from airloop.sandbox.base import START_S, WORKSPACE, Clock, Image, Result, SandboxLost, Snapshot, StartTimeout, inside
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.command import PROXY_PORT, environment
from airloop.sandbox.bubblewrap.files import SandboxFiles
from airloop.sandbox.bubblewrap.host import Host
from airloop.sandbox.bubblewrap.network import Proxy
from airloop.sandbox.bubblewrap.start import child_pid, limits_of, set_limits, spawn
from airloop.sandbox.door.doorkeeper import Door, Facts, archive
from airloop.sandbox.passage import Passage
from airloop.sandbox.shell import KILLED, Shell

log = logging.getLogger(__name__)

CLOSE_S = 5.0
NOTICE_S = 20.0  # for bwrap, on a busy machine, to end behind its sandbox
FREEZE_S, FREEZE_LOOK_S = 10.0, 0.0005  # for everything to stand still, and between looks


class BubblewrapSandbox(SandboxFiles):
    def __init__(self, host: Host, image: Image, name: str) -> None:
        self.host = host
        self.image = image
        self.name = name
        self.groups: list[Path] = []
        self.directory = host.runtime.sandbox(name)
        self.process: subprocess.Popen[bytes] | None = None
        self.first = 0  # the host's number of the sandbox's first process
        self.namespace = 0
        self.shell: Shell | None = None
        self.proxy: Proxy | None = None
        self._warming: asyncio.Task[object] | None = None
        self._errors = os.memfd_create("bwrap", os.MFD_CLOEXEC)
        self._unsent = b""
        self._ended = asyncio.Event()
        self._command_started = 0.0
        self._computed = 0.0  # by all its processes, when the command started
        self._clock = Clock()
        self._frozen = False
        self._stopped: set[int] = set()  # by a signal, where no control group can freeze
        self._closed = False
        self._rlimits = limits_of(host, image.limits)

    # --- opening ------------------------------------------------------------------------------------------

    async def open(self, saved: Snapshot | None) -> None:
        try:
            self.groups = self.host.groups.make(f"{self.host.runtime.token}-{self.name}", self.image.limits)
        except OSError as error:
            raise InfraError(f"no control group could be made for a sandbox: {error}") from error
        mark = Shell.new_mark()
        self.process, info, release = spawn(self.host, self.image, self.directory, self.groups, mark, self._errors)
        try:
            async with asyncio.timeout(START_S):
                self.first = await child_pid(info)
            set_limits(self.first, self._rlimits)
            os.write(release, b"x")
        except TimeoutError as error:
            raise StartTimeout(f"bubblewrap did not start a sandbox within {START_S:g} s {self._said()}") from error
        except (OSError, ValueError) as error:
            raise InfraError(f"bubblewrap did not start a sandbox: {self._said() or error}") from error
        finally:
            os.close(info)
            os.close(release)
        process = self.process
        assert process is not None and process.stdout is not None and process.stdin is not None
        self.shell = Shell(
            self._send, self._interrupt, mark, self.image.limits.output_bytes, self._clock, self._delayed
        )
        asyncio.get_running_loop().add_reader(process.stdout, self._read)
        try:
            await self.shell.begin(WORKSPACE, "")
        except SandboxLost as error:
            raise InfraError(f"bubblewrap did not start a sandbox: {self._said()}") from error
        self.namespace = processes.namespace_of(self.first)
        await self._register()
        await self._fill(saved)
        door = await self._files()
        if self.image.network:
            self.proxy = await Proxy.start(await door.listen_inside(self.name, PROXY_PORT), self.image.network)
        if self.image.door:
            self.passage = await Passage.start(await door.listen_inside(self.name, self.image.door))
        if self.image.setup:
            await self.shell.prepare(WORKSPACE, self.image.setup)
        self._pause()

    async def _register(self) -> None:
        await self._files()
        if self.host.warm_python:  # importing takes seconds the first time: until then python starts cold
            self._warming = asyncio.create_task(self._register_with(self.host.door("python")))

    async def _files(self) -> Door:
        """The door that moves files, which knows this sandbox: one that has ended has taken along what it knew."""
        return await self._register_with(self.host.door("files"))

    async def _register_with(self, door: Door) -> Door:
        if self.name in door.sandboxes:
            return door
        facts: dict[str, object] = {
            "id": self.name,
            "pid": self.first,
            "groups": [str(group) for group in self.groups],
            "limits": self._rlimits,
            "filter": base64.b64encode(self.host.filter or b"").decode(),
        }
        if door.name == "python":
            facts["python_socket"] = str(self.directory / "python.sock")
        await door.ask("register", facts)
        door.sandboxes.add(self.name)
        return door

    async def _fill(self, saved: Snapshot | None) -> None:
        if saved is not None:
            await (await self._files()).ask("put", {"id": self.name, "keep_times": True}, saved.archive)
        elif self.image.files:
            files = archive((inside(path), content, mode) for path, content, mode in self.image.files)
            await (await self._files()).ask("put", {"id": self.name}, files)

    # --- the shell's pipes --------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None and self.shell is not None
        try:
            data = os.read(self.process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.shell.received(data)
            return
        asyncio.get_running_loop().remove_reader(self.process.stdout)
        self._ended.set()
        self.shell.ended()

    def _listen(self) -> None:
        """Between commands nobody reads: what the background writes then has to wait, and is dropped here."""
        assert self.process is not None and self.process.stdout is not None and self.shell is not None
        left = 1 << 18
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (data := os.read(self.process.stdout.fileno(), left)):
                self.shell.received(data)
                left -= len(data)
        asyncio.get_running_loop().add_reader(self.process.stdout, self._read)

    def _pause(self) -> None:
        if not self._closed and self.process is not None and self.process.stdout is not None:
            asyncio.get_running_loop().remove_reader(self.process.stdout)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        assert self.process is not None and self.process.stdin is not None
        if self._ended.is_set():
            return
        loop = asyncio.get_running_loop()
        try:
            sent = os.write(self.process.stdin.fileno(), self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the sandbox has ended: whoever waits for a mark is told by _read
            loop.remove_writer(self.process.stdin)
            self._unsent = b""
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            loop.add_writer(self.process.stdin, self._flush)
        else:
            loop.remove_writer(self.process.stdin)

    async def _interrupt(self, how: str) -> None:
        """Acts on what the running command has started; what earlier commands left running goes on."""
        assert self.shell is not None
        found = list(processes.of_namespace(self.namespace, self._candidates()))
        processes.stop_command(how, found, self.shell.pid, self._command_started)

    def _candidates(self) -> list[int] | None:
        return cgroups.members(self.groups[0]) if self.groups else None

    # --- the contract -------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.process is not None and not self._ended.is_set() and not self._closed

    def cpu_seconds(self) -> float | None:
        return cgroups.cpu_seconds(self.groups)

    def _delayed(self, timeout: float) -> float:
        """How long what the command has started stood in line for a core. Nothing once it has computed as much as it
        may in that time: then it stands behind itself."""
        computed = self.cpu_seconds()
        if computed is not None and computed - self._computed >= timeout * self.image.limits.cpus:
            return 0.0
        found = processes.of_namespace(self.namespace, self._candidates())
        return max((processes.queued_s(p.pid) for p in found if p.started >= self._command_started), default=0.0)

    async def starved(self) -> bool:
        return cgroups.ran_out_of_memory(self.groups)

    async def run(self, command: str, timeout: float) -> Result:
        self._check_running()
        assert self.shell is not None
        self._command_started = processes.now()
        self._computed = self.cpu_seconds() or 0.0
        self._listen()
        try:
            return await self.shell.run(command, timeout, self.image.setup)
        except SandboxLost as lost:
            raise await self._cause(lost) from None
        finally:
            self._pause()

    async def python(self, source: str, given: bytes, timeout: float) -> Result:
        self._check_running()
        if self._warming is None:
            return await super().python(source, given, timeout)
        await asyncio.shield(self._warming)
        started = time.monotonic()
        door = await self._register_with(self.host.door("python"))
        place = {"id": self.name, "cwd": WORKSPACE, "env": environment(self.image)}
        try:
            ran = await door.call(place, source, given, timeout, self.image.limits.output_bytes)
        except InfraError:
            # Whoever waits for the script has the script's limits, and may be what the kernel ends.
            if not (door.alive and self.alive and cgroups.ran_out_of_memory(self.groups)):
                raise
            ran = Result("", KILLED, WORKSPACE, 0.0)
        return replace(ran, seconds=time.monotonic() - started)

    def _check_open(self) -> None:
        if not self.alive:
            raise InfraError(f"the sandbox {self.name} is closed")

    def _check_running(self) -> None:
        self._check_open()
        if self._frozen:
            raise InfraError(f"the sandbox {self.name} is frozen and can run nothing")

    async def _cause(self, lost: SandboxLost) -> Exception:
        """Nothing inside can send its first process a deadly signal: one that died of a signal died from outside."""
        assert self.process is not None
        if self._closed:
            return InfraError(f"the sandbox {self.name} was closed under a command")
        if await processes.ended(self.process, NOTICE_S):
            killed = (code := self.process.returncode) < 0 or code == 128 + signal.SIGKILL
            if killed and not cgroups.ran_out_of_memory(self.groups):
                return InfraError(f"the sandbox {self.name} was killed from outside (exit code {code}) {self._said()}")
        return lost

    async def _ask(self, op: str, facts: Facts, payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        self._check_open()
        return await (await self._files()).ask(op, {"id": self.name, **facts}, payload)

    async def freeze(self) -> None:
        if not self.alive or self._frozen:
            return
        self._frozen = True
        self._clock.stop()
        deadline = time.monotonic() + FREEZE_S
        by_group = cgroups.freeze(self.groups, True)
        while not (cgroups.is_frozen(self.groups) if by_group else self._stop_running()):
            if time.monotonic() > deadline:
                self._thaw()
                raise SandboxLost("the agent's processes could not be stopped")
            await asyncio.sleep(FREEZE_LOOK_S)

    async def thaw(self) -> None:
        self._thaw()

    def _thaw(self) -> None:
        if not self._frozen:
            return
        self._frozen = False
        with contextlib.suppress(OSError):
            cgroups.freeze(self.groups, False)
        processes.send(self._stopped, signal.SIGCONT)
        self._stopped.clear()
        self._clock.go_on()

    def _stop_running(self) -> bool:
        """Stops what runs, but for what the agent itself has stopped; True when nothing did."""
        found = [p.pid for p in processes.of_namespace(self.namespace, self._candidates())]
        running = {pid for pid in found if not processes.is_stopped(pid)}
        processes.send(running, signal.SIGSTOP)
        self._stopped |= running
        return not running

    async def close(self) -> None:
        if self._closed:
            return
        self._thaw()  # what is frozen cannot end
        self._closed = True
        self.host.sandboxes.discard(self)
        for way in (self.proxy, self.passage):
            if way is not None:
                way.close()
        if self.process is not None:
            await self._end_process()
        await self._forget()
        os.close(self._errors)
        await asyncio.to_thread(self._remove)

    def abandon(self) -> None:
        """As close(), when there is no event loop any more to wait with."""
        if self._closed:
            return
        self._thaw()
        self._closed = True
        self.host.sandboxes.discard(self)
        if self.process is not None:
            self._kill(self.process)
            self._check_end(self.process, processes.waited(self.process, CLOSE_S))
        self._remove()

    async def _forget(self) -> None:
        if self._warming is not None:
            await asyncio.gather(self._warming, return_exceptions=True)
        for door in self.host.open_doors():
            with contextlib.suppress(InfraError):
                await door.ask("forget", {"id": self.name})

    async def _end_process(self) -> None:
        process = self.process
        assert process is not None and process.stdout is not None and process.stdin is not None
        loop = asyncio.get_running_loop()
        for pipe in (process.stdout, process.stdin):
            loop.remove_reader(pipe)
            loop.remove_writer(pipe)
        if self.shell is not None and not self._ended.is_set():
            self._ended.set()
            self.shell.ended()  # whoever waits for a command is told
        self._kill(process)
        self._check_end(process, await processes.ended(process, CLOSE_S))
        for pipe in (process.stdout, process.stdin):
            with contextlib.suppress(OSError):
                pipe.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the first process, and with it all others; bwrap ends after it has seen them end. Until then the
        first process's number cannot belong to another."""
        if self.first and process.poll() is None:
            processes.send([self.first], signal.SIGKILL)
        else:  # it was given up while starting: its child, which waits for our word, must not outlive it
            processes.send(processes.children(process.pid), signal.SIGKILL)
            process.kill()

    def _check_end(self, process: subprocess.Popen[bytes], ended: bool) -> None:
        if not ended:
            log.warning("sandbox %s does not end although it was killed", self.name)
            process.kill()

    def _remove(self) -> None:
        for group in self.groups:
            processes.send(cgroups.members(group), signal.SIGKILL)
        if not cgroups.remove(self.groups):
            log.warning("the control groups of sandbox %s are still in use", self.name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _said(self) -> str:
        return os.pread(self._errors, 2000, 0).decode(errors="replace").strip()
