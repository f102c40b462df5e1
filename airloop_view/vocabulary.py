"""The words behind token ids: the run's own tokenizer, if its files are on this machine. Nothing is ever fetched."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError

MOST_IDS = 1 << 32  # the package takes no larger one


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as far as a viewer needs it; `problem` says why there is none."""

    tokenizer: Any = None  # of the package tokenizers
    problem: str = ""
    added: frozenset[int] = frozenset()  # tokens whose text stands for itself

    @property
    def state(self) -> str:
        return f"missing: {self.problem}" if self.tokenizer is None else "exact"

    def texts(self, ids: Sequence[int]) -> list[str]:
        """A text for each token, which together are the decoded text. Of tokens that share a character, the first
        has it and the others have none: an empty text, never half a character."""
        if self.tokenizer is None:
            return [f"[{i}]" for i in ids]
        if type(self.tokenizer.decoder).__name__ == "ByteLevel":
            return _by_bytes([self._bytes(i) for i in ids])
        return _by_prefixes(self.tokenizer, [i if 0 <= i < MOST_IDS else MOST_IDS - 1 for i in ids])

    def _bytes(self, id: int) -> bytes:
        token = self.tokenizer.id_to_token(id) if 0 <= id < MOST_IDS else None
        if token is None:
            return f"[{id}]".encode()
        if id in self.added:
            return str(token).encode("utf-8", "replace")
        try:
            return bytes(BYTES[sign] for sign in token)
        except KeyError:
            return str(token).encode("utf-8", "replace")


def _byte_signs() -> dict[str, int]:
    """The printable sign that stands for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


BYTES = _byte_signs()


def _by_bytes(pieces: Sequence[bytes]) -> list[str]:
    texts: list[str] = []
    held: list[int] = []  # tokens whose bytes are the beginning of a character
    pending = b""
    for place, piece in enumerate(pieces):
        texts.append("")
        pending += piece
        whole = _whole(pending)
        held.append(place)
        if whole is None and len(pending) < 4 + len(piece):
            continue
        texts[held[0]] = pending.decode("utf-8", "replace") if whole is None else whole
        held, pending = [], b""
    if held:
        texts[held[0]] = pending.decode("utf-8", "replace")
    return texts


def _whole(data: bytes) -> str | None:
    """The text, unless its end is only the beginning of a character."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return None if error.reason == "unexpected end of data" else data.decode("utf-8", "replace")


def _by_prefixes(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """For vocabularies whose tokens are not bytes: what a token adds to the text of those before it, looked at
    through a short window."""
    texts: list[str] = []
    start = done = 0  # the window's first token, and the first whose text is not given yet
    for place in range(len(ids)):
        texts.append("")
        before = tokenizer.decode(list(ids[start:done]), skip_special_tokens=False)
        now = tokenizer.decode(list(ids[start : place + 1]), skip_special_tokens=False)
        if now.endswith("\ufffd") and place - done < 4 and place + 1 < len(ids):
            continue
        texts[done] = now[len(before) :]
        start, done = done, place + 1
    return texts


class Vocabularies:
    """Each is read once, and by one thread at a time."""

    def __init__(self) -> None:
        self._found: dict[str, Vocabulary] = {}
        self._asked: set[str] = set()
        self._guard = threading.Lock()

    def ready(self, model: str | None) -> None:
        """Reads it in the background, if nobody has yet."""
        if model and model not in self._found and model not in self._asked:
            self._asked.add(model)
            threading.Thread(target=self.of, args=(model,), name="air-view-vocabulary", daemon=True).start()

    def of(self, model: str | None) -> Vocabulary:
        if not model:
            return Vocabulary(problem="nothing here says which model this was")
        with self._guard:
            if model not in self._found:
                self._found[model] = _find(model)
            return self._found[model]


def _find(model: str) -> Vocabulary:
    from tokenizers import Tokenizer

    try:
        if model.startswith("tiny:"):
            from airloop.models.tiny import tiny_vocabulary

            tokenizer = tiny_vocabulary()
        else:
            tokenizer = Tokenizer.from_file(str(_file(model)))
    except AirError as error:
        return Vocabulary(problem=error.problem)
    except Exception as error:  # whatever the package says of a file it cannot read
        return Vocabulary(problem=f"the tokenizer of {model} cannot be read: {error}")
    return Vocabulary(tokenizer, added=frozenset(tokenizer.get_added_tokens_decoder()))


def _file(model: str) -> Path:
    """The tokenizer.json of a model that is on this machine: a directory, a conversion of ours, the hub's cache."""
    from airloop.models.sources import cached_conversions

    path = Path(model).expanduser()
    if path.is_dir():
        return _in(path, model)
    converted = [found for name, found in cached_conversions() if name == model]
    if converted:
        return _in(converted[0], model)
    if not path.is_absolute() and model.count("/") <= 1:
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(model, "tokenizer.json")
        except ValueError:  # not the form of a hub's name
            found = None
        if isinstance(found, str):
            return Path(found)
    raise AirError(f"the tokenizer of {model} is not on this machine", "")


def _in(directory: Path, model: str) -> Path:
    found = directory / "tokenizer.json"
    if not found.is_file():
        raise AirError(f"{directory} has no tokenizer.json for {model}", "")
    return found
