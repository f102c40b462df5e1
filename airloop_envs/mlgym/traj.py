"""Recorded episodes: MLGym's own `.traj` files and air's trajectories, read into one form."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from airloop.errors import AirError
from airloop.files import parse_json
from airloop.runs import trajectory_file
from airloop.types import Action, Task, Trajectory

# In MLGym an agent that cannot go on says one of these; nothing is run, and what lies there is submitted for it.
EXITS = ("exit_context", "exit_cost", "exit_error", "exit_format", "exit_api")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
THEIR_SCORE = re.compile(r"^Evaluation Score: *(.+)$", re.MULTILINE)
OUR_SCORE = re.compile(r"^valid submission: .*\nbaseline: .*\nscore: (\{.*\})$", re.MULTILINE)
NOT_RUN = re.compile(r"\s*Exited \((?!submit\b|exit_forfeit\b)")  # their answer to a step that came too late
NUMPY = re.compile(rf"(?:np|numpy)\.\w+\(({NUMBER}|nan|inf|-inf)\)")
VIEW = re.compile(r"^\[File: (?P<path>.+?) \((?P<total>\d+) lines? total[^)\n]*\)\]", re.MULTILINE)
LINE = re.compile(r"(\d+):(.*)")

Scores = Mapping[str, float]


@dataclass(frozen=True)
class RecordedStep:
    """One action and what the agent was shown for it; `scores` if that was a valid submission's."""

    action: Action
    shown: str
    scores: Scores | None = None


@dataclass(frozen=True)
class Recording:
    """What was done and how it was scored. `final` is the last score: a dict as the evaluation printed it, or the
    number that counted; None if there was none. Unless `final_known`, nobody wrote down whether there was."""

    path: Path
    form: Literal["mlgym", "air"]
    steps: tuple[RecordedStep, ...]
    ending: str  # as it is written there
    final: Scores | float | None
    final_known: bool
    names: tuple[str, ...] = ()  # texts that may name the task, the likeliest first
    task: Task | None = None  # of air's own
    rewards: Mapping[str, float] = field(default_factory=dict)  # of air's own, of the whole episode
    turn_rewards: tuple[Mapping[str, float], ...] = ()
    shown: float | None = None  # what `validate` says of what counted, where that is not the score itself


def read_recording(path: Path) -> Recording:
    """AirError if it is neither of the two forms."""
    try:
        data = parse_json(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        raise AirError(f"There is no file {path}.", "name a .traj file of MLGym or a trajectory of air.") from None
    except IsADirectoryError:
        raise AirError(f"{path} is a directory.", "name one of the trajectories in it.") from None
    except OSError as error:
        raise AirError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise AirError(f"{path} is not JSON: {error}.", "name a .traj file of MLGym or a trajectory of air.") from None
    if isinstance(data, dict) and "schema_version" in data:
        return _from_air(path, trajectory_file.from_json(data))
    if isinstance(data, dict) and isinstance(data.get("trajectory"), list):
        return _from_mlgym(path, data)
    raise AirError(
        f"{path} is no trajectory: it has neither the list `trajectory` of MLGym's files nor air's `schema_version`.",
        "name a .traj file of MLGym or a trajectory of air.",
    )


# --- MLGym's ------------------------------------------------------------------------------------------------


def _from_mlgym(path: Path, data: Mapping[str, Any]) -> Recording:
    steps = []
    for number, entry in enumerate(data["trajectory"], 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("action"), str | None):
            raise AirError(f"{path}: step {number} of `trajectory` has no `action` that is a text.")
        command, shown = entry.get("action") or "", str(entry.get("observation") or "")
        if command.strip() in EXITS or NOT_RUN.match(shown):
            break
        steps.append(RecordedStep(Action("command", command), shown, _their_scores(shown)))
    while steps and not steps[-1].action.text.strip():
        steps.pop()
    info = data.get("info") if isinstance(data.get("info"), dict) else {}
    assert isinstance(info, dict)
    status = str(info.get("exit_status") or "")
    recorded = info.get("score")
    scores = [s for s in map(_numbers, recorded if isinstance(recorded, list) else [recorded]) if s]
    was_scored = status.startswith(("submitted", "autosubmission"))
    return Recording(
        path=path,
        form="mlgym",
        steps=_with_recorded(steps, scores, was_scored),
        ending=status,
        final=scores[-1] if was_scored and scores else None,
        # After an early exit MLGym had lost the container: what it would have scored nobody knows.
        final_known=bool(status) and status != "early_exit" and (bool(scores) or not was_scored),
        names=_names(data.get("environment"), path),
    )


def _with_recorded(
    steps: Sequence[RecordedStep], scores: Sequence[Scores], was_scored: bool
) -> tuple[RecordedStep, ...]:
    """Scores of validations that cannot be read in the text are those in `info`, if there are as many."""
    validations = [i for i, step in enumerate(steps) if THEIR_SCORE.search(step.shown)]
    recorded = scores[:-1] if was_scored else scores
    if len(validations) != len(recorded):
        return tuple(steps)
    known = dict(zip(validations, recorded, strict=True))
    return tuple(RecordedStep(step.action, step.shown, step.scores or known.get(i)) for i, step in enumerate(steps))


def _their_scores(shown: str) -> Scores | None:
    found = THEIR_SCORE.search(shown)
    return _numbers(_literal(found[1])) if found else None


def _literal(text: str) -> Any:
    """A dict as Python prints it, with numpy's numbers in it, or as JSON."""
    text = NUMPY.sub(r"\1", text.strip())
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _numbers(value: Any) -> Scores | None:
    """The numbers of a dict; None if it has none."""
    if not isinstance(value, dict):
        return None
    numbers = {str(k): float(v) for k, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return numbers or None


def _names(environment: Any, path: Path) -> tuple[str, ...]:
    place = path.resolve()
    said = [environment] if isinstance(environment, str) else []
    return (*said, place.stem, *(parent.name for parent in place.parents if parent.name))


# --- air's --------------------------------------------------------------------------------------------------


def _from_air(path: Path, trajectory: Trajectory) -> Recording:
    if not {"task", "variant"} <= set(trajectory.task.payload):  # `env` is what a run called it
        raise AirError(
            f"{path} is an episode of {trajectory.task.env!r}; only those of mlgym can be replayed.",
            "look at it as it is: it is a readable JSON file.",
        )
    if trajectory.ending == "infra_error":
        raise AirError(f"{path} was never scored: it ended in an infrastructure error ({trajectory.error}).")
    steps = tuple(
        RecordedStep(action, seen.text, _our_scores(seen.text))
        for turn in trajectory.turns
        for action, seen in zip(turn.actions, turn.observations, strict=False)
    )
    return Recording(
        path=path,
        form="air",
        steps=steps,
        ending=trajectory.ending,
        final=trajectory.metrics.get("score"),
        final_known="scored" in trajectory.metrics,
        task=trajectory.task,
        rewards=trajectory.rewards,
        turn_rewards=trajectory.turn_rewards,
        shown=trajectory.metrics.get("validate_score"),
    )


def _our_scores(shown: str) -> Scores | None:
    found = OUR_SCORE.findall(shown)
    return _numbers(_literal(found[-1])) if found else None


# --- files that were shown ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What `open` and the like showed of a file: its lines by number, without blanks at their end."""

    path: str
    total: int
    lines: Mapping[int, str]

    def unlike(self, other: View) -> bool:
        """Whether a line that both show is not the same."""
        return any(text != other.lines[number] for number, text in self.lines.items() if number in other.lines)


def read_view(shown: str) -> View | None:
    head = VIEW.search(shown)
    if head is None:
        return None
    lines: dict[int, str] = {}
    for text in shown[head.end() :].lstrip("\n").split("\n"):
        found = LINE.match(text)
        if found and (not lines or int(found[1]) == max(lines) + 1):
            lines[int(found[1])] = found[2].rstrip()
        elif lines:
            break
    return View(head["path"], int(head["total"]), lines)
