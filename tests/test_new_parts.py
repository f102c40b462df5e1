"""A new loss, engine, launcher, environment, sink or check is one new file and one line: each is added to a copy of the
tree in this way, and used by a run or by the doctor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.packages import ROOT
from support.tiny_runs import write_config

pytestmark = pytest.mark.long  # processes of their own, which import torch


@dataclass(frozen=True)
class Part:
    file: str
    text: str
    table: str  # the file that has the line
    after: str  # the line that the new one stands behind
    line: str


LOSS = Part(
    "airloop/learn/losses/halved.py",
    """
from airloop.learn.losses.base import LossSpec

HALVED = LossSpec("halved", lambda terms, settings: (-0.5 * terms.advantage * terms.logprobs, {}))
""",
    "airloop/learn/losses/__init__.py",
    '    "airloop.learn.losses.sft:SFT",',
    '    "airloop.learn.losses.halved:HALVED",',
)
ENGINE = Part(
    "airloop/engine/embedded/counting.py",
    """
from airloop.engine.embedded.engine import EmbeddedEngine


class CountingEngine(EmbeddedEngine):
    async def generate(self, *given, **named):
        print("COUNTED a reply", flush=True)
        return await super().generate(*given, **named)


def make(config, policy, loaded, ranks, say, *, kv_tokens, lend, own_forward):
    return CountingEngine(policy, context=config.seq_len, max_batch=4)
""",
    "airloop/config/engines.py",
    "ENGINES = {",
    '    "counting": EngineSpec("airloop.engine.embedded.counting:make", own_weights=True),',
)
LAUNCHER = Part(
    "airloop/launch/numbered.py",
    """
from airloop.launch.local import LocalLauncher


class NumberedLauncher(LocalLauncher):
    def spawn(self, spec, on_output):
        print(f"NUMBERED {spec.rank} of {spec.size}", flush=True)
        return super().spawn(spec, on_output)


def make(say):
    return NumberedLauncher()
""",
    "airloop/config/launchers.py",
    "LAUNCHERS = {",
    '    "numbered": LauncherSpec("airloop.launch.numbered:make", several=False),',
)
ENVIRONMENT = Part(
    "airloop/envs/zeros.py",
    """
from airloop.envs.arith import ArithEnv


class ZerosEnv(ArithEnv):
    id = "zeros"
""",
    "pyproject.toml",
    'arith = "airloop.envs.arith:ArithEnv"',
    'zeros = "airloop.envs.zeros:ZerosEnv"',
)
SINK = Part(
    "airloop/sinks/lines_sink.py",
    """
from pydantic import Field

from airloop.section import Section
from airloop.sinks.base import SinkSpec


class LinesConfig(Section):
    prefix: str = Field(default="", description="What each line begins with.")


class LinesSink:
    name = "lines"

    def __init__(self, settings, run):
        self.settings, self.path = settings, run.path / "lines.txt"
        self.url = self.path.as_uri()

    def open(self):
        return "lines: open"

    def step(self, flat, step):
        with self.path.open("a") as file:
            print(self.settings.prefix, step, len(flat), file=file)

    def evaluated(self, flat, step): ...

    def alarm(self, alarm): ...

    def close(self): ...


LINES = SinkSpec("lines", "Lines", LinesConfig, LinesSink)
""",
    "airloop/sinks/__init__.py",
    "_FILES = (",
    '    "airloop.sinks.lines_sink:LINES",',
)
CHECK = Part(
    "airloop/doctor/checks/odd.py",
    """
from airloop.doctor.base import check, passed


@check("odd-steps", stage="fast", title="the number of steps was looked at")
def steps_are_counted(case):
    return passed(f"{case.config.max_steps} steps")
""",
    "airloop/doctor/base.py",
    '    "servers",',
    '    "odd",',
)
PARTS = (LOSS, ENGINE, LAUNCHER, ENVIRONMENT, SINK, CHECK)
# What is written to be installed: a copy's entry points are where its metadata is.
METADATA = "airloop-0.dist-info"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with all the parts: of each, one file and one line."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "airloop", tree / "airloop", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for part in PARTS:
        assert not (tree / part.file).exists()
        (tree / part.file).write_text(part.text, encoding="utf-8")
        table = tree / part.table
        lines = table.read_text(encoding="utf-8").splitlines()
        assert lines.count(part.after) == 1
        lines.insert(lines.index(part.after) + 1, part.line)
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_metadata(tree)
    return tree


def _write_metadata(tree: Path) -> None:
    """As an installer does: from pyproject.toml."""
    found = re.search(
        r'entry-points\."airloop\.envs"\]\n(.*?)\n\n', (tree / "pyproject.toml").read_text("utf-8"), re.DOTALL
    )
    assert found is not None
    folder = tree / METADATA
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: airloop\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("[airloop.envs]\n" + found[1].replace('"', "") + "\n")


def _air(tree: Path, *words: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "200"}
    command = [sys.executable, "-m", "airloop", *map(str, words)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tree: Path) -> tuple[Path, str]:
    """Two steps on all of them, and what was said."""
    config = write_config(tree, extra='[lines]\nprefix = "here:"\n')
    config.write_text(config.read_text().replace('id = "arith"', 'id = "zeros"'))
    flags = ["--trainer.loss.type", "halved", "--inference.backend", "counting", "--cluster.launcher", "numbered"]
    said = _air(tree, "train", "@", config, *flags, "--skip-proofs")
    (made,) = (tree / "outputs").glob("exp*")
    return made, said + (made / "log.txt").read_text()


def _steps(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def test_a_loss(run: tuple[Path, str]) -> None:
    assert 'type = "halved"' in (run[0] / "config.toml").read_text() and len(_steps(run[0])) == 2


def test_an_engine(run: tuple[Path, str]) -> None:
    assert "COUNTED a reply" in run[1]


def test_a_launcher(run: tuple[Path, str]) -> None:
    assert "NUMBERED 0 of 1" in run[1]


def test_an_environment(run: tuple[Path, str]) -> None:
    assert "zeros" in run[0].name and len(_steps(run[0])) == 2


def test_a_sink(run: tuple[Path, str]) -> None:
    first, second = (run[0] / "lines.txt").read_text().splitlines()
    assert first.startswith("here: 0 ") and second.startswith("here: 1 ")
    assert json.loads((run[0] / "status.json").read_text())["sink_urls"] == {"Lines": (run[0] / "lines.txt").as_uri()}


def test_a_check(tree: Path) -> None:
    assert "7 steps" in _air(
        tree, "doctor", "--orchestrator.env.0.id", "arith", "--only", "odd-steps", "--max_steps", "7", "--verbose"
    )


def test_help_lists_them(tree: Path) -> None:
    for name, part in (("inference.backend", "counting"), ("cluster.launcher", "numbered"), ("trainer.loss", "halved")):
        assert part in _air(tree, "train", "--help", name)
