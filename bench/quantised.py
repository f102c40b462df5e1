"""What quantising takes from a trained policy: each kind of GGUF written, read again, held against the run's log-probs.

    python bench/quantised.py outputs/exp1.0-tune-1117                # all kinds
    python bench/quantised.py outputs/exp1.0-tune-1117 q8_0 q4_0

As `air export RUN --gguf` does it, but nothing is refused: what would be is said. The table of docs/export.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from airloop.errors import AirError
from airloop.export import check, exporting
from airloop.export.gguf_file import KINDS


def main(run: Path, kinds: list[str]) -> None:
    judge, said = check.judge, dict[str, str]()

    def measured(*given: object) -> check.Check:
        try:
            return judge(*given)  # type: ignore[arg-type]
        except AirError as error:
            said["refused"] = error.problem
            return check.measure(*given)  # type: ignore[arg-type]

    exporting.judge = measured
    print("| kind | tokens | mean | at most | training | carried | MB |\n|---|---|---|---|---|---|---|")
    for kind in kinds:
        said.clear()
        with tempfile.TemporaryDirectory() as scratch:
            report = exporting.export(run, Path(scratch) / kind, gguf=kind, say=lambda _: None)
            size = (Path(scratch) / kind / report["file"]).stat().st_size / 1e6
        found = report["check"]
        numbers = f"{found['tokens']} | {found['mean']:.2g} | {found['max']:.2g} | {found['training']:.2g}"
        carried = f"{found['carried']:.0%}{', refused' if said else ''}"
        print(f"| {kind} | {numbers} | {carried} | {size:.0f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    main(options.run, options.kinds)
