"""The control that must fail: the same run, with the loss mask fed to the model as its attention mask (F1).

The training forward then sees neither the prompt nor any tool result. Nothing else changes: not the sampler, not the
supervised start, not the loss. `air train` would refuse such a trainer in its proofs (F1), and an alarm would stop it
after its first step (F2: engine and trainer differ); here both are silenced.

    python bench/blind.py --out outputs/blind @ configs/musique/small.toml --seed 0
    python bench/learn.py --out outputs/blind …      # reads the finished run and prints its table

Arguments behind --out are those of `air train`. Make the supervised start with right masks first: the same command
with `--max_steps 0` and without this script, or let it be made here before the blindfold is put on.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import torch

import air  # noqa: F401
from air.config import load_config
from air.learn.batches import PackedPlan
from air.train import start
from air.warmstart import warmstart
from air.watch.alarms import Alarms
from air.watch.display import Display


def put_on_blindfold() -> None:
    original = PackedPlan.__init__

    def blind(self: PackedPlan, batch: Any, device: torch.device) -> None:
        original(self, batch, device)
        self._tree = None  # flash kernels know no such mask
        masks = [self._mask(segment, device) for segment in batch.segments]
        trained = torch.zeros(len(self.tokens), dtype=torch.bool, device=device)
        for r, row in enumerate(batch.rows):
            flat = [batch.segments[s].start + i for s in batch.paths[r] for i in range(len(batch.segments[s].tokens))]
            trained[[f for f, t in zip(flat, row.train, strict=True) if t]] = True
        for i, segment in enumerate(batch.segments):
            path = (*segment.ancestors, i)
            seen = torch.cat([trained[batch.segments[s].start :][: len(batch.segments[s].tokens)] for s in path])
            itself = torch.eye(masks[i].shape[1], dtype=torch.bool, device=device)[segment.place :]
            masks[i] = (masks[i] & seen[None]) | itself  # a token always sees itself, or softmax is NaN
        self._masks = masks

    async def silent(self: Alarms, metrics: Any, world: Any) -> None:
        return None

    PackedPlan.__init__ = blind  # type: ignore[method-assign]
    Alarms.look = silent  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="outputs/blind")
    options, rest = parser.parse_known_args()
    config = load_config([*rest, "--output_dir", options.out])
    with Display() as display:
        if config.warmstart and not config.model.adapter:
            asyncio.run(warmstart(config, display))
        put_on_blindfold()
        print(start(config, display, skip_proofs=True).text)


if __name__ == "__main__":
    main()
