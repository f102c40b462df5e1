"""Keys are left out of every text that leaves this process: files of a run, logs, errors, pages, what others are sent.

A key is the value of a variable of the environment whose name says so (…_API_KEY, …_TOKEN, …_SECRET, …_PASSWORD), a
password or key in an address that a variable holds, what `note_keys` was told of, and whatever has the form of an
episode's key, which is made anew for each episode and known by its form alone. Values of fewer than 8 characters,
single words and numbers of fewer than 16, what stands for a key ("{api_key}"), and paths are none.

Only text is changed, never token ids: what a policy was shown or has sampled is trained on as it was.

Nothing of airloop is imported here: engine/vllm/process_guard.py loads this file by its path.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self, TextIO, cast
from urllib.parse import quote, unquote

HIDDEN = "…"
SHORTEST = 8  # characters: a shorter value is a word that stands anywhere
LONGEST = 4096  # what is longer is a certificate or a file
# Names of variables. One that says where a key is holds none itself.
VARIABLE = re.compile(
    r"(?i)(?:key|token|secret|password|passwd|passphrase|credential|(?:^|_)pat|(?:^|_)pass|_pwd)s?(?:_|\d|$)"
    r"(?!.*(?:file|path|dir|env|var|name|type|url|uri|endpoint|host|port|addr)$)"
)
# Names of arguments, as in args = { api_key = … }: "answer_key" and "eos_token" are none of these.
ARGUMENT = re.compile(
    r"(?i)(?:^|[_-])(?:api[_-]?(?:key|token)|(?:access|auth|hub|hf)[_-]?(?:key|token)|secret|password)$"
)
# What is one by its form, whatever its argument is called: OpenAI's and its like, the hub's, GitHub's, GitLab's, AWS's.
FORM = re.compile(
    r"(?=\D*\d)(?:sk-(?=[\w-]*[A-Z]|[\w-]*[a-z0-9]{24})[\w-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|AKIA[A-Z\d]{16})"
)
# What endpoints make (airloop/serve/app.py): 32 bytes in base64, so that the last sign is one of sixteen. Of the others
# two in five are capitals, of a long name of a folder or a model, which may begin as they do, few.
EPISODE_KEY = re.compile(
    r"(?<!/)air-(?=(?:[a-z0-9_-]{0,42}[A-Z]){5})(?=[\w-]{0,42}[a-z])[\w-]{42}[AEIMQUYcgkosw048]", re.ASCII
)
# A word would be left out wherever it stands: "completed" of a run's status, names of metrics.
_WORD = re.compile("[A-Za-z_]{1,15}")
# What people write where a server asks for some key and looks at none: "sk-no-key-required", "dummy-key", "local-key".
_DUMMY = re.compile(
    r"(?i)(?:sk-|token-)?(?:(?:dummy|fake|local|none|no|not|unused|your|my|example|test|any)(?:[ _-][a-z]+)+"
    r"|dummy|unused|placeholder|abc-?123)"
)
# What stands for a key: "{api_key}", "${DB_PASSWORD}", "%(token)s", "<your token>", "OPENAI_API_KEY", "********"; and
# what a template says in place of a token: "<|im_end|>" of EOS_TOKEN.
_PLACEHOLDER = re.compile(r"\$?\{+[\w.-]+\}+|%\(\w+\)s|<[^<>]+>|\$?[A-Z]+(?:_[A-Z]+)+|(.)\1*")
_USER_PASSWORD = re.compile(r"(?<=://)([^\s/:@?#]*):([^\s/@?#]+)@")
_USER_TOKEN = re.compile(r"(?<=://)(?=[\w-]*\d)([\w-]{20,})(?::[^\s/@?#]*)?@")  # as of git: https://TOKEN@host
_IN_QUERY = re.compile(r"[?&](?:[\w-]*[_-])?(?:key|apikey|token|secret|password|sig|signature)=([^\s&#\"']+)", re.I)
_NUMBERS = frozenset({int, float, bool, type(None)})
_noted: dict[str, None] = {}


def note_keys(*values: str | None) -> None:
    """Keys of this process that no variable of its environment says are any."""
    _noted.update(dict.fromkeys(value.strip() for value in values if value and is_key(value.strip())))


def note_addresses(texts: Iterable[str]) -> None:
    """Passwords and keys that stand in addresses: http://user:password@host, …?api_key=…"""
    for text in texts:
        note_keys(*keys_in_address(text))


@functools.lru_cache(1 << 12)  # asked for each line that is printed, and a path may lie on a disk that is away
def is_key(value: str) -> bool:
    if not SHORTEST <= len(value) <= LONGEST or (len(value) < 16 and _is_number(value)):
        return False
    if _WORD.fullmatch(value) or _DUMMY.fullmatch(value) or _PLACEHOLDER.fullmatch(value):
        return False
    return not (value.startswith(("/", "~")) and os.path.exists(os.path.expanduser(value)))


def _is_number(value: str) -> bool:
    try:
        return float(value) is not None
    except ValueError:
        return False


def keys_in_address(text: str) -> list[str]:
    if "://" not in text:
        return []
    found = [password for _, password in _USER_PASSWORD.findall(text)]
    found += _USER_TOKEN.findall(text) + _IN_QUERY.findall(text)
    return [key for one in found for key in dict.fromkeys((one, unquote(one))) if is_key(key)]


def keys_of(variables: Mapping[str, str]) -> Iterator[str]:
    """Those among variables of an environment."""
    for name in list(variables):
        value = variables.get(name, "").strip()  # another thread may have removed it meanwhile
        if _says_key(name) and is_key(value):
            yield value
            yield from (one.strip() for one in value.split(",") if is_key(one.strip()))  # …_API_KEYS are several
        elif "://" in value:
            yield from _keys_in_variable(value)


# An environment is looked through for each line that is printed, and on a cluster may have thousands of variables.
@functools.lru_cache(1 << 14)
def _says_key(name: str) -> bool:
    return VARIABLE.search(name) is not None


@functools.lru_cache(1 << 14)
def _keys_in_variable(value: str) -> tuple[str, ...]:
    return tuple(keys_in_address(value))


def without_keys(text: str, variables: Mapping[str, str] | None = None) -> str:
    """The text with "…" in place of each key. `variables`: of another process, whose keys count as well."""
    return _replaced(text, _forms({} if variables is None else variables))


def find_keys() -> dict[str, str]:
    """Each form in which a key of this process may stand in a text, and the variable that holds it, if one does."""
    known = {form: "" for key in tuple(_noted) for form in _forms_of(key)}
    for name in list(os.environ):
        known.update((form, name) for key in keys_of({name: os.environ.get(name, "")}) for form in _forms_of(key))
    return known


def without_keys_in(data: Any) -> Any:
    """The same for each text in what is going to be JSON."""
    return _without(data, _forms({}))


def _without(data: Any, forms: Sequence[str]) -> Any:
    if isinstance(data, str):
        return _replaced(data, forms)
    if isinstance(data, Mapping):
        return {_without(name, forms): _without(value, forms) for name, value in data.items()}
    if isinstance(data, list | tuple) and not _NUMBERS.issuperset(map(type, data)):  # thousands of tokens at once
        return [_without(value, forms) for value in data]
    return data


def pieces_without_keys(pieces: Sequence[str]) -> list[str]:
    """The same for a text in pieces, such as tokens: those that a key has a part in are left out."""
    whole, forms = "".join(pieces), _forms({})
    spans = [found.span() for form in forms for found in re.finditer(re.escape(form), whole)]
    spans += [found.span() for found in EPISODE_KEY.finditer(whole)]
    if not spans:
        return list(pieces)
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    hidden = (any(start < to and begin < end for start, end in spans) for begin, to in pairwise(ends))
    return [HIDDEN if hide else piece for piece, hide in zip(pieces, hidden, strict=True)]


def stream_without_keys(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same for a file that is sent in pieces: a key may lie across two of them."""
    held = ""
    for piece in pieces:
        held = without_keys(held + piece.decode("utf-8", "surrogateescape"))
        yield held[:-LONGEST].encode("utf-8", "surrogateescape")
        held = held[-LONGEST:]
    yield held.encode("utf-8", "surrogateescape")


def _forms(variables: Mapping[str, str]) -> list[str]:
    """Every form in which a known key may stand in a text, the longest first: one may be a part of another."""
    keys = {*keys_of(os.environ), *keys_of(variables), *_noted}
    return sorted({form for key in keys for form in _forms_of(key)}, key=len, reverse=True)


@functools.lru_cache(1024)
def _forms_of(key: str) -> tuple[str, ...]:
    escaped = (json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1], repr(key)[1:-1])
    return tuple(dict.fromkeys((key, *escaped, quote(key, safe=""), html.escape(key))))


def _replaced(text: str, forms: Sequence[str]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, HIDDEN)
    return EPISODE_KEY.sub(HIDDEN, text) if "air-" in text else text


class KeylessStream:
    """What is written to it is written to another stream, without keys."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(text if len(text) < SHORTEST else without_keys(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies, pickles or enters it means the object itself
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()


def print_no_keys() -> None:
    """From now on nothing that this process prints holds a key, tracebacks and libraries' logs included."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, KeylessStream):
            setattr(sys, name, KeylessStream(stream))


def with_keys(stream: TextIO) -> TextIO:
    """The stream itself, for a key that its user is to be told."""
    return stream.stream if isinstance(stream, KeylessStream) else cast(TextIO, stream)
