"""From (kind, seed) to a task, always the same; and which seeds belong to which split."""

from __future__ import annotations

import difflib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from airloop.errors import AirError
from airloop_envs.soup import kinds as _package
from airloop_envs.soup.answers import in_words
from airloop_envs.soup.pages import Frame, frame
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import START, SolutionStep, SoupTask
from airloop_envs.soup.task_kind import KINDS, TaskDraft

for _module in sorted(module.name for module in pkgutil.iter_modules(_package.__path__)):
    importlib.import_module(f"{_package.__name__}.{_module}")

# No seed is in two splits. Bench is not a range to draw from: its tasks are those of the manifest.
SEEDS: Mapping[str, range] = MappingProxyType(
    {
        "train": range(1_000_000),
        "eval": range(1_000_000, 1_100_000),
        "test": range(1_100_000, 1_200_000),
        "bench": range(2_000_000, 2_000_100),
    }
)


MANIFEST = Path(__file__).with_name("manifest.json")  # written by `python -m airloop_envs.soup.manifest make`


def bench() -> list[tuple[str, int]]:
    """Kind and seed of the fixed tasks, always in the same order, the first few already of many kinds."""
    return [(entry["kind"], entry["seed"]) for entry in json.loads(MANIFEST.read_text(encoding="utf-8"))["tasks"]]


def generate(kind: str, seed: int) -> SoupTask:
    """The task of this kind and seed. Deterministic across machines and Python versions (see Rng)."""
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        raise AirError(
            f"There is no kind of BeautifulSoup task named {kind!r}.",
            (f"did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(KINDS)}.",
        )
    made = KINDS[kind]
    draft = made.make(Rng(f"soup/1/{made.rng_name}/{seed}"))
    chance = Rng(f"soup/1/{kind}/page/{seed}")
    look = frame(chance, made.level, made.size)
    return SoupTask(
        kind=kind,
        level=made.level,
        seed=seed,
        query=draft.query,
        schema_text=in_words(draft.schema),
        schema=draft.schema,
        constraints=draft.constraints,
        pages=_pages(draft, look),
        answer=draft.answer,
        recipe=(SolutionStep(None, draft.code),) if isinstance(draft.code, str) else draft.code,
        limit=draft.limit,
        forbidden=draft.forbidden,
        unordered=draft.unordered,
    )


def _pages(draft: TaskDraft, look: Frame) -> dict[str, str]:
    mains = {START: draft.main, **draft.more}
    return {
        href: look.page(
            main, share=len(mains), head=draft.head, tail=draft.tail, lang=draft.lang, rtl=draft.right_to_left
        )
        for href, main in mains.items()
    }
