"""A script of an agent, run in a fork of door.py inside the agent's sandbox. Standard library only.

First the cage (no rights, limits, the filter of system calls), then what `python FILE`, `python -c` and `python -`
do, in a process that has imported a lot already.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import io
import os
import random
import resource
import signal
import struct
import sys
import threading
import types
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38


def become_script(cage: tuple[dict[str, int], bytes], request: dict[str, Any]) -> None:
    code = 1
    try:
        with contextlib.suppress(OSError):  # the channel to the command that stands for us, if it is still open
            os.close(3)
        prepare_process(*cage)
        os.chdir(request["cwd"])
        code = run_script(request)
    except BaseException as error:
        os.write(2, f"python: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def prepare_process(limits: dict[str, int], rules: bytes) -> None:
    """The same cage as the shell's: no rights, limits on resources, the filter of system calls."""
    os.setpgid(0, 0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    drop_rights()
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if rules:
        code = ctypes.create_string_buffer(rules)
        length = len(rules) // 8
        program = struct.pack("=H6xQ", length, ctypes.addressof(code))
        if LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # from here on it may be looked at: it is the agent's own


def call_oneself(words: list[str]) -> None:
    """What `ps` and /proc/self/cmdline show, as far as there is room where the kernel has put our arguments."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(word.encode("utf-8", "replace") for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def drop_rights() -> None:
    """Whoever enters a user namespace has every right in it until it gives them up."""
    for capability in range(64):  # numbers the kernel does not know are refused
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if LIBC.capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def run_script(request: dict[str, Any]) -> int:
    """What `python FILE …`, `python -c …` or `python -` does, in a process that has imported a lot already."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    open_streams(request["unbuffered"])
    reseed()
    argv = request["argv"]
    extra = [p for p in request["env"].get("PYTHONPATH", "").split(":") if p]
    first = os.path.dirname(os.path.realpath(argv[0])) if request["kind"] == "file" else ""
    sys.path[:0] = [first, *extra]
    sys.argv[:] = argv
    given = [request["source"]] if request["kind"] == "-c" else []
    sys.orig_argv[:] = [sys.executable, *argv[:1], *given, *argv[1:]]
    call_oneself(["python", *sys.orig_argv[1:]])
    sys.dont_write_bytecode = False
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    for own in [name for name in sys.modules if name.startswith("door_")]:
        del sys.modules[own]  # a script may have modules of these names
    gc.enable()
    try:
        if request["kind"] == "file":
            main.__dict__["__file__"] = argv[0]
            try:
                with open(argv[0], "rb") as file:
                    source = file.read()
            except OSError as error:
                line = f"{sys.executable}: can't open file {os.path.abspath(argv[0])!r}: [Errno {error.errno}] "
                sys.stderr.write(f"{line}{error.strerror}\n")
                return finish(2)
            name = argv[0]
        else:
            source = request["source"].encode() if request["kind"] == "-c" else sys.stdin.buffer.read()
            name = "<string>" if request["kind"] == "-c" else "<stdin>"
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
        return finish(0)
    except SystemExit as stop:
        return finish(exit_code(stop.code))
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # told twice: by the shell's command and by the host
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # our own frames are none of the script's
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return finish(130 if isinstance(error, KeyboardInterrupt) else 1)


def open_streams(unbuffered: bool) -> None:
    def stream(fd: int) -> io.TextIOWrapper:
        if fd == 0:
            return open(fd, encoding="utf-8", errors="surrogateescape", closefd=False)
        through = unbuffered or fd == 2
        raw: Any = open(fd, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - it stays open
        errors = "backslashreplace" if fd == 2 else "strict"
        return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=fd == 2 or os.isatty(fd), write_through=through)

    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        opened = stream(fd)
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def reseed() -> None:
    """A fork shares its generators' state with every other fork: each script gets its own."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return 1


def finish(code: int) -> int:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code
