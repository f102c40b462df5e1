"""The generator of BeautifulSoup tasks: the same for ever, in five levels, on pages of the right size."""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.errors import AirError
from airloop_envs.soup import manifest
from airloop_envs.soup.answers import array, in_words, integer, nullable, record, text
from airloop_envs.soup.boilerplate import BLOCKS, ONCE, Classes
from airloop_envs.soup.generate import KINDS, SEEDS, bench, generate
from airloop_envs.soup.pages import spoil
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.spec import LEVELS, MIN_EVIDENCE, START
from airloop_envs.soup.styles import STYLES, Style

MEDIANS = {"primer": 5_000, "easy": 5_000, "medium": 10_000, "hard": 30_000, "expert": 60_000}
kinds = pytest.mark.parametrize("kind", list(KINDS))


def test_all_levels_have_kinds() -> None:
    assert len(KINDS) >= 57
    assert {made.level for made in KINDS.values()} == set(LEVELS)
    assert len(LEVELS) == 5
    for name, made in KINDS.items():
        assert made.about and (not made.twin or KINDS[made.twin].twin == name), name


def test_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(AirError, match="did you mean 'table_dicts'"):
        generate("table_dict", 0)


@kinds
def test_same_seed_same_task(kind: str) -> None:
    first, again, other = generate(kind, 5), generate(kind, 5), generate(kind, 6)
    assert first == again and first.digest() == again.digest()
    assert other.digest() != first.digest() and other.pages != first.pages


@kinds
def test_tasks_are_whole(kind: str) -> None:
    for seed in range(4):
        task = generate(kind, seed)
        jsonschema.Draft202012Validator.check_schema(task.schema)
        assert next(iter(task.pages)) == START
        assert task.level == KINDS[kind].level and task.query and task.constraints and task.recipe
        assert task.schema_text == in_words(dict(task.schema))
        if task.limit is None:
            jsonschema.validate(task.answer, task.schema)
            assert json.loads(json.dumps(task.answer)) == task.answer
            assert task.answer not in ([], {}, "")
        else:
            assert task.answer is None
            assert all(len(e) >= MIN_EVIDENCE and e in task.pages[START] for e in task.limit.evidence)
        assert task.recipe[0].navigate is None and len(task.recipe) <= 4  # ten turns are enough, with the answer
        assert task.multi_page == (len(task.recipe) > 1)


@kinds
def test_nothing_forbidden_is_in_the_answer_or_the_prompt(kind: str) -> None:
    for seed in range(4):
        task = generate(kind, seed)
        said = json.dumps(task.answer, ensure_ascii=False) + task.query + task.schema_text + task.constraints
        for value in task.forbidden:
            assert value not in said and any(value in page for page in task.pages.values())


def test_some_kinds_forbid() -> None:
    assert {kind for kind in KINDS if generate(kind, 0).forbidden} == {
        "credential_fields",
        "honeypot_fields",
        "hidden_tokens",
    }


def test_splits_share_no_seed() -> None:
    assert set(SEEDS) == {"train", "eval", "test", "bench"}
    ranges = sorted(SEEDS.values(), key=lambda seeds: seeds.start)
    assert all(before.stop <= after.start for before, after in pairwise(ranges))
    assert all(seed in SEEDS["bench"] for _, seed in bench())


@pytest.mark.parametrize("level", LEVELS)
def test_page_sizes(level: str) -> None:
    sizes = [
        sum(map(len, generate(kind, seed).pages.values()))
        for kind, made in KINDS.items()
        if made.level == level
        for seed in range(10)
    ]
    assert statistics.median(sizes) <= MEDIANS[level]
    assert max(sizes) <= 2 * MEDIANS[level]


def test_pages_have_many_looks() -> None:
    pages = [generate("table_links", seed).pages[START] for seed in range(120)]
    seen = {style.name for style in STYLES for page in pages if f'class="{Classes(style)("header")}"' in page}
    assert len(seen) == len(STYLES) >= 6
    flawed = [page for page in pages if "</br>" in page or "<P>" in page or "class=" in page.replace('class="', "")]
    assert 0.05 < len(flawed) / len(pages) < 0.6
    assert not any("</br>" in generate("text_by_id", seed).pages[START] for seed in range(60))


@pytest.mark.parametrize("level", ["primer", "easy"])
def test_small_levels_are_made_quickly(level: str) -> None:
    """Counted in CPU time: others may use the machine too."""
    wanted = [kind for kind, made in KINDS.items() if made.level == level]
    generate(wanted[0], 0)
    began = time.process_time()
    for seed in range(10):
        for kind in wanted:
            generate(kind, seed)
    assert 10 * len(wanted) / (time.process_time() - began) >= 200


@pytest.mark.slow
def test_manifest_is_what_the_generator_makes() -> None:
    assert "all 680 tasks" in manifest.check()
    assert len(bench()) == len(set(bench())) == 680
    assert {kind for kind, _ in bench()[: len(KINDS)]} == set(KINDS)  # a slice from the front has all kinds


def test_manifest_is_not_changed_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("text_by_id", "table_dicts", "emoji")
    other = [entry for entry in manifest.read() if entry["kind"] in few]
    other[3]["sha256"] = "0" * 64
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"tasks": other}))
    monkeypatch.setattr(manifest, "MANIFEST", path)
    monkeypatch.setattr(manifest, "KINDS", {kind: made for kind, made in KINDS.items() if kind in few})
    with pytest.raises(AirError, match="1 of 24 tasks are not what they were"):
        manifest.check()
    with pytest.raises(AirError, match="would change"):
        manifest.make(replace=False)
    manifest.make(replace=True)
    assert "all 24" in manifest.check()
    path.write_text(json.dumps({"tasks": manifest.read()[:-1]}))
    with pytest.raises(AirError, match="not in the manifest"):
        manifest.check()
    assert "1 of them new" in manifest.make(replace=False)


def test_schema_words() -> None:
    schema = array(record(name=text("as printed"), stock=nullable(integer())), "in page order")
    assert in_words(schema) == (
        "The answer is a list, in page order; each item is an object with exactly these keys:\n"
        "  - name: text (a JSON string), as printed\n"
        "  - stock: whole number, or null where there is none."
    )


@given(st.text(), st.integers(1, 50))
def test_dice(seed: str, n: int) -> None:
    d, same = Rng(seed), Rng(seed)
    items = list(range(n))
    assert d.shuffled(items) == same.shuffled(items) and sorted(d.shuffled(items)) == items
    picked = d.sample(items, n // 2)
    assert len(set(picked)) == n // 2 and set(picked) <= set(items)
    assert d.below(n) in items and 3 <= d.between(3, 3 + n) <= 3 + n
    assert len(set(d.numbers(0, n, n))) == n
    assert d.fork("a").hexadecimal(8) == Rng(seed).fork("a").hexadecimal(8) != d.fork("b").hexadecimal(8)


def test_dice_never_change() -> None:
    d = Rng("for ever")
    assert [d.between(0, 999) for _ in range(4)] == [464, 260, 826, 443]
    assert d.invented() == "jehuti" and d.shuffled("abcdef") == list("bdaecf")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(BLOCKS)), st.sampled_from(STYLES))
def test_flaws_end_with_their_block(seed: int, block: str, style: Style) -> None:
    """Whatever is wrong in the boilerplate, what follows is read alike by every parser."""
    d = Rng(str(seed))
    html = spoil(d, BLOCKS[block](d, Classes(style)))
    page = f'<html><body>{html}<div id="after"><p>here</p><p>there</p></div></body></html>'
    for parser in ("html.parser", "lxml", "html5lib"):
        after = BeautifulSoup(page, parser).find(id="after")
        assert after is not None and after.parent is not None and after.parent.name == "body"
        assert [p.get_text() for p in after.find_all("p", recursive=False)] == ["here", "there"]


def test_every_style_has_blocks_to_repeat() -> None:
    for style in STYLES:
        assert set(style.blocks) <= set(BLOCKS) and set(style.blocks) - set(ONCE), style.name
