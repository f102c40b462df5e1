"""The pages: what they show runs, what they name exists, what is generated is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import airloop
from airloop.commands.help import Group
from airloop.config.keys import describe_keys, find_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
GUIDES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/faq.md", "docs/glossary.md")]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# of anybody's machine
HOME = re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_script(words: list[str], cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_of_the_python_interface_is_what_is_generated() -> None:
    made = run_script([str(ROOT / "scripts/api.py")], ROOT)
    assert (ROOT / "docs/api.md").read_text(encoding="utf-8") == made, "python scripts/api.py > docs/api.md"


def test_every_public_name_is_on_the_page_of_the_python_interface() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    told = {name.rpartition(".")[2] for name in re.findall(r"^### (\S+)$", text, re.MULTILINE)}
    assert set(airloop.__all__) - {"__version__"} - told == set()


@pytest.mark.long
def test_the_readmes_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session, example = PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(session, "README.md", "exec"), {})
    assert len(example.splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 + 3 + 1 and [line.split()[0] for line in lines[:10]] == [str(step) for step in range(10)]
    assert all(re.fullmatch(r"\d\+\d .* [01]\.0", line) for line in lines[10:13])
    assert "'mean': 1.0" in lines[13]  # of the oracle


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_something(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        file, _, place = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        if place:
            titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert place in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_installs_air_by_name_or_names_somebodys_folder(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"pip install (?:-\S+ )*[\"']?(?:airloop|air)\b(?![-\w]*\.whl)", text)
    assert not HOME.search(text)


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_keys_and_commands_that_are_named_exist(page: Path) -> None:
    from typer.main import get_command

    from airloop.cli import app

    text = page.read_text(encoding="utf-8")
    sections = "|".join(sorted({key.name.partition(".")[0] for key in describe_keys() if key.section}))
    for name in re.findall(rf"`(?:--)?((?:{sections})\.[\w.]+)", text):
        assert find_keys(re.sub(r"\.args\..+", ".args", name)), f"there is no key {name}"
    commands = get_command(app)
    assert isinstance(commands, Group)
    for words in re.findall(r"(?:`|^    (?:\.venv/bin/)?)air (\w+(?: [a-z]+\b)?)", text, re.MULTILINE):
        first, _, second = words.partition(" ")
        assert first in commands.commands, f"there is no command `air {first}`"
        found: Any = commands.commands[first]
        if isinstance(found, Group) and second:
            assert second in found.commands, f"there is no command `air {words}`"


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs/img").iterdir():
        assert picture.stat().st_size <= 150_000, picture.name
