"""Drafts for Fashion-MNIST: scikit-learn on pixels. measure.py runs every one of MENU."""

from __future__ import annotations

import random
from collections.abc import Sequence

from airloop_envs.mlgym.researchers.work import Draft

MISTAKES = 0.15  # of the novices' scripts have one

CLASSIFIERS = {
    "the nearest mean": ("neighbors", "NearestCentroid", ""),
    "naive Bayes": ("naive_bayes", "GaussianNB", ""),
    "a small tree": ("tree", "DecisionTreeClassifier", "max_depth=5, random_state=0"),
    "a tree": ("tree", "DecisionTreeClassifier", "max_depth=12, random_state=0"),
    "nearest neighbours": ("neighbors", "KNeighborsClassifier", "5"),
    "logistic regression": ("linear_model", "LogisticRegression", "max_iter=50"),
    "a forest": ("ensemble", "RandomForestClassifier", "100, random_state=0"),
    "many random trees": ("ensemble", "ExtraTreesClassifier", "200, random_state=0"),
    "a support vector machine": ("svm", "SVC", "C=10"),
}
PIXELS = {"raw": "", "halved": "[:, ::2, ::2]"}


def fashion_script(classifier: str, pixels: str) -> str:
    module, name, options = CLASSIFIERS[classifier]
    size = 784 if pixels == "raw" else 196
    return f"""import numpy as np
from sklearn.{module} import {name}

train, test = np.load("data/train.npz"), np.load("data/test.npz")
x = train["images"]{PIXELS[pixels]}.reshape(-1, {size}) / 255
z = test["images"]{PIXELS[pixels]}.reshape(-1, {size}) / 255
labels = {name}({options}).fit(x, train["labels"]).predict(z)
np.savetxt("submission.csv", np.c_[test["ids"], labels], "%d", ",", header="id,label", comments="")
"""


MENU = {(c, p): fashion_script(c, p) for c in CLASSIFIERS for p in PIXELS}

LEVELS: dict[str, Sequence[tuple[str, str]]] = {
    "novice": tuple((c, p) for c in ("the nearest mean", "naive Bayes", "a small tree", "a tree") for p in PIXELS),
    "junior": tuple((c, p) for c in ("nearest neighbours", "logistic regression") for p in PIXELS),
    "senior": (("a forest", "halved"), ("many random trees", "halved"), ("a support vector machine", "halved")),
    "oracle": (("a support vector machine", "raw"),),
}


def fashion(level: str, rng: random.Random) -> Draft:
    classifier, pixels = rng.choice(LEVELS[level])
    text = MENU[classifier, pixels]
    broken = text.replace(".reshape", "[0].reshape") if level == "novice" and rng.random() < MISTAKES else ""
    return Draft(f"I fit {classifier} on {pixels} pixels.", "train.py", text, run="python train.py", broken=broken)
