"""llama.cpp itself loads an exported GGUF: it cuts text as the run did, and says greedily what the policy says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from support.interop_world import PROGRAMS, interpreter
from support.word_runs import word_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from airloop.export import export
from airloop.export.check import check_rows
from airloop.runs.run import Run

pytestmark = pytest.mark.interop
NEW = 16
CHAT = [{"role": "user", "content": "What is 12 + 345?"}]


def quietly(_: str) -> None:
    pass


def ask_llamacpp(asked: dict[str, Any]) -> dict[str, Any]:
    words = [interpreter("llamacpp"), str(PROGRAMS / "llamacpp_reply.py")]
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "llama3"])
def test_it_says_what_the_policy_says(kind: str, tmp_path: Path) -> None:
    interpreter("llamacpp")
    run = word_run(kind)
    report = export(run, tmp_path / "gguf", gguf="f32", say=quietly)
    export(run, tmp_path / "model", merged=True, say=quietly)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = check_rows(Run.open(run))
    prompts = [row.tokens[: row.train.index(True)] for row in rows]
    texts = ["It's 12 + 345,\n\n isn't  it? <tool_call>", *(tokenizer.decode(row.tokens) for row in rows)]
    asked = {"model": str(tmp_path / "gguf" / report["file"]), "context": 512, "new": NEW}
    said = ask_llamacpp({**asked, "texts": texts, "prompts": prompts, "chat": CHAT})
    assert said["cut"] == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert said["chat"] == tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    for prompt, reply in zip(prompts, said["replies"], strict=True):
        wanted = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW)[0, len(prompt) :].tolist()
        stop = wanted.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in wanted else len(wanted)
        assert reply[:stop] == wanted[:stop]
