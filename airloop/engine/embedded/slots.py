"""What the device knows of each running sequence: it can draw token after token without asking the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from airloop.engine.embedded.scheduler import Request

SEED = (1 << 63) - 1  # what a signed number of the device holds


class Slots:
    """One row per running sequence, and a last one that belongs to nobody: rows that fill up a batch use it."""

    def __init__(self, count: int, pages_each: int, nobodys_page: int, device: torch.device) -> None:
        n = count + 1
        self.pad_slot = count
        self.device = device
        self.tokens = torch.zeros(n, dtype=torch.int64, device=device)  # drawn last, to be computed next
        self.positions = torch.zeros(n, dtype=torch.int64, device=device)  # of that token
        self.caps = torch.zeros(n, dtype=torch.int64, device=device)  # the last place it has a page for
        self.drawn = torch.zeros(n, dtype=torch.int64, device=device)
        self.seeds = torch.zeros(n, dtype=torch.int64, device=device)
        self.heat = torch.ones(n, dtype=torch.float32, device=device)
        self.limits = (
            torch.zeros(n, dtype=torch.int64, device=device),  # top-k
            torch.ones(n, dtype=torch.float32, device=device),  # top-p
            torch.zeros(n, dtype=torch.float32, device=device),  # min-p
        )
        self.table = torch.full((n, pages_each), nobodys_page, dtype=torch.int32, device=device)

    def fill(self, requests: Sequence[Request]) -> None:
        """New sequences: the last token of a prompt is the next to be computed, if nothing before it is missing."""
        if not requests:
            return
        whole = self.send([_whole_numbers(r) for r in requests], np.int64).unbind(1)
        real = self.send(
            [[r.sampling.temperature, r.sampling.top_p, r.sampling.min_p] for r in requests], np.float32
        ).unbind(1)
        targets = (self.tokens, self.positions, self.caps, self.drawn, self.seeds, self.limits[0])
        for target, values in zip(targets, whole[1:], strict=True):
            target[whole[0]] = values
        for target, numbers in zip((self.heat, *self.limits[1:]), real, strict=True):
            target[whole[0]] = numbers

    def give_pages(self, pages: Sequence[tuple[int, int, int]]) -> None:
        if pages:
            slot, place, page = self.send(pages, np.int64).unbind(1)
            self.table[slot, place] = page.to(torch.int32)

    def send(self, values: Sequence[object], kind: type) -> Tensor:
        """To the device without waiting for it: from pinned memory, which torch keeps until the copy is made."""
        found = torch.from_numpy(np.array(values, dtype=kind))
        return found.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else found


def _whole_numbers(r: Request) -> tuple[int, ...]:
    end = r.prompt_length
    return r.slot, r.tokens[end - 1], end - 1, end + r.limit - 1, 0, r.sampling.seed & SEED, r.sampling.top_k
