"""A directory for the sockets and small files of one process's sandboxes, gone when it ends.

What a killed process left behind is removed by the next one that starts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path

SHIM = Path(__file__).parents[1] / "door" / "warm_python.py"
ETC = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost air\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


class RuntimeDirectory:
    """Named after the process that made it, by pid and start time, so that a reused pid is not taken for it."""

    def __init__(self) -> None:
        root = _root()
        reap(root)
        self.token = secrets.token_hex(3)  # a process may have several
        self.path = root / f"{os.getpid()}-{_started(os.getpid())}-{self.token}"
        for name in ("bin", "etc", "worlds"):
            (self.path / name).mkdir(parents=True)
        for name, text in ETC.items():
            (self.path / "etc" / name).write_text(text)

    def install_python(self, real: str) -> None:
        """`python` and `python3` as agents find them first. -I -S: it must start in milliseconds."""
        text = f"#!{real} -IS\n" + SHIM.read_text(encoding="utf-8").replace("@REAL@", real)
        for name in ("python", "python3"):
            file = self.path / "bin" / name
            file.write_text(text)
            file.chmod(0o755)

    def install_first(self) -> None:
        """The shell that is a sandbox's first process. It may be run but not read, and so, by the kernel's rule, its
        memory and environment may not be either: an agent cannot make it end as if it had been killed from outside."""
        file = self.path / "bin" / "first"
        shutil.copyfile(os.path.realpath("/bin/sh"), file)
        file.chmod(0o111)

    def sandbox(self, name: str) -> Path:
        directory = self.path / "worlds" / name
        directory.mkdir()
        return directory

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def reap(root: Path) -> int:
    """Removes directories whose process is gone. Returns how many there were."""
    gone = 0
    for directory in root.iterdir():
        pid, _, rest = directory.name.partition("-")
        if pid.isdigit() and _started(int(pid)) != rest.partition("-")[0]:
            shutil.rmtree(directory, ignore_errors=True)
            gone += 1
    return gone


def _root() -> Path:
    """Short, because the name of a socket has at most 107 bytes; and nobody else's."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    root = Path(base) / f"air-{os.getuid()}"
    if len(str(root)) > 60:
        root = Path("/tmp") / f"air-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to somebody else")
    return root


def _started(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat[stat.rindex(")") + 2 :].split()[19]
    return ""
