"""Positions that are scaled as Llama 3's are: a GGUF file has a factor for each frequency, transformers wants the
numbers from which those follow. Read without, a model computes something else, a little more with every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airloop.errors import AirError

if TYPE_CHECKING:
    import numpy as np

TENSOR = "rope_freqs.weight"
# As every model of Meta's has them; the file tells the factor alone.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
CLOSE = 1e-3  # the file's factors are rounded


def scaled_positions(config: Any, factors: np.ndarray, name: str) -> dict[str, Any]:
    """The rope parameters of a config whose file has these factors."""
    import numpy as np

    plain = config.rope_parameters
    found = {**LLAMA3, "rope_type": "llama3", "rope_theta": plain["rope_theta"], "factor": float(factors.max())}
    if not np.allclose(frequency_factors(config, found), factors, rtol=CLOSE):
        raise AirError(
            f"{name} scales its positions in a way that air does not know: it would compute something else.",
            "give the model in transformers form (a directory with config.json and safetensors)",
        )
    return found


def frequency_factors(config: Any, parameters: dict[str, Any]) -> np.ndarray:
    """By how much each frequency is lowered, as transformers computes it."""
    import copy

    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    asked = copy.deepcopy(config)
    asked.rope_parameters = parameters
    scaled, _ = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](asked, torch.device("cpu"))
    places = torch.arange(len(scaled), dtype=torch.float64) / len(scaled)
    factors: np.ndarray = (parameters["rope_theta"] ** -places / scaled.double()).float().numpy()
    return factors
