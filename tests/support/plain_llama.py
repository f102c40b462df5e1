"""A Llama in a page of torch, read from its directory and its adapter's, without the seconds in which transformers and
PEFT are imported: for stand-ins of servers that tests start as programs. Nothing of it is ours or theirs, so what
agrees with it agrees with a third."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from airloop.engine.base import Sampling

HEAD = "base_model.model."


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
            self.weights[own] = self.weights[own] + asked["lora_alpha"] / asked["r"] * (second @ parts[name])

    async def generate(self, ids: list[int], sampling: Sampling) -> Reply:
        logits = self.logits(torch.tensor(ids))[-1] / sampling.temperature
        logprobs = torch.log_softmax(logits, -1)
        generator = torch.Generator().manual_seed(sampling.seed or 0)
        token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
        return Reply((token,), (float(logprobs[token]),))

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        config, weights = self.config, self.weights
        turn = rotation(len(ids), config["head_dim"], config["rope_parameters"]["rope_theta"])
        x = weights["model.embed_tokens.weight"][ids]
        for number in range(config["num_hidden_layers"]):
            own = Layer(weights, f"model.layers.{number}.", config)
            x = x + own.attend(own.norm(x, "input_layernorm"), turn)
            x = x + own.mlp(own.norm(x, "post_attention_layernorm"))
        return linear(Layer(weights, "model.", config).norm(x, "norm"), weights["lm_head.weight"])


@dataclass(frozen=True)
class Layer:
    weights: dict[str, torch.Tensor]
    prefix: str
    config: dict[str, Any]

    def times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.weights[f"{self.prefix}{name}.weight"])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{self.prefix}{name}.weight"]

    def attend(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = (
            self.times(x, f"self_attn.{name}_proj").view(len(x), -1, self.config["head_dim"]).transpose(0, 1)
            for name in "qkv"
        )
        mixed = scaled_dot_product_attention(rotated(q, turn), rotated(k, turn), v, is_causal=True, enable_gqa=True)
        return self.times(mixed.transpose(0, 1).reshape(len(x), -1), "self_attn.o_proj")

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.times(silu(self.times(x, "mlp.gate_proj")) * self.times(x, "mlp.up_proj"), "mlp.down_proj")


def rotation(length: int, width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    speeds = theta ** -(torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), speeds).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-second, first], -1) * turn[1]
