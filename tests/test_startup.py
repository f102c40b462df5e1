"""Commands that load no model answer at once: they import none of what takes seconds, and little of what does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run

from airloop.envs.base import load_environment
from airloop_lab import hypotheses, hypothesis

SLOW = ("torch", "transformers", "peft", "accelerate", "pandas", "sklearn", "scipy", "matplotlib", "datasets", "lxml")
# What the command took of a processor and what it imported, after all that it printed.
REPORT = """
import json, sys, time
from airloop import cli
sys.argv = ["air", *sys.argv[1:]]
code = 0
try:
    cli.main()
except SystemExit as stop:
    code = int(stop.code or 0)
print()
modules = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps({"code": code, "seconds": time.process_time(), "modules": modules}))
"""


def imported(*words: object, cwd: Path) -> tuple[int, set[str]]:
    command = [sys.executable, "-c", REPORT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return said["code"], set(said["modules"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["train", "--help", "trainer.loss"], 0),
        (["train", "--help", "no_such_key"], 1),
        (["train", "--orchestrator.no_such_key", "3"], 1),
        (["train", "--max_steps", "many"], 1),
        (["train", "quickstrat"], 1),
        (["train", "--resume", "no-such-run"], 1),
        (["train", "arith", "--model.name", "{runs}"], 1),
        (["train", "arith", "--model.name", "./no-such-model"], 1),
        (["train", "arith", "--output_dir", "/proc/x"], 1),
        (["no-such-command"], 2),
        (["configs", "list"], 0),
        (["configs", "show", "arith"], 0),
        (["tasks"], 0),
        (["tasks", "list"], 0),
        (["log", "list", "--dir", "{runs}"], 0),
        (["log", "show", "{run}"], 0),
        (["compare", "{run}"], 0),
        (["plan", "arith", "--gpu-memory", "80GiB"], 0),
        (["plan", "{qwen}", "--gpu-memory", "80GiB"], 0),
        (["lab", "list"], 0),
        (["models"], 0),
        (["view", "--text", "{runs}"], 0),
        (["init", "starter"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_without_a_model_imports_nothing_slow(words: list[str], code: int, tmp_path: Path) -> None:
    run = tiny_run()
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "a.toml").write_text(f'[model]\nname = "{model}"\n')
    places = {"run": run, "runs": run.parent, "qwen": tmp_path / "a.toml"}
    found, modules = imported(*(word.format(**places) for word in words), cwd=tmp_path)
    assert found == code
    assert not modules & set(SLOW)


MOST_S = 1.0  # of a processor, its imports included …
REFERENCE_S = 0.15  # … where this takes so long:
REFERENCE = "import pydantic, typer, rich.live, time; print(time.process_time())"
RUNS = 40


def last_line(*words: str, cwd: Path) -> str:
    """Of a command that finds its modules compiled, as all but somebody's first one do."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, cwd=cwd, env=env, check=True)
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run among others, made without a model: it was kept, packed, of an earlier version."""
    folder = tmp_path_factory.mktemp("finished")
    with tarfile.open(Path(__file__).parent / "legacy" / "air-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    run = next((folder / "outputs").glob("exp1.1-*"))
    for number in range(2, RUNS + 1):
        copy = run.with_name(f"exp1.{number}-tune-1115")
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints", "tokens", "trajectories"))
    return run


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("lab list", 0),
        ("tasks list", 0),
        ("log list --dir {runs}", 0),
        ("compare {run}", 0),
        ("configs list", 0),
        ("plan arith --gpu-memory 80GiB", 0),
        ("train --no_such 3", 1),
    ],
)
def test_a_command_without_a_model_takes_less_than_a_second_of_a_processor(
    words: str, code: int, finished: Path, tmp_path: Path
) -> None:
    """The machine's speed is measured beside it. Others may slow both, unequally: the best of a few tries counts."""
    named = words.format(run=finished, runs=finished.parent).split(" ")
    tries = []
    while len(tries) < 4:
        speed = max(1.0, float(last_line(REFERENCE, cwd=tmp_path)) / REFERENCE_S)
        report = json.loads(last_line(REPORT, *named, cwd=tmp_path))
        assert report["code"] == code  # it did what it was asked for
        tries.append(report["seconds"] / speed)
        if tries[-1] < MOST_S:
            return
    raise AssertionError(tries)


def test_hypotheses_that_come_with_air_are_listed_without_the_configs_of_their_runs(
    air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them had been loaded for fifteen lines. One's own are checked as before."""
    loaded: list[Any] = []
    load = hypothesis.load_config
    monkeypatch.setattr(hypothesis, "load_config", lambda argv: loaded.append(argv) or load(argv))
    code, text, _ = air("lab", "list")
    assert code == 0 and "mask" in text and not loaded
    (tmp_path / "mask.toml").write_text((hypotheses.HYPOTHESES / "mask.toml").read_text())
    assert air("lab", "list", tmp_path)[0] == 0 and loaded


def test_tasks_are_listed_before_any_of_their_data_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first day there is no cache: to make the tables takes pandas and seconds, and a list needs neither."""
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "empty"))
    code, modules = imported("tasks", "list", cwd=tmp_path)
    assert code == 0 and not modules & set(SLOW)
    assert not (tmp_path / "empty" / "mlgym").exists()


def test_looking_at_tasks_draws_no_display(tmp_path: Path) -> None:
    """A sixth of a second of imports, for a command that takes less than one."""
    code, modules = imported("tasks", "list", cwd=tmp_path)
    assert code == 0 and "rich" not in modules


def test_comparing_imports_nothing_that_plays_episodes(tmp_path: Path) -> None:
    """A tenth of what the command takes: the sampler, and the endpoint that programs are served by."""
    code = "import sys, airloop.eval.compare; print([name in sys.modules for name in sys.argv[1:]])"
    assert last_line(code, "airloop.environments", "airloop.rollout.sampler", cwd=tmp_path) == "[True, False]"


QWEN = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "max_position_embeddings": 32768,
}


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k-calculator", "musique", "arith", "soup", "tune"])
def test_tasks_that_are_counted_without_being_made_are_as_many(name: str) -> None:
    env = load_environment(name)
    for split in ("train", "eval", "test"):
        assert env.count(split) == len(env.tasks(split))
    if name.startswith("gsm8k"):
        other = load_environment(name, {"max_calculations": 2})
        assert other.count("train") == len(other.tasks("train")) < env.count("train")
