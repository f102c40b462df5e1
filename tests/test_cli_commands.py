"""The commands from the command line: what they print, and how they exit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run, write_config

from airloop import training
from airloop.models.sources import DEFAULT_MODEL, locate
from airloop.runs.run import Run
from airloop.step import Outcome
from airloop.training import Finished


def test_eval_then_compare(air: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    code, text, _ = air("eval", "@", config, "--agent", "scripted:noop", "--n", 6, "--out", tmp_path / "noop")
    assert code == 0 and "6 tasks of 'test'" in text and "95 % interval" in text
    words = ("eval", "@", config, "--orchestrator.seed_is_wrong", 1)
    assert air(*words)[0] == 1
    code, text, _ = air("eval", "@", config, "--agent=scripted:oracle", "--n=6", "--out", tmp_path / "o", "--json")
    assert code == 0 and json.loads(text)["means"]["reward"]["mean"] == 1.0
    code, text, _ = air("compare", tmp_path / "noop", tmp_path / "o")
    assert code == 0 and "B is higher" in text
    code, text, _ = air("compare", tmp_path / "noop", tmp_path / "o", "--json")
    assert code == 0 and json.loads(text)["overall"]["correct"]["difference"]["mean"] == 1.0


@pytest.mark.slow
def test_a_refused_comparison_exits_with_one(air: Any, tmp_path: Path) -> None:
    code, _, problem = air("compare", f"{tiny_run()}:before", f"{tiny_run()}:step_0001")
    assert code == 1 and "were not measured alike" in problem and "fix:" in problem
    assert air("compare", tiny_run())[0] == 0


def test_eval_passes_what_it_does_not_know_to_the_config(air: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    flags = ("--orchestrator.sampling.max_tokens", 2, "--agent", "model", "--n", 2, "--json")
    code, text, _ = air("eval", "@", config, *flags)
    assert code == 0 and json.loads(text)["sampling"]["max_tokens"] == 2
    code, text, _ = air("eval", "--help")
    assert code == 0 and "--price-in" in text and "orchestrator.eval" in text


@pytest.mark.parametrize("command", ["eval", "plan", "warmstart"])
def test_a_budget_is_refused_where_it_could_not_be_kept(air: Any, tmp_path: Path, command: str) -> None:
    code, _, problem = air(command, "@", write_config(tmp_path), "--minutes", 3)
    assert code == 1 and f"`air {command}` keeps no budget of time" in problem


def test_a_stopped_eval_says_how_to_go_on(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airloop.eval.evaluate.load_agent", interrupted)
    code, _, text = air("eval", "@", write_config(tmp_path), "--agent", "scripted:oracle", "--out", tmp_path / "e")
    assert code == 130 and f"--out {tmp_path / 'e'}" in text.replace("\n", " ")


@pytest.mark.slow
def test_export(air: Any, tmp_path: Path) -> None:
    code, text, _ = air("export", tiny_run(), "--out", tmp_path / "a")
    assert code == 0 and "adapter of step 2" in text
    code, _, problem = air("export", tiny_run(), "--out", tmp_path / "a")
    assert code == 1 and "is not empty" in problem
    code, text, _ = air("export", tiny_run(), "--out", tmp_path / "m", "--merged", "--step", "best", "--json")
    assert code == 0 and json.loads(text)["form"] == "model"


def test_models(air: Any) -> None:
    code, text, _ = air("models")
    assert code == 0 and "SmolLM2-135M-Instruct (default)" in text
    code, text, _ = air("models", "--json")
    assert code == 0 and any(row["default"] for row in json.loads(text))


@pytest.mark.slow
def test_tasks(air: Any) -> None:
    code, text, _ = air("tasks", "list")
    assert code == 0 and "79 train, 13 eval, 8 test" in text
    code, text, _ = air("tasks", "list", "arith", "--json")
    assert code == 0 and json.loads(text)[0]["tasks"]["train"] == 79
    locate(DEFAULT_MODEL)  # on a new machine another test may not have fetched it yet: then there is no template
    code, text, _ = air("tasks", "show", "arith", "--n", 2)
    assert code == 0 and text.count("=== ") == 2 and "<|im_start|>user" in text
    code, _, problem = air("tasks", "show", "aritm")
    assert code == 1 and "did you mean" in problem


def test_tasks_are_shown_where_no_model_is_yet(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    code, text, _ = air("tasks", "show", "arith", "--n", 2)
    assert code == 0 and text.count("=== ") == 2 and "--- user\n" in text and "fetch it with any run" in text


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "airloop", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("air ")


@pytest.mark.parametrize("words", [["train"], ["train", "--"], ["train", "--continue"], ["train", "--dry-run"]])
def test_a_run_of_nothing_is_refused(
    air: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had begun one, with the default model and the default task."""
    monkeypatch.chdir(tmp_path)
    code, _, problem = air(*words)
    assert code == 1 and "air train quickstart" in problem and not (tmp_path / "outputs").exists()


def test_flags_alone_say_what_to_train(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "start", lambda config, *_: Finished(Run(tmp_path, config), Outcome([], []), "done"))
    monkeypatch.chdir(tmp_path)
    assert air("train", "--model.name", "tiny:llama")[:2] == (0, "done\n")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("tasks show", 2, "see `air tasks show --help`"),
        ("compare", 2, "see `air compare --help`"),
        ("compare nosuch", 1, "There is no run nosuch."),
        ("train @ a.yaml", 1, "a.yaml is YAML, and air reads TOML."),
        ("train a.json", 1, "a.json is JSON, and air reads TOML."),
        ("train @ dangling.toml", 1, "dangling.toml is a link to nowhere.toml, which is not there."),
    ],
)
def test_what_is_wrong_with_what_was_named_is_said(
    air: Any, words: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("trainer:\n  total_epochs: 3\n")
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "dangling.toml").symlink_to("nowhere.toml")
    found, _, problem = air(*words.split())
    assert found == code and told in problem, problem
