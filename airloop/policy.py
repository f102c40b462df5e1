"""The model under training: one module that sampling and training both run.

transformers' own layers run unchanged; only their attention calls out, through transformers' attention
interface, to whatever *plan* the caller brings along: pages for sampling (airloop/engine/embedded/plan.py),
a packed tree of sequences for training (airloop/learn/batches.py). So both sides share weights, adapters
and numerics, and there is nothing to copy from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from airloop.models import import_speedups  # noqa: F401

# isort: split
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ATTENTION = "air"


class ForwardPlan(Protocol):
    """How the tokens of one forward pass see each other."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T], each token's place in its own sequence

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [T, heads, d], key and value [T, kv_heads, d] -> [T, heads, d]"""
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    air_plan: ForwardPlan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: [1, heads, T, d] in, [1, T, heads, d] out."""
    if air_plan is None:
        raise RuntimeError("air's attention was called without a plan: use Policy.hidden, not the model's forward")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return air_plan.attend(module.layer_idx, q, k, v, scale)[None], None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION, _attention)


class Policy:
    """A causal language model with its adapter. `version` counts the updates it has seen."""

    def __init__(
        self,
        model: PreTrainedModel,
        head: Callable[[Tensor], Tensor],
        peft: PeftModel | None = None,
        impl: str = "auto",
    ) -> None:
        model.set_attn_implementation(ATTENTION)
        if model.config._attn_implementation != ATTENTION:
            raise RuntimeError(f"{type(model).__name__} does not take its attention from transformers' interface")
        model.config.use_cache = False
        self.model = model
        self.decoder: nn.Module = model.get_decoder()
        self.head = head
        self.peft = peft  # PEFT's wrapper around the same module: it knows the adapter's file format
        self.impl = impl  # "auto": training runs our own forward pass where it knows the architecture; "hf": never
        # Where the base is in shards: makes a block's weights be there for our own pass (learn/base_shards.py).
        self.hold: Callable[[int, int], None] | None = None
        self.version = 0

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.get_input_embeddings().weight.dtype

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """Layers, key/value heads, head size."""
        config = self.model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_hidden_layers, config.num_key_value_heads, dim

    @property
    def kv_bytes_per_token(self) -> int:
        layers, heads, dim = self.kv_shape
        return layers * 2 * heads * dim * self.dtype.itemsize

    def hidden(self, plan: ForwardPlan) -> Tensor:
        """Final hidden states [T, width] of a plan's tokens."""
        out = self.decoder(
            input_ids=plan.tokens[None], position_ids=plan.positions[None], use_cache=False, air_plan=plan
        )
        return out.last_hidden_state[0]

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
