"""A persistent bash behind one pair of pipes.

Bash runs interactively without a terminal: then an interrupt ends the command and not the shell, and errors
that would end a script do not end it either. Output and the marks of finished commands come on one channel, so
their order is the order in which they were written. A mark carries a number that only this shell knows; an agent
that forges one deceives itself alone, because no score is ever read from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable

from airloop.errors import InfraError
from airloop.sandbox.base import LATEST, START_S, Clock, Result, SandboxLost, StartTimeout

# Runs as the first process of a sandbox and starts bash again whenever it ends. fd 8 keeps the channel for marks.
# What an ended bash had not read is dropped up to the line that begins a new one.
SUPERVISOR = (
    'exec 8>&1; while :; do while IFS= read -r line || exit; do [ "$line" = "$AIR_MARK" ] && break; done;'
    " PS1= PS2= bash --norc --noprofile --noediting -i 2>&1;"
    r""" printf '\036%s X %s\036' "$AIR_MARK" "$?" >&8; done"""
)
# __air_status gives a command the status of the one before, without a process that may not be had any more.
PRELUDE = (
    "PS1= PS2= PS4='+ '; set +m +H +o history; unset HISTFILE AIR_MARK; declare -F __air_status >/dev/null || "
    '{ __air_status() { return "$1"; }; readonly -f __air_status; }'
)

AGAIN_S = 5.0
MOST_MARKS = 100  # that may wait to be read: more are an agent's
INTERRUPT_S = 1.0  # from SIGINT until it is SIGKILL
KILL_S = 3.0  # from SIGKILL until the shell itself is given up
FROZEN_S = 0.05  # between looks at a clock that stands still
CLOCK_S = 0.005  # a timer may be early by
LATE_S = 0.05  # less than this is not waited for
KILLED = 137  # exit code reported when the shell had to be replaced

# What bash says when a command dies of a signal and there is no terminal to mend.
NO_TERMINAL = re.compile(rb"bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n")

NUMBER = re.compile(r"[0-9]{1,9}")

Send = Callable[[bytes], None]
Interrupt = Callable[[str], Awaitable[None]]  # "interrupt", "kill" (all but the shell) or "shell" (everything)
Delayed = Callable[[float], float]  # of a command's time, by its limit: the seconds in which others had the cores


class Kept:
    """The first and the last half of what may be kept of an output, and how much lay between."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.head = bytearray()
        self.tail = bytearray()
        self.cut = 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half + 65536:
            self._trim()

    def _trim(self) -> None:
        excess = len(self.tail) - self.half
        if excess > 0:
            self.cut += excess
            del self.tail[:excess]

    def text(self) -> tuple[str, int]:
        self._trim()
        if not self.cut:
            return NO_TERMINAL.sub(b"", bytes(self.head) + bytes(self.tail)).decode(errors="replace"), 0
        note = f"\n[… {self.cut} bytes left out …]\n"
        tail = NO_TERMINAL.sub(b"", bytes(self.tail)).decode(errors="replace")
        return self.head.decode(errors="replace") + note + tail, self.cut


def quoted(command: str) -> bytes:
    """`command` as one word on one line of bash, byte for byte."""
    text = command.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return b"$'" + text.encode("utf-8", "surrogatepass") + b"'"


class Shell:
    """The protocol, whatever carries it. The carrier calls `received` with what comes and `ended` at the end."""

    def __init__(
        self,
        send: Send,
        interrupt: Interrupt,
        mark: str,
        output_bytes: int,
        clock: Clock | None = None,
        delayed: Delayed = lambda timeout: 0.0,
    ) -> None:
        self._send = send
        self._interrupt = interrupt
        self._sync = mark.encode() + b"\n"
        self._mark = b"\x1e" + mark.encode() + b" "
        self._limit = output_bytes
        self._now = (clock or Clock()).now
        self._delayed = delayed
        self._count = 0
        self._last_code = 0
        self._pending = b""
        self._kept: Kept | None = None
        self._marks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.cwd = "/"
        self.pid = 0  # of bash, as its own sandbox numbers it
        self.over = False

    @staticmethod
    def new_mark() -> str:
        return secrets.token_hex(8)

    # --- what comes in ------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        data = self._pending + data
        while (start := data.find(self._mark)) >= 0:
            end = data.find(b"\x1e", start + len(self._mark))
            if end < 0:
                break
            self._keep(data[:start])
            mark = data[start + len(self._mark) : end]
            if self._marks.qsize() < MOST_MARKS:
                self._marks.put_nowait(mark)
            if mark.startswith(b"X"):  # what a new shell says at its start is not the command's
                self._kept = None
            data = data[end + 1 :]
        if start >= 0 and len(data) - start < 65536:  # a mark that has not come in full
            self._keep(data[:start])
            self._pending = data[start:]
            return
        hold = _partial(data, self._mark)
        self._keep(data[: len(data) - hold])
        self._pending = data[len(data) - hold :]

    def _keep(self, data: bytes) -> None:
        if self._kept is not None:  # what background processes write between commands is dropped
            self._kept.add(data)

    def ended(self) -> None:
        self.over = True
        self._marks.put_nowait(None)

    # --- what goes out ------------------------------------------------------------------------------------

    async def begin(self, cwd: str, setup: str, timeout: float = START_S) -> None:
        """Has bash started and prepares it: quiet, in `cwd`, with `setup` done."""
        self._send(b"\n" + self._sync)
        await self.prepare(cwd, setup, timeout)

    async def prepare(self, cwd: str, setup: str, timeout: float = START_S) -> None:
        self._count += 1
        line = PRELUDE.encode() + b"; cd " + quoted(cwd) + b" || cd /; "
        line += b"eval " + quoted(setup) + b" </dev/null >/dev/null 8>&-; " if setup else b""
        self._send(line + self._report(b"$$"))
        mark = await self._wait(self._count, self._now() + timeout, starting=True)
        if mark is None:
            raise StartTimeout(f"the sandbox's shell did not start within {timeout:g} s")
        self.pid = int(mark[0])
        self.cwd = mark[1]
        self._last_code = 0

    async def run(self, command: str, timeout: float, setup: str = "") -> Result:
        """`setup` is what a new shell needs should this one be lost."""
        if "\0" in command:
            return Result("bash: a command cannot hold a NUL character\n", 2, self.cwd, 0.0)
        started = self._now()
        kept = self._kept = Kept(self._limit)
        self._count += 1
        status = b"" if self._last_code == 0 else b"__air_status %d; " % self._last_code
        # The report has a line of its own: bash drops the rest of a line that is interrupted or cannot fork.
        self._send(status + b"eval " + quoted(command) + b" </dev/null 8>&-\n" + self._report(b"$?"))
        timed_out = restarted = False
        killed = KILLED
        try:
            mark = await self._wait_own_time(started, timeout)
            if mark is None:
                timed_out = True
                mark = await self._stop()
        except _Ended as ended:
            mark, killed = None, ended.code
        finally:
            self._kept = None
        if mark is None:
            restarted = True
            await self._begin_again(setup)
            code = killed
        else:
            code, self.cwd = int(mark[0]) & 0xFF, mark[1]
        self._last_code = code = 124 if timed_out else code
        text, cut = kept.text()
        return Result(text, code, self.cwd, self._now() - started, timed_out, cut, restarted)

    async def _begin_again(self, setup: str) -> None:
        """After a shell has ended under a command. If that fails, the command has seen to it."""
        for _ in range(2):
            with contextlib.suppress(InfraError):
                await self.begin(self.cwd, setup, AGAIN_S)
                return
            await self._kill()
        raise SandboxLost("the command left no way to start another shell")

    def _report(self, value: bytes) -> bytes:
        """Bash text that writes this command's mark: its number, a value, the directory."""
        mark = self._mark[1:-1]
        return b'builtin printf \'\\036%%s %%s %%s %%s\\036\' %s %d "%s" "$PWD" >&8\n' % (mark, self._count, value)

    async def _stop(self) -> tuple[str, str] | None:
        """Ends the running command: first politely. None when only a new shell will do."""
        for how, patience in (("interrupt", INTERRUPT_S), ("kill", KILL_S)):
            await self._interrupt(how)
            self._count += 1
            self._send(
                b"\n\n" + self._report(b"130")
            )  # bash may notice the interrupt one character late, and drop that
            mark = await self._wait(self._count, self._now() + patience)
            if mark is not None:
                return mark
        await self._kill()
        return None

    async def _kill(self) -> None:
        """Ends bash, and waits until it has ended: it reads ahead, and would take what is meant for the next one."""
        await self._interrupt("shell")
        with contextlib.suppress(_Ended):
            await self._wait(-1, self._now() + KILL_S)

    async def _wait_own_time(self, started: float, timeout: float) -> tuple[str, str] | None:
        """The command's mark; None when it has had `timeout`. How loaded the machine is must not decide what a script
        is worth, so the time in which it could have run and others did is not its own."""
        deadline = started + timeout
        while (mark := await self._wait(self._count, deadline)) is None:
            later = started + min(timeout + self._delayed(timeout), timeout * LATEST)
            if later - deadline < LATE_S:
                return None
            deadline = later
        return mark

    async def _wait(self, number: int, deadline: float, starting: bool = False) -> tuple[str, str] | None:
        """The mark of command `number`; None at the deadline. _Ended when bash has ended, unless it is starting."""
        looked = False
        while True:
            if self.over and self._marks.empty():
                raise SandboxLost("the sandbox ended under the command")
            left = deadline - self._now()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    raw = await self._marks.get()
            except TimeoutError:
                if deadline - self._now() >= CLOCK_S:
                    await asyncio.sleep(FROZEN_S)  # the sandbox was frozen for a while, or still is
                elif looked or self._marks.empty():
                    return None
                else:  # what came while this process itself had no core; once, as an agent's marks may come for ever
                    looked = True
                continue
            if raw is None:
                raise SandboxLost("the sandbox ended under the command")
            fields = raw.decode(errors="replace").split(" ", 2)
            if fields[0] == "X" and not starting:
                raise _Ended(fields[1] if len(fields) > 1 else "")
            if len(fields) == 3 and fields[0] == str(number) and NUMBER.fullmatch(fields[1]):
                return fields[1], fields[2]


class _Ended(Exception):
    """Bash has ended by itself; the supervisor is starting another."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = int(code) & 0xFF if NUMBER.fullmatch(code) else KILLED


def _partial(data: bytes, mark: bytes) -> int:
    """How many of the last bytes may be the beginning of a mark."""
    for length in range(min(len(mark) - 1, len(data)), 0, -1):
        if data.endswith(mark[:length]):
            return length
    return 0
