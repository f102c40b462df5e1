"""A sandbox's own view of the files that all sandboxes are shown, so that a lock on one of them is seen in no other.

A lock lies on an inode, and to take one or to see it needs no more than the right to read. An overlay without an upper
layer shows the same files through inodes of its own, at the cost of one mount for each file system that they lie on.
bwrap 0.8 makes none: it is started in a mount namespace that has them already, and that ends with it. Devices and what
is shown of the host's /proc are made anew there, and the namespace of time, whose file in /proc all would share, is
unshared too.

Of some directories a sandbox sees a few entries only: these are layers of their own, below a cover (masks.py).

/proc/self/mountinfo tells where in its file system a mount begins, and which layers it has, in the words that it was
made with. So data and what we bring along are layers of their own, made from the inside: of these it tells nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

TRIAL_S = 20.0
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
MOST = 8  # layers
# What cannot be a layer is shown as it is: then its locks are seen, and nothing else is different. -in: mount is not to
# look for helpers, nor to write down what it did. What has a cover is never shown without it.
MOUNT = """base=$1 empty=$2; shift 2
( exec 9<"$empty"; number=0
  while [ "$1" != -- ]; do
    cd "$1" && { mount -in -t overlay -o "ro,lowerdir=.:$2" air "$base/$number" 2>/dev/null ||
      mount --bind . "$base/$number"; } || exit
    number=$((number + 1)); shift 2
  done
) || exit
while [ "$1" != -- ]; do shift; done
shift
( number=0
  while [ "$1" != -- ]; do
    cd "$1" && exec 9<"$2" && mount -in -t overlay -o "ro,lowerdir=/proc/self/fd/9:." air "$base/m$number" || exit
    number=$((number + 1)); shift 2
  done
) || exit
while [ "$1" != -- ]; do shift; done
shift; cd /; exec "$@"
"""
NOTHING = "/proc/self/fd/9"  # an empty directory, without its name


@dataclass(frozen=True)
class Layers:
    """The layers of one sandbox: `places` are directories of the host, whose files are shown below `base`/number."""

    base: str
    places: tuple[str, ...]  # mount points, and directories that are not to be named
    direct: str  # what sandboxes have of their own lies below: sockets, which cannot be reached through an overlay
    points: frozenset[str]  # all mount points of the host
    covers: tuple[tuple[str, str], ...] = ()  # directories that are shown in part, and what lies over each

    @classmethod
    def of(
        cls,
        base: Path,
        direct: Path,
        sources: Sequence[str],
        data: Sequence[str] = (),
        covers: Iterable[tuple[str, str]] = (),
    ) -> Layers:
        """`sources` are looked up once and for all; `data` may be links that lead elsewhere tomorrow."""
        points, real = mount_points(), os.path.realpath(base)
        shown = [_found(source, points) for source in (real, *sources)]
        given = [_found.__wrapped__(source, points) for source in data]
        unnamed = [os.path.dirname(place) for place in (real, *(place for _, place in given if place))]
        unnamed = [place for place in unnamed if not _lies_in(empty_place(real), place)]  # that would be no layer
        found = [*(point for point, _ in (*shown, *given)), *unnamed]
        usable = [place for place in found if not set(place) & set(':,\\\n"')]
        places = tuple(dict.fromkeys(usable))[:MOST]
        return cls(real, places, os.path.realpath(direct), points, tuple(covers)[:MOST])

    def seen(self, source: str) -> str:
        """Where the sandbox's own view of a file of the host lies, for bwrap."""
        return self._view(source, *_found(source, self.points))

    def seen_now(self, source: str) -> str:
        return self._view(source, *_found.__wrapped__(source, self.points))

    def _view(self, source: str, point: str, real: str) -> str:
        own = real.startswith(self.direct) and "/worlds/" in real
        if own or not real or point not in self.places:
            return source
        place = max((p for p in self.places if _lies_in(real, p) and len(p) >= len(point)), key=len)
        return f"{self.base}/{self.places.index(place)}/{real.removeprefix(place).lstrip('/')}"

    def masked(self, place: str) -> str | None:
        """Where a directory lies that is shown in part; None: it is not masked."""
        known = [directory for directory, _ in self.covers]
        return f"{self.base}/m{known.index(place)}" if place in known else None

    def device(self, name: str) -> str:
        return f"{self.base}/{self.places.index(point_of(self.base, self.points))}/{name}"

    def proc(self, name: str) -> str:
        return f"{self.base}/proc/{name}"

    def around(self) -> list[str]:
        """What to put in front of bwrap's command line."""
        # Two layers are the least, and must not lie within one another. So where `base` lies the second is /dev, whose
        # few names are none of a file system's own, and which makes its devices this sandbox's own as well.
        home = point_of(self.base, self.points)
        lower = [word for place in self.places for word in (place, "/dev" if place == home else NOTHING)]
        spaces = ["unshare", "--time", "--mount", f"--mount-proc={self.base}/proc"]
        masks = [word for cover in self.covers for word in cover]
        return [*spaces, "sh", "-c", MOUNT, "sh", self.base, empty_place(self.base), *lower, "--", *masks, "--"]


def make_places(base: Path) -> None:
    """Where to mount: the same for all sandboxes, because each has a mount namespace of its own."""
    for name in ("proc", *(f"{kind}{number}" for kind in ("", "m") for number in range(MOST))):
        (base / name).mkdir(parents=True, exist_ok=True)
    os.makedirs(empty_place(os.path.realpath(base)), exist_ok=True)


def empty_place(base: str) -> str:
    """Not below what is a layer itself."""
    return f"{os.path.dirname(os.path.dirname(base))}/empty"


def mount_points() -> frozenset[str]:
    return _points(Path("/proc/self/mountinfo").read_bytes())


@functools.lru_cache(maxsize=2)
def _points(table: bytes) -> frozenset[str]:
    places = (line.split(b" ")[4].replace(b"\\040", b" ") for line in table.splitlines())
    return frozenset(place.decode("utf-8", "surrogateescape") for place in places)


@functools.lru_cache(maxsize=1024)
def _found(source: str, points: frozenset[str]) -> tuple[str, str]:
    """The mount point and the real place of a file; no place if there is none, or if something is mounted further down,
    which an overlay would not show."""
    real = os.path.realpath(source)
    within = real.rstrip("/") + "/"
    whole = os.path.exists(real) and not any(other.startswith(within) for other in points)
    return point_of(real, points), real if whole else ""


def _lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def point_of(path: str, points: frozenset[str]) -> str:
    while path not in points and path != "/":
        path = os.path.dirname(path)
    return path


def work_here(base: Path) -> bool:
    """Whether such views can be made, and hide locks: tried once, because kernels and containers differ."""
    if os.geteuid() != 0:
        return False
    make_places(base)
    shell = os.path.realpath("/bin/sh")
    layers = Layers.of(base, base, [shell])
    if layers.seen(shell) == shell or layers.seen("/usr") == "/usr":
        return False
    script = f'exec 8<"$1"; flock -s 8 && flock -xn "{layers.seen(shell)}" true && : > "{layers.device("null")}"'
    tried = _tried(layers, script, shell)
    if tried.returncode != 0:
        log.info("sandboxes share the system's files: %s", tried.stderr.strip() or "a lock is seen through an overlay")
    return tried.returncode == 0


def covers_work(base: Path, covers: Sequence[tuple[str, str]]) -> bool:
    """Whether these covers hide what they are made to hide, and nothing else."""
    layers = Layers.of(base, base, [], covers=covers)
    views = [f"{layers.base}/m{number}" for number in range(len(layers.covers))]
    tried = _tried(layers, 'for view; do ls -A "$view" && echo / || exit; done', *views)
    seen = [set(names.splitlines()) for names in tried.stdout.split("/\n")[:-1]]
    works = tried.returncode == 0 and seen == [{*os.listdir(place)} - {*os.listdir(cover)} for place, cover in covers]
    if not works:
        log.info(
            "every package is mounted by itself: %s", tried.stderr.strip() or "a cover does not hide what it should"
        )
    return works


def _tried(layers: Layers, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script where these layers are."""
    command = [*layers.around(), "sh", "-c", script, "sh", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S)
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
