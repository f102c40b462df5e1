"""Flags of other trainers' command lines, each with the flag here and its form in TOML."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import replace

from airloop.config.env_aliases import env_of_flag
from airloop.config.foreign import ALIASES, FOREIGN_VALUES
from airloop.config.mistakes import correction, fitting, indented, toml_lines
from airloop.config.sources import Mistake, Origin, Settings, leaves


def foreign_flags(settings: Settings) -> Iterable[Mistake]:
    given = settings.foreign_flags
    batch = next((name for name in ("batch_size", "per_device_train_batch_size") if name in given), "")
    names = (batch, "gradient_accumulation_steps", "num_processes")
    sizes = {name: given[name] for name in names if name in given}
    numbers = [int(text) for text in sizes.values() if text and text.isdigit()]
    for name, text in given.items():
        answer, flag = ALIASES[name].answer(text, settings.tree), _as_written(name, text)
        if name == batch and len(numbers) == len(sizes) > 1:
            why = f"{answer.why}: {' × '.join(map(str, numbers))} = {math.prod(numbers)}"
            answer = replace(answer, why=why, changes={"orchestrator.batch_size": math.prod(numbers)})
            flag = " ".join(_as_written(*size) for size in sizes.items())
        elif name == "gradient_accumulation_steps" and batch:
            continue  # said together with --batch-size
        if (env := env_of_flag(name)) is not None:
            answer = replace(answer, changes={"orchestrator.env.0.id": env, **answer.changes})
        if name == "loss_type" and (known := FOREIGN_VALUES["trainer.loss.type"].get(text or "")):
            answer = known
        answer = fitting(answer)
        what = "another trainer's flag" + (f"; {answer.why}" if answer.why else "")
        fix = correction(answer.changes, as_flags=True, instead=answer.instead, choice=answer.choice)
        if answer.changes:
            fix += f", or in TOML\n{indented(toml_lines(answer.changes))}"
        keys_ = frozenset(answer.changes)
        yield Mistake(f"{flag}: {what}.", fix, keys_, "A2", changes=answer.changes, choice=answer.choice)
        settings.origins |= {path: Origin(flag=flag) for path in leaves(answer.changes)}


def _as_written(name: str, text: str | None) -> str:
    return f"--{name.replace('_', '-')}" + (f" {shlex.quote(text)}" if text is not None else "")
