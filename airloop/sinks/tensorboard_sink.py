"""TensorBoard: event files in the run's directory, with the names of all sinks."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pydantic import Field

from airloop.section import Section
from airloop.sinks.base import Logged, SinkSpec
from airloop.sinks.samples import Sample, step_samples

if TYPE_CHECKING:
    from airloop.types import Alarm

FLUSH_S = 10  # curves are looked at while the run goes on


class TensorboardConfig(Section):
    """Event files for TensorBoard, in the run's directory; off without this table."""

    samples: int = Field(default=3, ge=0, le=20, description="Trajectories per step that are shown as text (0: none).")


class TensorboardSink:
    name = "TensorBoard"
    url: str | None = None

    def __init__(self, settings: TensorboardConfig, run: Logged) -> None:
        self._settings = settings
        self._path = run.path
        self._config = run.toml
        # Of a resumed run: what was logged of the steps that are repeated is to be forgotten. One that was killed
        # before its first checkpoint repeats everything, the evaluation before step 1 included.
        logged = (run.path / "tensorboard").is_dir()
        self._from = (run.first_step + 1 if run.first_step else 0) if logged else None

    def open(self) -> str:
        """In the sink's own thread. Returns what a person should know about it."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self._path / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=self._from, flush_secs=FLUSH_S)
        self._writer.add_text("config", textwrap.indent(self._config, "    "))
        return f"TensorBoard: tensorboard --logdir {folder}"

    def step(self, flat: dict[str, float], step: int) -> None:
        self._scalars(flat, step + 1)
        for place, sample in enumerate(step_samples(self._path, step, self._settings.samples)):
            self._writer.add_text(f"samples/trajectories/{place}", _markdown(sample), step + 1)

    def evaluated(self, flat: dict[str, float], step: int) -> None:
        self._scalars(flat, step)

    def alarm(self, alarm: Alarm) -> None:
        self._writer.add_scalar(f"alarm/{alarm.id}", 1.0, alarm.step + 1)
        text = f"**{alarm.id} {alarm.name}** ({alarm.severity})\n\n{alarm.seen}\n\n{alarm.why}\n\nFix: {alarm.fix}"
        self._writer.add_text(f"alarm/{alarm.id}/text", text, alarm.step + 1)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, flat: dict[str, float], step: int) -> None:
        for name, value in flat.items():
            self._writer.add_scalar(name, value, step)


def _markdown(sample: Sample) -> str:
    """The conversation indented, which Markdown shows as it is."""
    advantage = "–" if sample.advantage is None else f"{sample.advantage:+.3f}"
    success = "" if sample.success is None else f"success {sample.success:g}, "
    earned = f"{success}reward {sample.reward:.3f}, advantage {advantage}"
    head = f"{earned}, {sample.fate}, ended: {sample.ending}, `{sample.id}`"
    return f"{head}\n\n{textwrap.indent(sample.conversation, '    ', lambda _: True)}"


TENSORBOARD = SinkSpec("tensorboard", "TensorBoard", TensorboardConfig, TensorboardSink, package="tensorboard")
