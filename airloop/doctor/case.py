"""What checks look at: everything that a config leads to, each made once, when the first check asks for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from airloop.config import Config, Mistake, Refused, load_config
from airloop.doctor.refusals import Broken, NotJudged, Unanswered
from airloop.errors import AirError
from airloop.events import Say
from airloop.types import Message, Task

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.doctor.gpus import Gpu
    from airloop.doctor.probe import Probe
    from airloop.envs.base import Environment
    from airloop.models.chat import ChatTokenizer
    from airloop.plan import MemoryPlan, Shape

T = TypeVar("T")
# Tasks whose first prompt is looked at; tasks of one family differ little in length.
PROMPTS = 48
# After so many seconds no further one is opened: an environment may make a sandbox for each.
PROMPTS_S = 1.0
# One that takes longer measures its baseline first, has a slow machine, or hangs: it is left out here; where none is
# left, the length of prompts is not judged, and `air train` waits for it before its first step.
OPENING_S = 10.0


# Ids of the failure catalogue that a refusal of each belongs to, and why it is one.
NEEDED = {
    "envs": (("D-tasks",), "an environment that cannot be opened has no episodes to learn from"),
    "model_config": (("B3",), "without its config.json nothing can be known of the model, and it could not be loaded"),
    "tokenizer": (("B8",), "what the model would read and write is not what its weights were trained with"),
    "prompts": (("D-tasks",), "an episode of the task could not be begun"),
    "shape": (("B2",), "its layers cannot be counted, nor computed"),
    "parts": (("B3",), "the run could not be started"),
    "probe": (("E1",), "there is nothing to learn from"),
    "few": (("E1",), "there is nothing to learn from"),
}


class Ended(BaseException):
    """The examination was stopped from outside. No check may take it for a finding."""


@dataclass(frozen=True)
class Prompt:
    """A task's opening as the model will read it."""

    task: Task
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    text: str
    tokens: int


class Case:
    """One config under examination. `parts` (from a run that has loaded its model) are used instead of others, and
    left to their owner; so is `loop`, the event loop in which these parts live. What cannot be had raises Broken."""

    def __init__(
        self,
        config: Config | None,
        say: Say = lambda _: None,
        *,
        refused: Sequence[Mistake] = (),
        gpu_memory: int | None = None,
        parts: Components | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self.say = say
        self.refused = tuple(refused)
        self.gpu_memory = gpu_memory  # bytes of each GPU, where it is told: to plan for another machine
        self._given = parts
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._broken: dict[str, Broken] = {}
        self._stopped = False

    @classmethod
    def read(cls, argv: Sequence[str], say: Say = lambda _: None, gpu_memory: int | None = None) -> Case:
        """From a command line. Mistakes in it are the case's first finding, not an error."""
        try:
            return cls(load_config(argv), say, gpu_memory=gpu_memory)
        except Refused as refused:
            return cls(None, say, refused=refused.mistakes)
        except AirError as error:  # a file that is not there, or is no TOML
            return cls(None, say, refused=[Mistake(error.problem, error.fix)])

    @property
    def config(self) -> Config:
        if self._config is None:
            first = self.refused[0]
            broken = Broken(first.problem, first.fix, (first.id,), "nothing else can be known without a config")
            raise self._broken.setdefault("config", broken)
        return self._config

    @cached_property
    def envs(self) -> dict[str, Environment]:
        """Opened, but not warmed: nothing runs until a session is opened."""
        from airloop.environments import load_environments

        if self._given is not None:
            return self._given.envs
        return self._need("envs", lambda: load_environments(self.config))

    @cached_property
    def model_config(self) -> dict[str, Any]:
        """The model's config.json; its weights are not fetched for it."""
        from airloop.models.sources import find_config

        return self._need("model_config", lambda: find_config(self.config.model.name, say=self.say))

    @cached_property
    def tokenizer(self) -> ChatTokenizer:
        """With the chat template, as training will use them; no weights."""
        from airloop.models.loading import load_tokenizer

        if self._given is not None:
            return self._given.loaded.tokenizer
        model, _ = self.config.model, self.model_config
        return self._need(
            "tokenizer", lambda: load_tokenizer(model.name, chat_template=model.chat_template, say=self.say)
        )

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Openings of the first tasks, one of each family before others, as many as PROMPTS_S gives time for."""
        from airloop.envs.contract import begin_session, open_session

        tokenizer, envs = self.tokenizer, self.envs
        found: list[Prompt] = []
        tasks = self._need("prompts", self._first_tasks)  # some environments make theirs first: not a prompt's time

        async def open_all() -> None:
            began = time.monotonic()
            for task in tasks:
                if time.monotonic() - began > PROMPTS_S:
                    return
                try:
                    async with asyncio.timeout(OPENING_S), open_session(envs[task.env], task, 0) as session:
                        opening = await begin_session(session)
                except TimeoutError:
                    return
                messages, tools = tuple(opening.messages), tuple(opening.tools)
                text = tokenizer.render(list(messages), list(tools), True)
                found.append(Prompt(task, messages, tools, text, len(tokenizer.encode(text))))

        self._need("prompts", lambda: self.wait(open_all()))
        return found

    def _first_tasks(self) -> list[Task]:
        """Of the first steps, and those held out."""
        from airloop.assemble import held_out_tasks, training_schedule

        schedule = training_schedule(self.config, self.envs)
        tasks = schedule.batch(0, min(PROMPTS, len(schedule)))
        tasks += held_out_tasks(self.envs, self.config.orchestrator.eval.test_split, PROMPTS)
        seen: set[str] = set()
        first = [t for t in tasks if not (t.curve in seen or seen.add(t.curve))]  # type: ignore[func-returns-value]
        return first + [t for t in tasks if t not in first]

    @cached_property
    def shape(self) -> Shape:
        """Of the model: counted without its weights."""
        from airloop.models.checks import check_config
        from airloop.plan import shape_of

        def count() -> Shape:
            check_config(self.model_config, self.config.model.name)
            return shape_of(self.model_config)

        return self._need("shape", count)

    @cached_property
    def gpus(self) -> list[Gpu]:
        """Those that the run would use; none where it runs on the CPU."""
        from airloop.doctor.gpus import used_by

        return used_by(self.config)

    @cached_property
    def plan(self) -> MemoryPlan | None:
        """For the memory that is free now on the fullest of the GPUs; None where there is no GPU to plan for."""
        from airloop.plan import plan

        free = self.gpu_memory or min((gpu.free for gpu in self.gpus), default=None)
        return plan(self.config, self.shape, free) if free else None

    @cached_property
    def parts(self) -> Components:
        """The loaded model, its engine and its learner."""
        from airloop.assemble import assemble

        if self._given is not None:
            return self._given
        from airloop.warmstart import with_warmstart

        config = with_warmstart(self.config)

        async def make() -> Components:  # where the engine will live
            return assemble(config, self.say)

        return self._need("parts", lambda: self.wait(make()))

    @cached_property
    def probe(self) -> Probe:
        """A few episodes with the real model."""
        from airloop.doctor.probe import run_probe

        return self._need("probe", lambda: run_probe(self.parts, self.wait))

    @property
    def replies(self) -> Probe:
        """Episodes for proofs, which look at tokens, not at what they earn: the probe's, or a few where it was not
        made, of short replies where it would have taken too long."""
        broken = self._broken.get("probe")
        if "probe" in self.__dict__ or isinstance(broken, Unanswered) or (broken and not isinstance(broken, NotJudged)):
            return self.probe
        return self._few

    @cached_property
    def _few(self) -> Probe:
        from airloop.doctor.probe import FEW_EPISODES, FEW_TOKENS, run_probe

        most = FEW_TOKENS if "probe" in self._broken else None
        return self._need("few", lambda: run_probe(self.parts, self.wait, FEW_EPISODES, most))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, run in the case's event loop. Not to be called from within that loop."""
        if self._stopped:
            work.close()
            raise Ended
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="air-doctor", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Ended from None
        except BaseException:
            future.cancel()  # Ctrl-C: what was waited for ends too
            raise

    def stop(self) -> None:
        """From another thread: what waits, and whatever would wait next, ends the examination."""
        self._stopped = True

    def close(self) -> None:
        """Ends what the case has made; what it was given stays."""
        if self._given is None:
            for name in ("parts", "envs"):
                if name in self.__dict__:
                    self.wait(_closing(self.__dict__[name]))
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = self._loop = None

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _need(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives. What it refuses is tried once and refused in the same words to everybody."""
        if name in self._broken:
            raise self._broken[name]
        try:
            return make()
        except NotJudged as unknown:
            self._broken[name] = unknown
            raise
        except Broken:
            raise
        except AirError as error:
            self._broken[name] = Broken(error.problem, error.fix, *NEEDED[name])
            raise self._broken[name] from error


async def _closing(what: Components | dict[str, Environment]) -> None:
    if isinstance(what, dict):
        for env in what.values():
            await env.close()
    else:
        await what.close()
