"""Runs the scheduler's steps on the device. `launch` asks for a step; `Drawn.read` waits for what it drew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from airloop.engine.embedded import ops
from airloop.engine.embedded.forward import Forward
from airloop.engine.embedded.graphs import Graphs
from airloop.engine.embedded.pages import KeyValues
from airloop.engine.embedded.plain import plain_forward
from airloop.engine.embedded.plan import Chunk, StepPlan
from airloop.engine.embedded.sampling import sample
from airloop.engine.embedded.scheduler import EngineStep, Work
from airloop.engine.embedded.slots import Slots
from airloop.policy import Policy

# A burst of decoding steps should take about this long: the host works through the last one meanwhile.
BURST_S = 0.010
MOST_STEPS = 8


@dataclass
class Drawn:
    """What a step draws, step by step: [steps, rows], on its way from the device until `event` has come."""

    step: EngineStep
    tokens: Tensor
    logprobs: Tensor
    event: Any = None

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        if self.event is not None:
            self.event.synchronize()
        return self.tokens.numpy(), self.logprobs.numpy()


class Runner(Protocol):
    ahead: int  # steps asked for before the answers of the one before are read
    why: str  # it is not the fast one

    @property
    def repeat(self) -> int: ...  # decoding steps in one go

    def launch(self, step: EngineStep) -> Drawn: ...

    def refresh(self) -> None: ...  # the policy's weights have changed

    def describe(self) -> dict[str, str]: ...


class PlainRunner:
    """transformers' own layers (on a CPU without their modules, bit for bit) with paged attention in plain torch: any
    architecture, any device, the same whatever the batch was scheduled after. It knows every token before it goes on.
    """

    ahead = 0
    repeat = 1

    def __init__(self, policy: Policy, kv: KeyValues, why: str = "") -> None:
        self._policy = policy
        self._kv = kv
        self._hidden = plain_forward(policy) or policy.hidden
        self.why = why

    @torch.no_grad()
    def launch(self, step: EngineStep) -> Drawn:
        decode, prefill = ([self._chunk(w) for w in works] for works in (step.decode, step.prefill))
        plan = StepPlan(self._kv, decode, prefill, self._policy.dtype)
        hidden = self._hidden(plan)
        rows = [i for i, w in enumerate([*step.decode, *step.prefill]) if w.draws]
        draws = [w.request for w in step.draws]
        tokens: list[int] = []
        logprobs: list[float] = []
        if rows:
            logits = self._policy.head(hidden[plan.last[rows]])
            tokens, logprobs = sample(logits, [r.sampling for r in draws], [r.sampled for r in draws])
        return Drawn(step, torch.tensor([tokens], dtype=torch.int64), torch.tensor([logprobs], dtype=torch.float64))

    def refresh(self) -> None:
        """Nothing is derived from the weights."""

    def describe(self) -> dict[str, str]:
        return {"forward": "transformers" + (f" ({self.why})" if self.why else "")}

    def _chunk(self, work: Work) -> Chunk:
        request = work.request
        tokens = request.tokens[work.start : work.start + work.count]
        return Chunk(tokens, work.start, [n.page for n in request.path])


class FastRunner:
    """Our own forward pass; on CUDA with our kernels, and decoding as captured graphs. Sequences keep their state on
    the device, so steps are asked for before the last one's tokens are known."""

    ahead = 1
    why = ""

    def __init__(
        self, policy: Policy, forward: Forward, kv: KeyValues, max_batch: int, context: int, eager: bool = False
    ) -> None:
        self._policy = policy
        self._forward = forward
        self._kv = kv
        device = policy.device
        self._device = device
        self._cuda = device.type == "cuda"
        nobodys_page = kv.data.shape[2] - 1
        self._slots = Slots(max_batch, -(-context // kv.page_size), nobodys_page, device)
        self._rows = torch.full((max_batch,), max_batch, dtype=torch.int64, device=device)
        self._counter = torch.zeros((), dtype=torch.int64, device=device)
        self._out = (
            torch.zeros(MOST_STEPS, max_batch, dtype=torch.int64, device=device),
            torch.zeros(MOST_STEPS, max_batch, dtype=torch.float32, device=device),
        )
        self._block = ops.block_tokens(forward.blocks.heads, forward.blocks.kv_heads, device)
        self._graphs = Graphs(self._decode, self._rows, max_batch) if self._cuda and not eager else None
        self._step_s = 0.0
        self._launched = 0.0

    @property
    def repeat(self) -> int:
        return max(1, min(MOST_STEPS, round(BURST_S / self._step_s))) if self._step_s else 1

    @torch.no_grad()
    def launch(self, step: EngineStep) -> Drawn:
        slots = self._slots
        rows = len(step.draws)
        truncated = any(w.request.sampling.truncates for w in step.draws)
        self._counter.zero_()
        if self._graphs and not step.prefill:
            self._graphs.prepare(self._graphs.size(rows), truncated)
            self._counter.zero_()
        slots.fill(step.started)
        slots.give_pages(step.pages)
        if step.prefill:
            self._mixed(step, truncated)
        else:
            self._burst(step, truncated)
        self._watch(step)
        return self._fetch(step, step.repeat, rows)

    def refresh(self) -> None:
        self._forward.refresh()

    def describe(self) -> dict[str, str]:
        graphs = self._graphs.describe() if self._graphs else "none"
        return {"forward": "own", "graphs": graphs}

    def _burst(self, step: EngineStep, truncated: bool) -> None:
        count = len(step.decode)
        size = self._graphs.size(count) if self._graphs else count
        wanted = [w.request.slot for w in step.decode] + [self._slots.pad_slot] * (size - count)
        self._rows[:size].copy_(self._slots.send(wanted, np.int64))
        for _ in range(step.repeat):
            if self._graphs:
                self._graphs.replay(size, truncated)
            else:
                self._decode(self._rows[:size], truncated)

    def _decode(self, rows: Tensor, truncated: bool) -> None:
        """One token for each of the slots `rows`: what a graph holds."""
        slots = self._slots
        plan = SlotPlan(self._kv, slots, self._forward, slots.tokens[rows], slots.positions[rows], rows, len(rows))
        self._draw(self._forward(plan), rows, truncated)

    def _mixed(self, step: EngineStep, truncated: bool) -> None:
        """Prompts, and one token for everyone who decodes."""
        slots = self._slots
        decoding = [w.request.slot for w in step.decode]
        flat = [
            np.concatenate([np.array(w.request.tokens[w.start : w.start + w.count]) for w in step.prefill]),
            np.concatenate([np.arange(w.start, w.start + w.count) for w in step.prefill]),
            np.repeat([w.request.slot for w in step.prefill], [w.count for w in step.prefill]),
        ]
        tokens, positions, owners = slots.send(flat, np.int64).unbind(0)
        first = slots.send(decoding, np.int64)
        ends = np.cumsum([1] * len(decoding) + [w.count for w in step.prefill]) - 1
        drawing = [i for i, w in enumerate([*step.decode, *step.prefill]) if w.draws]
        plan = SlotPlan(
            self._kv,
            slots,
            self._forward,
            torch.cat([slots.tokens[first], tokens]),
            torch.cat([slots.positions[first], positions]),
            torch.cat([first, owners]),
            len(decoding),
            slots.send(_blocks(step.prefill, len(decoding), self._block), np.int64).unbind(0),
        )
        hidden = self._forward(plan)
        if drawing:
            rows = slots.send([w.request.slot for w in step.draws], np.int64)
            self._draw(hidden[slots.send(ends[drawing].tolist(), np.int64)], rows, truncated)

    def _draw(self, hidden: Tensor, rows: Tensor, truncated: bool) -> None:
        s = self._slots
        logits = self._policy.head(hidden)
        floors = ops.floors(logits, rows, s.heat, s.limits) if truncated else None
        ops.draw(
            logits, rows, s.heat, s.seeds, s.drawn, floors, s.tokens, s.positions, s.caps, self._out, self._counter
        )
        self._counter += 1

    def _fetch(self, step: EngineStep, steps: int, rows: int) -> Drawn:
        tokens, logprobs = (x[:steps, :rows] for x in self._out)
        if not self._cuda:
            return Drawn(step, tokens.clone(), logprobs.clone())
        here = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in (tokens, logprobs)]
        for target, source in zip(here, (tokens, logprobs), strict=True):
            target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Drawn(step, here[0], here[1], event)

    def _watch(self, step: EngineStep) -> None:
        """How long a decoding step takes, from one launch to the next: the device sets the pace."""
        now = time.perf_counter()
        if not step.prefill and self._launched and now - self._launched < 1.0:
            took = (now - self._launched) / step.repeat
            self._step_s = took if not self._step_s else 0.8 * self._step_s + 0.2 * took
        self._launched = 0.0 if step.prefill else now


def _blocks(works: Sequence[Work], offset: int, size: int) -> list[list[int]]:
    """For `ops.attend_prefill`: first row, tokens, position and slot of each block of at most `size` tokens."""
    found: list[list[int]] = [[], [], [], []]
    row = offset
    for work in works:
        for at in range(0, work.count, size):
            part = (row + at, min(size, work.count - at), work.start + at, work.request.slot)
            for column, value in zip(found, part, strict=True):
                column.append(value)
        row += work.count
    return found


class SlotPlan:
    """Implements forward.Attention: decoding tokens first, then chunks."""

    def __init__(
        self,
        kv: KeyValues,
        slots: Slots,
        forward: Forward,
        tokens: Tensor,
        positions: Tensor,
        owners: Tensor,
        decoding: int,
        blocks: tuple[Tensor, ...] = (),
    ) -> None:
        self.tokens = tokens
        self.positions = positions
        self._kv = kv
        self._table = slots.table
        self._forward = forward
        self._owners = owners
        self._decoding = decoding
        self._blocks = blocks

    def attend(self, layer: int, qkv: Tensor, norms: tuple[Tensor, Tensor] | None) -> Tensor:
        blocks, n = self._forward.blocks, self._decoding
        keys, values = self._kv.data[layer]
        query = ops.rotary_write(
            qkv, keys, values, self._table, self._owners, self.positions, self._forward.angles, norms, blocks.eps,
            blocks.heads,
        )  # fmt: skip
        if not self._blocks:
            out = ops.attend_decode(query, keys, values, self._table, self._owners, self.positions, blocks.scale)
            return out.flatten(1)
        out = torch.empty_like(query)
        if n:
            out[:n] = ops.attend_decode(
                query[:n], keys, values, self._table, self._owners[:n], self.positions[:n], blocks.scale
            )
        ops.attend_prefill(query, keys, values, self._table, self._blocks, out, blocks.scale)  # type: ignore[arg-type]
        return out.flatten(1)
