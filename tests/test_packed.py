"""`air log pack`: a run in one small file, and the pages that are made from such files."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.packages import ROOT
from support.tiny_runs import tiny_run
from typer.testing import CliRunner

from airloop.cli import app
from airloop.errors import AirError
from airloop.eval.compare import compare_named
from airloop.machine import processor
from airloop.runs.packed import LARGEST, pack_run, unpack_run
from airloop.runs.run import Run
from airloop.watch.display.summary import summary

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "a+seed0.tar.xz"
    done = CliRunner().invoke(app, ["log", "pack", str(tiny_run()), "--out", str(out)])
    assert done.exit_code == 0 and done.stdout.strip().endswith("kB"), done.output
    return out


def test_unpacked_it_is_the_run_again_without_its_words(packed: Path, tmp_path: Path) -> None:
    was, run = Run.open(tiny_run()), Run.open(unpack_run(packed, tmp_path))
    assert run.name == was.name and run.config.model.name == "tiny:llama"
    sides = [(one.evaluation("before"), one.evaluation("after")) for one in (was, run)]
    assert summary(run, *sides[1]).splitlines()[1:] == summary(was, *sides[0]).splitlines()[1:]
    assert compare_named([str(run.path)]).rows == compare_named([str(was.path)]).rows == 8
    everything = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    episode = sides[0][1][0]
    assert episode.turns and str(episode.turns[0].shown[0]["content"]).encode() not in everything
    assert not list(run.path.glob("checkpoints/*")) and not list(run.path.glob("tokens/*"))
    assert packed.stat().st_size < 10_000


def test_it_has_no_path_of_the_machine_and_knows_the_machine(packed: Path, tmp_path: Path) -> None:
    run = Run.open(unpack_run(packed, tmp_path))
    texts = [path.read_text() for path in run.path.rglob("*") if path.is_file()]
    assert not any(str(tiny_run().parent) in text or re.search(r'["\s]/\w+/', text) for text in texts)
    assert "cores" in run.status()["machine"]["processor"] and "torch" in run.status()["machine"]["versions"]


def test_the_same_run_gives_the_same_bytes_and_nothing_is_overwritten(packed: Path, tmp_path: Path) -> None:
    pack_run(tiny_run(), tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == packed.read_bytes()
    with pytest.raises(AirError, match="there already"):
        pack_run(tiny_run(), packed)


@pytest.mark.long
def test_a_long_run_of_many_episodes_fits_and_one_that_does_not_is_refused(packed: Path, tmp_path: Path) -> None:
    path = unpack_run(packed, tmp_path)
    line = Run.open(path).metrics("train")[0]
    rng = random.Random(0)

    def lines(steps: int) -> str:
        made = [{**line, "step": i, "rewards": [rng.random() for _ in range(256)]} for i in range(steps)]
        return "".join(json.dumps(one) + "\n" for one in made)

    (path / "metrics.jsonl").write_text(lines(100))
    assert pack_run(path, tmp_path / "long.tar.xz") < LARGEST, "100 steps of 256 episodes"
    (path / "metrics.jsonl").write_text(lines(400))
    with pytest.raises(AirError, match="evaluate fewer tasks"):
        pack_run(path, tmp_path / "longer.tar.xz")
    assert not (tmp_path / "longer.tar.xz").exists()


def test_what_is_no_packed_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.tar.xz").write_bytes(b"no archive")
    with pytest.raises(AirError, match="no packed run"):
        unpack_run(tmp_path / "x.tar.xz", tmp_path / "out")


@pytest.mark.long
def test_a_page_has_tables_and_pictures_of_its_packed_runs(packed: Path, tmp_path: Path) -> None:
    folder, page = tmp_path / "recipes", tmp_path / "recipes.md"
    folder.mkdir()
    for seed in (0, 1):
        (folder / f"arith+tiny+seed{seed}.tar.xz").write_bytes(packed.read_bytes())
    page.write_text("before\n<!-- arith+tiny -->\nold\n<!-- end -->\nafter\n")
    command = [sys.executable, str(ROOT / "scripts/recipes.py"), "--folder", str(folder), "--page", str(page)]
    subprocess.run(command, check=True, cwd=ROOT)
    text = page.read_text()
    assert text.startswith("before\n<!-- arith+tiny -->\n| seed | correct before | after |") and "old" not in text
    assert text.endswith("<!-- end -->\nafter\n") and "| all |" in text and "8 held-out tasks" in text
    assert (tmp_path / "img/recipes/arith+tiny.svg").stat().st_size > 1000
    subprocess.run(command, check=True, cwd=ROOT)
    assert page.read_text() == text, "made anew, it is the same"


def test_processors_are_named(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Xeon X\n\nprocessor : 1\nmodel name\t: Xeon X\n")
    assert processor(info) == "Xeon X"
    info.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert processor(info) == "Neoverse-N1"
    assert processor(tmp_path / "none")
