"""All the weights of a policy, from a file that a server sees: how vLLM is told that there is such a way."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

BACKEND = "air_files"
FILE = "model.safetensors"
DIGITS = 32  # of digests and signatures
PIECE = 1 << 20


def file_digest(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            whole.update(piece)
    return whole.hexdigest()[:DIGITS]


def register() -> None:
    """What vLLM calls in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # it is known already
        WeightTransferEngineFactory.register_engine(BACKEND, f"{__package__}.file_transfer", "FileTransfer")
