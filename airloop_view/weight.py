"""What a file would cost in memory, told from its bytes before any of it is parsed.

JSON grows: `[],` has three bytes and becomes an object of sixty. 24 MB of that took 736 MB of the server, and a page is
asked for more than once. The figures are upper bounds of what Python needs, rough on purpose.
"""

from __future__ import annotations

import io
import os
import re
import threading
from pathlib import Path

HEAVIEST = 256 << 20  # bytes of memory for one parsed text
HEAVIEST_RUN = 512 << 20  # for all small files of a run: some 20,000 steps of metrics
LIGHT = 1 << 20  # bytes of a file that is not worth a look: it cannot grow to anything that matters
LARGEST_TOML = 1 << 20  # which is parsed slowly; a config has a few thousand bytes
LARGE = 4 << 20  # bytes of a text from which on only one is parsed at a time
one_at_a_time = threading.Lock()

CONTAINER, STRING, VALUE, LINE = 256, 110, 40, 128
WIDTH, WIDE_WIDTH = 3, 9  # for each byte: the bytes, the decoded text, the texts in it
SURELY_LIGHT = HEAVIEST // (WIDE_WIDTH + CONTAINER)  # bytes, were each of them the beginning of a container
# Up to its end, or to that of the data: a search that could fail would begin again at the next sign.
STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
WIDE = re.compile(rb"[\xc4-\xff]")  # in a text with such a sign, or an escaped one, every sign may take four bytes
BLOCK = 64 << 10  # bytes of lines that are looked at together


def is_light(data: bytes) -> bool:
    """Whether this JSON may be parsed."""
    return len(data) <= SURELY_LIGHT or weight(data) <= HEAVIEST


def weight(data: bytes, most: int = HEAVIEST) -> int:
    """Bytes of memory to parse this JSON. What lies in texts is only told apart where it matters."""
    rough = _weight(data, data, data.count(b'"') // 2)
    if rough <= most:
        return rough
    bare, strings = STRINGS.subn(b"", data)
    return _weight(data, bare, strings)


def _weight(data: bytes, bare: bytes, strings: int) -> int:
    containers, values = bare.count(b"[") + bare.count(b"{"), bare.count(b",")
    width = WIDE_WIDTH if _is_wide(data) else WIDTH
    return len(data) * width + CONTAINER * containers + VALUE * values + STRING * strings


def _is_wide(data: bytes) -> bool:
    return b"\\u" in data or (not data.isascii() and WIDE.search(data) is not None)


_known: dict[Path, tuple[tuple[int, ...], str]] = {}


def too_heavy(path: Path, names: tuple[str, ...]) -> str:
    """Why these files of a run are not read, or nothing. Kept until one of them changes."""
    stamp = tuple(figure for name in names for figure in _stamp(path / name))
    kept = _known.get(path)
    if kept is None or kept[0] != stamp:
        if len(_known) > 10_000:
            _known.clear()
        kept = _known[path] = (stamp, _why_heavy(path, names))
    return kept[1]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _why_heavy(path: Path, names: tuple[str, ...]) -> str:
    total = 0
    for name in names:
        size = _stamp(path / name)[1]
        if size > LARGEST_TOML and name.endswith(".toml"):
            return f"{name} has {size >> 20} MiB, more than a config can have: nothing of this run is read"
        if size > LIGHT:
            total += _weight_of(path / name)
        if total > HEAVIEST_RUN:
            return f"{name} would take more memory than a page may: nothing of this run's files is read"
    return ""


def _weight_of(path: Path) -> int:
    """Of all its lines; one that is too long or too heavy is enough."""
    total = 0
    try:
        with path.open("rb") as file:
            while total <= HEAVIEST_RUN and (block := file.read(BLOCK)):
                if not block.endswith(b"\n"):
                    block += file.readline(HEAVIEST // 3)
                total += _weight_of_lines(block)
    except OSError:
        return 0
    return total


def _weight_of_lines(block: bytes) -> int:
    """Together where that comes to the same: a run's files may have a million of them."""
    together = weight(block)
    if together <= HEAVIEST and not _is_wide(block):
        return together + LINE * (block.count(b"\n") + (not block.endswith(b"\n")))
    total = 0
    for line in io.BytesIO(block):
        own = weight(line)
        total += LINE + (own if own <= HEAVIEST else HEAVIEST_RUN)
        if total > HEAVIEST_RUN:
            break
    return total
