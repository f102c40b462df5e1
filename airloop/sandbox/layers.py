"""A world's own view of the files that all worlds are shown, so that a lock on one of them is seen in no other world.

A lock lies on an inode, and to take one or to see it needs no more than the right to read. An overlay without an upper
layer shows the same files through inodes of its own, at the cost of one mount for each file system that they lie on.
bwrap 0.8 makes none: it is started in a mount namespace that has them already, and that ends with it. Devices and what
is shown of the host's /proc are made anew there, and the namespace of time, whose file in /proc all would share, is
unshared too.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

TRIAL_S = 20.0
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# What cannot be a layer is shown as it is: then its locks are seen, and nothing else is different.
MOUNT = f"""place=$1; shift
mount -t tmpfs -o mode=755 air "$place" && cd "$place" && mkdir empty dev proc 0 1 2 3 4 5 6 7 || exit
mount -t proc proc proc || exit
cp -a {" ".join(f"/dev/{name}" for name in DEVICES)} dev || exit
number=0
while [ "$1" != -- ]; do
  mount -t overlay -o "ro,lowerdir=$1:$place/empty" air $number 2>/dev/null || mount --bind "$1" $number || exit
  number=$((number + 1)); shift
done
shift; cd /; exec "$@"
"""
MOST = 8  # file systems, as many as MOUNT makes directories
UNSHARE = ("unshare", "--mount", "--time")


@dataclass(frozen=True)
class Layers:
    """The layers of one world: `places` are mount points of the host, whose files are shown below `base`/number."""

    base: str
    places: tuple[str, ...]
    direct: str  # what worlds have of their own lies below: sockets, which cannot be reached through an overlay
    points: frozenset[str]  # all mount points of the host

    @classmethod
    def of(cls, base: Path, direct: Path, sources: Sequence[str]) -> Layers:
        points = mount_points()
        found = (point_of(os.path.realpath(source), points) for source in sources)
        usable = [point for point in found if not set(point) & set(':,\\\n"')]
        return cls(str(base), tuple(dict.fromkeys(usable))[:MOST], str(direct), points)

    def seen(self, source: str) -> str:
        """Where the world's own view of a file of the host lies, for bwrap."""
        real = os.path.realpath(source)
        own = real.startswith(self.direct) and "/worlds/" in real
        within = real.rstrip("/") + "/"
        if own or not os.path.exists(real) or any(other.startswith(within) for other in self.points):
            return source  # the last: an overlay shows nothing of what is mounted further down
        point = point_of(real, self.points)
        if point not in self.places:
            return source
        return f"{self.base}/{self.places.index(point)}/{os.path.relpath(real, point)}"

    def device(self, name: str) -> str:
        return f"{self.base}/dev/{name}"

    def proc(self, name: str) -> str:
        return f"{self.base}/proc/{name}"

    def around(self) -> list[str]:
        """What to put in front of bwrap's command line."""
        return [*UNSHARE, "sh", "-c", MOUNT, "sh", self.base, *self.places, "--"]


def mount_points() -> frozenset[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return frozenset(line.split(" ")[4].replace("\\040", " ") for line in lines)


def point_of(path: str, points: frozenset[str]) -> str:
    while path not in points and path != "/":
        path = os.path.dirname(path)
    return path


def work_here(base: Path) -> bool:
    """Whether such views can be made, and hide locks: tried once, because kernels and containers differ."""
    if os.geteuid() != 0:
        return False
    shell = os.path.realpath("/bin/sh")
    layers = Layers.of(base, base, [shell])
    if layers.seen(shell) == shell or layers.seen("/usr") == "/usr":
        return False
    script = f'exec 8<"$1"; flock -s 8 && flock -xn "{layers.seen(shell)}" true'
    try:
        tried = subprocess.run(
            [*layers.around(), "sh", "-c", script, "sh", shell], capture_output=True, text=True, timeout=TRIAL_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.info("worlds share the system's files: %s", error)
        return False
    if tried.returncode != 0:
        log.info("worlds share the system's files: %s", tried.stderr.strip() or "a lock is seen through an overlay")
        return False
    return True
