"""G3 of FAILURES.md: the adapter was never merged, and evaluation before and after were identical."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.tiny_runs import tiny_run

from airloop.errors import AirError
from airloop.export import export, exporting, weights


def quietly(_: str) -> None:
    pass


def test_G3_a_model_without_its_adapter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "merge", lambda model, adapter: model)  # the bug, as it happened
    with pytest.raises(AirError, match="it is the base model: the adapter is missing or was not merged"):
        export(tiny_run(), tmp_path / "model", merged=True, say=quietly)
    assert not (tmp_path / "model").exists() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("merged", [False, True])
def test_G3_an_adapter_that_lost_its_weights_on_the_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    name = "write_whole" if merged else "write_adapter"
    write = getattr(exporting, name)

    def lossy(directory: Path, *rest: Any) -> None:
        """Every layer's weights of one kind are gone: the export is neither the base nor the policy."""
        write(directory, *rest)
        path = next(directory.glob("*.safetensors"))
        kind = "down_proj.weight" if merged else "down_proj.lora_B"
        tensors = {k: v * 0 if kind in k else v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})

    monkeypatch.setattr(exporting, name, lossy)
    with pytest.raises(AirError, match="is not the trained policy") as error:
        export(tiny_run(), tmp_path / "out", merged=merged, say=quietly)
    assert "nothing was left behind" in error.value.fix and not (tmp_path / "out").exists()


def test_G3_a_whole_export_is_the_trained_policy(tmp_path: Path) -> None:
    report = export(tiny_run(), tmp_path / "model", merged=True, say=quietly)
    assert report["check"]["mean"] < 1e-3 * report["check"]["training"]
