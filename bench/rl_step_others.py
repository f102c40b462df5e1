"""The other sides of bench/rl_step.py: TRL's GRPOTrainer, and a running vLLM."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from typing import Any

import torch
from rl_work import Work
from shapes import TARGETS, make_model

VLLM_SECONDS = 600.0  # for one reply


def trl_step(options: argparse.Namespace, work: Work, device: str) -> tuple[float, int]:
    """Seconds of the best step after the first, and peak bytes, with TRL's own defaults where they do not change the
    workload: same model, adapter, prompts, group size, reply length and optimiser steps."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Timer(TrainerCallback):
        def __init__(self) -> None:
            self.began, self.seconds = 0.0, []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device == "cuda":
                torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.began)
            if device == "cuda" and len(self.seconds) == 1:
                torch.cuda.reset_peak_memory_stats()

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [random.random() for _ in completions]

    model, _ = make_model(options.shape, device, torch.bfloat16 if device == "cuda" else torch.float32)
    timer, steps = Timer(), options.steps + 1
    prompts = [words(work.start(task * work.group, step)) for step in range(steps) for task in range(work.tasks)]
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model,
            reward,
            args=GRPOConfig(
                output_dir=directory,
                per_device_train_batch_size=work.episodes,
                num_generations=work.group,
                max_completion_length=work.new,
                generation_kwargs={"min_new_tokens": work.new},
                max_steps=steps,
                shuffle_dataset=False,
                temperature=1.0,
                gradient_checkpointing=True,
                bf16=device == "cuda",
                use_cpu=device == "cpu",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=word_tokenizer(work.vocabulary),
            peft_config=LoraConfig(r=options.rank, lora_alpha=32, target_modules=list(TARGETS), task_type="CAUSAL_LM"),
            callbacks=[timer],
        )
        trainer.train()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return min(timer.seconds[1:]), peak


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def word_tokenizer(vocabulary: int) -> Any:
    """A tokenizer for which the text "w5 w8" is the tokens 5 and 8: TRL takes prompts as text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0", eos_token="w1", padding_side="left")


async def vllm_seconds(url: str, work: Work, steps: int) -> float:
    """Seconds of the best of `steps` samplings of the same episodes by a vLLM server, after one that warms up."""
    import httpx

    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    limits = httpx.Limits(max_connections=work.episodes)
    async with httpx.AsyncClient(timeout=VLLM_SECONDS, limits=limits) as client:
        model = (await client.get(f"{base}/models")).raise_for_status().json()["data"][0]["id"]

        async def play(episode: int, step: int) -> None:
            tokens = work.start(episode, step)
            for turn in range(work.turns):
                if turn:
                    await asyncio.sleep(work.tool_s)
                    tokens = tokens + work.answer(episode, step, turn)
                request = {
                    "model": model,
                    "prompt": tokens,
                    "max_tokens": work.new,
                    "ignore_eos": True,
                    "temperature": 1.0,
                    "logprobs": 0,  # of the sampled tokens, as training needs them
                    "return_token_ids": True,
                }
                answer = (await client.post(f"{base}/completions", json=request)).raise_for_status().json()
                reply = answer["choices"][0].get("token_ids")
                if reply is None or len(reply) != work.new:
                    raise RuntimeError(f"{base} did not return {work.new} token ids: vLLM 0.11 or newer is needed")
                tokens = tokens + reply

        seconds = []
        for step in range(steps + 1):
            began = time.perf_counter()
            await asyncio.gather(*[play(episode, step) for episode in range(work.episodes)])
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
