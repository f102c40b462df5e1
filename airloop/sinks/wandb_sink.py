"""Weights & Biases: curves, a table of sample trajectories per step, alarms as alerts, at the end what was trained."""

from __future__ import annotations

import os
import secrets
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from airloop.section import Section
from airloop.sinks.base import Logged, MissingSetting, SinkSpec
from airloop.sinks.samples import Sample, step_samples

if TYPE_CHECKING:
    from airloop.types import Alarm

# The server's answer to a new run, and the upload of what is left at the end: longer than that, it is not there. The
# data is on the disk in any case.
INIT_S = 30.0
FINISH_S = 60.0


class WandbConfig(Section):
    """Weights & Biases; off without this table."""

    project: str = Field(default="air", min_length=1, description="The Weights & Biases project to log to.")
    name: str | None = Field(default=None, description="The name of the run in the project; by default the run's own.")
    offline: bool | None = Field(
        default=None,
        description="Log to disk only, to be synchronised later; by default so where no key is found.",
    )
    samples: int = Field(default=3, ge=0, le=20, description="Trajectories per step that go to a table (0: none).")
    entity: str | None = Field(
        default=None,
        min_length=1,
        description="Whose project it is, an account or a team; by default W&B's own setting.",
    )
    group: str | None = Field(default=None, min_length=1, description="Runs of one group are shown together.")
    tags: list[str] = Field(default_factory=list, description="Words to find the run by.")
    notes: str | None = Field(default=None, description="What is said of the run there; by default logbook.goal.")
    artifacts: bool = Field(
        default=False, description="At the end the last checkpoint's adapter or model goes there, as an artefact."
    )


class WandbSink:
    name = "Weights & Biases"

    def __init__(self, settings: WandbConfig, run: Logged) -> None:
        self._settings = settings
        self._path = run.path
        self._online, self._why = _online(settings)
        # One W&B run for a run of ours, also when it is resumed; two of ours never share one.
        noted = run.status().get("wandb_id")
        self._id = noted or f"{run.name.replace('.', '-')[:100]}-{secrets.token_hex(4)}"
        if noted is None:
            run.note(wandb_id=self._id)
        self._title = settings.name or run.name
        self._notes = settings.notes or run.goal
        self._config = run.config
        self.url: str | None = None

    def open(self) -> str:
        """In the sink's own thread. Returns what a person should know about it."""
        import wandb

        quiet: dict[str, Any] = {"silent": True, "console": "off", "init_timeout": INIT_S, "finish_timeout": FINISH_S}
        known = {name: value for name, value in quiet.items() if name in wandb.Settings.model_fields}
        wandb.setup(settings=wandb.Settings(silent=True))
        self._wandb = wandb
        self._run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            group=self._settings.group,
            tags=self._settings.tags or None,
            notes=self._notes,
            name=self._title,
            id=self._id,
            resume="allow",
            mode="online" if self._online else "offline",
            config=self._config,
            dir=str(self._path),
            settings=wandb.Settings(**known),
        )
        # Over our own count of steps: a resumed run repeats some, which W&B's own count does not allow.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if self._online:
            self.url = self._run.url
            return f"Weights & Biases: {self.url}"
        return f"Weights & Biases: offline ({self._why}); to upload: wandb sync {_parts(self._run.settings.sync_dir)}"

    def step(self, flat: dict[str, float], step: int) -> None:
        self._run.log({"step": step + 1, **flat})
        if samples := step_samples(self._path, step, self._settings.samples):
            columns: list[str | int] = [field.name for field in fields(Sample)]
            table = self._wandb.Table(columns=columns, data=[list(astuple(sample)) for sample in samples])
            self._run.log({"step": step + 1, "samples/trajectories": table})

    def evaluated(self, flat: dict[str, float], step: int) -> None:
        self._run.log({"step": step, **flat})

    def alarm(self, alarm: Alarm) -> None:
        self._run.log({"step": alarm.step + 1, f"alarm/{alarm.id}": 1.0})
        level = "WARN" if alarm.severity == "note" else "ERROR"
        self._run.alert(title=f"{alarm.id} {alarm.name}", text=f"{alarm.seen}\n{alarm.why}\n{alarm.fix}", level=level)

    def close(self) -> None:
        if self._settings.artifacts and (weights := _weights(self._path)):
            step, folder = weights
            made = self._wandb.Artifact(f"{self._id}-{folder.name}", type="model", metadata={"step": step})
            made.add_dir(str(folder))
            self._run.log_artifact(made)
        self._run.finish()


def _weights(run: Path) -> tuple[int, Path] | None:
    """Of the last checkpoint: its step, and the adapter or the model. Without the optimiser's state, which only the run
    itself goes on from."""
    from airloop.learn.checkpoints import checkpoints

    step, last = max(checkpoints(run / "checkpoints"), default=(0, run))
    return next(((step, last / name) for name in ("adapter", "model") if (last / name).is_dir()), None)


def _parts(written: str) -> str:
    """What to upload: of a resumed run each session wrote a directory of its own, and all are one W&B run."""
    here = Path(written)
    several = len(list(here.parent.glob("offline-run-*"))) > 1
    return str(here.with_name("offline-run-*") if several else here)


def _online(settings: WandbConfig) -> tuple[bool, str]:
    """As the config says; else as W&B's own variable says; else online where there is a key."""
    if settings.offline is not None:
        return not settings.offline, "wandb.offline = true"
    mode = os.environ.get("WANDB_MODE", "")
    if mode and mode != "online":
        return False, f"WANDB_MODE={mode}"
    found, where = wandb_key()
    return found, f"no key: {where}"


def wandb_key() -> tuple[bool, str]:
    """Whether there is a Weights & Biases key, and where it was found or looked for."""
    if os.environ.get("WANDB_API_KEY"):
        return True, "WANDB_API_KEY"
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    if netrc.is_file() and host in netrc.read_text(encoding="utf-8", errors="replace"):
        return True, str(netrc)
    return False, f"WANDB_API_KEY is not set and {netrc} has no entry for {host}"


def _missing(settings: WandbConfig) -> MissingSetting | None:
    """Online logging without a key is refused before the run, not after the model has loaded (A7)."""
    if settings.offline is not False or (found := wandb_key())[0]:
        return None
    return MissingSetting(
        f"[wandb] offline = false needs a Weights & Biases key, and there is none: {found[1]}.",
        "set the key (export WANDB_API_KEY=…), or log offline and run `wandb sync` later",
        {"offline": True},
    )


WANDB = SinkSpec("wandb", "Weights & Biases", WandbConfig, WandbSink, package="wandb", missing=_missing)
