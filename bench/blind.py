"""The control that must fail: the same run, with the loss mask fed to the model as its attention mask (F1).

The training forward then sees neither the prompt nor any tool result. Nothing else changes: not the sampler, not the
supervised start, not the loss. `air train` would refuse such a trainer in its proofs (F1), and an alarm would stop it
after its first step (F2: engine and trainer differ); the fault (lab/faults.py) silences these, and the run says so.

    python bench/blind.py --out outputs/blind musique/small --seed 0
    python bench/learn.py --out outputs/blind …      # reads the finished run and prints its table

Arguments behind --out are those of `air train`. `air lab run mask` does the same in pairs, on several seeds.
"""

from __future__ import annotations

import argparse
import asyncio

from airloop.config import load_config
from airloop.training import start
from airloop.warmstart import warmstart
from airloop.watch.display.display import Display
from airloop_lab.faults import fault_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="outputs/blind")
    options, rest = parser.parse_known_args()
    config = load_config([*rest, "--output_dir", options.out])
    with Display() as display:
        if config.warmstart and not config.model.adapter:
            asyncio.run(warmstart(config, display))  # with right masks, before the blindfold is put on
        with fault_on("mask"):
            print(start(config, display, skip_proofs=True).text)


if __name__ == "__main__":
    main()
