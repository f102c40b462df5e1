"""A Llama in a page of NumPy, read from its directory and its adapter's, without the seconds in which torch, transformers
and PEFT are imported: for stand-ins of servers that tests start as programs. Nothing of it is ours or theirs, so what
agrees with it agrees with a third."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from airloop.engine.base import Sampling

HEAD = "base_model.model."
Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Reply:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class PlainLlama:
    """One token at a time, everything before it computed anew: contexts are short."""

    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        self.config = json.loads((model / "config.json").read_text())
        self.weights = load_file(model / "model.safetensors")
        if adapter:
            self._merge(adapter)

    def _merge(self, adapter: Path) -> None:
        asked = json.loads((adapter / "adapter_config.json").read_text())
        parts = load_file(adapter / "adapter_model.safetensors")
        for name in [name for name in parts if name.endswith("lora_A.weight")]:
            own = name.removeprefix(HEAD).replace("lora_A.", "")
            second = parts[name.replace("lora_A", "lora_B")]
            self.weights[own] = self.weights[own] + np.float32(asked["lora_alpha"] / asked["r"]) * (
                second @ parts[name]
            )

    async def generate(self, ids: list[int], sampling: Sampling) -> Reply:
        logits = self.logits(np.array(ids))[-1] / np.float32(sampling.temperature)
        shifted = logits - logits.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
        chances = np.exp(logprobs.astype(np.float64))
        token = int(np.random.default_rng(sampling.seed or 0).choice(len(chances), p=chances / chances.sum()))
        return Reply((token,), (float(logprobs[token]),))

    def logits(self, ids: Array) -> Array:
        config, weights = self.config, self.weights
        turn = rotation(len(ids), config["head_dim"], config["rope_parameters"]["rope_theta"])
        x = weights["model.embed_tokens.weight"][ids]
        for number in range(config["num_hidden_layers"]):
            own = Layer(weights, f"model.layers.{number}.", config)
            x = x + own.attend(own.norm(x, "input_layernorm"), turn)
            x = x + own.mlp(own.norm(x, "post_attention_layernorm"))
        return Layer(weights, "model.", config).norm(x[-1:], "norm") @ weights["lm_head.weight"].T


@dataclass(frozen=True)
class Layer:
    weights: dict[str, Array]
    prefix: str
    config: dict[str, Any]

    def times(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{self.prefix}{name}.weight"].T

    def norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config["rms_norm_eps"]))
        return x * scale * self.weights[f"{self.prefix}{name}.weight"]

    def attend(self, x: Array, turn: tuple[Array, Array]) -> Array:
        width, length = self.config["head_dim"], len(x)
        q, k, v = (
            self.times(x, f"self_attn.{name}_proj").reshape(length, -1, width).transpose(1, 0, 2) for name in "qkv"
        )
        shared = len(q) // len(k)  # heads that read one head's keys and values
        k, v = np.repeat(rotated(k, turn), shared, 0), np.repeat(v, shared, 0)
        scores = rotated(q, turn) @ k.transpose(0, 2, 1) / np.float32(width**0.5)
        scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-1e30))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self.times(mixed.transpose(1, 0, 2).reshape(length, -1), "self_attn.o_proj")

    def mlp(self, x: Array) -> Array:
        gate = self.times(x, "mlp.gate_proj")
        return self.times(gate / (1 + np.exp(-gate)) * self.times(x, "mlp.up_proj"), "mlp.down_proj")


def rotation(length: int, width: int, theta: float) -> tuple[Array, Array]:
    speeds = theta ** -(np.arange(0, width, 2) / width)
    angles = np.tile(np.outer(np.arange(length), speeds), (1, 2)).astype(np.float32)
    return np.cos(angles), np.sin(angles)


def rotated(x: Array, turn: tuple[Array, Array]) -> Array:
    first, second = np.split(x, 2, -1)
    return x * turn[0] + np.concatenate([-second, first], -1) * turn[1]
