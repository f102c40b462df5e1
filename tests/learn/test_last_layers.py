"""An adapter in the last blocks only: what lies before has none, needs no backward pass, and samples the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from airloop.assemble import assemble
from airloop.config import load_config
from airloop.engine.base import Sampling
from airloop.errors import AirError
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row
from airloop.plan.model_shape import read_shape

TINY = [
    "--model.name",
    "tiny:qwen2",
    "--orchestrator.env.0.id",
    "arith",
    "--seq_len",
    "64",
    "--orchestrator.sampling.max_tokens",
    "16",
]
LAST = ["--trainer.model.lora.last_layers", "1"]


def with_parts(flags: list[str], work: Any) -> Any:
    async def run() -> Any:
        parts = assemble(load_config([*TINY, *flags]), lambda _: None)
        try:
            return await work(parts)
        finally:
            await parts.close()

    return asyncio.run(run())


def test_only_the_last_blocks_are_trained_and_counted() -> None:
    async def look(parts: Any) -> tuple[list[str], int, int]:
        names = [name for name, _ in parts.policy.trainable()]
        trained = sum(p.numel() for _, p in parts.policy.trainable())
        lora = parts.config.trainer.model.lora
        return names, trained, read_shape(parts.policy.model).adapter(lora.rank, lora.target_modules, lora.last_layers)

    names, trained, planned = with_parts(LAST, look)
    assert names and all(".layers.1." in name for name in names)
    assert trained == planned
    assert with_parts([], look)[1] == 2 * trained


def test_the_engine_agrees_and_an_update_leaves_the_first_blocks_out_of_the_graph() -> None:
    async def work(parts: Any) -> float:
        with torch.no_grad():
            for name, parameter in parts.policy.trainable():
                if "lora_B" in name:
                    parameter.normal_(0, 0.05)
        await parts.engine.publish(0)
        prompt = tuple(range(40, 52))
        reply = await parts.engine.generate(prompt, Sampling(12, 1.0, seed=3))
        tokens = (*prompt, *reply.token_ids)
        train = (False,) * len(prompt) + (True,) * len(reply.token_ids)
        row = Row("a#0", tokens, train, (0.0,) * len(prompt) + reply.logprobs, 1.0, 1.0)
        found = parts.learner.logprobs([row])["a#0"]
        report = parts.learner.update(Batch((row,), {"a": 1.0}, 1))
        assert report.metrics["grad_norm"] > 0
        return max(abs(a - b) for a, b in zip(found, reply.logprobs, strict=True))

    assert with_parts(LAST, work) < 1e-5


def test_an_adapter_of_other_blocks_than_the_config_says_is_refused_with_the_lines(tmp_path: Path) -> None:
    async def save(parts: Any) -> None:
        parts.policy.peft.save_pretrained(str(tmp_path))

    with_parts(LAST, save)
    assert with_parts([*LAST, "--model.adapter", str(tmp_path)], lambda parts: asyncio.sleep(0)) is None
    with pytest.raises(AirError, match=r"the last 1 blocks(.|\n)*last_layers = 1"):
        with_parts(["--model.adapter", str(tmp_path)], save)


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(AirError, match=r"last_layers = 9, but the model has 2 blocks"):
        with_parts(["--trainer.model.lora.last_layers", "9"], lambda parts: asyncio.sleep(0))
