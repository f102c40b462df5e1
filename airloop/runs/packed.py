"""A run in one small file: what its curves, tables and intervals are made from, without words, tokens and weights.

    pack_run(Path("outputs/exp1.0-gsm8k-1117"), Path("gsm8k.tar.xz"))

Unpacked (`tar xf`), it is a run's directory again, which `air compare`, `air log`, `air view` and `airloop.load_run`
open. Paths of the machine it was made on become the names of what they led to.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.files import read_object, write_atomically
from airloop.runs.run import Run, read_trajectories
from airloop.runs.trajectory_file import to_json
from airloop.text.keys import without_keys
from airloop.text.public import without_paths
from airloop.types import Trajectory

LARGEST = 200_000  # bytes
DIGITS = 5  # that count, of each number
TEXTS = ("one_answer", "worst", "first_error")  # of a step's line: what was said


def pack_run(path: Path, out: Path) -> int:
    """Bytes written. AirError for a run that does not fit, and where `out` is taken."""
    run = Run.open(path)
    if out.exists():
        raise AirError(f"{out} is there already.", "give another --out: nothing is overwritten.")
    packed = _compressed(run.name, _files(run))
    if len(packed) > LARGEST:
        raise AirError(
            f"{run.name} has {len(packed)} bytes when it is packed, more than {LARGEST}.",
            "evaluate fewer tasks or less often, or keep the run's directory as it is.",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda file: file.write(packed))
    return len(packed)


def unpack_run(packed: Path, into: Path) -> Path:
    """The run's directory, made in `into`."""
    try:
        with tarfile.open(packed, "r:xz") as archive:
            archive.extractall(into, filter="data")
            (name,) = {member.name.partition("/")[0] for member in archive.getmembers()}
    except (OSError, tarfile.TarError, lzma.LZMAError, ValueError) as error:
        raise AirError(f"{packed} is no packed run: {error}.", "give a file that `air log pack` wrote.") from None
    return into / name


def _files(run: Run) -> Iterator[tuple[str, str]]:
    for name in ("config.toml", "summary.txt"):
        if (run.path / name).is_file():
            yield name, without_paths((run.path / name).read_text(encoding="utf-8"))
    for name in ("status.json", "logbook.json"):
        if (run.path / name).is_file():
            yield name, json.dumps(_public(read_object(run.path / name)), ensure_ascii=False)
    yield "alarms.jsonl", "".join(_line(_without_quotes(alarm)) + "\n" for alarm in run.alarms())
    lines = [{key: value for key, value in line.items() if key not in TEXTS} for line in run.metrics()]
    yield "metrics.jsonl", "".join(_line(line) + "\n" for line in lines)
    for directory in sorted((run.path / "evaluations").glob("*")):
        for trajectory in sorted(read_trajectories(directory), key=lambda t: t.id):
            yield f"evaluations/{directory.name}/{trajectory.id}.json", _line(to_json(outline(trajectory)))


def outline(trajectory: Trajectory) -> Trajectory:
    """How an episode went, without what was said in it."""
    task = replace(trajectory.task, payload={})
    return replace(trajectory, task=task, turns=(), branches=(), tools=(), turn_rewards=(), error="")


def _without_quotes(alarm: Mapping[str, Any]) -> dict[str, Any]:
    """An alarm may quote what a policy says all the time."""
    return {**alarm, "seen": re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "…", str(alarm.get("seen", "")))}


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(_public(_rounded(data)), separators=(",", ":"), ensure_ascii=False)


def _public(value: Any) -> Any:
    """As data, not as text: in a text a line break before a path is a letter n."""
    if isinstance(value, Mapping):
        return {name: _public(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_public(one) for one in value]
    return without_paths(value) if isinstance(value, str) else value


def _rounded(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one, key) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and key != "started" else value


def _compressed(name: str, files: Iterator[tuple[str, str]]) -> bytes:
    """The same bytes for the same run, whoever packs it and when."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for inside, text in files:
            data = without_keys(text).encode()
            entry = tarfile.TarInfo(f"{name}/{inside}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(whole.getvalue(), preset=9 | lzma.PRESET_EXTREME)
