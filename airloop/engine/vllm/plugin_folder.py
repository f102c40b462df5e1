"""Writes the plugin as a folder for PYTHONPATH: its modules, and the entry points by which vLLM finds them."""

from __future__ import annotations

import shutil
from pathlib import Path

from airloop.version import __version__

SOURCE = Path(__file__).with_name("plugin")
MODULE = "airloop_vllm"
POINTS = f"""[vllm.general_plugins]
air_adapters = {MODULE}.adapters:register
air_weights = {MODULE}.weights:register
"""


def write_plugin(folder: Path) -> None:
    package, facts = folder / MODULE, folder / f"{MODULE}-{__version__}.dist-info"
    for made in (package, facts):
        made.mkdir(parents=True)
    for source in sorted(SOURCE.glob("*.py")):
        shutil.copyfile(source, package / source.name)
    about = f"Metadata-Version: 2.1\nName: airloop-vllm\nVersion: {__version__}\n"
    (facts / "METADATA").write_text(about, encoding="utf-8")
    (facts / "entry_points.txt").write_text(POINTS, encoding="utf-8")
