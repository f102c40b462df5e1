"""The card beside an export: what it says, and what it must not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import gguf
import pytest
import yaml
from support.tiny_runs import tiny_run
from support.word_runs import word_run

from airloop.config import load_config
from airloop.config.toml import changes_toml
from airloop.export import export
from airloop.export.base import licence_of
from airloop.export.public import public_config
from airloop.text.keys import without_keys
from airloop.text.public import without_paths


def quietly(_: str) -> None:
    pass


def card_of(directory: Path) -> tuple[dict[str, object], str]:
    text = (directory / "README.md").read_text()
    front, _, rest = text.removeprefix("---\n").partition("\n---\n")
    return yaml.safe_load(front), rest


def test_an_adapters_card(tmp_path: Path) -> None:
    export(tiny_run(), tmp_path / "out", say=quietly)
    front, text = card_of(tmp_path / "out")
    assert (front["library_name"], front["license"]) == ("peft", "unknown")
    assert {"air", "reinforcement-learning", "grpo", "arith"} <= set(front["tags"])  # type: ignore[call-overload]
    assert "Licence of the base model: unknown: see the base model." in text
    assert re.search(r"8 tasks, 8 episodes, the same tasks and seeds before and after", text)
    rows = [line for line in text.splitlines() if line.startswith(("| correct", "| reward"))]
    assert [row.split()[1] for row in rows] == ["correct", "reward"]
    words = r"\| (higher|lower|no evidence of a difference|too few tasks to tell .*) \|$"
    assert all(re.search(words, row) for row in rows)
    assert "environment `arith`, success is `correct`" in text and "rewards and their weights: `correct` 1" in text
    assert "2 steps, 16 episodes, the loss `grpo`, LoRA of rank 16" in text
    assert re.search(r"\d+ s on .+, \d+ cores, 20\d\d-\d\d-\d\d", text)
    assert "PeftModel.from_pretrained" in text and "Loaded again from its files and compared on" in text
    curve = (tiny_run() / "learning.png").is_file()
    assert (tmp_path / "out" / "learning.png").is_file() == curve == ("(learning.png)" in text)


def test_a_ggufs_card_says_how_it_is_loaded_and_which_step_was_evaluated(tmp_path: Path) -> None:
    report = export(word_run(), tmp_path / "out", gguf="q8_0", which="1", say=quietly)
    front, text = card_of(tmp_path / "out")
    assert front["library_name"] == "gguf" and "base_model" not in front  # a directory here is nobody else's
    assert f"llama-cli -m {report['file']}" in text and "ollama create my-model -f Modelfile" in text
    assert "The result is of the policy after step 2; this export is of step 1." in text


def test_an_evaluation_that_was_stopped_in_the_middle_is_no_result(tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run(), tmp_path / "run"))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"name": "after"' not in line))
    export(run, tmp_path / "out", say=quietly)
    _, text = card_of(tmp_path / "out")
    assert "was not evaluated to the end on held-out tasks" in text and "| correct |" not in text


def test_the_config_in_a_card_loads_to_the_same_run(tmp_path: Path) -> None:
    config = load_config(["@", str(tiny_run() / "config.toml")], environments=False)
    (tmp_path / "c.toml").write_text(changes_toml(config))
    assert load_config(["@", str(tmp_path / "c.toml")], environments=False) == config
    assert len(changes_toml(config).splitlines()) < 40


def test_no_path_no_key_and_no_name_of_the_user_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(shutil.copytree(word_run(), tmp_path / "home" / "ada lovelace" / "runs" / word_run().name))
    planted = {"HF_TOKEN": "hf_planted0123456789", "WANDB_API_KEY": "w" * 40, "MY_SECRET": "swordfish99"}
    for name, value in {**planted, "USER": "lovelace"}.items():
        monkeypatch.setenv(name, value)
    config = run / "config.toml"
    text = config.read_text() + '\n[wandb]\nentity = "lovelace"\nnotes = "swordfish99"\n'
    text = text.replace("[logbook]", '[logbook]\ngoal = "swordfish99 of lovelace"')
    config.write_text(text)
    export(run, tmp_path / "out", merged=True, say=quietly)
    for file in (tmp_path / "out").iterdir():
        if file.suffix in (".md", ".json", ".jinja"):
            hidden = (*planted.values(), "lovelace", "/home/", str(tmp_path), str(word_run().parent))
            assert not [word for word in hidden if word in file.read_text()], file


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("/data/ada/train.jsonl", "…/train.jsonl"),
        ("~/train.jsonl", "…/train.jsonl"),
        ("C:\\Users\\ada\\train.jsonl", "…/train.jsonl"),
        ("/home/ada/my_env.py:MyEnv", "…/my_env.py:MyEnv"),
        ("python /home/ada/agent.py --fast", "python …/agent.py --fast"),
        ("verifiers:/home/ada/env", "verifiers:…/env"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("./my_env.py:MyEnv", "./my_env.py:MyEnv"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("either / or", "either / or"),
    ],
)
def test_of_a_path_the_last_part_is_public(text: str, public: str) -> None:
    assert without_paths(text) == public


def test_keys_among_an_environments_arguments_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(["arith"])
    given = {"api_key": "k1", "judge": {"token": "k2"}, "max_tokens": 3}
    entry = config.orchestrator.env[0].model_copy(update={"args": given})
    orchestrator = config.orchestrator.model_copy(update={"env": [entry]})
    args = public_config(config.model_copy(update={"orchestrator": orchestrator})).orchestrator.env[0].args
    assert args == {"api_key": "…", "judge": {"token": "…"}, "max_tokens": 3}
    monkeypatch.setenv("JUDGE_API_KEY", "abcdefgh12")
    assert without_keys("by abcdefgh12.") == "by …."


def test_the_licence_is_what_the_base_models_own_card_says(tmp_path: Path) -> None:
    assert licence_of(tmp_path) is None and licence_of(None) is None
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a]\n---\nlicense: mit\n")
    assert licence_of(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("license: mit\n")
    assert licence_of(tmp_path) is None


@pytest.mark.parametrize("noted", [True, False])
def test_the_licence_of_a_converted_model_is_what_its_gguf_file_says(noted: bool, tmp_path: Path) -> None:
    """A conversion by an earlier version did not note it; then the file is asked, if it is still there."""
    writer = gguf.GGUFWriter(tmp_path / "it.gguf", "llama")
    writer.add_license("apache-2.0")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    manifest = {"source": str(tmp_path / "it.gguf"), **({"licence": "mit"} if noted else {})}
    (tmp_path / "air.json").write_text(json.dumps(manifest))
    assert licence_of(tmp_path) == ("mit" if noted else "apache-2.0")
    (tmp_path / "it.gguf").unlink()
    assert licence_of(tmp_path) == ("mit" if noted else None)
