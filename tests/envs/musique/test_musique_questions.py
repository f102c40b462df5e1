"""Rows become questions, questions go to splits, and nobody is in two of them."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.musique_world import DEV, HOTPOT, TRAIN, genuine, make

from airloop.errors import AirError
from airloop_envs.musique.generated import generated_questions, generated_rows
from airloop_envs.musique.library import home, load
from airloop_envs.musique.questions import arrange, read_question

HOTPOT_ROW: dict[str, Any] = {  # in HotpotQA's form; its words are made up
    "_id": "h1",
    "type": "bridge",
    "level": "easy",
    "question": "Where was the founder of Balaton born?",
    "answer": "Kelstad",
    "context": [
        ["Balaton", ["Founded by Ada Norgard.", " It is old."]],
        ["Ada Norgard", ["Born in Kelstad."]],
        ["X", ["Y."]],
    ],
    "supporting_facts": [["Balaton", 0], ["Ada Norgard", 0]],
}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return str(path)


def test_generated_rows_are_the_same_for_ever_and_say_what_they_are() -> None:
    assert generated_rows() == generated_rows()
    assert generated_rows(10) == generated_rows()[:10]
    assert all("generated" in row["id"] for row in generated_rows())
    env = make()
    assert {task.curve for task in env.tasks("train")} == {"generated-2hop", "generated-3hop", "generated-4hop"}


def test_generated_answers_are_in_the_supporting_documents() -> None:
    for question in generated_questions():
        texts = [d.text for d in question.documents if d.supporting]
        assert len(texts) == question.hops == len(question.steps)
        assert any(question.answers[0] in text for text in texts)


def test_hotpot_rows_load_through_the_same_reader() -> None:
    question = read_question(HOTPOT_ROW, "row 1")
    assert question is not None
    assert question.family == "hotpotqa-bridge" and question.hops == 2
    assert [d.supporting for d in question.documents] == [True, True, False]
    assert question.documents[0].text == "Founded by Ada Norgard. It is old."
    table = {
        **HOTPOT_ROW,
        "context": {"title": ["Balaton", "Ada Norgard"], "sentences": [["a"], ["b"]]},
        "supporting_facts": {"title": ["Balaton"], "sent_id": [0]},
    }
    hub = read_question(table, "row 1")
    assert hub is not None and [d.supporting for d in hub.documents] == [True, False]


def test_unanswerable_rows_are_left_out_and_broken_ones_are_told() -> None:
    row = generated_rows(1)[0]
    assert read_question({**row, "answerable": False}, "row 1") is None
    with pytest.raises(AirError, match=r"file, row 7 is not a question .* has no 'paragraphs'"):
        read_question({k: v for k, v in row.items() if k != "paragraphs"}, "file, row 7")
    with pytest.raises(AirError, match="an empty answer"):
        read_question({**row, "answer": " "}, "row 1")
    nobody = [{**p, "is_supporting": False} for p in row["paragraphs"]]
    with pytest.raises(AirError, match="no supporting paragraph"):
        read_question({**row, "paragraphs": nobody}, "row 1")


@given(st.floats(0, 1), st.integers(0, 5), st.integers(0, 239))
def test_noise_is_seeded_and_never_takes_what_supports(rate: float, seed: int, number: int) -> None:
    question = generated_questions()[number]
    one, two = arrange(question, rate, seed), arrange(question, rate, seed)
    assert one == two
    assert [d.id for d in one.documents] == list(range(1, len(one.documents) + 1))
    texts = {d.text for d in question.documents if d.supporting}
    assert {d.text for d in one.documents if d.supporting} == texts


def test_noise_rate_is_a_probability() -> None:
    noise = [sum(not d.supporting for d in arrange(q, 0.3, 0).documents) for q in generated_questions()]
    possible = sum(sum(not d.supporting for d in q.documents) for q in generated_questions())
    assert 0.27 < sum(noise) / possible < 0.33
    assert all(d.supporting for d in arrange(generated_questions()[0], 0.0, 0).documents)


@given(st.text(min_size=1), st.floats(0.01, 0.49))
def test_a_question_has_one_home(id: str, share: float) -> None:
    assert home(id, share, True) in ("train", "eval", "test")
    assert (home(id, share, True) == "eval") == (home(id, share, False) == "eval")
    assert home(id, share, False) != "test"


def test_splits_do_not_overlap_and_keep_their_rows_when_others_go() -> None:
    env = make()
    ids = {split: {t.id for t in env.tasks(split)} for split in ("train", "eval", "test")}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values())) == 240
    fewer = make(datasets="generated,,train[:100]")
    for split in ids:
        assert {t.id for t in fewer.tasks(split)} <= ids[split]


def test_the_order_is_shuffled_by_the_seed_and_never_by_hops() -> None:
    one, two = make().tasks("train"), make(seed=1).tasks("train")
    assert [t.id for t in one] == [t.id for t in make().tasks("train")] != [t.id for t in two]
    assert sorted(t.id for t in one) == sorted(t.id for t in two)
    hops = [t.payload["hops"] for t in one]
    assert hops != sorted(hops) and set(hops[:12]) == {2, 3, 4}


def test_several_data_sets_and_slices(tmp_path: Path) -> None:
    rows = generated_rows(20)
    first, second = write(tmp_path / "a.jsonl.gz", rows[:10]), write(tmp_path / "b.jsonl.gz", [*rows[8:15], HOTPOT_ROW])
    assert [q.id for q in load(f"{first},answerable,train[:3]")] == [r["id"] for r in rows[:3]]
    both = load(f"{first};{second},,train")
    assert [q.id for q in both] == [*(r["id"] for r in rows[:15]), "h1"]  # each once
    assert both[0].family.endswith("hop") and "generated" not in both[0].family


def test_a_row_of_the_test_set_is_not_trained_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = generated_rows(20)
    renamed = {**rows[3], "id": "2hop__other"}  # the same question under another id
    train, test = write(tmp_path / "a.jsonl.gz", rows), write(tmp_path / "t.jsonl.gz", [rows[0], renamed])
    with caplog.at_level(logging.WARNING):
        env = make(datasets=train, test_datasets=test)
        ours = {t.id for split in ("train", "eval") for t in env.tasks(split)}
    assert ours == {r["id"] for r in rows} - {rows[0]["id"], rows[3]["id"]}
    assert "2 questions are in test_datasets too" in caplog.text
    with pytest.raises(AirError, match="none is left"):
        make(datasets=test, test_datasets=test).tasks("train")


def test_what_is_not_at_hand_is_passed_over_aloud_and_what_is_broken_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = str(tmp_path / "missing.jsonl.gz")
    with pytest.raises(AirError, match=r"missing\.jsonl\.gz"):
        load(missing)
    with caplog.at_level(logging.WARNING):
        questions = load(f"{missing},,train[:9] | generated,,test[:5]")
    assert len(questions) == 5 and "Taking 'generated,,test[:5]' instead" in caplog.text
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": 1}\n')
    with pytest.raises(AirError, match="row 1 is not a question"):
        load(f"{broken} | generated")
    broken.write_text("{")
    with pytest.raises(AirError, match="not JSON"):
        load(f"{broken} | generated")
    for wrong in ("generated;", "generated,,dev", "generated,,train[x]"):
        with pytest.raises(AirError):
            load(wrong)


@genuine
def test_genuine_rows() -> None:
    env = make(datasets=TRAIN, test_datasets=DEV)
    sizes = {split: len(env.tasks(split)) for split in ("train", "eval", "test")}
    assert sizes["test"] == 100 and sizes["train"] + sizes["eval"] == 100 and 5 <= sizes["eval"] <= 25
    assert Counter(t.curve for t in env.tasks("test")) == {"2hop": 76, "3hop": 17, "4hop": 7}
    for task in env.tasks("test"):
        assert len(env.question(task).supporting) == task.payload["hops"]


@genuine
def test_genuine_hotpot_rows() -> None:
    questions = load(HOTPOT)
    assert len(questions) == 100 and {q.family for q in questions} == {"hotpotqa-bridge", "hotpotqa-comparison"}
    assert all(len(q.supporting) == 2 for q in questions)
