"""Drafts for the tasks of a checkout that have our names and forms: other opponents and another table, so the same
ideas fall on other levels.

Games, measured against the checkout's own opponents (10,000 games of 10 rounds; optima 2.6251, 1.44 and about 0.25):
always defecting 2.625 and opening kindly 2.608; always 0 1.44, a share of 0.05 at 1 1.33, giving turns 1.15; four
equal fields 0.24, 31-31-31-27 0.23, five equal fields 0.11.

House prices: the table in Kaggle's columns, with rows to validate on in a file of their own. The scripts are those of
tables.py, fitted to both files, beside a baseline that is better than ours: `r2` of 0.880, and 0.932 for a line
through the logarithms of all columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airloop_envs.mlgym.researchers import games
from airloop_envs.mlgym.researchers.games import Forces, Menu, mixes, one_of
from airloop_envs.mlgym.researchers.tables import HOUSE_LEVELS, HouseScript, house_draft
from airloop_envs.mlgym.researchers.work import Draft

PRISONERS: Mapping[str, Menu] = {
    **games.PRISONERS,
    "senior": (one_of(games.KIND_FIRST), mixes(0.85, 0.95)),
    "oracle": (one_of(games.ALWAYS_1),),
}
SEXES: Mapping[str, Menu] = {
    **games.SEXES,
    "junior": (one_of(games.MAJORITY, games.TURNS), mixes(0.15, 0.3)),
    "senior": (mixes(0.05, 0.1),),
    "oracle": (one_of(games.ALWAYS_0),),
}
FORCES: Mapping[str, Forces] = {
    **games.FORCES,
    "junior": ((24, 24, 24, 24, 24, 0), (25, 25, 25, 25, 10, 10), (35, 30, 25, 15, 10, 5), (38, 38, 22, 12, 8, 2)),
    "senior": ((31, 31, 31, 27, 0, 0), (32, 32, 28, 28, 0, 0)),
    "oracle": ((30, 30, 30, 30, 0, 0),),
}


def prisoners_dilemma(level: str, rng: random.Random) -> Draft:
    return games.prisoners_dilemma(level, rng, PRISONERS)


def battle_of_sexes(level: str, rng: random.Random) -> Draft:
    return games.battle_of_sexes(level, rng, SEXES)


def blotto(level: str, rng: random.Random) -> Draft:
    return games.blotto(level, rng, FORCES)


COLUMNS: Mapping[str, str] = {"Gr_Liv_Area": "GrLivArea", "Year_Built": "YearBuilt", "Garage_Cars": "GarageCars"}
ROWS = 'pd.concat([pd.read_csv("data/train.csv"), pd.read_csv("data/validation.csv")])'
LINES = ("linear regression", "ridge")
HOUSES: Mapping[str, Sequence[HouseScript]] = {
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
    draft = house_draft(rng.choice(HOUSES[level]), level, rng)
    return replace(draft, text=in_kaggles_form(draft.text), broken=in_kaggles_form(draft.broken))


def in_kaggles_form(text: str) -> str:
    text = text.replace('pd.read_csv("data/train.csv")', ROWS)
    for ours, theirs in COLUMNS.items():
        text = text.replace(ours, theirs)
    return text


DRAFTS: Mapping[str, Callable[[str, random.Random], Draft]] = {
    "prisonersDilemma": prisoners_dilemma,
    "battleOfSexes": battle_of_sexes,
    "blotto": blotto,
    "regressionKaggleHousePrice": house_prices,
}
