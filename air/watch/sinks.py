"""Where metrics go besides metrics.jsonl. A sink that fails says so once and never stops a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from air.config import Config
from air.errors import AirError
from air.run import Run
from air.watch.alarms import Alarm
from air.watch.base import Watcher


def flatten(metrics: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """`{"learner": {"loss": 1}}` → `{"learner/loss": 1}`: the names every sink uses."""
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            flat[f"{prefix}{key}"] = float(value)
    return flat


class WandbSink:
    """Weights & Biases; offline unless the config says otherwise."""

    def __init__(self, config: Config, run: Run) -> None:
        assert config.wandb is not None
        try:
            import wandb
        except ImportError:
            raise AirError(
                "The config has a [wandb] section, but the package wandb is not installed.",
                'pip install "air-agent[wandb]", or delete the section: metrics.jsonl is always written.',
            ) from None
        self._run = wandb.init(
            project=config.wandb.project,
            name=config.wandb.name or run.name,
            id=run.name.replace(".", "-"),
            resume="allow",  # a resumed run goes on in the same W&B run
            mode="offline" if config.wandb.offline else "online",
            config=config.model_dump(mode="json"),
            dir=str(run.path),
        )

    def phase(self, text: str, total: int = 0) -> None: ...

    def episode(self) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, metrics: dict[str, Any]) -> None:
        self._run.log(flatten(metrics, "train/"), step=metrics["step"] + 1)

    def alarm(self, alarm: Alarm) -> None:
        level = "WARN" if alarm.severity == "note" else "ERROR"
        self._run.alert(title=f"{alarm.id} {alarm.name}", text=f"{alarm.seen}\n{alarm.why}\n{alarm.fix}", level=level)

    def evaluated(self, metrics: dict[str, Any]) -> None:
        self._run.log(flatten(metrics, f"eval/{metrics['split']}/"), step=metrics["step"])

    def close(self) -> None:
        self._run.finish()


class Watchers:
    """Tells the display and every sink; a sink that raises is left out from then on."""

    def __init__(self, display: Watcher, sinks: Sequence[Watcher] = ()) -> None:
        self._display = display
        self._sinks = list(sinks)

    def _tell(self, what: Callable[[Watcher], None]) -> None:
        what(self._display)
        for sink in list(self._sinks):
            try:
                what(sink)
            except Exception as error:
                self._sinks.remove(sink)
                self._display.say(f"note: {type(sink).__name__} failed and is left out from now on: {error}")

    def phase(self, text: str, total: int = 0) -> None:
        self._tell(lambda w: w.phase(text, total))

    def episode(self) -> None:
        self._tell(lambda w: w.episode())

    def say(self, text: str) -> None:
        self._tell(lambda w: w.say(text))

    def step(self, metrics: dict[str, Any]) -> None:
        self._tell(lambda w: w.step(metrics))

    def alarm(self, alarm: Alarm) -> None:
        self._tell(lambda w: w.alarm(alarm))

    def evaluated(self, metrics: dict[str, Any]) -> None:
        self._tell(lambda w: w.evaluated(metrics))


@contextmanager
def open_sinks(config: Config, run: Run, display: Watcher) -> Iterator[Watchers]:
    """The display and the config's sinks, closed however the run ends. A missing package is an error before the
    first step; anything else that fails in a sink is a note."""
    sinks: list[WandbSink] = []
    if config.wandb:
        try:
            sinks.append(WandbSink(config, run))
        except AirError:
            raise
        except Exception as error:
            display.say(f"note: Weights & Biases could not be started and is left out: {error}")
    try:
        yield Watchers(display, sinks)
    finally:
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                display.say(f"note: Weights & Biases did not close: {error}")
