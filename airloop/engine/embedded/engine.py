"""The engine: requests come in as awaitables, a step is schedule → run → postprocess."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from airloop.cpu_progress import CpuProgress
from airloop.engine.base import (
    Counters,
    Engine,
    EngineDowntime,
    EngineFailed,
    Generation,
    Limits,
    Sampling,
    TokenCallback,
    room_after,
)
from airloop.engine.embedded import ops
from airloop.engine.embedded.pages import KeyValues, PageTree
from airloop.engine.embedded.runner import Drawn, FastRunner, PlainRunner, Runner
from airloop.engine.embedded.scheduler import EngineStep, Request, Scheduler
from airloop.errors import AirError
from airloop.limits import step_tokens
from airloop.models.blocks import read_blocks, why_unknown
from airloop.policy import Policy
from airloop.threads import threads_to_choose_from
from airloop.waits import waiting

# A step takes milliseconds; the first ones of a run, which compile kernels and capture graphs, up to 90 s. A CPU may
# take longer: while it computes, it is waited for.
STEP_S = 180.0
# In lock-step, between two requests of an episode: a tool may work for long, but this is worth a look.
LOCKSTEP_S = 900.0
# Replies under way, before an update: as long as the longest takes, which is minutes.
DRAIN_S = 900.0

Answer = tuple[EngineStep, "np.ndarray", "np.ndarray"]


class EmbeddedEngine(Engine):
    """Samples from a Policy's own weights. One engine per event loop.

    eager: no CUDA graphs. own_forward: our own forward pass instead of transformers' layers (None: on CUDA, where the
    architecture is known). lend: the key/value memory can be given back while training.
    """

    in_place = True  # see update_served

    def __init__(
        self,
        policy: Policy,
        *,
        context: int,
        max_batch: int = 64,
        kv_tokens: int | None = None,
        page_size: int = 64,
        lockstep: bool = False,
        eager: bool = False,
        own_forward: bool | None = None,
        lend: bool = False,
    ) -> None:
        layers, heads, dim = policy.kv_shape
        if kv_tokens is None:
            kv_tokens = max(context, min(max_batch * context, (2 << 30) // policy.kv_bytes_per_token))
        if kv_tokens < context:
            raise AirError(
                f"The key/value memory holds {kv_tokens} tokens, less than one context of {context}.",
                f"set inference.kv_tokens to at least {context}, or a shorter seq_len.",
            )
        self.policy = policy
        self.context = context
        self.counters, self.downtime = Counters(), EngineDowntime()
        self._kv = KeyValues(
            layers, -(-kv_tokens // page_size), page_size, heads, dim, policy.dtype, policy.device, lend
        )
        self._tree = PageTree(-(-kv_tokens // page_size), page_size)
        own = policy.device.type == "cuda" and not lockstep if own_forward is None else own_forward
        self._runner = _runner(policy, self._kv, max_batch, context, eager, own)
        width, is_own = policy.model.config.hidden_size, isinstance(self._runner, FastRunner)
        self._scheduler = Scheduler(self._tree, self._kv, max_batch, step_tokens(policy.device.type, width, is_own))
        self._scheduler.version = policy.version
        self._answered = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="air-engine")
        own = policy.device.type == "cpu"
        self._threads = threads_to_choose_from(lockstep) if own else None
        self._prompt_threads = threads_to_choose_from(lockstep) if own else None
        self._driver: asyncio.Task[None] | None = None
        self._lockstep = lockstep
        self._tracked = 0
        self._changed = asyncio.Event()
        self._held = 0  # who wants no step to begin
        self._idle = asyncio.Event()  # set while no forward pass is under way
        self._idle.set()

    @property
    def version(self) -> int:
        return self._scheduler.version

    @property
    def fallback_reason(self) -> str:
        """Why sampling runs through transformers' layers although our own forward pass was wanted; else empty."""
        return self._runner.why

    def describe(self) -> Limits:
        detail = {"pages": str(self._tree.pages), "page_size": str(self._tree.page_size), **self._runner.describe()}
        return Limits(self.context, self._scheduler.max_batch, self._kv.bytes, detail)

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, order: str = "", on_tokens: TokenCallback | None = None
    ) -> Generation:
        limit = room_after(token_ids, sampling, self.context)
        loop = asyncio.get_running_loop()
        request = Request(
            len(token_ids),
            list(token_ids),
            limit,
            sampling,
            order,
            loop.create_future(),
            on_tokens,
        )
        self._scheduler.add(request)
        self._wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            self.counters.abandoned += request.sampled
            self._wake()
            raise

    async def publish(self, version: int) -> None:
        """The weights are already here: what remains is to forget what the old ones computed."""
        async with self._between_steps("the new policy is served"):
            self.set_version(version)

    def set_version(self, version: int) -> None:
        self._runner.refresh()
        self._tree.clear()
        self._scheduler.version = version

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While training: no step runs, and the key/value memory is given back where the engine was made to lend it.
        Replies under way are finished first, by the weights that they were begun with; what has not begun waits. What
        was cancelled is dropped, and what the device still does for it is waited for."""
        self._scheduler.draining += 1
        try:
            with self.downtime.counted():
                await self._until_drained()
                async with self._between_steps("training may begin"):
                    self._scheduler.drop_cancelled()
                    self._tree.clear()
                    self._kv.release()
                    try:
                        yield
                    finally:
                        self._kv.reserve()
        finally:
            self._scheduler.draining -= 1
            self._changed.set()

    async def _until_drained(self) -> None:
        if any(not request.cancelled for request in self._scheduler.running):
            with waiting("replies under way, before training may begin", "the engine", DRAIN_S, here=True):
                await asyncio.wait([request.future for request in self._scheduler.running])

    @contextlib.asynccontextmanager
    async def _between_steps(self, what: str) -> AsyncIterator[None]:
        """Nothing is under way on the device, and nothing new is asked of it before this is left."""
        self._held += 1
        try:
            with waiting(f"the engine's step under way, before {what}", "the engine", STEP_S, here=True):
                await self._until_idle()
            yield
        finally:
            self._held -= 1
            self._changed.set()

    async def _until_idle(self) -> None:
        cpu = CpuProgress()
        while not self._idle.is_set():
            try:
                async with asyncio.timeout(STEP_S):  # wait_for loses a Ctrl-C that comes as the event is set
                    await self._idle.wait()
            except TimeoutError:
                if not cpu.computing:
                    raise
                cpu.restart()

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
        self._kv.close()

    def _wake(self) -> None:
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        scheduler = self._scheduler
        under_way: Drawn | None = None
        try:
            while scheduler.busy or under_way is not None:
                self._changed.clear()
                # Let every task that became ready since the last step add its request to this one.
                await asyncio.sleep(0)
                if self._lockstep and not self._everybody_waits():
                    with waiting("every episode's next request (lock-step)", "the episodes", LOCKSTEP_S):
                        await self._changed.wait()
                    continue
                if self._held and under_way is None:
                    await self._changed.wait()
                    continue
                if self._lockstep:
                    scheduler.waiting.sort(key=lambda r: r.order)
                step = None if self._held else scheduler.next_step(self._runner.repeat)
                if step is None and under_way is None:
                    continue  # all that was left had been cancelled
                self._idle.clear()
                with waiting("a step of the engine", "the engine", STEP_S, here=True):
                    under_way, answer = await loop.run_in_executor(self._thread, self._run, step, under_way)
                if under_way is None:
                    self._idle.set()
                if answer is not None:
                    self._postprocess(*answer)
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._idle.set()
            for request in scheduler.give_up():
                if not request.future.done():
                    request.future.set_exception(_failed(error))
            if not isinstance(error, Exception):  # cancelled: it is being closed
                raise

    def _everybody_waits(self) -> bool:
        alive = sum(not r.cancelled for r in [*self._scheduler.waiting, *self._scheduler.running])
        return alive >= self._tracked

    def _run(self, step: EngineStep | None, under_way: Drawn | None) -> tuple[Drawn | None, Answer | None]:
        """Asks for a step, then waits for the answers of the one before it (or its own, if nothing runs ahead)."""
        began = time.perf_counter()
        launched = self._launch(step) if step is not None else None
        if launched is not None and self._runner.ahead == 0:
            launched, under_way = None, launched
        if under_way is None:
            return launched, None
        tokens, logprobs = under_way.read()
        now = time.perf_counter()
        seconds = now - max(began if self._runner.ahead == 0 else 0.0, self._answered or began)
        if under_way.step.prefill:
            self.counters.prefill_s += seconds
        else:
            self.counters.decode_s += seconds
        self._answered = now if launched is not None else 0.0
        return launched, (under_way.step, tokens, logprobs)

    def _launch(self, step: EngineStep) -> Drawn:
        if self._threads is None or self._prompt_threads is None:
            return self._runner.launch(step)
        if step.prefill:
            tokens = len(step.decode) + sum(work.count for work in step.prefill)
            with self._prompt_threads.chosen(tokens, tokens):
                return self._runner.launch(step)
        with self._threads.chosen(len(step.decode), step.repeat):
            return self._runner.launch(step)

    def _postprocess(self, step: EngineStep, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        self.counters.steps += step.repeat
        now = time.perf_counter()
        for work, drawn, sure in zip(step.draws, tokens.T.tolist(), logprobs.T.tolist(), strict=True):
            request = work.request
            if request.done or request.cancelled:
                continue
            count, stopped = _until_stop(request, drawn)
            self._scheduler.answered(work, drawn[:count], sure[:count])
            request.first_token = request.first_token or now
            if request.on_tokens is not None:
                request.on_tokens(drawn[:count])
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
                    request.first_token - request.started,
                )
            )


def _failed(error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        return RuntimeError("engine closed")
    trace = "".join(traceback.format_exception(error)).rstrip()
    return EngineFailed(
        f"The engine failed in a step: {type(error).__name__}: {error}\n{trace}",
        "everything sampled is saved: go on with `air train --resume RUN`; if it was out of memory, lower "
        "inference.max_batch or inference.gpu_memory_utilization first.",
    )


def _until_stop(request: Request, drawn: list[int]) -> tuple[int, bool]:
    """How many of the tokens drawn in a burst count, and whether the last of them is a stop token."""
    count = min(len(drawn), request.limit - request.sampled)
    for i, token in enumerate(drawn[:count]):
        if token in request.sampling.stop_ids:
            return i + 1, True
    return count, False


def _runner(policy: Policy, kv: KeyValues, max_batch: int, context: int, eager: bool, own: bool) -> Runner:
    """Our own forward pass where it is wanted and can be had."""
    why = _why_plain(policy, kv) if own else ""
    blocks = read_blocks(policy.model) if own and not why else None
    if blocks is None:
        return PlainRunner(policy, kv, why)
    from airloop.engine.embedded.forward import Forward

    return FastRunner(policy, Forward(blocks, context), kv, max_batch, context, eager)


def _why_plain(policy: Policy, kv: KeyValues) -> str:
    """What the kernels cannot do with this model and these pages; empty when they can do everything."""
    if (why := why_unknown(policy.model)) is not None:
        return why
    if policy.device.type != "cuda" and ops.off_cuda is None:
        return "its operations are kernels for CUDA"
    dim = policy.kv_shape[2]
    if policy.device.type == "cuda" and (dim < 16 or dim & (dim - 1)):
        return f"its heads have {dim} numbers, and the kernels want 16, 32, 64, 128 or 256"
    if policy.device.type == "cuda" and (kv.page_size < 16 or kv.page_size & (kv.page_size - 1)):
        return f"inference.page_size is {kv.page_size}, and the kernels want a power of two from 16 on"
    return ""
