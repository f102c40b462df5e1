"""The pictures of the README, from a real run: docs/img/board.svg and docs/img/viewer.png.

python scripts/pictures.py board quickstart                             # trains, and keeps the board of half-way
python scripts/pictures.py viewer RUN 'trajectory?run=NAME&id=EPISODE'  # a page of `air view`, by Chromium
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
COLUMNS = 88  # as wide as the board gets
SIZE = {"width": 1200, "height": 800}
BELOW_THE_BAR = {"x": 0, "y": 46, "width": 1200, "height": 754}  # the bar names a folder of this machine


def board(words: list[str]) -> None:
    """After half of the steps, while the next is sampled."""
    from rich.console import Console

    from airloop.config import load_config
    from airloop.training import start
    from airloop.watch.display.display import Display

    config = load_config(words)

    class Camera(Display):
        def advance(self, detail: str = "") -> None:
            super().advance(detail)
            if self.run and len(self.run.metrics("train")) == (self.run.config.max_steps + 1) // 2:
                with Path("/dev/null").open("w") as nowhere:
                    console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
                    console.print(self._board)
                    drawn = console.export_svg(title=f"air train {' '.join(words)}")
                    (IMAGES / "board.svg").write_text(without_fonts(drawn), encoding="utf-8")

    with Camera() as display:
        print(start(config, display).text)


def without_fonts(svg: str) -> str:
    """A picture that fetches nothing: the reader's own monospaced font is as good."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def viewer(directory: str, place: str) -> None:
    from playwright.sync_api import sync_playwright

    words = [sys.executable, "-m", "airloop.cli", "view", directory, "--no-open"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium") or "chromium", args=["--no-sandbox"]
            )
            page = browser.new_page(viewport=SIZE)
            page.goto(f"{address}#/{place}")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(3000)
            page.screenshot(path=str(IMAGES / "viewer.png"), clip=BELOW_THE_BAR)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["board", *words]:
            board(words)
        case ["viewer", directory, place]:
            viewer(directory, place)
        case _:
            sys.exit(__doc__)
