"""What a replay found: each score there and here, and whether they are the same up to the evaluation's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airloop_envs.mlgym import metrics
from airloop_envs.mlgym.spec import Yardstick

RELATIVE = 0.02  # trained models, whose seeds and libraries were others
TIMES = 2 / 3  # a time is the machine's: it may be three times as long
ROUNDING = 1e-5  # scores are printed with five digits
EXACT = 1e-6


@dataclass(frozen=True)
class Tolerance:
    """How far two evaluations of the same work may lie apart."""

    noise: float = 0.0  # in the metric's unit
    relative: float = 0.0  # of the larger of the two
    why: str = ""

    def __call__(self, there: float, here: float) -> float:
        return max(self.noise, self.relative * max(abs(there), abs(here)), ROUNDING)


def tolerance(yardstick: Yardstick, relative: float | None = None) -> Tolerance:
    if yardstick.noise and relative is None:
        allowed = metrics.STANDARD_ERRORS * yardstick.noise
        return Tolerance(allowed, 0.0, f"{metrics.STANDARD_ERRORS} standard errors of {yardstick.noise:g}")
    if relative is None and yardstick.metric.casefold() == "time":
        return Tolerance(0.0, TIMES, "a factor of 3, because a time is the machine's")
    share = RELATIVE if relative is None else relative
    return Tolerance(0.0, share, f"{share:.3g} of the larger score, since a training is not the same twice")


@dataclass(frozen=True)
class Compared:
    turn: int
    what: str  # validate, submit, end (nobody submitted), or a reward's name
    there: float | None  # None: no score
    here: float | None
    allowed: float
    note: str = ""

    @property
    def difference(self) -> float:
        if self.there is None or self.here is None:
            return 0.0 if self.there is self.here else math.inf
        return abs(self.there - self.here)

    @property
    def same(self) -> bool:
        return self.difference <= self.allowed

    @property
    def verdict(self) -> str:
        if self.there is None or self.here is None:
            return "same: no score in both" if self.same else "differs: a score in one only"
        if self.same:
            return f"same (apart by {self.difference:.3g}, noise {self.allowed:.3g})"
        return f"differs by {self.difference:.4g} (noise {self.allowed:.3g})"


@dataclass(frozen=True)
class ReplayedTurn:
    turn: int
    command: str
    there: str
    here: str
    failed: bool
    seconds: float


@dataclass
class Replay:
    file: str
    form: str
    task: str
    source: str
    metric: str
    direction: str
    ending: str  # there
    tolerance: str
    baseline: float = math.nan
    turns: list[ReplayedTurn] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    without_header: Mapping[str, int] = field(default_factory=dict)  # starter files, and lines left out of each
    missing_packages: dict[str, list[int]] = field(default_factory=dict)  # and the turns that wanted them
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: all scores agree; 1: some differ; 2: there was nothing to compare with."""
        if not self.compared:
            return 2
        return 0 if all(row.same for row in self.compared) else 1

    @property
    def summary(self) -> str:
        if not self.compared:
            return "The file was replayed, and has no score to compare with."
        agree = sum(row.same for row in self.compared)
        count = len(self.compared)
        said = f"{agree} of {count} scores agree" if agree < count else f"all scores agree ({count} of {count})"
        return f"{said}: {self.metric} ({self.direction}), tolerance {self.tolerance}"


def as_json(replay: Replay, turns: bool) -> dict[str, Any]:
    rows = [
        {**asdict(row), "difference": _finite(row.difference), "same": row.same, "verdict": row.verdict}
        for row in replay.compared
    ]
    data = asdict(replay) | {
        "baseline": _finite(replay.baseline),
        "turn_count": len(replay.turns),
        "compared": rows,
        "summary": replay.summary,
        "agree": replay.exit_code == 0,
    }
    if not turns:
        del data["turns"]
    return data


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_replay(replay: Replay, turns: bool) -> str:
    ending = f", there: {replay.ending}" if replay.ending else ""
    turns_s = f"{len(replay.turns)} turns in {replay.seconds:.1f} s"
    lines = [f"{replay.file}: task {replay.task} ({replay.source}), {turns_s}{ending}"]
    lines += _preparation(replay)
    if turns:
        lines += [line for turn in replay.turns for line in _turn(turn)]
    lines.append(f"{'turn':>4s}  {'what':10s} {'there':>10s} {'here':>10s}  verdict")
    for row in replay.compared:
        note = f"; {row.note}" if row.note else ""
        lines.append(
            f"{row.turn:4d}  {row.what:10s} {_number(row.there):>10s} {_number(row.here):>10s}  {row.verdict}{note}"
        )
    for package, where in replay.missing_packages.items():
        lines.append(
            f"the sandbox has no package {package}, wanted in turn {_list(where)}: install it where the sandbox's "
            "python finds it, or these commands do not do here what they did there"
        )
    lines += [f"note: {note}" for note in replay.notes]
    return "\n".join([*lines, replay.summary])


def _preparation(replay: Replay) -> list[str]:
    if not replay.without_header:
        return []
    files = ", ".join(f"{name} ({count} lines)" for name, count in replay.without_header.items())
    return [f"replayed without the header that these starter files have today and had not there: {files}"]


def _turn(turn: ReplayedTurn) -> list[str]:
    failed = ", failed here" if turn.failed else ""
    return [
        f"=== turn {turn.turn} ({turn.seconds:.1f} s{failed})",
        turn.command.rstrip("\n"),
        "--- there",
        turn.there.rstrip("\n"),
        "--- here",
        turn.here.rstrip("\n"),
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
