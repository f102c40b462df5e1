"""What a task gives away, found by looking at its evaluation script and its data, not at its name.

Two mistakes have ruined published results: answers that the agent can simply read, and "answers" that are no
answers but a rule of one feature, such as a sample submission. Both are looked for in the files that the
evaluation script names. What is found is a warning: the task can be run, and its score means little.
"""

from __future__ import annotations

import ast
import csv
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from airloop.text.patterns import is_quick
from airloop.text.python import parse_python
from airloop_envs.mlgym.spec import TaskSpec

LARGEST_TABLE = 4 << 20  # bytes: larger ones are not label files, and listing tasks has to stay quick
FEWEST_ROWS = 20  # fewer rows follow some rule by chance
ROWS_PER_VALUE = 4  # a column with fewer rows per value is a name, not a rule
MOST_LABELS = 20
LONGEST_NAME = 255  # that is matched with a regular expression

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Findings:
    exposed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def inspect_task(task: TaskSpec) -> Findings:
    files = task.workspace_files()
    script = files.get(task.evaluation_paths[0]) if task.evaluation_paths else None
    if script is None:
        return Findings()
    try:
        tree = parse_python(script.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: brackets without end
        return Findings(problems=(f"{task.evaluation_paths[0]} is not valid Python and cannot score: {error}.",))
    visible = {name: path for name, path in files.items() if not task.is_secret(name, path)}
    read = [name for name in _named(list(files), tree) if not _is_training_data(task, name)]
    exposed = tuple(name for name in read if name in visible and not _has_features_only(name, visible))
    warnings = [_readable(task, exposed)] if exposed else []
    if (opponent := "target.py") in visible and "target" in _imports(tree):
        warnings.append(
            f"{opponent} is what {task.evaluation_paths[0]} scores against, and the agent can read it: "
            f"add secret_files: [{opponent}] to the task's YAML."
        )
    warnings += _spelling(task, tree)
    for name in read:
        warnings += _not_labels(task, name, files[name], visible)
    return Findings(exposed, tuple(warnings))


def _readable(task: TaskSpec, exposed: tuple[str, ...]) -> str:
    names = " and ".join(exposed)
    return (
        f"{task.evaluation_paths[0]} reads {names}, and so can the agent: if the answers are in there, the score "
        f"measures nothing. Add secret_files: [{', '.join(Path(name).name for name in exposed)}] to the task's YAML."
    )


# --- what the evaluation script names -----------------------------------------------------------------------


def _named(files: Sequence[str], tree: ast.AST) -> list[str]:
    """The files that a string in the script names: by their path in the workspace, else, since paths are joined
    from parts or written as they are in the checkout, by their last name."""
    found: set[str] = set()
    for pattern in _file_patterns(tree):
        exact = fnmatch.filter(files, pattern) if "/" in pattern else []
        last = pattern.rsplit("/", 1)[-1]
        found.update(exact or (name for name in files if fnmatch.fnmatchcase(name.rsplit("/", 1)[-1], last)))
    return sorted(found)


def _file_patterns(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = _escaped(node.value)
        elif isinstance(node, ast.JoinedStr):
            text = "".join(_escaped(str(part.value)) if isinstance(part, ast.Constant) else "*" for part in node.values)
        else:
            continue
        text = text.strip()
        # A whole name with its ending; ".csv" alone or a sentence would fit anything.
        stem, _, ending = text.rsplit("/", 1)[-1].rpartition(".")
        whole = "\n" not in text and re.search(r"[\w\]*-]$", stem) and re.fullmatch(r"\w{1,12}", ending)
        if whole and re.search(r"[A-Za-z0-9_]{2}", stem):
            yield text.removeprefix("./")


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _imports(tree: ast.AST) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def _spelling(task: TaskSpec, tree: ast.AST) -> list[str]:
    """A strict look-up of the metric would find no baseline, and everything would seem an improvement."""
    metric = task.yardstick.metric
    words = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    printed = [word for word in words if word.casefold() == metric.casefold()] or [metric]
    ours = {name for scores in task.baseline_scores for name in scores if name.casefold() == metric.casefold()}
    return [
        f"baseline_scores spells the metric {name!r}, the evaluation {printed[0]!r}; air compares without case, "
        f"so the baseline is {task.yardstick.baseline:g}."
        for name in sorted(ours - set(printed))
    ]


# --- what is in the files -----------------------------------------------------------------------------------


def _is_training_data(task: TaskSpec, name: str) -> bool:
    file = Path(name).name
    patterns = [s.file_regex for d in task.datasets for s in d.splits if s.name.casefold().startswith("train")]
    return "train" in Path(name).stem.casefold() or any(fits(pattern, file) for pattern in patterns)


def fits(pattern: str, name: str) -> bool:
    """MLGym calls it a regular expression, and people write globs."""
    try:
        if len(name) <= LONGEST_NAME and is_quick(pattern) and re.fullmatch(pattern, name):
            return True
    except (re.error, RecursionError, OverflowError):
        pass
    return fnmatch.fnmatchcase(name, pattern)


def _has_features_only(name: str, visible: Mapping[str, Path]) -> bool:
    """Test rows without the label. The training rows have all their columns and at least one more, and no other
    file is such a large part of the training rows: ids with labels are a part of them too, but a smaller one."""
    columns = _columns(visible[name])
    others = {other: _columns(path) for other, path in visible.items() if other != name}
    wholes = [other for title, other in others.items() if "train" in Path(title).stem.casefold() and columns < other]
    if not columns or not wholes:
        return False
    parts = [other for other in others.values() if other != columns and any(other < whole for whole in wholes)]
    return all(len(columns) > len(other) for other in parts)


def _columns(path: Path) -> set[str]:
    if path.suffix.casefold() != ".csv":
        return set()
    return set(next(_table(path), []))


def _rows(path: Path) -> Rows:
    if path.suffix.casefold() != ".csv" or path.stat().st_size > LARGEST_TABLE:
        return []
    lines = _table(path)
    header = next(lines, [])
    return [dict(zip(header, line, strict=False)) for line in lines if len(line) == len(header)]


def _table(path: Path) -> Iterator[list[str]]:
    """Its lines as far as they can be read: this looks for mistakes, it does not judge the form."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file, suppress(csv.Error):
        yield from csv.reader(file)


def _not_labels(task: TaskSpec, name: str, path: Path, visible: Mapping[str, Path]) -> list[str]:
    truth = _rows(path)
    if len(truth) < FEWEST_ROWS:
        return []
    found: list[str] = []
    for other, place in visible.items():
        if place == path or _is_training_data(task, other):
            continue
        if rule := _one_feature_rule(_joined(truth, _rows(place))):
            found.append(
                f"{name} holds no labels: {rule} (columns of {other}; all {len(truth)} rows), a rule of one feature. "
                "A high score there is agreement with that rule, not skill."
            )
            break
    if task.sample_submission and _same_labels(truth, _rows(task.sample_submission)):
        found.append(
            f"{name} equals the sample submission {task.sample_submission.name}: it may be an example of the form, "
            "not the truth."
        )
    return found


def _joined(truth: Rows, features: Rows) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Rows that belong together: by a shared column that names each row, else by their order."""
    if not features or len(truth) != len(features):
        return []
    for column in truth[0]:
        by_id = {row.get(column, ""): row for row in features}
        if column in features[0] and len(by_id) == len(truth) and by_id.keys() == {row[column] for row in truth}:
            return [(row, by_id[row[column]]) for row in truth]
    return list(zip(truth, features, strict=True))


def _one_feature_rule(pairs: list[tuple[dict[str, str], dict[str, str]]]) -> str:
    if not pairs:
        return ""
    first_truth, first_features = pairs[0]
    for label in first_truth:
        labels = [row[label] for row, _ in pairs]
        if label in first_features or not 2 <= len(set(labels)) <= MOST_LABELS:
            continue
        for feature in first_features:
            values = [row.get(feature, "") for _, row in pairs]
            if feature not in first_truth and (rule := _rule(feature, values, label, labels)):
                return rule
    return ""


def _rule(feature: str, values: list[str], label: str, labels: list[str]) -> str:
    """Each value of the feature has one label, or one threshold parts the labels."""
    label_of = dict(zip(values, labels, strict=True))
    if any(label_of[value] != one for value, one in zip(values, labels, strict=True)):
        return ""
    if len(label_of) * ROWS_PER_VALUE <= len(values):
        said = ", ".join(f"{value or 'empty'} → {one}" for value, one in sorted(label_of.items())[:4])
        return f"{label} follows from {feature} alone, {said}{', …' if len(label_of) > 4 else ''}"
    try:
        ordered = [label_of[value] for value in sorted(label_of, key=float)]
    except ValueError:
        return ""
    changes = sum(a != b for a, b in pairwise(ordered))
    return f"{label} follows from a threshold on {feature} alone" if changes == 1 else ""


def _same_labels(truth: Rows, sample: Rows) -> bool:
    pairs = _joined(truth, sample)
    shared = [column for column in truth[0] if sample and column in sample[0]]
    varied = [column for column in shared if len({row[column] for row in truth}) > 1]
    # More than the column that names the rows, or nothing was compared.
    return (
        bool(pairs)
        and len(varied) > 1
        and all(row[column] == other[column] for row, other in pairs for column in varied)
    )
