"""Environments of verifiers by their ids: what they are called, where they are, and which interpreter has them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.envs.base import load_environment
from airloop.envs.files import title
from airloop.errors import AirError
from airloop.models import download
from airloop.runs.run import digest_of
from airloop.verifiers import installed
from airloop.verifiers.host import module_of
from airloop.watch.display import heartbeat

CONFIG = '[model]\nname = "tiny:llama"\n[[orchestrator.env]]\nid = "verifiers:ENV"\nargs = { python = "py", x = [1] }\n'


@pytest.fixture(autouse=True)
def nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("verifiers:echo", "echo"),
        ("verifiers:owner/reverse-text@0.1.0", "reverse-text"),
        ("verifiers:./my_env.py", "my_env"),
        ("verifiers:/somewhere/wordle", "wordle"),
        ("arith", "arith"),
        ("./my_env.py:MyEnv", "my_env"),
    ],
)
def test_what_an_environment_is_called(env_id: str, name: str) -> None:
    assert title(env_id) == name


def test_a_path_is_a_file_a_package_or_a_project(tmp_path: Path) -> None:
    for file in ("one.py", "two/__init__.py", "three-x/three_x.py", "four/four/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    here = str(tmp_path)
    assert module_of(f"{here}/one.py") == ("one", here)
    assert module_of(f"{here}/two") == ("two", here)
    assert module_of(f"{here}/three-x") == ("three_x", f"{here}/three-x")
    assert module_of(f"{here}/four") == ("four", f"{here}/four")
    assert module_of("reverse-text") == ("reverse-text", "")
    with pytest.raises(AirError, match="no environment"):
        module_of(f"{here}/five")


def test_files_of_a_run_are_never_executed(tmp_path: Path) -> None:
    for file in ("status.json", "config.toml", "env.py"):
        (tmp_path / file).write_text("")
    with pytest.raises(AirError, match="never executed"):
        module_of(str(tmp_path / "env.py"))


def test_one_that_is_not_installed_says_how_to() -> None:
    with pytest.raises(AirError, match="not installed") as told:
        load_environment("verifiers:owner/no-such")
    assert "air env install owner/no-such" in told.value.fix
    with pytest.raises(AirError, match="environment"):
        load_environment("verifiers")


def test_what_was_installed_is_found_however_it_is_spelt() -> None:
    python = installed.folder_of("Reverse_Text") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert installed.interpreter("owner/reverse-text@0.2") == str(python)
    assert installed.interpreter("reverse-text", "/other/python") == "/other/python"


def test_what_cannot_be_installed_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    before = installed.folder_of("echo") / "bin" / "python"
    before.parent.mkdir(parents=True)
    before.write_text("as it was")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(AirError, match="cannot be installed"):
        installed.install("echo", ["no-such-package-at-all"])
    assert before.read_text() == "as it was" and [path.name for path in installed.home().iterdir()] == ["echo"]


def test_an_installation_ends_by_standstill_and_says_how_much_has_come(
    air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had said one line, and ended a pip that still fetched at its 1,800th second."""
    pip = tmp_path / "python"
    pip.write_text('#!/bin/sh\nhead -c 2500000 /dev/zero > "$TMPDIR/wheel"; exec sleep 60\n')
    pip.chmod(0o755)
    monkeypatch.setattr(installed.venv, "create", lambda target, with_pip: target.mkdir(parents=True))
    monkeypatch.setattr(installed.sys, "executable", str(pip))
    monkeypatch.setattr(download, "LOOK_S", 0.05)
    monkeypatch.setattr(download, "STILL_S", 2.0)
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.1)
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.1)  # its first line may come before pip has written anything
    code, _, said = air("env", "install", "echo")
    assert code == 1 and "air env install: echo" in said and "pip has written nothing more" in said
    assert re.search(r"installing echo, .*waiting for echo by pip: 2 MB|echo: 2 MB", said), said
    assert not installed.folder_of("echo").exists()


def test_an_interpreter_that_has_no_such_library_is_told_of() -> None:
    env = load_environment("verifiers:echo", {"python": sys.executable})
    try:
        with pytest.raises(AirError, match="does not have the library verifiers"):
            env.tasks("train")
    finally:
        env.abandon()


@pytest.mark.parametrize(
    "run", ["", "async def run_rollout(self, input, client, model, gen_sampling_args, gen_sem): ..."]
)
def test_a_library_that_is_too_old_is_named_with_those_that_will_do(tmp_path: Path, run: str) -> None:
    """As 0.1.5 and 0.1.9 have it."""
    for file, text in {
        "verifiers/__init__.py": "__version__ = '0.1.9'",
        "verifiers/envs/__init__.py": "",
        "verifiers/envs/environment.py": f"class Environment:\n    x = 1\n    {run}\n",
        "old_env.py": "def load_environment():\n    raise AssertionError('it was loaded')\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    env = load_environment(f"verifiers:{tmp_path / 'old_env.py'}", {"python": sys.executable})
    try:
        with pytest.raises(AirError, match=r"has verifiers 0\.1\.9.*needs 0\.1\.10 or later, to 0\.3\.1") as told:
            env.tasks("train")
        assert "python = …" in told.value.fix
    finally:
        env.abandon()


def test_paths_are_relative_to_the_toml_and_arguments_are_the_environments_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env.py").write_text("")
    (tmp_path / "py").write_text("")
    (tmp_path / "run.toml").write_text(CONFIG.replace("ENV", "./my_env.py"))
    monkeypatch.chdir(tmp_path.parent)
    config = load_config(["@", str(tmp_path / "run.toml")])
    (entry,) = config.orchestrator.env
    assert entry.id == f"verifiers:{tmp_path / 'my_env.py'}" and entry.title == "my_env"
    assert entry.args == {"python": str(tmp_path / "py"), "x": [1]}
    before = digest_of(config)
    (tmp_path / "my_env.py").write_text("# other code")
    assert digest_of(load_config(["@", str(tmp_path / "run.toml")])) != before
