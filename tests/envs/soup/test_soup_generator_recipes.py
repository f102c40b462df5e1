"""Every kind's recipe, really run on its page, prints the answer; and readers of the prompt alone find nothing."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from bs4 import BeautifulSoup

from airloop_envs.soup.generate import KINDS, generate
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import START, SoupTask

LIMITS = ("script_rendered", "image_text", "canvas_drawing", "embedded_pdf")
PANEL = [kind for kind, made in KINDS.items() if made.twin]
MALFORMED = [kind for kind in KINDS if kind.startswith("malformed_")]
kinds = pytest.mark.parametrize("kind", list(KINDS))


def run_recipe(task: SoupTask, parser: str = "html.parser", force: bool = False) -> Any:
    """What the last step prints. `parser` is what make_soup uses where the recipe names none; `force`: always."""
    html, seen = task.pages[START], []
    for step in task.recipe:
        if (target := step.target(seen)) is not None:
            html = task.pages[target]

        def make_soup(text: str = html, **chosen: str) -> BeautifulSoup:
            return BeautifulSoup(text, parser if force else chosen.get("parser", parser))

        printed = io.StringIO()
        names = {"HTML": html, "QUERY": task.query, "CONSTRAINTS": task.constraints, "make_soup": make_soup}
        with contextlib.redirect_stdout(printed):
            exec(step.with_seen(seen), names)
        seen.append(json.loads(printed.getvalue()))
    return seen[-1]


def check(task: SoupTask, parser: str = "html.parser") -> None:
    got = run_recipe(task, parser)
    where = f"{task.kind}, seed {task.seed}, {parser}"
    if task.limit is None:
        assert got == task.answer and type(got) is type(task.answer), where
    else:
        assert got["limit"]["reason"] == task.limit.reason, where
        assert any(evidence in got["limit"]["evidence"] for evidence in task.limit.evidence), where
        assert got["limit"]["evidence"] in task.pages[START], where


@kinds
def test_recipe(kind: str) -> None:
    for seed in (1, 2, 1_000_003):
        check(generate(kind, seed))


@pytest.mark.soak
@kinds
def test_recipe_on_fifty_seeds(kind: str) -> None:
    for seed in range(100, 150):
        check(generate(kind, seed))


@pytest.mark.long
@kinds
def test_answer_does_not_depend_on_the_parser(kind: str) -> None:
    """A right program must not fail because it prefers lxml. Where parsers differ, the recipe names its own."""
    for parser in ("lxml", "html5lib"):
        check(generate(kind, 11), parser)


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_kinds_need_the_right_parser(kind: str) -> None:
    tasks = [generate(kind, seed) for seed in range(12)]
    assert any(run_recipe(task, "html.parser", force=True) != task.answer for task in tasks)


def test_string_answers_stay_strings() -> None:
    task = generate("jsonld_object", 3)
    assert isinstance(task.answer["rating"], str) and re.fullmatch(r"\d\.\d", task.answer["rating"])
    assert task.schema["properties"]["rating"]["type"] == "string"
    assert isinstance(task.answer["reviews"], int)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif value is not None:
        yield value


@kinds
def test_prompt_does_not_hold_the_answer(kind: str) -> None:
    for seed in range(6):
        task = generate(kind, seed)
        prompt = "\n".join((task.query, task.schema_text, task.constraints))
        keys = set(re.findall(r"- (\w+):", task.schema_text)) | {"text"}  # "text": the type of an input, too
        for value in leaves(task.answer):
            if value not in keys:
                assert not re.search(rf"(?<![\w.]){re.escape(str(value))}(?!\w)", prompt), (kind, seed, value)


@kinds
def test_no_answer_is_common(kind: str) -> None:
    """So whoever reads only the prompt is right by chance, and that is seldom."""
    made = KINDS[kind]
    answers = [json.dumps(made.make(Rng(f"{kind}/{seed}")).answer) for seed in range(150)]
    if kind not in LIMITS:
        assert Counter(answers).most_common(1)[0][1] <= 12  # of 40 counts (count_elements) 4 each are expected


def test_limits_are_four_with_a_twin_each() -> None:
    assert {kind for kind in KINDS if generate(kind, 0).limit} == set(LIMITS)
    assert {KINDS[kind].twin for kind in LIMITS} == set(PANEL) - set(LIMITS)
    for kind in LIMITS:
        assert KINDS[kind].level == KINDS[KINDS[kind].twin].level


@pytest.mark.slow
def test_limits_and_twins_share_every_prompt() -> None:
    for seed in range(40):
        tasks = [generate(kind, seed) for kind in PANEL]
        assert len({(t.query, t.schema_text, t.constraints, t.multi_page) for t in tasks}) == 1
        assert len({json.dumps(t.answer) for t in tasks if t.answer}) == 4  # prompts are shared, values are not


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIMITS)
def test_twins_show_the_same_things(kind: str) -> None:
    """A canvas, an image or a script alone proves nothing: the twin has it as well."""
    tag = {
        "script_rendered": "script",
        "image_text": "figure img",
        "canvas_drawing": "canvas",
        "embedded_pdf": "object",
    }
    for seed in range(5):
        for name in (kind, KINDS[kind].twin):
            page = BeautifulSoup(generate(name, seed).pages[START], "html.parser")
            assert page.select(f"section.part {tag[kind]}")
            assert page.select("section.part table")  # older values, to mislead


@pytest.mark.long
@pytest.mark.parametrize("analyser,spans", [("word", (1, 2)), pytest.param("char_wb", (2, 4), marks=pytest.mark.slow)])
def test_a_classifier_cannot_tell_limits_by_their_prompts(analyser: str, spans: tuple[int, int]) -> None:
    """Other seeds on either side: that prompts are shared seed by seed does not help it, or hinder."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline

    prompts, labels = [], []
    for place, kind in enumerate(PANEL):
        for seed in range(1000 * place, 1000 * place + 250):
            draft = KINDS[kind].make(Rng(f"soup/1/{KINDS[kind].rng_name}/{seed}"))
            prompts.append(f"{draft.query}\n{json.dumps(draft.schema)}\n{draft.constraints}")
            labels.append(kind in LIMITS)
    model = make_pipeline(TfidfVectorizer(analyzer=analyser, ngram_range=spans), LogisticRegression(max_iter=500))
    scores = cross_val_score(model, prompts, labels, cv=5, scoring="balanced_accuracy")
    print(f"balanced accuracy {scores.mean():.3f} of {len(prompts)} prompts")
    assert scores.mean() <= 0.55


MORE_PAGES = ("search_then_detail", "filter_then_detail", "link_chain", "page_comparison", "cross_reference")


@pytest.mark.parametrize("kind", MORE_PAGES)
def test_first_page_is_not_enough(kind: str) -> None:
    for seed in range(5):
        task = generate(kind, seed)
        assert not all(str(value) in task.pages[START] for value in leaves(task.answer) if value not in task.schema)
        linked = {a["href"] for a in BeautifulSoup(task.pages[START], "html.parser").find_all("a")}
        assert linked & set(task.pages)
