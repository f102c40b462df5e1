"""Files of a sandbox, read and written by a child of door.py that has entered it. Standard library only."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
import stat
import tarfile
from collections.abc import Callable
from typing import Any

Header = dict[str, Any]
Answer = tuple[Header, bytes]
Payload = Callable[[], bytes]


def put(header: Header, payload: Payload) -> Answer:
    """Unpacks a tar of absolute paths. What is in the way of a file is removed, not followed."""
    with tarfile.open(fileobj=io.BytesIO(payload()), mode="r:") as tar:
        for member in tar:
            path = "/" + member.name.lstrip("/")
            if member.isdir():
                os.makedirs(path, exist_ok=True)
                os.chmod(path, member.mode)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            clear(path)
            if member.issym():
                os.symlink(member.linkname, path)
                continue
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                content = tar.extractfile(member)
                file.write(content.read() if content else b"")
                os.fchmod(file.fileno(), member.mode)
            if header.get("keep_times"):
                os.utime(path, (member.mtime, member.mtime))
    return {"ok": True}, b""


def clear(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(path)


def get(header: Header, payload: Payload) -> Answer:
    """Files one after the other, with the size of each; null for one that is not there or larger than the limit, or
    that makes all of them larger than the total."""
    parts: list[bytes] = []
    sizes: list[int | None] = []
    left = header["total"]
    for path in header["paths"]:
        data = read(path, min(header["limit"], left))
        sizes.append(None if data is None else len(data))
        parts.append(data or b"")
        left -= len(parts[-1])
    return {"sizes": sizes}, b"".join(parts)


def read(path: str, limit: int) -> bytes | None:
    """A regular file; anything else is as good as nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit:
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        data = file.read(limit + 1)
    return data if len(data) <= limit else None  # files of /proc say they are empty


def listing(header: Header, payload: Payload) -> Answer:
    root = pathlib.Path(header["root"])
    found = []
    for path in root.glob(header["pattern"]):
        if path.is_file() and not path.is_symlink():
            found.append(str(path.relative_to(root)))
        if len(found) >= header["limit"]:
            break
    return {"ok": True}, json.dumps(sorted(found)).encode()


def pack(header: Header, payload: Payload) -> Answer:
    """A tar of directories, without what is mounted into them from outside."""
    out = io.BytesIO()
    skip = set(header["skip"])

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.islnk():  # another name of a file that is packed already: a file of its own
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.lstat("/" + info.name).st_size
        if not (info.isreg() or info.isdir() or info.issym()) or "/" + info.name in skip:
            return None
        # Before it is read: a file of holes has a size, and takes no room until then.
        if out.tell() + info.size > header["limit"]:
            raise ValueError("the snapshot is larger than its limit")
        return info

    with tarfile.open(fileobj=out, mode="w:") as tar:
        for path in header["paths"]:
            tar.add(path, filter=wanted)
    return {"ok": True}, out.getvalue()


OPERATIONS = {"put": put, "get": get, "list": listing, "pack": pack}
