"""Scores. They are made here and nowhere else: in a fresh sandbox that no agent has touched, from a copy of what the
agent handed in, by the task's own evaluation.

For tables and for code that is called (CSV and Python entry points) nothing of the agent's runs beside the
evaluation. A model that the evaluation has to load (Model and LM entry points) brings code into its process: there
the evaluation's files are fresh, and what it says of an error is not passed on where answers could be in it.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import logging
import re
import shlex
import shutil
import sys
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

from airloop.errors import InfraError
from airloop.sandbox.base import HOME, WORKSPACE, Backend, Image, Result, Sandbox, SandboxLost
from airloop.sandbox.bubblewrap.runtime import RuntimeDirectory
from airloop.sandbox.pool import Pool
from airloop_envs.mlgym.agent_link import TIMED_OUT
from airloop_envs.mlgym.data import FINAL, VALIDATE
from airloop_envs.mlgym.halves import has_halves
from airloop_envs.mlgym.proxy import LIBRARY, WORKER, Wire, stand_ins, without_impostors
from airloop_envs.mlgym.quality import QUALITY, QUALITY_S, read_quality
from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.submissions import Submission, collect
from airloop_envs.mlgym.workspace import PLAIN, Sandboxes, grader_image, graders, starter_files, visible_data

LARGEST = sys.float_info.max
log = logging.getLogger("airloop.envs.mlgym.grading")  # among the environments': a run shows them

GradeError = Literal[
    "", "submission_not_found", "evaluation_format_error", "evaluation_failed", "evaluation_timeout", "no_gradings_left"
]  # fmt: skip

CALL_S = 60.0  # one call of the agent's code
LIBRARY_S = 60.0
LARGEST_OUTPUT = 1 << 20
LONGEST_TEXT = 600  # characters the agent is told
STDOUT = f"{HOME}/.evaluation_stdout"
WORKER_PLACE = f"{HOME}/.agent_worker.py"

__all__ = ["Grade", "Grader", "Submission", "collect"]


@dataclass(frozen=True)
class Grade:
    """`scores` or an `error`; `text` is what the agent may be told.

    `scores` are what `validate` shows. Where they are of one half of the hidden rows, `final` has those of the other,
    which nobody is told before the end.
    """

    scores: Mapping[str, float] | None
    error: GradeError
    text: str
    seconds: float
    final: Mapping[str, float] | None = None

    @property
    def counted(self) -> Mapping[str, float] | None:
        """What rewards are made of."""
        return self.final if self.final is not None else self.scores


class Grader:
    """Any number of gradings may go on at once. Raises InfraError only when no sandbox can be had or kept."""

    def __init__(self, source: Pool | Backend, sandboxes: Sandboxes = PLAIN, call_s: float = CALL_S) -> None:
        self.source = source
        self.sandboxes = sandboxes
        self.call_s = call_s
        self._library: dict[str, asyncio.Task[frozenset[str]]] = {}
        self._runtime: RuntimeDirectory | None = None
        self._names = count()

    async def grade(self, spec: TaskSpec, submission: Submission | None, timeout: float | None = None) -> Grade:
        """`timeout` is for the evaluation; the task's training_timeout unless it is given."""
        if submission is None:
            return Grade(None, "submission_not_found", "No submission was found.", 0.0)
        if submission.problem:
            return Grade(None, "evaluation_failed", submission.problem, 0.0)
        evaluate = {"CSVSubmissionTasks": self._table, "PythonSubmissionTasks": self._code}.get(
            spec.entry_point, self._model
        )
        limit = timeout or spec.training_timeout
        try:
            return await evaluate(spec, submission, limit)
        except SandboxLost as lost:
            return Grade(None, "evaluation_failed", f"The submission cannot be evaluated: {lost}"[:LONGEST_TEXT], 0.0)
        except InfraError as error:
            log.warning("grading of %s is tried again: %s", spec.key, error)
            return await evaluate(spec, submission, limit)

    async def quality(self, files: Sequence[bytes]) -> float:
        """How tidy Python files are, from 0 to 1, said by a sandbox in which nothing of an agent's has ever run."""
        named = {f"{number}.py": content for number, content in enumerate(files)}
        image = Image(files=_as_files(named), limits=self.sandboxes.limits, container=self.sandboxes.container)
        try:
            async with self._sandbox(image) as sandbox:
                return read_quality(await sandbox.run(QUALITY, QUALITY_S))
        except SandboxLost:  # a text that the compiler cannot bear
            return 0.0

    # --- the entry points ---------------------------------------------------------------------------------

    async def _table(self, spec: TaskSpec, submission: Submission, limit: float) -> Grade:
        async with self._sandbox(grader_image(spec, self.sandboxes), shared=True) as sandbox:
            for name, content in submission.files.items():
                await sandbox.put(name, content)
            return await self._evaluate(spec, submission, sandbox, limit)

    async def _model(self, spec: TaskSpec, submission: Submission, limit: float) -> Grade:
        """The agent's workspace, with the evaluation's files as they were. Starter files that the agent changed or
        removed stay so: they are its work."""
        image = grader_image(spec, self.sandboxes)
        is_its = graders(spec)
        files = await self._without_impostors(spec, submission, image)
        kept = tuple(file for file in image.files if is_its(file[0]))
        image = replace(image, files=(*kept, *_as_files(files)))
        async with self._sandbox(image) as sandbox:
            return await self._evaluate(spec, submission, sandbox, limit)

    async def _code(self, spec: TaskSpec, submission: Submission, limit: float) -> Grade:
        """The agent's code in a sandbox of its own, answering the evaluation's calls."""
        image = grader_image(spec, self.sandboxes)
        is_its = graders(spec)
        modules = await self._without_impostors(spec, submission, image)
        proxies = stand_ins(modules, is_timed="time" in spec.yardstick.metric.lower())
        kept = tuple(file for file in image.files if is_its(file[0]) or not file[0].endswith(".py"))
        async with contextlib.AsyncExitStack() as stack:
            wire = await stack.enter_async_context(self._wire(min(self.call_s, limit)))
            image = replace(image, files=(*_as_files(proxies), *kept), binds=(*image.binds, wire.bind("grader")))
            worker_image = Image(
                files=(*_as_files(submission.files), (WORKER_PLACE, WORKER.read_bytes(), 0o444)),
                binds=(*visible_data(spec), wire.bind("worker")),
                limits=self.sandboxes.limits,
                gpus=self.sandboxes.gpus,
                container=self.sandboxes.container,
            )
            sandbox, worker = await stack.enter_async_context(self._two_sandboxes(image, worker_image))
            wire.worker = worker
            working = asyncio.create_task(_work(worker, wire, limit))
            stack.push_async_callback(_end, working)
            grade = await self._evaluate(spec, submission, sandbox, limit)
            if working.done() and (error := working.exception()) is not None:
                raise InfraError(f"the sandbox of the agent's code was lost: {error}")
            return grade

    async def _without_impostors(self, spec: TaskSpec, submission: Submission, image: Image) -> dict[str, bytes]:
        starter = [name for name, _ in starter_files(spec)]
        return without_impostors(submission.files, await self._library_names(image), starter, graders(spec))

    async def _evaluate(self, spec: TaskSpec, submission: Submission, sandbox: Sandbox, limit: float) -> Grade:
        line = f"cd {WORKSPACE} && {command(spec, submission, len(self.sandboxes.gpus))}"
        # What floods is ended by the closed pipe; errors come as the command's output, which has its own limit.
        line = f"{line} | head -c {LARGEST_OUTPUT + 1} >{STDOUT}; (exit ${{PIPESTATUS[0]}})"
        started = time.monotonic()
        try:
            result = await sandbox.run(line, limit)
            stdout = await sandbox.get(STDOUT, LARGEST_OUTPUT + 1) or b""
        except SandboxLost:
            result, stdout = Result("", 137, WORKSPACE, 0.0), b""
        return judge(spec, result, stdout.decode(errors="replace"), limit, time.monotonic() - started)

    # --- sandboxes -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _sandbox(self, image: Image, shared: bool = False) -> AsyncIterator[Sandbox]:
        """Of an image that many gradings share, a pool may have one ready."""
        sandbox = await (self.source.take(image) if shared and isinstance(self.source, Pool) else self._start(image))
        try:
            yield sandbox
        finally:
            await sandbox.close()

    @contextlib.asynccontextmanager
    async def _two_sandboxes(self, *images: Image) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
        """Started and ended at the same time: that takes longer than many an evaluation."""
        starting = [asyncio.create_task(self._start(image)) for image in images]
        try:
            first, second = await asyncio.gather(*starting)
            yield first, second
        finally:
            for task in starting:
                task.cancel()
            ended = await asyncio.gather(*starting, return_exceptions=True)
            await asyncio.gather(*(sandbox.close() for sandbox in ended if isinstance(sandbox, Sandbox)))

    async def _start(self, image: Image) -> Sandbox:
        backend = self.source.backend if isinstance(self.source, Pool) else self.source
        return await backend.start(image)

    @contextlib.asynccontextmanager
    async def _wire(self, call_s: float) -> AsyncIterator[Wire]:
        if self._runtime is None:
            self._runtime = RuntimeDirectory()
            weakref.finalize(self, self._runtime.remove)
        directory = self._runtime.sandbox(f"g{next(self._names)}")
        try:
            async with Wire(directory, call_s) as wire:
                yield wire
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def _library_names(self, image: Image) -> frozenset[str]:
        """What can be imported in a sandbox where no agent has been; asked once."""
        task = self._library.get(image.container)
        if task is None or (task.done() and task.exception() is not None):
            empty = Image(container=image.container, limits=image.limits)
            task = self._library[image.container] = asyncio.create_task(self._ask_library(empty))
        return await asyncio.shield(task)

    async def _ask_library(self, image: Image) -> frozenset[str]:
        async with self._sandbox(image) as sandbox:
            result = await sandbox.run(LIBRARY, LIBRARY_S)
        if result.exit_code != 0:
            raise InfraError(f"the library of the grader's sandbox could not be listed: {result.output[-300:]}")
        return frozenset(result.output.split())


def _as_files(files: Mapping[str, bytes]) -> tuple[tuple[str, bytes, int], ...]:
    return tuple((name, content, 0o644) for name, content in files.items())


async def _work(worker: Sandbox, wire: Wire, limit: float) -> None:
    try:
        # Somewhat longer than the evaluation, which is what is timed.
        await worker.run(f"cd {WORKSPACE} && python {WORKER_PLACE} >/dev/null 2>&1", limit + 10.0)
    except SandboxLost:
        pass  # by the agent's own doing
    finally:
        wire.hang_up("worker")


async def _end(working: asyncio.Task[None]) -> None:
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


# --- what is run, and what it said --------------------------------------------------------------------------


def command(spec: TaskSpec, submission: Submission, gpus: int) -> str:
    script = shlex.quote(spec.evaluation_paths[0])
    path = shlex.quote(submission.path)
    match spec.entry_point:
        case "CSVSubmissionTasks":
            return f"python {script} --submission_file {path}"
        case "ModelSubmissionTasks":
            return f"python {script} --config_fname {path}"
        case "LMSubmissionTasks":
            return f"torchrun --nproc_per_node={max(gpus, 1)} --standalone {script}"
        case "PythonSubmissionTasks":
            return f"python {script}"


def judge(spec: TaskSpec, result: Result, stdout: str, limit: float, seconds: float) -> Grade:
    if result.timed_out or result.exit_code == TIMED_OUT:
        said = f"it was stopped after {limit:g} s" if result.timed_out else "a call of your code took too long"
        return Grade(None, "evaluation_timeout", f"The evaluation did not finish: {said}.", seconds)
    if len(stdout) > LARGEST_OUTPUT:
        text = f"The evaluation printed more than {LARGEST_OUTPUT} bytes."
        return Grade(None, "evaluation_format_error", text, seconds)
    if result.exit_code != 0:
        text = f"The evaluation failed: {told(spec, result, stdout)}"
        return Grade(None, "evaluation_failed", text, seconds)
    try:
        scores, final = read_scores(spec, stdout)
    except ValueError as error:
        return Grade(None, "evaluation_format_error", f"The evaluation gave no score: {error}.", seconds)
    return Grade(scores, "", json.dumps(scores), seconds, final)


Numbers = dict[str, float]


def read_scores(spec: TaskSpec, stdout: str) -> tuple[Numbers, Numbers | None]:
    """What `validate` shows and, of a task with halves, the score on the other half."""
    found = _object(spec, stdout)
    if not has_halves(spec):
        return _numbers(found), None
    if set(found) != {VALIDATE, FINAL}:
        raise ValueError("its output has not the two halves of the hidden rows")
    return _numbers(found[VALIDATE]), _numbers(found[FINAL])


def _object(spec: TaskSpec, stdout: str) -> dict[str, Any]:
    """By the entry point's rule: the whole output, or its first line that starts with a brace."""
    text = stdout.strip()
    if spec.entry_point in ("ModelSubmissionTasks", "LMSubmissionTasks"):
        text = next((line for line in stdout.splitlines() if line.startswith("{")), "")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its output is not one JSON object" if text else "it printed none") from None
    if not isinstance(found, dict):
        raise ValueError("its output is not a JSON object with scores")
    return found


def _numbers(found: Any) -> Numbers:
    if not isinstance(found, dict) or not found:
        raise ValueError("its output is not a JSON object with scores")
    for name, value in found.items():
        if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:  # no NaN is; an int may have any length
            raise ValueError(f"{name!r:.60} is not a finite number")
    return {name: float(value) for name, value in found.items()}


TRACEBACK = "Traceback (most recent call last):"
HIDDEN = "(hidden)"


def told(spec: TaskSpec, result: Result, stdout: str) -> str:
    """The evaluation's own words without its source, without the names of what is hidden."""
    if result.exit_code in (137, 139) and TRACEBACK not in result.output:
        return "it was killed, most likely for want of memory."
    error = result.output.rpartition(TRACEBACK)[2] if TRACEBACK in result.output else result.output
    lines = [line for line in error.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    words = "\n".join([*stdout.strip().splitlines()[-3:], *lines[-3:]])
    sees_answers = spec.entry_point in ("ModelSubmissionTasks", "LMSubmissionTasks") and spec.secret_files
    if sees_answers or (
        spec.answers and spec.entry_point != "CSVSubmissionTasks"
    ):  # its code meets them: it could tell
        kinds = re.findall(r"^(\w+(?:Error|Exception))\b", words, re.MULTILINE)
        kind = kinds[-1] if kinds and kinds[-1] in dir(builtins) else ""
        return f"{kind or 'an error'} (its text is not shown, because answers could be in it)."
    secret = [re.escape(name) for name in spec.secret_files]
    words = re.sub("|".join([r"\banswers/", *secret]), HIDDEN, words)
    # The words around it go too. In two steps: one pattern for both takes hours on a line of a million letters.
    words = re.sub(r"[^\s'\"]+", lambda word: HIDDEN if HIDDEN in word[0] else word[0], words)
    words = "".join(char for char in words if char.isprintable() or char == "\n").strip()
    return words[:LONGEST_TEXT] + "…" * (len(words) > LONGEST_TEXT) or f"exit code {result.exit_code}."
