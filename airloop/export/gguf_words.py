"""A tokenizer as a GGUF file holds it: words, merges, and by name the way in which text is cut before them.

llama.cpp has each way of cutting text built in, under a name. One whose way has no name that we know is refused: under
a wrong one the file loads, and every number or contraction is read in other tokens than the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airloop.errors import AirError
from airloop.models.chat import ChatTokenizer
from airloop.models.gguf import SPLITS

OTHERWISE = "export --merged and convert it with llama.cpp's own convert_hf_to_gguf.py."


def add_words(writer: Any, tokenizer: ChatTokenizer, rows: int) -> None:
    """`rows`: of the embedding; what the tokenizer leaves out of it is filled up, as llama.cpp counts words."""
    spec = json.loads(tokenizer.hf.backend_tokenizer.to_str())
    split = find_split(spec, tokenizer.name)
    words, kinds = _vocabulary(spec, rows, tokenizer.name)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]])
    _add_special(writer, tokenizer)


def find_split(spec: Mapping[str, Any], name: str) -> str:
    """llama.cpp's name for what comes before the merges of a tokenizer.json."""
    model = spec["model"]
    steps = _steps(spec.get("pre_tokenizer"))
    if model["type"] != "BPE" or model.get("byte_fallback") or not any(s["type"] == "ByteLevel" for s in steps):
        raise AirError(
            f"The tokenizer of {name} is no byte-level BPE ({model['type']}), and air writes only that into a GGUF.",
            OTHERWISE,
        )
    if not model["merges"]:
        raise AirError(f"The tokenizer of {name} has no merges, and llama.cpp loads none without.", OTHERWISE)
    kinds = [step["type"] for step in steps]
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    whole = all(step.get("use_regex", True) for step in steps if step["type"] == "ByteLevel")
    known = next((split for split, pattern in SPLITS.items() if patterns == [pattern] and len(kinds) == 2), None)
    if known is None and whole and kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        known = "smollm"
    if known is None and whole and kinds == ["ByteLevel"]:
        known = "gpt-2"
    if known is None:
        raise AirError(
            f"The tokenizer of {name} cuts text in a way that air knows no name of llama.cpp for ({', '.join(kinds)}).",
            OTHERWISE,
        )
    return known


def _steps(spec: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if spec is None:
        return []
    return list(spec["pretokenizers"]) if spec["type"] == "Sequence" else [spec]


def _vocabulary(spec: Mapping[str, Any], rows: int, name: str) -> tuple[list[str], list[int]]:
    from gguf import TokenType

    words = {id: (word, TokenType.NORMAL) for word, id in spec["model"]["vocab"].items()}
    for token in spec["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        words[token["id"]] = (token["content"], kind)
    if max(words) >= rows:
        raise AirError(f"The tokenizer of {name} has {max(words) + 1} words, its embedding {rows} rows.", OTHERWISE)
    found = [words.get(id) or (f"[PAD{id}]", TokenType.UNUSED) for id in range(rows)]
    return [word for word, _ in found], [int(kind) for _, kind in found]


def _add_special(writer: Any, tokenizer: ChatTokenizer) -> None:
    """The end of a turn is the end of a reply: the policy was trained to stop there."""
    hf = tokenizer.hf
    writer.add_eos_token_id(tokenizer.stop_ids[0])
    for add, id in (
        (writer.add_bos_token_id, hf.bos_token_id),
        (writer.add_unk_token_id, hf.unk_token_id),
        (writer.add_pad_token_id, hf.pad_token_id),
    ):
        if id is not None:
            add(id)
    writer.add_add_bos_token(hf.bos_token_id is not None and hf.encode("a")[:1] == [hf.bos_token_id])
    writer.add_chat_template(hf.chat_template)
