"""What an agent hands in: a copy, made once, of what the task's entry point needs.

The copy is in the trainer's memory while it is graded, beside those of other episodes, so it has a limit that fits
what the task asks for; afterwards only its digest is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.workspace import ANSWERS, SUBMISSION, graders, starter_files

LARGEST_TABLE = 32 << 20  # bytes, where no sample says how large a table is
TIMES_SAMPLE = 20  # numbers may have more digits than the sample's
LEAST_TABLE = 1 << 20
LARGEST_WORKSPACE = 1 << 30
LARGEST_CODE = 16 << 20
LARGEST_READ = 1 << 20  # of all files together whose tidiness is looked at
LARGEST_OTHER = 1 << 20  # of one file that code may read
MOST_FILES = 2000
AT_ONCE = 16
SKIPPED = {"__pycache__", ".git", ".cache", ".ipynb_checkpoints"}


class Place(Protocol):
    """A sandbox, or the lease of one."""

    async def get(self, path: str, limit_bytes: int = ...) -> bytes | None: ...

    async def get_many(self, paths: Sequence[str], limit_bytes: int, total_bytes: int) -> list[bytes | None]: ...

    async def list(self, pattern: str) -> list[str]: ...


@dataclass(frozen=True)
class Submission:
    """`path` is what the agent is told it consists of, relative to the workspace; `digest` is that of the whole.

    With a `problem` (a sentence for the agent) it is there but cannot be graded.
    """

    path: str
    files: Mapping[str, bytes]
    digest: str
    problem: str = ""


async def collect(spec: TaskSpec, sandbox: Place) -> Submission | None:
    """None if there is nothing to grade."""
    match spec.entry_point:
        case "CSVSubmissionTasks":
            return await _table(spec, sandbox)
        case "PythonSubmissionTasks":
            return await _code(spec, sandbox)
        case "ModelSubmissionTasks":
            return await _model(spec, sandbox)
        case "LMSubmissionTasks":
            files, problem = await _copy(sandbox, await _names(spec, sandbox), LARGEST_WORKSPACE)
            return _submission("", files, problem)


async def own_code(spec: TaskSpec, sandbox: Place) -> Sequence[bytes]:
    """The Python files in the workspace's root that are the agent's; none if they are too many or too large."""
    is_graders = graders(spec)
    names = [name for name in await sandbox.list("*.py") if not is_graders(name)]
    files, _ = await _copy(sandbox, names, LARGEST_READ)
    return list(files.values())


async def _table(spec: TaskSpec, sandbox: Place) -> Submission | None:
    limit = largest_table(spec)
    content = await sandbox.get(SUBMISSION, limit)
    if content is not None:
        return _submission(SUBMISSION, {SUBMISSION: content})
    if await sandbox.list(SUBMISSION):
        problem = f"{SUBMISSION} is larger than {limit / (1 << 20):.3g} MB, the most that is graded in this task."
        return _submission(SUBMISSION, {}, problem)
    return None


def largest_table(spec: TaskSpec) -> int:
    sample = spec.sample_submission
    if sample is None or not sample.is_file():
        return LARGEST_TABLE
    return max(LEAST_TABLE, TIMES_SAMPLE * sample.stat().st_size)


async def _code(spec: TaskSpec, sandbox: Place) -> Submission | None:
    names = await _names(spec, sandbox)
    code, problem = await _copy(sandbox, [name for name in names if name.endswith(".py")], LARGEST_CODE)
    if not code and not problem:
        return None
    others = [name for name in names if not name.endswith(".py")]
    more, _ = await _copy(sandbox, others, LARGEST_CODE, LARGEST_OTHER)
    path = next((name for name in spec.baseline_paths if name in code), min(code, default=""))
    return _submission(path, {**more, **code}, problem)


async def _model(spec: TaskSpec, sandbox: Place) -> Submission | None:
    names = await _names(spec, sandbox)
    configs = [name for name in names if name.endswith(".yaml")]
    if not configs:
        return None
    files, problem = await _copy(sandbox, names, LARGEST_WORKSPACE)
    start = {name: path.read_bytes() for name, path in starter_files(spec)}
    changed = {name for name, content in files.items() if start.get(name) != content}
    if not changed and not problem:
        return None  # the workspace as the agent found it is nobody's model
    # The first that the agent made; one that came with the task only if there is no other.
    path = min(configs, key=lambda name: (name not in changed, configs.index(name)))
    return _submission(path, files, problem)


async def _names(spec: TaskSpec, sandbox: Place) -> list[str]:
    """The agent's files: all of the workspace but the data, the evaluation and what is secret."""
    patterns = ["**/*"] if not spec.data_directories() else ["*", *(f"{top}/**/*" for top in other_than("data"))]
    found = {name for pattern in patterns for name in await sandbox.list(pattern)}
    is_graders = graders(spec)
    return sorted(name for name in found if not _is_left_out(name) and not is_graders(name))


def _is_left_out(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return parts[0] in ("data", ANSWERS) or bool(SKIPPED.intersection(parts))


def other_than(word: str) -> Iterator[str]:
    """Patterns that together fit every name but this one: data may be more files than a listing has."""
    for length, letter in enumerate(word):
        yield f"{word[:length]}[!{letter}]*"
        if length:
            yield word[:length]
    yield f"{word}?*"


async def _copy(
    sandbox: Place, names: Iterable[str], limit: int, limit_each: int | None = None
) -> tuple[dict[str, bytes], str]:
    """The files and, if they are too many or too large together, a sentence that says so."""
    names = list(names)
    files: dict[str, bytes] = {}
    if len(names) > MOST_FILES:
        return {}, f"The workspace has {len(names)} files; at most {MOST_FILES} are graded. Remove what is not needed."
    left = limit
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        contents = await sandbox.get_many(some, limit_each or left, left)
        for name, content in zip(some, contents, strict=True):
            if content is None and limit_each is None:
                return {}, f"The files of the workspace are larger than {limit >> 20} MB: {name} did not fit."
            if content is not None:
                files[name] = content
                left -= len(content)
        if left < 0:
            return {}, f"The files of the workspace are larger than {limit >> 20} MB together."
    return files, ""


def _submission(path: str, files: Mapping[str, bytes], problem: str = "") -> Submission:
    digest = hashlib.sha256(problem.encode())
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode("utf-8", "surrogateescape"))
        digest.update(files[name])
    return Submission(path, dict(files), digest.hexdigest(), problem)
