"""What `python` is inside a sandbox: asks the warm process for a fork of itself, or becomes the real python.

Installed with the real interpreter's path in place of its first line's. Only what `python FILE`, `python -c` and
`python -` mean is asked for; every other use, and every failure to reach the warm process, runs the real one.
"""

import os
import sys

SOCKET = "/opt/air/run/python.sock"
REAL = "@REAL@"


def request(argv: list[str]) -> tuple[str, list[str], str, bool] | None:
    """(kind, argv of the script, source, unbuffered), or None when the real python must do it."""
    unbuffered = "PYTHONUNBUFFERED" in os.environ
    if argv and argv[0] == "-u":
        unbuffered = True
        argv = argv[1:]
    known = ("PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    if any(name.startswith("PYTHON") and name not in known for name in os.environ):
        return None
    if not argv or argv[0] == "-":
        return ("-", ["-", *argv[1:]], "", unbuffered) if not os.isatty(0) else None
    if argv[0] == "-c" and len(argv) > 1:
        return "-c", ["-c", *argv[2:]], argv[1], unbuffered
    if argv[0].startswith("-") or os.path.isdir(argv[0]) or argv[0].endswith((".zip", ".pyc")):
        return None
    return "file", argv, "", unbuffered


def ask(wish: tuple[str, list[str], str, bool]) -> None:
    import _signal
    import _socket
    import json

    kind, argv, source, unbuffered = wish
    umask = os.umask(0o022)
    os.umask(umask)
    facts = {"kind": kind, "argv": argv, "source": source, "unbuffered": unbuffered}
    facts |= {"cwd": os.getcwd(), "env": dict(os.environ), "umask": umask}
    data = json.dumps(facts).encode()
    door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    door.connect(SOCKET)
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
    head = len(data).to_bytes(4, sys.byteorder)
    door.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    door.sendall(data)
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2):
        _signal.signal(number, lambda number, frame: door.send(bytes([number])))
    answer = b""
    while len(answer) < 4:
        more = door.recv(4 - len(answer))
        if not more:
            sys.stderr.write("python: the interpreter was lost\n")
            os._exit(1)
        answer += more
    code = int.from_bytes(answer, sys.byteorder, signed=True)
    if code < 0:  # ended by a signal: end the same way, so that the shell sees it
        if -code not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def main() -> None:
    wish = request(sys.argv[1:])
    if wish is not None:
        try:  # noqa: SIM105 - importing contextlib costs milliseconds
            ask(wish)
        except (OSError, ValueError):
            pass
    os.execv(REAL, [REAL, *sys.argv[1:]])


if __name__ == "__main__":
    main()
