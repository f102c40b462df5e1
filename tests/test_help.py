"""Help and the version: nothing is cut, whatever the terminal, and a key can be asked about by its name."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import airloop
from airloop.commands.help import folded
from airloop.config import describe_keys
from airloop.config.coming_from import page, rows_of
from airloop.config.foreign import ALIASES, FOREIGN_KEYS
from airloop.config.foreign_prime import PRIME
from airloop.config.foreign_verl import VERL
from airloop.config.keys import field_at
from airloop.config.sources import parse_path

ROOT = Path(__file__).parents[1]
GROUPS = ([], ["lab"], ["log"], ["tasks"], ["configs"], ["env"], ["vllm"])
COMMANDS = (["train"], ["eval"], ["doctor"], ["plan"], ["warmstart"], ["log", "plan"], ["lab", "run"], ["compare"])


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_version_is_the_packages_own(air: Any) -> None:
    torch = importlib.metadata.version("torch")
    expected = f"air {airloop.__version__} (Python {platform.python_version()}, torch {torch})\n"
    assert air("--version")[:2] == (0, expected)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == airloop.__version__


def test_the_version_without_torch(air: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    code, text, _ = air("--version")
    assert code == 0 and text.endswith("no torch)\n")


@pytest.mark.parametrize("columns", [80, 120, None])
@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_the_list_of_commands_has_whole_sentences(
    air: Any, monkeypatch: pytest.MonkeyPatch, columns: int | None, group: list[str]
) -> None:
    """None: a pipe, where nothing says how wide it is."""
    monkeypatch.setenv("COLUMNS", str(columns)) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    code, text, _ = air(*group, "--help")
    assert code == 0 and f"Usage: air {' '.join([*group, '[OPTIONS]'])}" in text
    listed = text.partition("Commands:")[2]
    assert "..." not in listed and max(map(len, text.splitlines())) <= (columns or 80)
    for name in re.findall(r"^  (\w+)  ", listed, re.MULTILINE):
        said = re.search(rf"^  {name}  +(.+(?:\n   +.+)*)", listed, re.MULTILINE)
        assert said and words(said[1])[-1] in ".…", f"{name}: {said and said[1]}"


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_a_command_fits_and_has_every_word(
    air: Any, monkeypatch: pytest.MonkeyPatch, columns: int, command: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, whole, _ = air(*command, "--help")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert code == 0 and words(air(*command, "--help")[1]).split() == words(whole).split()
    lines = air(*command, "--help")[1].splitlines()
    long = [line for line in lines if len(line) > columns]
    assert not [line for line in long if " " in line.strip()]  # a list without a blank cannot be folded


def test_folding_keeps_rows_apart_and_indents_what_follows() -> None:
    text = "A sentence that goes on\nin a second line.\n\n  --one X   what it does, at length\n  --two     and this\n"
    assert folded(text, 30).splitlines() == [
        "A sentence that goes on in a",
        "second line.",
        "",
        "  --one X   what it does, at",
        "            length",
        "  --two     and this",
    ]


def test_a_section_by_its_name(air: Any) -> None:
    code, text, _ = air("train", "--help", "trainer.loss")
    assert code == 0 and text.startswith("[trainer.loss]\n") and "max_steps" not in text
    for key in describe_keys():
        if key.section == "trainer.loss":
            assert f"  {key.name.rpartition('.')[2]} " in text and words(key.help) in words(text)
            assert words(f"{key.type} = {key.default}" if key.default else key.type) in words(text)
    assert "[trainer.model.lora]" in air("train", "--help", "trainer")[1]
    assert air("train", "--help", "[[orchestrator.env]]")[1] == air("doctor", "-h", "orchestrator.env.0")[1]
    assert "max_steps" in air("train", "--help", "top level")[1]


def test_a_key_by_its_name(air: Any) -> None:
    code, text, _ = air("train", "--help", "trainer.optim.lr")
    assert (code, text) == (0, "[trainer.optim]\n  lr  float = 0.0001\n        Learning rate of AdamW.\n")
    code, text, _ = air("plan", "--help", "--lr")
    assert code == 0 and text.startswith("air plan @") and "[trainer.loss]" in text  # a flag is not a name
    code, text, _ = air("train", "--help", "lr")
    assert code == 0 and "[trainer.optim]" in text and "[warmstart]" in text


@pytest.mark.parametrize(
    ("asked", "near"),
    [("trainer.los", "trainer.loss,"), ("clip_hihg", "trainer.loss.clip_high"), ("lora.rnak", "rank")],
)
def test_a_name_that_is_not_there_has_the_nearest(air: Any, asked: str, near: str) -> None:
    code, text, problem = air("train", "--help", asked)
    assert code == 1 and not text and repr(asked) in problem and near in problem
    code, _, problem = air("train", "--help", "xyzzy")
    assert code == 1 and "nearest" not in problem and "lists every key" in problem


def test_another_trainers_key_says_what_it_is_here(air: Any) -> None:
    code, text, _ = air("train", "--help", "num_generations")
    assert code == 0 and "orchestrator.rollouts_per_example = 8" in text
    code, text, _ = air("train", "--help", "actor_rollout_ref.actor.kl_loss_coef")
    assert code == 0 and "trainer.loss.kl_beta" in text


# --- docs/coming_from.md ------------------------------------------------------------------------------------------


def test_the_page_of_other_trainers_is_what_is_generated() -> None:
    written = (ROOT / "docs/coming_from.md").read_text(encoding="utf-8")
    assert written == page() + "\n", "python -m airloop.config.coming_from > docs/coming_from.md"


def test_every_key_of_the_tables_is_on_the_page_and_leads_to_one_that_is_here() -> None:
    for name, alias in {**ALIASES, **FOREIGN_KEYS, **PRIME, **VERL}.items():
        for row in rows_of(name, alias):
            assert row.there.startswith(name)
            for key in re.findall(r"`([\w.]+)", row.here):
                path = parse_path(key)
                assert field_at(path) or "args" in path, f"{name} leads to {key}, which there is not"
