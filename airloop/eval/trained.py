"""A run's trained policy: which of its checkpoints, and the config that loads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airloop.config import Config, load_config
from airloop.errors import AirError
from airloop.files import read_object
from airloop.runs.run import Run


@dataclass(frozen=True)
class Checkpoint:
    step: int
    path: Path
    version: int  # of the policy

    @property
    def adapter(self) -> Path | None:
        """None: the checkpoint holds the whole model."""
        found = self.path / "adapter"
        return found if found.is_dir() else None


def choose_checkpoint(run: Run, which: str = "last") -> Checkpoint:
    """`which` is "last", "best" (on the split evaluated during training) or the number of a step."""
    from airloop.learn.checkpoints import checkpoints

    found = dict(checkpoints(run.path / "checkpoints"))
    if not found:
        raise AirError(
            f"{run.path} has no checkpoint yet: nothing was trained or it was killed before the first.",
            f"go on with `air train --resume {run.path}`, or lower ckpt.interval.",
        )
    step = _step(run, which, max(found))
    if step not in found:
        known = ", ".join(map(str, found))
        raise AirError(f"{run.path} has no checkpoint of step {step}.", f"choose from {known}, last or best.")
    position = read_object(found[step] / "position.json")
    return Checkpoint(step, found[step], int(position["version"]))


def _step(run: Run, which: str, last: int) -> int:
    if which == "last":
        return last
    if which == "best":
        from airloop.step import best_step

        best = best_step(run)
        if best is None:
            raise AirError(
                f"{run.name} was not evaluated while it trained, so its best checkpoint is not known.",
                "choose last or a step; with orchestrator.eval.interval set, the next run will know.",
            )
        return best
    if not which.isdecimal():
        raise AirError(f"{which!r} is no step of a run.", "give its number, last or best.")
    return int(which)


def open_trained(named: str) -> tuple[Run, Checkpoint]:
    """`PATH`, `PATH@best` or `PATH@20`."""
    path, _, which = (named, "", "") if Path(named).is_dir() else named.rpartition("@")
    run = Run.open(Path(path or named).expanduser())
    return run, choose_checkpoint(run, which or "last")


def config_of(run: Run, argv: list[str]) -> Config:
    """The run's own config with files and flags laid over it; the model must stay the run's."""
    config = load_config(["@", str(run.path / "config.toml"), *argv], environments=False)
    own, wanted = run.config, config
    for key, a, b in (
        ("model.name", own.model.name, wanted.model.name),
        ("model.chat_template", own.model.chat_template, wanted.model.chat_template),
        ("trainer.model.train", own.trainer.model.train, wanted.trainer.model.train),
    ):
        if a != b:
            raise AirError(
                f"{run.name} was trained with {key} = {a!r}, but {key} = {b!r} is asked for.",
                f"leave {key} out: a run brings its own.",
            )
    return config


def with_weights(config: Config, checkpoint: Checkpoint) -> Config:
    """The checkpoint's adapter replaces the one that the run started from, if any: it was trained further."""
    adapter = str(checkpoint.adapter) if checkpoint.adapter else None
    return config.model_copy(update={"model": config.model.model_copy(update={"adapter": adapter})})
