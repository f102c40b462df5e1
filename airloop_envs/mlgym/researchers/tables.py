"""Drafts for the tasks with a table: a few lines of pandas and scikit-learn, in many combinations.

The same scripts are the search that the tasks' references come from (measure.py runs every one of MENU), and
the levels are where their mean scores over the variants fall.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from airloop_envs.mlgym.researchers.work import Draft

MISTAKES = 0.15  # of the novices' scripts have one

# --- titanic --------------------------------------------------------------------------------------------

SEX = '    x["Sex"] = d.Sex == "female"'
AGE = '    x["Age"] = d.Age.fillna(28)'
FAMILY = '    x["Family"] = d.SibSp + d.Parch'
CHILD = '    x["Child"] = d.Age < 14'
COLUMNS = {  # a name, the columns that are taken as they are, the ones that are made
    "no sex": ('"Pclass", "SibSp", "Parch"', ()),
    "age only": ('"SibSp", "Parch"', (AGE,)),
    "sex and class": ('"Pclass"', (SEX,)),
    "sex and age": ('"Pclass"', (SEX, AGE)),
    "all": ('"Pclass", "SibSp", "Parch"', (SEX, AGE)),
    "family": ('"Pclass"', (SEX, AGE, FAMILY)),
    "child": ('"Pclass"', (SEX, CHILD, FAMILY)),
}
CLASSIFIERS = {
    "logistic regression": ("linear_model", "LogisticRegression", "max_iter=1000"),
    "naive Bayes": ("naive_bayes", "GaussianNB", ""),
    "nearest neighbours": ("neighbors", "KNeighborsClassifier", "5"),
    "a full tree": ("tree", "DecisionTreeClassifier", "random_state=0"),
    "a small tree": ("tree", "DecisionTreeClassifier", "max_depth=4, random_state=0"),
    "a forest": ("ensemble", "RandomForestClassifier", "100, max_depth=5, random_state=0"),
    "boosting": ("ensemble", "GradientBoostingClassifier", "n_estimators=100, max_depth=3, random_state=0"),
    "slow boosting": ("ensemble", "GradientBoostingClassifier", "n_estimators=60, learning_rate=0.05, random_state=0"),
}
TREES = ("a small tree", "a forest", "slow boosting")
TITANIC_LEVELS: dict[str, Sequence[tuple[str, str]]] = {
    "novice": (
        *((columns, model) for columns in ("no sex", "age only") for model in CLASSIFIERS),
        *((columns, model) for columns in ("all", "family") for model in ("nearest neighbours", "a full tree")),
        *(("sex and class", model) for model in CLASSIFIERS),
    ),
    "junior": (
        *(("sex and age", model) for model in (*TREES, "logistic regression")),
        *((columns, model) for columns in ("all", "family") for model in ("boosting", "logistic regression")),
        *(("child", model) for model in ("naive Bayes", "logistic regression", "a full tree")),
    ),
    "senior": (("child", "boosting"), *((columns, model) for columns in ("all", "family") for model in TREES)),
    "oracle": (("child", "slow boosting"), ("child", "a small tree"), ("child", "a forest")),
}


def titanic_script(columns: str, classifier: str) -> str:
    plain, made = COLUMNS[columns]
    module, name, options = CLASSIFIERS[classifier]
    lines = "\n".join(made) + "\n" if made else ""
    return f"""import pandas as pd
from sklearn.{module} import {name}

train, test = pd.read_csv("data/train.csv"), pd.read_csv("data/test.csv")

def features(d):
    x = d[[{plain}]].copy()
{lines}    return x

model = {name}({options}).fit(features(train), train.Survived)
test["Survived"] = model.predict(features(test))
test[["PassengerId", "Survived"]].to_csv("submission.csv", index=False)
"""


TITANIC_MENU = {(c, m): titanic_script(c, m) for c in COLUMNS for m in CLASSIFIERS}


def titanic(level: str, rng: random.Random) -> Draft:
    columns, model = rng.choice(TITANIC_LEVELS[level])
    thought = f"I fit {model}; columns: {columns}."
    return _draft(thought, TITANIC_MENU[columns, model], level, rng)


def _draft(thought: str, text: str, level: str, rng: random.Random) -> Draft:
    """The mistake: a column that is not there is asked for, or the file's folder is forgotten."""
    broken = ""
    if level == "novice" and rng.random() < MISTAKES:
        broken = text.replace("data/test", "test") if rng.random() < 0.5 else text.replace("[[", '[["Name", ', 1)
    return Draft(thought, "train.py", text, run="python train.py", broken=broken)


# --- house prices ---------------------------------------------------------------------------------------

TABLES = {
    "a few numbers": 'x = both[["Gr_Liv_Area", "Year_Built", "Garage_Cars"]]',
    "all numbers": 'x = both.select_dtypes("number").fillna(0)',
    "numbers and words": "x = pd.get_dummies(both).fillna(0)",
}
REGRESSORS = {
    "the mean": ("dummy", "DummyRegressor", ""),
    "nearest neighbours": ("neighbors", "KNeighborsRegressor", "5"),
    "linear regression": ("linear_model", "LinearRegression", ""),
    "ridge": ("linear_model", "Ridge", "10"),
    "a tree": ("tree", "DecisionTreeRegressor", "max_depth=6, random_state=0"),
    "a forest": ("ensemble", "RandomForestRegressor", "50, random_state=0"),
    "boosting": ("ensemble", "HistGradientBoostingRegressor", "random_state=0"),
    "slow boosting": (
        "ensemble",
        "HistGradientBoostingRegressor",
        "max_iter=300, learning_rate=0.05, max_leaf_nodes=8, random_state=0",
    ),
}
TARGETS = {"prices": ("y", "{}"), "log prices": ("np.log(y)", "np.exp({})")}  # what is fitted, and the way back


def house_script(table: str, regressor: str, target: str) -> str:
    module, name, options = REGRESSORS[regressor]
    fitted, back = TARGETS[target]
    numpy = "import numpy as np\n" if "np." in fitted else ""
    return f"""{numpy}import pandas as pd
from sklearn.{module} import {name}

train, test = pd.read_csv("data/train.csv"), pd.read_csv("data/test.csv")
y = train.pop("SalePrice")
both = pd.concat([train, test]).drop(columns="Id")
{TABLES[table]}
n = len(train)
model = {name}({options}).fit(x[:n], {fitted})
test["SalePrice"] = {back.format("model.predict(x[n:])")}
test[["Id", "SalePrice"]].to_csv("submission.csv", index=False)
"""


HOUSE_MENU = {(t, r, y): house_script(t, r, y) for t in TABLES for r in REGRESSORS for y in TARGETS}
WEAK = ("the mean", "nearest neighbours", "a tree")
STRONG = ("a forest", "boosting", "slow boosting")
HouseScript = tuple[str, str, str]  # what of the table, which model, what it is fitted to
HOUSE_LEVELS: dict[str, Sequence[HouseScript]] = {
    "novice": (
        *(("a few numbers", regressor, "prices") for regressor in REGRESSORS),
        *(("all numbers", regressor, target) for regressor in WEAK for target in TARGETS),
        *(("all numbers", regressor, "log prices") for regressor in ("linear regression", "ridge")),
    ),
    "junior": (
        *(("numbers and words", regressor, "prices") for regressor in ("linear regression", "ridge")),
        *(("a few numbers", regressor, target) for regressor in STRONG for target in TARGETS),
    ),
    "senior": tuple(("all numbers", regressor, target) for regressor in STRONG for target in TARGETS),
    "oracle": tuple(("numbers and words", "slow boosting", target) for target in TARGETS),
}


def house_prices(level: str, rng: random.Random) -> Draft:
    return house_draft(rng.choice(HOUSE_LEVELS[level]), level, rng)


def house_draft(script: HouseScript, level: str, rng: random.Random) -> Draft:
    table, regressor, target = script
    return _draft(f"I fit {regressor} on {table} to {target}.", HOUSE_MENU[script], level, rng)
