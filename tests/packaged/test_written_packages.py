"""`air env package`: what it writes, what it copies, what it refuses. What verifiers makes of it: tests/interop."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.packages import python_files

from airloop.packaged import interfaces
from airloop.packaged.definition import Definition, forget_environment

FILE_ENV = """
from airloop import Environment, Message, Observation, Score, Session, Task
from airloop.envs.base import Opening

class Echo(Session):
    said = ""
    async def begin(self):
        return Opening((Message(role="user", content="Say x."),))
    async def act(self, action):
        self.said = action.text
        return Observation("", done=True)
    async def finish(self):
        return Score({"said": float(self.said == "x")})

class EchoEnv(Environment):
    def tasks(self, split):
        return [Task(self.name, "one", split)]
    def open(self, task, seed):
        return Echo()
"""


def definition_in(out: Path, module: str) -> Definition:
    """As the written module has it, without verifiers, which is not here."""
    tree = ast.parse((out / module / "__init__.py").read_text())
    made = next(node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    values = {"Path": Path, "Definition": Definition, "__file__": str(out / module / "__init__.py")}
    found = eval(compile(ast.Expression(made.value), "module", "eval"), values)
    assert isinstance(found, Definition)
    return found


def test_a_package_of_a_builtin_environment(air: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("env", "package", "mlgym", "--out", out, "--arg", "max_turns=12", "--reward", "improvement=2")
    code, text, problem = air(*words)
    assert code == 0 and "pip install -e" in text and "vf-eval air-mlgym" in text, problem
    project = tomllib.loads((out / "pyproject.toml").read_text())
    assert project["project"]["name"] == "air-mlgym" and project["tool"]["setuptools"]["packages"] == ["air_mlgym"]
    assert [d.partition(">")[0] for d in project["project"]["dependencies"]] == ["airloop[mlgym]", "verifiers"]
    definition = definition_in(out, "air_mlgym")
    assert (definition.id, dict(definition.args), dict(definition.rewards)) == (
        "mlgym", {"max_turns": 12}, {"improvement": 2.0},
    )  # fmt: skip
    env = definition.environment({"num_examples_per_task": 1})
    assert env.max_turns == 12 and env.reward_weights == {"improvement": 2.0} and env.count("train") == 3
    assert definition.environment({"num_examples_per_task": 1}) is env and definition.environment() is not env
    forget_environment(env)
    assert definition.environment({"num_examples_per_task": 1}) is not env
    page = (out / "README.md").read_text()
    assert "air-mlgym" in page and "`improvement`, weight 2" in page and "`max_turns`: " in page
    code, text, _ = air("env", "package", "arith", "--out", tmp_path / "json", "--json")
    assert code == 0 and json.loads(text)["module"] == "air_arith"
    assert json.loads(text)["files"] == ["README.md", "air_arith/__init__.py", "pyproject.toml"]


def test_an_environment_of_one_file_is_copied(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("echo.py").write_text(FILE_ENV)
    code, _, problem = air("env", "package", "./echo.py:EchoEnv", "--out", tmp_path / "out")
    assert code == 0, problem
    assert (tmp_path / "out/air_echo/echo.py").read_text() == FILE_ENV
    Path("echo.py").unlink()
    definition = definition_in(tmp_path / "out", "air_echo")
    assert definition.id == "echo.py:EchoEnv"
    env = definition.environment()
    assert env.name == "echo" and [task.id for task in env.tasks("train")] == ["one"]


def test_files_that_arguments_name_are_copied(air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(40)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("rewards.py").write_text(
        "def right(completions, answer, **_):\n    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    words = ("--arg", "dataset=rows.jsonl", "--arg", 'rewards=["./rewards.py:right"]', "--name", "say-it")
    code, _, problem = air("env", "package", "prompts", "--out", tmp_path / "out", *words)
    assert code == 0, problem
    definition = definition_in(tmp_path / "out", "say_it")
    assert definition.args == {"dataset": "rows.jsonl", "rewards": ["rewards.py:right"]}
    for name in ("rows.jsonl", "rewards.py"):
        Path(name).unlink()
    monkeypatch.chdir(tmp_path)
    assert definition.environment().count("train") > 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mlgim",), "did you mean"),
        (("arith", "--arg", "max_nmber=3"), "has no argument 'max_nmber'"),
        (("arith", "--arg", "max_number"), "has no name and value"),
        (("arith", "--reward", "corect=1"), "has no reward component 'corect'"),
        (("arith", "--name", "../there"), "no name for a package"),
        (("program",), "a program that asks air's own endpoint"),
        (("./nowhere.py:Env",), "There is no file"),
    ],
)
def test_what_cannot_be_packaged_is_a_sentence(air: Any, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    code, _, problem = air("env", "package", *words, "--out", tmp_path / "out")
    assert code == 1 and said in problem and "fix:" in problem
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_folders_are_not_copied(air: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, problem = air("env", "package", "arith", "--out", tmp_path)
    assert code == 1 and "is not empty" in problem and (tmp_path / "mine.txt").read_text() == "mine"
    (tmp_path / "rows").mkdir()
    code, _, problem = air(
        "env", "package", "gsm8k", "--out", tmp_path / "out", "--arg", f"dataset={tmp_path / 'rows'}"
    )
    assert code == 1 and "is a folder, and a package holds files" in problem


@pytest.mark.parametrize(
    ("version", "v0", "v1"),
    [
        ("0.2.1", True, False),
        ("0.3.1.dev59", True, True),
        ("0.3.1", True, True),
        ("0.4.0", False, True),
        ("0.4.1.dev86", False, True),
    ],
)
def test_the_interface_follows_from_the_version(
    monkeypatch: pytest.MonkeyPatch, version: str, v0: bool, v1: bool
) -> None:
    monkeypatch.setattr(interfaces, "version", lambda name: version)
    assert (interfaces.has_v0(), interfaces.has_v1()) == (v0, v1)


@pytest.mark.long
def test_verifiers_is_no_part_of_air() -> None:
    """Two modules import it, nothing imports these, and no dependency names it. (Of airloop/verifiers, files run in
    that library's own process.)"""
    adapters = ["verifiers_v0.py", "verifiers_v1.py"]
    users, importers = [], []
    for path in (path for path in python_files() if "verifiers" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            users += [path.name] if any(name.partition(".")[0] == "verifiers" for name in names) else []
            importers += [path.name] if any("packaged.verifiers_v" in name for name in names) else []
    assert sorted(set(users)) == adapters and not importers
    assert not [line for line in importlib.metadata.requires("airloop") or () if line.startswith("verifiers")]


@pytest.mark.slow
def test_environments_need_no_torch() -> None:
    """Where verifiers is at home, torch may be another one, or none."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import airloop.packaged.definition as d, airloop.packaged.external_episode, airloop.packaged.interfaces\n"
        "for name in ('arith', 'gsm8k', 'gsm8k-calculator', 'tune', 'soup', 'mlgym', 'musique'):\n"
        "    env = d.Definition(name, Path()).environment()\n"
        "print(sorted({'torch', 'transformers', 'starlette'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
