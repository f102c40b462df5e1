"""What a GGUF file claims about itself, walked by hand before a library believes it.

The libraries take every length as it is written: an array of 2^60 numbers in a file of 100 bytes keeps them busy for
ever, and a model of a million layers is built before the first weight is looked for.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from airloop.errors import AirError

# Each several times what the largest models have.
MOST_KEYS = 10_000
MOST_TENSORS = 100_000
MOST_ENTRIES = 1 << 22  # of all arrays together
MOST_BLOCKS = 1000
LONGEST_NAME = 1 << 16
MOST_DIMENSIONS = 8

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Sizes of weights: some tensor has a side at least as long.
SIDES = ("embedding_length", "feed_forward_length", "vocab_size", "attention.head_count", "attention.head_count_kv",
         "attention.key_length", "attention.value_length")  # fmt: skip


def check_header(path: Path, weights: bool = True) -> None:
    """Refuses a file whose lengths point beyond its end, or whose sizes are not those of its tensors. Without `weights`
    there need be none."""
    _walked(path, weights)


def read_texts(path: Path) -> dict[str, str]:
    """What it says of itself in words, by key: its name, its licence, its chat template."""
    return _walked(path, weights=False).texts


def _walked(path: Path, weights: bool) -> _Walk:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            walk = _Walk(data)
            try:
                walk.read(weights)
            finally:
                walk.data = b""  # a view that is still held would keep the file mapped
            return walk
    except (OSError, ValueError, struct.error, RecursionError) as error:
        said = "a length in it points beyond its end" if isinstance(error, struct.error) else error
        raise AirError(f"{path} is not a whole GGUF file: {said}", "fetch it again") from None


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self.data: mmap.mmap | bytes = data
        self.size = len(data)
        self.at = 0
        self.order = "<"
        self.entries = 0
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}

    def read(self, weights: bool) -> None:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin as one")
        self.at = 4
        if self.one("I") & 0xFFFF == 0:  # written on a machine with the other order of bytes
            self.order = ">"
        tensors, keys = self.one("Q"), self.one("Q")
        _at_most(tensors, MOST_TENSORS, "tensors")
        _at_most(keys, MOST_KEYS, "keys")
        for _ in range(keys):
            self.value(self.text(), self.one("I"))
        longest = max((self.tensor() for _ in range(tensors)), default=0)
        _at_most(self.numbers.get("block_count", 0), MOST_BLOCKS, "layers")
        if weights or tensors:
            self.check_sizes(longest, tensors)

    def one(self, code: str) -> int:
        (value,) = struct.unpack_from(self.order + code, self.data, self.at)
        self.at += struct.calcsize(self.order + code)
        return value

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > self.size:
            raise ValueError("a length in it points beyond its end")

    def text(self) -> str:
        length = self.one("Q")
        start = self.at
        self.skip(length)
        return bytes(self.data[start : min(self.at, start + LONGEST_NAME)]).decode("utf-8", "replace")

    def value(self, key: str, kind: int) -> None:
        if kind == STRING:
            self.texts[key] = self.text()
        elif kind == ARRAY:
            self.array(self.one("I"), self.one("Q"))
        elif kind in SCALARS:
            found = self.one(SCALARS[kind])
            if isinstance(found, int):
                self.numbers[key.partition(".")[2]] = found
        else:
            raise ValueError(f"{key[:60]!r} is of an unknown type, {kind}")

    def array(self, kind: int, count: int) -> None:
        self.entries += count
        _at_most(self.entries, MOST_ENTRIES, "entries in arrays")
        if kind == STRING:
            for _ in range(count):
                self.skip(self.one("Q"))
        elif kind in SCALARS:
            self.skip(count * struct.calcsize(self.order + SCALARS[kind]))
        else:
            raise ValueError(f"it has an array of type {kind}, which no model needs")

    def tensor(self) -> int:
        """The length of its longest side."""
        self.text()
        dimensions = self.one("I")
        _at_most(dimensions, MOST_DIMENSIONS, "dimensions in a tensor")
        sides = [self.one("Q") for _ in range(dimensions)]
        self.skip(struct.calcsize(self.order + "I") + struct.calcsize(self.order + "Q"))  # its type, and where it lies
        return max(sides, default=0)

    def check_sizes(self, longest: int, tensors: int) -> None:
        _at_most(self.numbers.get("block_count", 0), tensors, "layers, each with a tensor")
        for key in SIDES:
            _at_most(self.numbers.get(key, 0), longest, f"in {key}, as long as the longest side of its tensors")
        heads, each = (self.numbers.get(f"attention.{name}", 0) for name in ("head_count", "key_length"))
        _at_most(heads * each, longest, "in its heads together, as long as the longest side of its tensors")


def _at_most(count: int, most: int, what: str) -> None:
    if count > most:
        raise ValueError(f"it claims {count}, where at most {most} are possible ({what})")
