"""Warm worker processes that fit models, and the cache of what they found.

A request has a deadline, in time that the worker gets to compute (CpuTimeout): beside others a fit takes longer, and is
no worse for it. A worker that dies or overruns it is replaced and the request tried once more, then it is an
InfraError. Results are kept by content: data, rows, configuration and library version.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from airloop.cpu_progress import CpuTimeout
from airloop.envs.tune.catalogue import PREPARATION
from airloop.errors import AirError, InfraError
from airloop.files import cache_directory, write_atomically
from airloop.forkserver import ONE_THREAD, SharedServer
from airloop.waits import waiting

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # importing scikit-learn takes a second or two, on a loaded machine much longer
LAST_WORDS = 2000  # bytes of what a worker has written to stderr that are kept
ENDS_S = 5.0  # for the last of them to come, once it has ended
ATTEMPTS = 2
COMMAND = [sys.executable, "-c", "from airloop.envs.tune.worker import main; main()"]

SERVER = SharedServer(["airloop.envs.tune.worker", "airloop.envs.tune.fitting"])

Scores = Mapping[str, float]


class WorkerLost(Exception):
    """The worker died or did not answer in time; it has been killed."""


class Started(Protocol):
    """A child process: subprocess.Popen, or one that was forked."""

    pid: int
    returncode: int | None

    def kill(self) -> None: ...
    def wait(self) -> int: ...


def start_process(files: Sequence[int]) -> Started:
    """Of a worker, with these files as its input, output and errors. All are forked from one process, where that can
    be: importing scikit-learn takes seconds of a core, each time."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    with waiting("scikit-learn to be imported", "the process that fitting workers are forked from", START_TIMEOUT_S):
        forked = SERVER.start("airloop.envs.tune.worker:main", files, env)
    if forked is not None:
        return forked
    stdin, stdout, stderr = files
    # Ctrl-C is for the parent; the worker ends with its pipe.
    return subprocess.Popen(COMMAND, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True)


class Worker:
    """One child process. Used by one thread at a time; what it writes is read by threads of its own, for on Windows
    nobody can wait for a pipe with a deadline."""

    def __init__(self) -> None:
        (takes, asks), (told, tells), (heard, errors) = os.pipe(), os.pipe(), os.pipe()
        self.stdin = os.fdopen(asks, "wb")
        self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # nothing, at the end
        self.pending = b""
        self.words = b""
        _read(told, self.received.put)
        self._hears = _read(heard, self._hear)
        try:
            self.process = start_process([takes, tells, errors])
        finally:
            for theirs in (takes, tells, errors):
                os.close(theirs)

    def _hear(self, words: bytes) -> None:
        self.words = (self.words + words)[-LAST_WORDS:]

    @property
    def pid(self) -> int:
        return self.process.pid

    def request(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        try:
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()
        except OSError:
            raise self.lost("is gone") from None
        with waiting(f"the fit {message.get('config', '')}", f"fitting worker {self.pid}", timeout, self.said):
            return self.reply(timeout)

    def said(self) -> str:
        """The end of what it has written to stderr."""
        return self.words.decode(errors="replace").strip()

    def reply(self, timeout: float) -> dict[str, Any]:
        deadline = CpuTimeout(timeout, self.pid)
        while b"\n" not in self.pending:
            left = deadline.left()
            if not left:
                raise self.lost(f"did not answer within {timeout:g} s of work")
            try:
                received = self.received.get(timeout=left)
            except queue.Empty:
                continue
            if not received:
                raise self.lost("died")
            self.pending += received
        line, _, self.pending = self.pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def lost(self, how: str) -> WorkerLost:
        self.kill()
        self._hears.join(ENDS_S)
        last = self.said()
        said = f"; its last output lines:\n{last}" if last else ""
        return WorkerLost(f"fitting worker {self.pid} {how} (exit code {self.process.returncode}){said}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # unsent bytes of a dead pipe
            self.stdin.close()


def _read(pipe: int, give: Callable[[bytes], None]) -> threading.Thread:
    """In a thread, to the pipe's end, which is given as nothing."""

    def read() -> None:
        with os.fdopen(pipe, "rb", buffering=0) as file:
            while received := file.read(65536):
                give(received)
        give(b"")

    thread = threading.Thread(target=read, name="air-fit-pipe", daemon=True)
    thread.start()
    return thread


class FitPool:
    """`await fit(...)` from any event loop. Workers start at `warm()` or at the first request."""

    def __init__(self, workers: int, timeout: float = 20.0, use_cache: bool = True) -> None:
        self.size = workers
        self.timeout = timeout
        self.cache = ResultCache() if use_cache else None
        self.sklearn = version("scikit-learn")
        self.restarts = 0
        self.fits = 0
        self.workers: list[Worker | None] = [None] * workers
        self._jobs: queue.SimpleQueue[tuple[Mapping[str, Any], Future[Scores]] | None] = queue.SimpleQueue()
        self._running: dict[str, Future[Scores]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    async def fit(self, dataset: str, seed: int, config: Mapping[str, Any], digest: str) -> Scores:
        """The scores of this configuration on this task's rows. Equal requests at one time share one fit."""
        request = {"dataset": dataset, "seed": seed, "config": dict(config), "digest": digest}
        key = self.key(request)
        if self.cache is not None and digest and (known := self.cache.get(key)) is not None:
            return known
        with self._lock:
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = Future()
                self._jobs.put((request, future))
        self.warm()
        # Shielded: the others who wait for this fit keep it when one of them is cancelled.
        shared = asyncio.wrap_future(future)
        # Looked at here, or asyncio complains of an error nobody saw when the one who waited was cancelled.
        shared.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(shared)

    def key(self, request: Mapping[str, Any]) -> str:
        content = json.dumps([PREPARATION, self.sklearn, request], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def warm(self) -> None:
        """Starts the workers, in the background, if they are not running."""
        with self._lock:
            if self._closed:
                raise InfraError("the fitting pool is closed")
            while len(self._threads) < self.size:
                thread = threading.Thread(target=self._serve, args=(len(self._threads),), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            waiting, self._running = self._running, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(InfraError("the fitting pool was closed"))
        for _ in threads:
            self._jobs.put(None)
        for worker in self.workers:
            if worker is not None:
                worker.process.kill()
        for thread in threads:
            thread.join(timeout=5)

    def _serve(self, place: int) -> None:
        """A thread per worker: it starts the worker before the first job comes."""
        try:
            self._worker(place)
        except WorkerLost as lost:
            if not self._closed:  # closing ends workers that have not started yet
                log.warning("%s", lost)  # tried again, and reported, with the first job
            self.workers[place] = None
        while (job := self._jobs.get()) is not None and not self._closed:
            request, future = job
            try:
                scores = self._compute(place, request)
            except BaseException as error:
                outcome: BaseException | None = error
            else:
                outcome = None
                if self.cache is not None and request["digest"]:
                    self.cache.put(self.key(request), scores)
            with self._lock:
                self._running.pop(self.key(request), None)
                if future.done():  # the pool was closed meanwhile
                    continue
                if outcome is None:
                    future.set_result(scores)
                else:
                    future.set_exception(outcome)
        if (worker := self.workers[place]) is not None:
            self.workers[place] = None
            worker.kill()

    def _compute(self, place: int, request: Mapping[str, Any]) -> Scores:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._worker(place).request(request, self.timeout)
                break
            except WorkerLost as lost:
                self.workers[place] = None
                self.restarts += 1
                if self._closed or attempt == ATTEMPTS:
                    raise InfraError(f"{request['dataset']}-{request['seed']} {request['config']}: {lost}") from None
                log.warning("%s; starting another", lost)
        if "problem" in answer:
            raise AirError(answer["problem"], answer["fix"])
        if "defect" in answer:
            raise RuntimeError(f"fitting {request} raised in the worker:\n{answer['defect']}")
        self.fits += 1
        scores: Scores = answer["scores"]
        return scores

    def _worker(self, place: int) -> Worker:
        worker = self.workers[place]
        if worker is None:
            worker = self.workers[place] = Worker()
            worker.reply(START_TIMEOUT_S)  # "ready"
        return worker


class ResultCache:
    """One small file per result, written atomically: any number of processes may share the directory."""

    def __init__(self) -> None:
        self.memory: dict[str, Scores] = {}
        self.directory: Path | None = None
        with contextlib.suppress(AirError):  # no cache, which only costs time
            self.directory = cache_directory() / "tune" / "fits"

    def get(self, key: str) -> Scores | None:
        if key not in self.memory and self.directory is not None:
            try:
                self.memory[key] = json.loads(self.file(key).read_text(encoding="utf-8"))
            except (OSError, ValueError):  # not there, or cut short by a crash: fitted again
                return None
        return self.memory.get(key)

    def put(self, key: str, scores: Scores) -> None:
        self.memory[key] = scores
        if self.directory is None:
            return
        try:
            write_atomically(self.file(key), lambda file: file.write(json.dumps(dict(scores)).encode()))
        except OSError as error:
            log.warning("results are no longer cached on disk: %s", error)
            self.directory = None

    def file(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / key[:2] / f"{key[2:]}.json"
