"""Runs of tiny models whose tokenizer has merges, as those of real models: of each kind one, made once per process."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from support.tiny_runs import WARMSTART, write_config
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from airloop.config import load_config
from airloop.models.chat_forms import CHATML
from airloop.models.gguf import SPLITS
from airloop.models.gguf_rope import LLAMA3
from airloop.models.tiny import SPECIAL, tiny_config
from airloop.training import start
from airloop.watch.display.display import Display

WORDS = 300
ROWS = 320  # more than there are words, as in real models
TEXT = ["What is the sum of 12 and 7?\nIt's 19, isn't it?\n\n", "Answer with the number only. The answer is 42."]


def word_tokenizer() -> Any:
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLITS["qwen2"]), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def save_word_model(directory: Path, kind: str) -> Path:
    """`kind`: of airloop.models.tiny, or "llama3": a Llama whose positions are scaled."""
    tokenizer, config = word_tokenizer(), tiny_config("llama" if kind == "llama3" else kind)
    if kind == "llama3":
        config.rope_parameters = {**LLAMA3, "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0}
    config.vocab_size = ROWS
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@functools.cache
def word_run(kind: str = "llama") -> Path:
    """Two steps after a supervised start, which makes sure that the weights have changed."""
    directory = Path(tempfile.mkdtemp(prefix="air-word-run-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model = save_word_model(directory / "small-model", kind)
    config = write_config(directory, extra=WARMSTART)
    config.write_text(config.read_text().replace("tiny:llama", str(model)))
    return start(load_config(["@", str(config)]), Display(quiet=True), skip_proofs=True).run.path
