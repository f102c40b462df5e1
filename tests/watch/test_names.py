"""Every number that a run gives out has a name that is explained, and every name that is explained can occur."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import get_args

import pytest
from support.logged_runs import logged_run
from support.packages import python_files

from airloop.plugins import plugins
from airloop.runs.run import Run
from airloop.types import Ending
from airloop.watch.metrics import facts
from airloop.watch.metrics.families import SHARES
from airloop.watch.metrics.latency import PARTS
from airloop.watch.metrics.ledger import COLUMNS
from airloop.watch.metrics.measured import measured
from airloop.watch.metrics.names import OF_ITS_OWN, SECTIONS, all_names, describe, page
from airloop.watch.sinks import flat_line

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = Path(__file__).parent / "healthy"
# What no run on this machine can show, and where it comes from instead.
ELSEWHERE = {
    "train/memory/gpu_used": "CUDA",
    "train/memory/gpu_available": "CUDA",
    "train/memory/gpu_peak": "CUDA",
    **{f"train/rounding/{side}": "a gap above 0.1" for side in ("engine", "trainer", "plain", "most")},
    "train/versions/wanted_to": "sampling beside training",
    "train/times/held": "the same",
    "train/versions/mixed": "the same",
    **{f"train/learner/cut_{which}": "a mask of whole trajectories" for which in ("geo", "sequence")},
    **{f"train/servers/{which}": "samplers on nodes of their own" for which in ("answering", "all")},
    "step": "the axis at W&B",
    **{f"train/rollout/ended_{ending}": "one line per ending" for ending in get_args(Ending)},
}


def recorded_names() -> set[str]:
    """Of runs with every loss, with filters, by turn, and of research: what they emitted."""
    lines = [json.loads(line) for file in HEALTHY.glob("*.jsonl") for line in file.read_text().splitlines()]
    return {name for line in lines for name in flat_line(line)}


def emitted_names() -> set[str]:
    run, _ = logged_run()
    return {name for line in Run.open(run).metrics() for name in flat_line(line)}


@pytest.mark.long
def test_every_number_of_a_real_run_is_explained() -> None:
    for name in sorted(emitted_names()):
        found = describe(name)
        assert found is not None and found.text.endswith(".") and OF_ITS_OWN not in found.text, name


def test_every_number_of_recorded_runs_is_explained() -> None:
    names = recorded_names()
    assert len(names) > 100
    assert [name for name in names if describe(name) is None] == []


@pytest.mark.long
def test_every_fixed_name_occurs_in_some_run() -> None:
    fixed = {n.pattern for section in SECTIONS.values() for n in section if "*" not in n.pattern}
    assert fixed - emitted_names() - recorded_names() - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() <= fixed


def test_every_measured_name_is_one_that_the_code_gives() -> None:
    own = {"names.py", "measured.py", "metric_names.py"}
    code = "\n".join(p.read_text() for p in python_files() if p.name not in own)
    assert [name for name in measured() if not re.search(rf"[\"']{name}[\"']", code)] == []
    assert set(SHARES) <= measured().keys()


def test_the_ledgers_columns_and_the_parts_of_a_step_are_all_there() -> None:
    names = {n.pattern for n in all_names()}
    assert {f"train/ledger/{column}" for column in ("tokens", *COLUMNS)} <= names
    assert {f"train/times/{part}" for part in PARTS} <= names
    assert len(names) == len(all_names())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train/learner/loss", "The loss, summed"),
        ("train/task/2hop/easy/reward", "Their mean reward"),
        ("train/task/titanic/improved", "Mean over the step's episodes of this family of tasks: 1 if the baseline"),
        ("train/metrics/elo", f"Mean over the step's episodes: {OF_ITS_OWN}"),
        ("eval/test/improved/low", "Lower end"),
        ("eval/test/reward/mean", "Mean reward, each task"),
        ("alarm/E1", "1 at the step"),
    ],
)
def test_the_most_exact_description_is_found(name: str, text: str) -> None:
    found = describe(name)
    assert found is not None and found.text.startswith(text)


def test_what_nobody_gives_is_not_explained() -> None:
    assert describe("train/learner/nonsense") is None and describe("") is None and describe("reward") is None


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page() + "\n", (
        "python -m airloop.watch.metrics.names > docs/metrics.md"
    )


def test_memory_is_what_the_kernel_says_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes such as gVisor know no peak: a step is not lost over it."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tair\nVmRSS:\t  2048 kB\n")
    (tmp_path / "meminfo").write_text("MemAvailable:   4096 kB\n")
    monkeypatch.setattr(facts, "PROC", tmp_path)
    monkeypatch.setattr(facts, "CGROUP", tmp_path / "none")
    assert facts.memory("cpu") == {"used": 2.0, "available": 4.0}


def test_metrics_of_other_packages_are_described_and_a_broken_table_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = plugins("metrics")
    broken = {name: EntryPoint(name, value, "airloop.metrics") for name, value in BROKEN.items()}
    monkeypatch.setattr("airloop.watch.metrics.measured.plugins", lambda kind: {**known, **broken})
    assert measured()["passed"][0] == "share" and "citation_f1" in measured()
    assert measured()["answer"][1].startswith("musique: ") and " soup: " in measured()["answer"][1]


BROKEN = {"absent": "no_such_module:METRICS", "odd": "airloop.watch.metrics.measured:SHARE"}
