"""What an earlier version left on a disk is opened, resumed, viewed and reused by this one. `make.py` made each archive
at the commit before something moved: air-0.1.0 is the last before the package was called airloop."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from make import FINISHED

from airloop.config import load_config
from airloop.runs.run import Run
from airloop.training import start
from airloop.watch.display.display import Display

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive unpacked, as if it had always been here."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    for config in tmp_path.glob("outputs/*/config.toml"):
        config.write_text(config.read_text().replace("/tmp/air-legacy", str(tmp_path)))
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    return tmp_path


def killed(place: Path) -> Path:
    return next((place / "outputs").glob("exp1.0-*"))


def test_a_run_that_an_earlier_version_was_killed_in_goes_on(place: Path) -> None:
    run = Run.open(killed(place))
    recorded = {m["step"]: m["rewards"] for m in run.metrics("train")}
    assert sorted(recorded) == [0, 1, 2]
    said: list[str] = []
    display = Display(quiet=True)
    display.say = said.append  # type: ignore[method-assign]
    start(run.config, display, resume=run.path)
    after = {m["step"]: m["rewards"] for m in run.metrics("train")}
    assert sorted(after) == [*range(6)]
    assert [after[step] for step in (0, 1, 2)] == [recorded[step] for step in (0, 1, 2)]  # replayed, not sampled anew
    assert any("reusing" in line for line in said) and any("resuming" in line for line in said)
    assert len([*(place / "outputs").glob("warmstart-arith-*")]) == 1


def test_runs_of_an_earlier_version_are_listed_shown_and_viewed(place: Path, air: Any) -> None:
    code, listed, errors = air("log", "list", "--dir", place / "outputs")
    assert code == 0 and "exp1.0" in listed and "exp1.1" in listed, errors
    code, shown, errors = air("log", "show", killed(place))
    assert code == 0 and "arith" in shown, errors
    code, viewed, errors = air("view", place / "outputs", "--text")
    assert code == 0 and "exp1.1-tune" in viewed, errors
    code, compared, errors = air("compare", next((place / "outputs").glob("exp1.1-*")))
    assert code == 0 and "reward" in compared, errors


def test_fits_that_an_earlier_version_cached_are_reused(place: Path) -> None:
    found = {path for path in (place / "cache" / "tune" / "fits").rglob("*") if path.is_file()}
    assert found
    (place / "again.toml").write_text(FINISHED.replace("/tmp/air-legacy", str(place / "again")))
    start(load_config(["@", str(place / "again.toml")]), Display(quiet=True), skip_proofs=True)
    assert {path for path in (place / "cache" / "tune" / "fits").rglob("*") if path.is_file()} == found
