"""Drafts for a checkout's house prices: the same table as ours in Kaggle's columns, with rows to validate on in a file
of their own. The scripts are those of tables.py, fitted to both files; their levels are where they fall here, beside a
baseline that is better than ours: `r2` of 0.880, and 0.932 for a line through the logarithms of all columns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from airloop_envs.mlgym.researchers.tables import HOUSE_LEVELS, HouseScript, house_draft
from airloop_envs.mlgym.researchers.work import Draft

COLUMNS: Mapping[str, str] = {"Gr_Liv_Area": "GrLivArea", "Year_Built": "YearBuilt", "Garage_Cars": "GarageCars"}
ROWS = 'pd.concat([pd.read_csv("data/train.csv"), pd.read_csv("data/validation.csv")])'
LINES = ("linear regression", "ridge")
LEVELS: Mapping[str, Sequence[HouseScript]] = {
    "novice": [choice for choice in HOUSE_LEVELS["novice"] if choice[0] == "a few numbers" or choice[1] not in LINES],
    "junior": (
        *(("all numbers", line, "log prices") for line in LINES),
        *(("all numbers", "slow boosting", target) for target in ("prices", "log prices")),
        ("numbers and words", "linear regression", "prices"),
    ),
    "senior": (
        *(("numbers and words", model, "prices") for model in ("a forest", "boosting", "slow boosting")),
        ("numbers and words", "ridge", "log prices"),
    ),
    "oracle": (("numbers and words", "linear regression", "log prices"),),
}


def house_prices(level: str, rng: random.Random) -> Draft:
    draft = house_draft(rng.choice(LEVELS[level]), level, rng)
    return replace(draft, text=in_kaggles_form(draft.text), broken=in_kaggles_form(draft.broken))


def in_kaggles_form(text: str) -> str:
    text = text.replace('pd.read_csv("data/train.csv")', ROWS)
    for ours, theirs in COLUMNS.items():
        text = text.replace(ours, theirs)
    return text
