"""docs/notebook.ipynb, run in a real kernel: in a notebook an event loop is running already."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.interop_world import interpreter

ROOT = Path(__file__).parents[2]
EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": "."}}).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(json.dumps([cell.outputs for cell in cells]))
"""

pytestmark = pytest.mark.interop


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    python = interpreter("notebook")
    # The kernel is of an environment of its own; what it imports besides is what these tests import.
    path = os.pathsep.join([str(ROOT), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]])
    done = subprocess.run(
        [python, "-c", EXECUTE, str(ROOT / "docs/notebook.ipynb")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    name, table, plot, held_out, episode, shop = json.loads(done.stdout.splitlines()[-1])
    assert "-arith-" in name[-1]["data"]["text/plain"] and "success" in table[0]["data"]["text/plain"]
    assert any("image/png" in output.get("data", {}) for output in plot)
    assert held_out[0]["text"].startswith("held out: 0.") and "reward:" in episode[0]["text"]
    assert "look was not called: shelf: Input should be a valid integer" in shop[0]["text"]
    assert "{'found': 1.0}" in shop[0]["text"]
