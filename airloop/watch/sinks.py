"""Where metrics go besides metrics.jsonl. A sink works in a thread of its own: one that fails or hangs says so once and
never stops a run, nor holds it up."""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airloop.config import Config, to_toml
from airloop.errors import AirError
from airloop.events import Say, Watcher
from airloop.extras import install_line
from airloop.runs.run import Run
from airloop.sinks import SINKS, Logged, Sink
from airloop.text.keys import without_keys, without_keys_in
from airloop.text.nested import flatten

if TYPE_CHECKING:
    from airloop.types import Alarm

# How long the first step waits for a sink to say where it logs to: longer, and it says so later.
OPEN_S = 15.0
# How long the end of a run waits for what a sink has not yet written or sent.
CLOSE_S = 75.0
# Steps, evaluations and alarms that a sink may be behind. One that is further behind does not work.
BEHIND = 500


def flat_line(metrics: dict[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl under the names of the sinks: `train/…`, `eval/SPLIT/…`, or `eval/base/…` for the model
    itself, which has step 0 as what the run starts with."""
    within = "train/"
    if metrics.get("kind") == "eval":
        within = "eval/base/" if metrics.get("name") == "base" else f"eval/{metrics['split']}/"
    found = flatten(metrics, "/", within).items()
    return {name: float(value) for name, value in found if isinstance(value, int | float)}


class BackgroundSink:
    """A sink in its own thread. Whatever it does, and however long: whoever tells it something goes on at once."""

    def __init__(self, sink: Sink, say: Say) -> None:
        self.sink = sink
        self._say = say
        self._told: queue.Queue[Callable[[], None] | None] = queue.Queue(BEHIND)
        self._opened = threading.Event()
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name=f"sink {sink.name}", daemon=True)
        self._thread.start()

    def wait_open(self, seconds: float) -> None:
        if not self._opened.wait(seconds):
            self._say(f"note: {self.sink.name} has not answered in {seconds:.0f} s; the run does not wait for it")

    def tell(self, what: Callable[[Sink], None]) -> None:
        if self._given_up:
            return
        try:
            self._told.put_nowait(lambda: what(self.sink))
        except queue.Full:
            self._give_up(f"it is {BEHIND} messages behind")

    def close(self, seconds: float) -> None:
        if self._given_up:
            return
        try:
            self._told.put(None, timeout=seconds)
            self._thread.join(seconds)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._give_up(f"it did not close within {seconds:.0f} s, and what it still had may be missing there")

    def _work(self) -> None:
        try:
            self._say(self.sink.open())
            self._opened.set()
            while (what := self._told.get()) is not None:
                what()
            self.sink.close()
        except BaseException as error:  # a library that calls sys.exit() ends this thread only: that is told, too
            self._give_up(f"{type(error).__name__}: {error}")
            self._opened.set()

    def _give_up(self, why: str) -> None:
        if not self._given_up:
            self._given_up = True
            self._say(f"note: {self.sink.name} is left out from now on: {why}. metrics.jsonl has everything.")


class Watchers:
    """Tells the display and every sink."""

    def __init__(self, display: Watcher, sinks: Sequence[BackgroundSink] = ()) -> None:
        self._display = display
        self._sinks = sinks

    def phase(self, text: str, total: int = 0) -> None:
        self._display.phase(text, total)

    def advance(self, detail: str = "") -> None:
        self._display.advance(detail)

    def say(self, text: str) -> None:
        self._display.say(text)

    def step(self, metrics: dict[str, Any]) -> None:
        self._display.step(metrics)
        flat, step = flat_line(metrics), metrics["step"]
        self._tell(lambda sink: sink.step(flat, step))

    def alarm(self, alarm: Alarm) -> None:
        self._display.alarm(alarm)
        told = replace(alarm, seen=without_keys(alarm.seen), why=without_keys(alarm.why), fix=without_keys(alarm.fix))
        self._tell(lambda sink: sink.alarm(told))

    def evaluated(self, metrics: dict[str, Any]) -> None:
        self._display.evaluated(metrics)
        flat, step = flat_line(metrics), metrics["step"]
        self._tell(lambda sink: sink.evaluated(flat, step))

    def _tell(self, what: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            sink.tell(what)


@contextmanager
def open_sinks(config: Config, run: Run, display: Watcher) -> Iterator[Watchers]:
    """The display and the config's sinks, closed however the run ends. A package that is missing is an error before
    the first step; anything else that fails in a sink is a note. Of several ranks the first has them."""
    sinks: dict[str, BackgroundSink] = {}  # by their titles
    if run.writes:
        check_sinks(config)
        for name, asked in config.sinks.items():
            sinks[SINKS[name].title] = BackgroundSink(SINKS[name].make(asked, logged(run)), display.say)
    for sink in sinks.values():
        sink.wait_open(OPEN_S)
    try:
        _note_urls(run, sinks)
        yield Watchers(display, [*sinks.values()])
    finally:
        for sink in sinks.values():
            display.phase(f"closing {sink.sink.name}")
            sink.close(CLOSE_S)
        _note_urls(run, sinks)  # of one that opened late


def check_sinks(config: Config) -> None:
    """Refuse what the config asks to log to and this machine has not installed."""
    for name in config.sinks:
        if (package := SINKS[name].package) is not None and not _installed(package):
            raise AirError(
                f"The config has a [{name}] section, but the package {package} is not installed.",
                f"{install_line(package)}\n  or delete the section: metrics.jsonl is always written.",
            )


def _installed(name: str) -> bool:
    """A directory `wandb` where the command is started looks like a package, too: it has no file of its own."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def logged(run: Run) -> Logged:
    """What of it sinks are told, without keys."""
    config, goal = run.config, without_keys(run.config.logbook.goal or "") or None
    told = (goal, run.first_step, without_keys_in(config.model_dump(mode="json")), without_keys(to_toml(config)))
    return Logged(run.path, run.name, *told, run.status, run.note)


def _note_urls(run: Run, sinks: Mapping[str, BackgroundSink]) -> None:
    """Not from a sink's thread: two that change status.json at once would lose what the other wrote."""
    noted = run.status().get("sink_urls", {})
    urls = noted | {title: beside.sink.url for title, beside in sinks.items() if beside.sink.url}
    if urls != noted:
        run.note(sink_urls=urls)
