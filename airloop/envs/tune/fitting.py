"""One attempt: a resolved configuration, fitted and scored. Runs in the workers.

The model is scored on the hidden rows at once, next to its cross-validation, so a score can only belong to
the model it was made for; what the agent is shown of it is the session's matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from airloop.envs.tune.catalogue import Dataset, Kind
from airloop.envs.tune.tables import Array, task_rows

FOLDS = 3
SEED = 0  # of forests, boosting and folds: the same command gives the same score

FAMILIES = {
    "tree": {"classification": DecisionTreeClassifier, "regression": DecisionTreeRegressor},
    "forest": {"classification": RandomForestClassifier, "regression": RandomForestRegressor},
    "boost": {"classification": GradientBoostingClassifier, "regression": GradientBoostingRegressor},
    "knn": {"classification": KNeighborsClassifier, "regression": KNeighborsRegressor},
    "svm": {"classification": SVC, "regression": SVR},
}
PARAMETERS = {
    "depth": "max_depth",
    "trees": "n_estimators",
    "lr": "learning_rate",
    "k": "n_neighbors",
    "C": "C",
}


def estimator(config: Mapping[str, Any], kind: Kind, rows: int) -> Any:
    """`config` is complete: `model`, `scale` and every option of that model, except linear's optional C."""
    given = {PARAMETERS[name]: value for name, value in config.items() if name in PARAMETERS}
    model = config["model"]
    if model == "linear":
        made = linear(kind, config.get("C"))
    else:
        if model == "knn":
            given["n_neighbors"] = min(given["n_neighbors"], rows)
        if model in ("tree", "forest", "boost"):
            given["random_state"] = SEED
        made = FAMILIES[model][kind](**given)
    return make_pipeline(StandardScaler(), made) if config["scale"] else made


def linear(kind: Kind, C: float | None) -> Any:
    """Without C scikit-learn's untuned default, which is the baseline; with C a penalty of strength 1/C."""
    if kind == "classification":
        return LogisticRegression(C=1.0 if C is None else C)
    return LinearRegression() if C is None else Ridge(alpha=1 / C)


def fit(dataset: Dataset, seed: int, config: Mapping[str, Any]) -> dict[str, float]:
    """The scores of one configuration: mean over the folds, on the validation rows, on the test rows."""
    rows = task_rows(dataset, seed)
    X, y = rows.train
    score = accuracy_score if dataset.kind == "classification" else r2_score
    with warnings.catch_warnings():
        # Some untuned models do not converge: that is their score, not a message for the agent.
        warnings.simplefilter("ignore", ConvergenceWarning)

        def fitted(X: Array, y: Array) -> Any:
            return estimator(config, dataset.kind, len(y)).fit(X, y)

        splitter = StratifiedKFold if dataset.kind == "classification" else KFold
        folds = splitter(FOLDS, shuffle=True, random_state=SEED)
        cv = [score(y[held], fitted(X[kept], y[kept]).predict(X[held])) for kept, held in folds.split(X, y)]
        final = fitted(X, y)
        valid, test = (score(y, final.predict(X)) for X, y in (rows.valid, rows.test))
    return {"cv": float(np.mean(cv)), "valid": float(valid), "test": float(test)}
