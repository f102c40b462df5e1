"""Whether a tokenizer is that of the model."""

from __future__ import annotations

from typing import Any

from airloop.errors import AirError
from airloop.models.chat import ChatTokenizer


def check_tokenizer(model_config: Any, tokenizer: ChatTokenizer) -> None:
    """Refuses a tokenizer that belongs to another model (B8)."""
    rows = int(model_config.vocab_size)
    name = tokenizer.name
    if tokenizer.vocab_size > rows:
        raise AirError(
            f"the tokenizer of {name} has {tokenizer.vocab_size} tokens, but the model has rows for {rows}: "
            "it is the tokenizer of another model",
            "put the model's own tokenizer.json beside its config.json",
        )
    for what in ("bos_token_id", "eos_token_id", "pad_token_id"):
        declared = getattr(model_config, what, None)
        ids = declared if isinstance(declared, list) else [declared]
        outside = [i for i in ids if i is not None and not 0 <= i < rows]
        if outside:
            raise AirError(f"config.json of {name} says {what} = {outside[0]}, but there are {rows} tokens")
    unknown = [i for i in tokenizer.stop_ids if not 0 <= i < tokenizer.vocab_size]
    if unknown:
        raise AirError(
            f"{name} stops at token {unknown[0]}, but its tokenizer has {tokenizer.vocab_size} tokens: "
            "config.json and tokenizer are of different models",
            "put the model's own tokenizer.json beside its config.json",
        )
    eos = tokenizer.hf.eos_token_id
    declared = getattr(model_config, "eos_token_id", None)
    ends = declared if isinstance(declared, list) else [declared]
    words = [tokenizer.hf.convert_ids_to_tokens(i) for i in ends if i is not None]
    special = {*tokenizer.hf.all_special_ids, *tokenizer.hf.added_tokens_decoder}
    if words and eos not in ends and not any(i in special for i in ends):
        raise AirError(
            f"config.json of {name} ends a text with token {ends[0]}, to its tokenizer {words[0]!r}, "
            f"an ordinary word; the tokenizer's own end is {tokenizer.hf.eos_token!r} ({eos}): "
            "they are of different models",
            "put the model's own tokenizer.json beside its config.json",
        )
    for sample in ("The answer is 42.", 'def f(x):\n    return {"a": [1, 2]}\n', "naïve 漢字 🙂"):
        back = tokenizer.decode(tokenizer.encode(sample))
        if back.strip() != sample.strip():
            raise AirError(f"the tokenizer of {name} does not give back what it is given: {sample!r} → {back!r}")
