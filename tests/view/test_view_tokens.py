"""The token view: words that join to the text, numbers at their tokens, and a reason for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_runs import episode, start_run
from tokenizers import AddedToken, Tokenizer, decoders, models

from airloop.models.tiny import tiny_tokenizer
from airloop.runs.trajectory_file import to_json
from airloop.types import Branch
from airloop_view.episode import load
from airloop_view.folder import Collection
from airloop_view.records import why
from airloop_view.token_view import token_view
from airloop_view.vocabulary import Vocabularies, Vocabulary


def vocabulary() -> Vocabulary:
    return Vocabularies().of("tiny:llama")


@given(st.text())
def test_texts_of_tokens_join_to_the_text(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = [256, *tokenizer.encode(text, add_special_tokens=False), 257]
    texts = vocabulary().texts(ids)
    assert len(texts) == len(ids) and (texts[0], texts[-1]) == ("<|im_start|>", "<|im_end|>")
    assert "".join(texts[1:-1]) == text


@given(st.lists(st.integers(-2, 400), max_size=30))
def test_any_ids_have_texts(ids: list[int]) -> None:
    """What is no character at all shows as such, and never swallows what follows."""
    texts = vocabulary().texts([*ids, 257])
    assert len(texts) == len(ids) + 1 and all(not 0xD800 <= ord(c) < 0xE000 for text in texts for c in text)
    assert texts[-1] == "<|im_end|>" or (texts[-1] == "" and "<|im_end|>" in "".join(texts))


def test_a_character_of_several_tokens_stands_at_the_first() -> None:
    assert vocabulary().texts(list("aα€𝄞b".encode())) == ["a", "α", "", "€", "", "", "𝄞", "", "", "", "b"]


def test_a_vocabulary_of_pieces_with_bytes_for_the_rest(tmp_path: Path) -> None:
    """As Llama 2 has it: words begin with ▁, and what has no piece is written in bytes."""
    pieces = ["<unk>", "<s>", "▁hello", "▁world", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = Vocabularies().of(str(tmp_path))
    ids = [2, 3, *(4 + byte for byte in "α".encode()), 2]
    texts = found.texts(ids)
    assert found.state == "exact" and "".join(texts) == tokenizer.decode(ids) and texts[2:4] == ["α", ""]


def test_without_its_tokenizer_ids_are_shown(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for model in ("nobody/no-such-model-anywhere", str(tmp_path), str(tmp_path / "none"), "../../x", "", None):
        found = Vocabularies().of(model)
        assert found.state.startswith("missing: ") and found.texts([1, 2]) == ["[1]", "[2]"]


# --- reasons ----------------------------------------------------------------------------------------------


def view(root: Path, record: dict[str, Any] | None, extra: str = "", branch: int = 0) -> dict[str, Any]:
    """Of an episode whose second turn was sampled after the history was rewritten: two branches, three tokens each."""
    run = root / "exp1.0-arith-1115"
    if not run.exists():
        start_run(root, extra=extra)
    made = to_json(episode("a_0-0", ["ab", "cd"]))
    first = Branch((10, 97, 98), (False, True, True), (0.0, -1.0, -2.0), (-1, 0, 0))
    second = Branch(
        (10, 97, 98, 11, 99), (False, False, False, False, True), (0.0, 0.0, 0.0, 0.0, -3.0), (-1, 0, 0, -1, 1)
    )
    branches = to_json(_with(first, second))["branches"]
    data = load(json.dumps(made | {"branches": branches}).encode(), Path("/nowhere/x.json"))
    said = why(record, "step_0000", "done", 4)
    return token_view(Collection("x", run, "run"), data, record, Vocabularies(), branch, 0, said, 4)


def _with(*branches: Branch) -> Any:
    return replace(episode("x"), branches=branches)


def reasons(found: dict[str, Any]) -> list[str]:
    return [found["reasons"][token["why"]] for token in found["tokens"]]


TRAINED = {
    "id": "a_0-0",
    "fate": "trained",
    "advantage": 0.5,
    "logprobs": [[-1.1, -5.0], [-3.0]],
    "entropies": [[0.3, 0.2], [0.1]],
}


def test_numbers_are_at_their_tokens(tmp_path: Path) -> None:
    found = view(tmp_path, TRAINED)
    assert [t["lp"] for t in found["tokens"]] == [None, -1.0, -2.0]
    assert [t["tlp"] for t in found["tokens"]] == [None, -1.1, -5.0]
    assert [t["gap"] for t in found["tokens"]] == [None, pytest.approx(-0.1), -3.0]
    assert [t["entropy"] for t in found["tokens"]] == [None, 0.3, 0.2]
    assert found["ranges"]["lp"] == [-2.0, -1.0] and found["ranges"]["adv"] == [0.5, 0.5]
    assert reasons(found)[1:] == ["sampled, trained with advantage +0.5"] * 2
    old = view(tmp_path, {k: v for k, v in TRAINED.items() if k != "entropies"})
    assert [t["entropy"] for t in old["tokens"]] == [None, None, None] and old["ranges"]["entropy"] == [None, None]


def test_a_token_counts_in_one_branch(tmp_path: Path) -> None:
    found = view(tmp_path, TRAINED, branch=1)
    assert found["branches"] == 2
    assert reasons(found) == [
        "part of the prompt: seen, never trained",
        *["sampled in turn 1; here it is only seen, it counts in branch 1"] * 2,
        "an answer of the environment or a word of the template: seen, never trained",
        "sampled, trained with advantage +0.5",
    ]


def test_what_was_left_out_says_why(tmp_path: Path) -> None:
    mask = '[trainer.loss]\nimportance_mode = "mask"\nimportance_floor = 0.5\nimportance_cap = 2.0\n'
    found = view(tmp_path / "mask", TRAINED, mask)
    assert reasons(found)[2].startswith("stale: left out, as it is now less than 0.5 times as probable")
    assert reasons(found)[1].startswith("sampled, trained")
    whole = view(tmp_path / "geo", TRAINED, "[trainer.loss]\ngeo_mask_low = 0.5\n")  # the mean is over both branches
    assert reasons(whole)[1] == reasons(whole)[2] and "its mean ratio of" in reasons(whole)[1]
    whole = view(tmp_path / "any", TRAINED, "[trainer.loss]\nsequence_mask_low = 0.1\n")
    assert "the ratio of one token is not within 0.1 and inf" in reasons(whole)[1]
    kept = view(tmp_path / "kept", TRAINED, "[trainer.loss]\nsequence_mask_low = 0.01\ngeo_mask_low = 0.1\n")
    assert reasons(kept)[1].startswith("sampled, trained")
    silent = view(tmp_path / "silent", {"id": "a_0-0", "fate": "zero advantage", "advantage": 0.0})
    assert "all 4 of its group scored the same" in reasons(silent)[1]
    kl = view(tmp_path / "kl", TRAINED | {"advantage": 0.0}, "[trainer.loss]\nkl_beta = 0.1\n")
    assert reasons(kl)[1] == "sampled, advantage 0: only the KL term counts it"
    assert "difficulty filtering" in reasons(view(tmp_path, {"id": "a_0-0", "fate": "no_signal"}))[1]
    assert "others of its group" in reasons(view(tmp_path, {"id": "a_0-0", "fate": "infra_error"}))[1]
    assert "not been made yet" in reasons(view(tmp_path, None))[1]
    by_turn = view(tmp_path / "turn", TRAINED, '[trainer.loss]\ncredit = "turn"\n')
    assert reasons(by_turn)[1].endswith("(the mean over its turns)")


def test_a_damaged_record_does_no_harm(tmp_path: Path) -> None:
    for record in ({"fate": "trained"}, {"fate": 3, "logprobs": "x"}, {"fate": "trained", "logprobs": [["nan", None]]}):
        assert len(view(tmp_path, record)["tokens"]) == 3
