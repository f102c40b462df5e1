"""The engine: requests come in as awaitables, a step is schedule → run → postprocess."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from air.engine.base import ContextFull, Generation, Limits, Sampling
from air.engine.embedded.pages import KeyValues, PageTree
from air.engine.embedded.plan import StepPlan
from air.engine.embedded.sampling import sample
from air.engine.embedded.scheduler import Request, Scheduler
from air.errors import AirError
from air.policy import Policy

# Prompt tokens per step: enough to keep the matrix units busy, little enough that decoding goes on.
STEP_TOKENS = 1024


@dataclass
class Counters:
    """What the engine did since it started; differences between two readings describe a step."""

    steps: int = 0
    sampled: int = 0
    prompt: int = 0  # prompt tokens asked for
    cached: int = 0  # of those, found in the prefix cache
    seconds: float = 0.0


class EmbeddedEngine:
    """Samples from a Policy's own module. One engine per event loop."""

    def __init__(
        self,
        policy: Policy,
        *,
        context: int,
        max_batch: int = 64,
        kv_tokens: int | None = None,
        page_size: int = 64,
        lockstep: bool = False,
    ) -> None:
        layers, heads, dim = policy.kv_shape
        if kv_tokens is None:
            kv_tokens = max(context, min(max_batch * context, (2 << 30) // policy.kv_bytes_per_token))
        if kv_tokens < context:
            raise AirError(
                f"The key/value memory holds {kv_tokens} tokens, less than one context of {context}.",
                f"set inference.kv_tokens to at least {context}, or a shorter orchestrator.seq_len.",
            )
        self.policy = policy
        self.context = context
        self.counters = Counters()
        self._kv = KeyValues(layers, -(-kv_tokens // page_size), page_size, heads, dim, policy.dtype, policy.device)
        self._tree = PageTree(self._kv.data.shape[2], page_size)
        self._scheduler = Scheduler(self._tree, self._kv, max_batch, STEP_TOKENS)
        self._scheduler.version = policy.version
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="air-engine")
        self._driver: asyncio.Task[None] | None = None
        self._lockstep = lockstep
        self._tracked = 0
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()  # set while no forward pass is under way
        self._idle.set()

    @property
    def version(self) -> int:
        return self._scheduler.version

    def describe(self) -> Limits:
        detail = {"pages": str(self._tree.pages), "page_size": str(self._tree.page_size)}
        return Limits(self.context, self._scheduler.max_batch, self._kv.bytes, detail)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, order: str = "") -> Generation:
        room = self.context - len(token_ids)
        if room < 1:
            raise ContextFull(f"the prompt has {len(token_ids)} tokens, the context {self.context}")
        if not token_ids:
            raise ValueError("generate needs at least one token")
        loop = asyncio.get_running_loop()
        request = Request(
            len(token_ids),
            list(token_ids),
            min(sampling.max_tokens, room),
            sampling,
            order,
            loop.create_future(),
        )
        self._scheduler.add(request)
        self._wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            self._wake()
            raise

    async def publish(self, version: int) -> None:
        """The weights are already here: what remains is to forget what the old ones computed."""
        await self._idle.wait()
        self.set_version(version)

    def set_version(self, version: int) -> None:
        self._tree.clear()
        self._scheduler.version = version

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """In lock-step, the engine steps only when every tracked episode waits in generate(), and what went on
        before the first of them leaves no trace: a prefix found in the cache was computed in another batch, and
        that shows in the last bits."""
        if self._lockstep and self._tracked == 0:
            self._tree.clear()
        self._tracked += 1
        try:
            yield
        finally:
            self._tracked -= 1
            self._wake()

    async def close(self) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driver
        self._thread.shutdown(wait=True)

    def _wake(self) -> None:
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        scheduler = self._scheduler
        try:
            while scheduler.busy:
                self._changed.clear()
                # Let every task that became ready since the last step add its request to this one.
                await asyncio.sleep(0)
                if self._lockstep and not self._everybody_waits():
                    await self._changed.wait()
                    continue
                if self._lockstep:
                    scheduler.waiting.sort(key=lambda r: r.order)
                decode, prefill = scheduler.next_step()
                if not decode and not prefill:
                    continue  # all that was left had been cancelled
                self._idle.clear()
                ready = [r for r in decode + prefill if r.computed + r.step_tokens == len(r.tokens)]
                tokens, logprobs = await loop.run_in_executor(self._thread, self._run, decode, prefill, ready)
                self._idle.set()
                self._postprocess([*decode, *prefill], ready, tokens, logprobs)
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._idle.set()
            for request in [*scheduler.waiting, *scheduler.running]:
                if not request.future.done():
                    request.future.set_exception(
                        error if isinstance(error, Exception) else RuntimeError("engine closed")
                    )
            raise

    def _everybody_waits(self) -> bool:
        alive = sum(not r.cancelled for r in [*self._scheduler.waiting, *self._scheduler.running])
        return alive >= self._tracked

    @torch.no_grad()
    def _run(
        self, decode: list[Request], prefill: list[Request], ready: list[Request]
    ) -> tuple[list[int], list[float]]:
        began = time.perf_counter()
        chunk = self._scheduler.chunk
        plan = StepPlan(self._kv, [chunk(r) for r in decode], [chunk(r) for r in prefill], self.policy.dtype)
        hidden = self.policy.hidden(plan)
        rows = [i for i, r in enumerate([*decode, *prefill]) if r in ready]
        tokens: list[int] = []
        logprobs: list[float] = []
        if rows:
            logits = self.policy.head(hidden[plan.last[rows]])
            tokens, logprobs = sample(logits, [r.sampling for r in ready], [r.sampled for r in ready])
        self.counters.seconds += time.perf_counter() - began
        return tokens, logprobs

    def _postprocess(self, step: list[Request], ready: list[Request], tokens: list[int], logprobs: list[float]) -> None:
        self.counters.steps += 1
        for request in step:
            self._scheduler.advance(request)
        for request, token, logprob in zip(ready, tokens, logprobs, strict=True):
            if request.cancelled:
                continue
            request.tokens.append(token)
            request.logprobs.append(logprob)
            stopped = token in request.sampling.stop_ids
            if stopped or request.sampled >= request.limit:
                self._finish(request, stopped)

    def _finish(self, request: Request, stopped: bool) -> None:
        self._scheduler.finish(request)
        self.counters.sampled += request.sampled
        self.counters.prompt += request.prompt_length
        self.counters.cached += request.cached
        if not request.future.done():
            request.future.set_result(
                Generation(
                    tuple(request.tokens[request.prompt_length :]),
                    tuple(request.logprobs),
                    "stop" if stopped else "length",
                    request.version,
                    request.cached,
                    request.started - request.arrived,
                    time.perf_counter() - request.started,
                )
            )
