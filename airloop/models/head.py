"""From hidden states to logits, as each architecture does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.threads import one_thread

if TYPE_CHECKING:
    import torch


def logits_head(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """From the decoder's last hidden states to logits, with what some architectures do after their lm_head.

    Callers use it on a few rows at a time, so that no [tokens × vocabulary] tensor ever exists.
    """
    config = model.config
    divide = getattr(config, "logits_scaling", None)  # granite
    multiply = getattr(config, "logit_scale", None)  # cohere
    cap = getattr(config, "final_logit_softcapping", None)  # gemma

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = model.get_output_embeddings()(hidden)
        if divide is not None:
            logits = logits / divide
        if multiply is not None:
            logits = logits * multiply
        if cap is not None:
            logits = (logits / cap).tanh() * cap
        return logits

    return head


def check_head(model: Any) -> None:
    """The decoder and our head together give the model's own logits, on a few tokens."""
    import torch

    device = model.get_input_embeddings().weight.device
    ids = torch.arange(8, device=device).unsqueeze(0) % model.config.vocab_size
    with torch.inference_mode(), one_thread():
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        expected = model(input_ids=ids, use_cache=False).logits.float()
        got = logits_head(model)(hidden).float()
    tolerance = 1e-4 if model.dtype == torch.float32 else 3e-2
    if got.shape != expected.shape or not torch.allclose(got, expected, rtol=tolerance, atol=tolerance):
        raise AirError(
            f"models of type {model.config.model_type} change their logits in a way air does not know: "
            "its log-probabilities would be wrong",
            "choose another model, for example Qwen/Qwen3-4B-Instruct-2507",
        )
