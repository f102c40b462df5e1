"""`import airloop`: light, lazy, and all that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import airloop

LIGHT = """
import json, os, sys
before = dict(os.environ)
import airloop
slow = [name for name in ("torch", "transformers", "pydantic", "numpy") if name in sys.modules]
print(json.dumps({"slow": slow, "set": sorted({*os.environ.items()} - {*before.items()})}))
"""


def test_importing_it_imports_nothing_slow_and_sets_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {"slow": [], "set": []}


def test_every_public_name_is_there_with_a_docstring() -> None:
    assert set(airloop.__all__) <= set(dir(airloop))
    for name in airloop.__all__:
        assert getattr(airloop, name) is not None, name
    assert airloop.train.__doc__ and airloop.evaluate.__doc__
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = airloop.trian  # type: ignore[attr-defined]


def test_a_script_is_evaluated_by_name_by_words_and_by_config(tmp_path: Path) -> None:
    words = ["arith", "--output_dir", str(tmp_path / "out")]
    found = [
        airloop.evaluate("scripted:oracle", config, n=6, rollouts=1, out=tmp_path / f"{number}", quiet=True)
        for number, config in enumerate((words, airloop.load_config(words)))
    ]
    for report in found:
        assert report["finished"] and report["means"]["reward"]["mean"] == 1.0
    assert found[0]["rows"] == found[1]["rows"]
    with pytest.raises(airloop.AirError, match="There is no agent"):
        airloop.evaluate("oracle", words, quiet=True)
