"""Implements vLLM's WeightTransferEngine: replaces all weights of a server by those in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .weights import file_digest


@dataclass
class Nothing(WeightTransferInitInfo):
    """No connection is needed."""


@dataclass
class Weights(WeightTransferUpdateInfo):
    path: str
    digest: str


class FileTransfer(WeightTransferEngine):
    init_info_cls = Nothing
    update_info_cls = Weights

    def init_transfer_engine(self, init_info: Nothing) -> None:
        pass

    def start_weight_update(self) -> None:
        """Nothing yet: an incomplete file is refused before any weight is changed."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # vLLM's own waits for an accelerator after that

    def receive_weights(self, update_info: Weights) -> None:
        if (found := file_digest(Path(update_info.path))) != update_info.digest:
            raise ValueError(f"the file of weights has the digest {found}, and {update_info.digest} was to come")
        initialize_layerwise_reload(self.model)
        with safe_open(update_info.path, "pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass
