"""Shipped configs by name: for every command that takes one, and where a name is wrong or a path is an old one."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.errors import AirError
from airloop.plugins import plugins
from airloop.shipped import about, name_of, names, shipped
from airloop_lab.hypotheses import HYPOTHESES


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_name_and_a_path_are_the_same_config(tmp_path: Path) -> None:
    assert load_config(["mlgym/small"]) == load_config(["@", str(shipped("mlgym/small"))])
    (tmp_path / "mine.toml").write_text("max_steps = 7\n")
    assert load_config(["mine.toml"]) == load_config(["@", "mine.toml"])
    both = load_config(["arith", "@", "mine.toml", "--seed", "3"])
    assert both.max_steps == 7 and both.seed == 3 and both.model.name == "tiny:llama"
    assert load_config(["--seed", "3", "arith"]) == load_config(["arith", "--seed", "3"])


@pytest.mark.parametrize(
    ("argv", "fix"),
    [
        (["quikstart"], "did you mean quickstart?"),
        (["small"], "did you mean mlgym/small?"),
        (["configs/arith.toml"], "did you mean arith?"),
        (["no-such-thing-at-all"], "`air configs list` shows their names"),
        (["@", "configs/quickstart.toml"], "`air train quickstart`"),
        (["@", "/home/me/air/configs/mlgym/small.toml"], "`air train mlgym/small`"),
        (["@", "quickstart"], "`air train quickstart`"),
        (["@", "no-such-thing.toml"], "check the name after @"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(argv: list[str], fix: str) -> None:
    with pytest.raises(AirError) as refused:
        load_config(argv)
    assert fix in refused.value.fix


def test_every_command_that_takes_a_config_takes_a_name(air: Any, tmp_path: Path) -> None:
    assert air("plan", "arith", "--gpu-memory", "80GiB")[0] == 0
    assert air("doctor", "arith", "--skip-proofs")[0] in (0, 1)
    flags = ["--warmstart.steps", 1, "--warmstart.episodes", 10, "--output_dir", tmp_path / "out"]
    assert air("warmstart", "arith", *flags)[0] == 0
    assert air("eval", "arith", "--agent", "scripted:oracle", "--n", 2, "--out", tmp_path / "oracle")[0] == 0
    for command in ("train", "warmstart", "eval", "plan"):
        code, _, problem = air(command, "arithh")
        assert code == 1 and "did you mean arith?" in problem
    code, text, _ = air("doctor", "arithh")
    assert code == 2 and "did you mean arith?" in text


def test_list_show_copy(air: Any, tmp_path: Path) -> None:
    code, text, _ = air("configs", "list", "--json")
    assert code == 0 and [row["name"] for row in json.loads(text)] == names(hypotheses=True)
    assert all(about(name).rstrip(")").endswith(".") for name in names(hypotheses=True))
    assert "Dr. GRPO" in about("musique/qwen25_7b_full")
    code, text, _ = air("configs", "show", "mlgym/small")
    assert code == 0 and text == shipped("mlgym/small").read_text()
    code, text, _ = air("configs", "copy", "mlgym/small")
    assert code == 0 and "air train @ small.toml" in text and load_config(["@", "small.toml"])
    code, _, problem = air("configs", "copy", "mlgym/small")
    assert code == 1 and "is there already" in problem
    assert air("configs", "copy", "lab/mask", "my mask.toml")[0] == 0
    code, text, _ = air("lab", "show", "my mask.toml")  # its config is named from where it was
    assert code == 0 and "attention mask" in text
    code, _, problem = air("configs", "copy", "arith", "no/such/folder/a.toml")
    assert code == 1 and "There is no folder" in problem
    code, _, problem = air("configs", "show", "arit")
    assert code == 1 and "did you mean arith?" in problem


def test_hypotheses_are_no_configs_of_runs() -> None:
    assert "lab/mask" in names(hypotheses=True) and "lab/mask" not in names()
    assert name_of("configs/lab/mask.toml") == "" and (HYPOTHESES / "mask.toml").is_file()
    assert name_of("soup/qwen2.5-7b") == "soup/qwen2.5-7b" == name_of("configs/soup/qwen2.5-7b.toml")


def test_another_packages_configs_add_to_ours_and_replace_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs" / "configs"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("# Mine. And more.\n")
    (folder / "arith.toml").write_text("# Not ours.\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "stray.toml").write_text("")
    before = {name: shipped(name) for name in names()}
    added = {key: EntryPoint(key, key, "airloop.configs") for key in ("theirs", "not_there", "not.there")}
    known = plugins("configs")
    monkeypatch.setattr("airloop.shipped.plugins", lambda kind: {**known, **added})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)  # whose own folder `configs` is nobody's
    assert {name: shipped(name) for name in names()} == {**before, "mine": folder / "mine.toml"}
    assert about("mine") == "Mine."
