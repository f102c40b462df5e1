"""The host's side of door.py: starts it, and asks it for files of a sandbox."""

from __future__ import annotations

import array
import asyncio
import contextlib
import io
import json
import logging
import os
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from airloop.errors import InfraError
from airloop.forkserver import ONE_THREAD
from airloop.sandbox.base import LATEST, Result, SandboxLost

log = logging.getLogger(__name__)

DOOR = Path(__file__).with_name("door.py")
ANSWER_S = 60.0
END_S, END_LOOKS = 0.5, 25  # for the system to say that a door that hung up has ended
WORDS_BYTES = 1000  # of the end of what it wrote, in an error or the log
NOBODY = 65534
FILES_LIMIT = 1 << 30  # bytes of one archive
Facts = Mapping[str, Any]


class Door:
    """One running door. `preload` are modules for agents' scripts; without any it only moves files. `rehearsal` is
    Python text that it runs once after that: what libraries put off until their first use is then done for all."""

    def __init__(
        self, directory: Path, name: str, python: str, preload: Sequence[str] = (), rehearsal: str = ""
    ) -> None:
        self.name = name
        self.sandboxes: set[str] = set()  # that it knows
        self.address = str(directory / f"{name}.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.address)
        os.chmod(self.address, 0o600)
        listener.listen(128)
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the door
        self._answered = False
        program = sealed_copy(python)
        self.process = subprocess.Popen(
            [python, str(DOOR), str(listener.fileno()), ",".join(preload), rehearsal],
            executable=f"/proc/self/fd/{program}",
            stdin=subprocess.PIPE,  # its end is ours: with us the door ends
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            pass_fds=[listener.fileno(), program],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **ONE_THREAD},
            cwd="/",
            start_new_session=True,
        )
        listener.close()
        os.close(program)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()
        Path(self.address).unlink(missing_ok=True)

    async def ask(
        self, op: str, facts: Facts, payload: bytes = b"", patience_s: float = ANSWER_S
    ) -> tuple[dict[str, Any], bytes]:
        header = json.dumps({"op": op, "bytes": len(payload), **facts}).encode() + b"\n"
        before = self._written()
        try:
            async with asyncio.timeout(patience_s):
                reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 20)
                try:
                    writer.write(header + payload)
                    await writer.drain()
                    line = await reader.readline()
                    answer = json.loads(line) if line.endswith(b"\n") else {}
                    rest = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise InfraError(f"the sandbox's door did not answer {op!r}: {error!r}{await self._why(before)}") from error
        if not answer:  # whoever served it is gone: a child of the door, or the door itself
            raise InfraError(f"the sandbox's door gave no answer to {op!r}{await self._why(before)}")
        self._opened()
        if answer.get("theirs"):
            raise SandboxLost(f"the sandbox does not take {op!r}: {answer['error']}")
        if "error" in answer:
            raise InfraError(f"the sandbox's door failed at {op!r}: {answer['error']}")
        return answer, rest

    async def call(self, place: Facts, source: str, given: bytes, timeout: float, limit: int) -> Result:
        """Runs Python text in a sandbox (`place`: its id, the directory, the environment) with `given` as its input."""
        longest = timeout * LATEST
        asked = {**place, "source": source, "timeout": timeout, "longest": longest, "limit": limit}
        facts, output = await self.ask("call", asked, given, patience_s=longest + ANSWER_S)
        first, last = output[: facts["head"]], output[facts["head"] :]
        note = f"\n[… {facts['cut']} bytes left out …]\n".encode() if facts["cut"] else b""
        text = (first + note + last).decode(errors="replace")
        code = 124 if facts["timed_out"] else facts["code"] if facts["code"] >= 0 else 128 - facts["code"]
        return Result(text, code, place["cwd"], 0.0, facts["timed_out"], facts["cut"])

    async def listen_inside(self, id: str, port: int) -> socket.socket:
        """A listening socket on a sandbox's own loopback, to be served from out here. Asked for by another thread: the
        door hears one request at a time, and may be listening to one that this thread is about to send."""
        return await asyncio.to_thread(self._listen_inside, id, port)

    def _listen_inside(self, id: str, port: int) -> socket.socket:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(self.address)
            connection.sendall(json.dumps({"op": "listen", "id": id, "port": port, "bytes": 0}).encode() + b"\n")
            fds = array.array("i")
            said, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_LEN(fds.itemsize))
        for _, _, content in ancillary:
            fds.frombytes(content[: fds.itemsize])
        if not fds:
            raise InfraError(f"no port could be opened inside the sandbox: {said.decode(errors='replace')}")
        return socket.socket(fileno=fds[0])

    def last_output(self, since: int = 0) -> str:
        """The end of what the door and its children wrote to stderr, after the first `since` bytes. Read by place: they
        share the file's position. What an agent can make them write is in it, so only what can be printed is kept."""
        if self.errors.closed:
            return ""
        start = max(since, self._written() - WORDS_BYTES)
        text = os.pread(self.errors.fileno(), WORDS_BYTES, start).decode(errors="replace")
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in text).strip()

    def _written(self) -> int:
        return 0 if self.errors.closed else os.fstat(self.errors.fileno()).st_size

    async def _why(self, before: int) -> str:
        """For an error: whether the door has ended, and what was written since the request was made."""
        for _ in range(END_LOOKS):
            if not self.alive:
                break
            await asyncio.sleep(END_S / END_LOOKS)
        ended = "" if self.alive else f"; it ended with {self.process.returncode}"
        words = self.last_output(before if self.alive else 0)
        return f"{ended}; its last output lines:\n{words}" if words else ended

    def _opened(self) -> None:
        """With its first answer the door has begun to serve; what it said until then says what it does without."""
        if not self._answered and (words := self.last_output()):
            log.warning("the sandbox's door %r said as it started:\n%s", self.name, words)
        self._answered = True


def sealed_copy(program: str) -> int:
    """The program in memory, where nobody can change it. A script's /proc/self/exe leads to the file that the door
    was started from: it must not lead to the host's own interpreter."""
    fd = os.memfd_create("python", os.MFD_ALLOW_SEALING)
    with open(program, "rb") as file:
        while data := file.read(1 << 22):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
    import fcntl  # Linux alone seals files; this module is imported everywhere

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    if os.geteuid() == 0:  # nobody's, and not to be read: a lock on what all scripts share could be seen by all
        os.fchown(fd, NOBODY, NOBODY)
    os.fchmod(fd, 0o111 if os.geteuid() == 0 else 0o555)
    return fd


def archive(files: Iterable[tuple[str, bytes, int]]) -> bytes:
    """A tar of absolute paths."""
    out = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=out, mode="w:") as tar:
        for path, content, mode in files:
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size, info.mode, info.mtime = len(content), mode, now
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()
