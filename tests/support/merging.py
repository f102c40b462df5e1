"""A tokenizer with merges, and texts spelled as a model may spell them: in other tokens than an encoder would."""

from __future__ import annotations

import functools
import json
import random

from support.rollout_world import chat_tokenizer

from airloop.models.chat import ChatTokenizer

MERGES = "a b|Ġ a|ab ab|Ċ Ċ|o b|r v"
# Of what agents are told at random, also over the seams between a reply and what a template puts around it.
MORE = "y e|ye s|n o|Ġ Ġ|ĠĠ s|f o|u r|fo ur|> Ċ|l o|lo o|loo k|t o|to o|too l|< tool|a t|: Ġ"


@functools.cache
def merging(name: str | None) -> ChatTokenizer:
    """The tiny tokenizer with a few merges, so that the same text can be spelled in several ways."""
    from tokenizers import Tokenizer

    chat = chat_tokenizer(name)
    backend = json.loads(chat.hf.backend_tokenizer.to_str())
    merges = [pair.split(" ") for pair in f"{MERGES}|{MORE}".split("|")]
    vocab = backend["model"]["vocab"]
    vocab |= {token["content"]: token["id"] for token in backend["added_tokens"]}
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    backend["model"]["merges"] = merges
    chat.hf._tokenizer = Tokenizer.from_str(json.dumps(backend))
    assert chat.encode("<|im_start|>abab") == [256, 261] and chat.decode([97, 98, 261]) == "ababab"
    return chat


def spelled(chat: ChatTokenizer, text: str, seed: int) -> list[int]:
    """The text in pieces, each encoded by itself."""
    dice, ids = random.Random(f"spelled {seed}"), list[int]()
    while text:
        length = dice.choice([1, 2, 3, 8])
        ids += chat.encode(text[:length])
        text = text[length:]
    return ids
