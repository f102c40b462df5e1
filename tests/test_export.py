"""air export: what other programs load is what was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.tiny_runs import tiny_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from airloop.errors import AirError
from airloop.export import check, export, format_report
from airloop.export.check import TOLERANCES, Reference, Tolerance, check_rows, judge
from airloop.runs.run import Run


def quietly(_: str) -> None:
    pass


def test_an_adapter_is_exported_in_pefts_format(tmp_path: Path) -> None:
    report = export(tiny_run(), tmp_path / "adapter", say=quietly)
    assert report["form"] == "adapter" and report["step"] == 2
    assert report["check"]["max"] <= 1e-4 < report["check"]["training"]  # the warm start changed it
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny:llama" and config["r"] == 16
    assert json.loads((tmp_path / "adapter" / "export.json").read_text())["run"] == tiny_run().name
    assert "loaded again" in format_report(report)


def test_a_merged_model_is_whole(tmp_path: Path) -> None:
    report = export(tiny_run(), tmp_path / "model", merged=True, which="best", say=quietly)
    assert (report["form"], report["dtype"], report["step"]) == ("model", "float32", 1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.use_cache and not hasattr(model, "peft_config")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert "<|im_start|>user\nhi" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)


def test_merging_into_bfloat16_rounds_and_says_by_how_much(tmp_path: Path) -> None:
    report = export(tiny_run(), tmp_path / "model", merged=True, dtype="bfloat16", say=quietly)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert 1e-5 < report["check"]["mean"] < TOLERANCES["bfloat16"].mean
    assert "8 bits" in report["check"]["tolerance"]["why"]


@pytest.mark.slow
def test_a_run_that_trained_all_weights_is_exported_whole(tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run("full"), tmp_path / "run"))
    weights = run / "checkpoints" / "step_2" / "model" / "model.safetensors"
    save_file({k: v * 1.1 for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    report = export(run, tmp_path / "model", say=quietly)
    assert report["form"] == "model" and report["check"]["max"] <= 1e-4 < report["check"]["training"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.use_cache
    AutoTokenizer.from_pretrained(tmp_path / "model")


def test_rows_are_cut_after_their_first_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECKED_TOKENS", 1)
    rows = check_rows(Run.open(tiny_run()))
    assert len(rows) > 1 and all(sum(row.train) == 1 and row.train[-1] for row in rows)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"which": "9"}, "no checkpoint of step 9"),
        ({"which": "newest"}, "is no step of a run"),
        ({"dtype": "bfloat16"}, "an adapter is always saved in float32"),
        ({"dtype": "int4", "merged": True}, "no such dtype"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(AirError, match=problem) as error:
        export(tiny_run(), tmp_path / "x", say=quietly, **options)  # type: ignore[arg-type]
    assert error.value.fix and not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AirError, match="is not empty"):
        export(tiny_run(), tmp_path, say=quietly)
    with pytest.raises(AirError, match="is not a run"):
        export(tmp_path, tmp_path / "x", say=quietly)


def test_the_judge_knows_the_base_rounding_and_nan() -> None:
    reference = Reference(trained={"a": [-1.0, -2.0]}, base={"a": [-1.5, -2.5]})
    tolerance = TOLERANCES["bfloat16"]
    assert judge({"a": [-1.01, -2.0]}, reference, tolerance).mean == pytest.approx(0.005)
    with pytest.raises(AirError, match="it is the base model"):
        judge({"a": [-1.5, -2.5]}, reference, tolerance)
    with pytest.raises(AirError, match="allowed are"):
        judge({"a": [-1.2, -2.0]}, reference, tolerance)
    with pytest.raises(AirError, match="allowed are"):
        judge({"a": [float("nan"), -2.0]}, reference, tolerance)
    slight = Reference(trained={"a": [-1.0, -2.0]}, base={"a": [-1.001, -2.0]})
    with pytest.raises(AirError, match="rounding swallowed"):
        judge({"a": [-0.99, -2.0]}, slight, tolerance)
    same = Reference(trained={"a": [-1.0]}, base={"a": [-1.0]})
    assert judge({"a": [-1.0]}, same, TOLERANCES["adapter"]).training == 0.0


def test_of_few_bits_the_judge_asks_whether_what_was_trained_is_in_it() -> None:
    """Rounding to four bits moves every log-prob by more than a short training: any way, not back to the base."""
    reference = Reference(trained={"a": [-1.0, -2.0, -3.0, -4.0]}, base={"a": [-1.1, -1.9, -3.1, -3.9]})
    tolerance = Tolerance(0.5, 2.0, "four bits", coarse=True)
    rounded = judge({"a": [-0.8, -1.8, -3.2, -4.2]}, reference, tolerance)
    assert (rounded.mean, rounded.training, rounded.carried) == pytest.approx((0.2, 0.1, 1.0))
    with pytest.raises(AirError, match="0% of what training changed is in it"):
        judge({"a": [-0.9, -1.7, -3.3, -4.1]}, reference, tolerance)
    with pytest.raises(AirError, match="further from the trained policy than the base"):
        judge({"a": [-0.8, -1.8, -3.2, -4.2]}, reference, TOLERANCES["bfloat16"])
    with pytest.raises(AirError, match="is in it"):
        judge({"a": [float("nan"), -2.0, -3.0, -4.0]}, reference, tolerance)
