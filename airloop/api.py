"""From Python: `airloop.train(…)` and `airloop.evaluate(…)`, what `air train` and `air eval` do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.threads import set_passive_waiting

if TYPE_CHECKING:
    from airloop.config import Config
    from airloop.training import Finished


def train(
    config: Config | str | Path | Sequence[str] | None = None,
    *,
    resume: str | Path | None = None,
    skip_proofs: bool = False,
    quiet: bool = False,
) -> Finished:
    """Train as `air train` does. `config`: a Config, the name of one that comes with air, a TOML's path, or the words
    of the command line (["arith", "--max_steps", "10"]). `resume`: a run to go on with, which has its own config.
    Returns the run and what came of it. AirError says what is wrong and how to mend it.

        finished = airloop.train("arith")
        print(finished.run.path, finished.run.metrics("train")[-1]["reward"])
    """
    set_passive_waiting()
    from airloop.config import Config, load_config
    from airloop.errors import AirError
    from airloop.runs.run import Run
    from airloop.training import start
    from airloop.watch.display.display import Display

    if (config is None) == (resume is None):
        raise AirError("A run is started with a config or gone on with by `resume`.", "give one of the two.")
    if resume is not None:
        whole = Run.open(Path(resume)).config
    else:
        whole = config if isinstance(config, Config) else load_config(_words(config or ()))
    with Display(quiet=quiet) as display:
        return start(whole, display, Path(resume) if resume is not None else None, skip_proofs)


def evaluate(
    agent: str,
    config: Config | str | Path | Sequence[str] = (),
    *,
    env: str = "",
    args: Mapping[str, Any] | None = None,
    split: str | None = None,
    n: int | None = None,
    rollouts: int | None = None,
    temperature: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Evaluate as `air eval` does. `agent`: "model", "run:DIR", "scripted:oracle", "url:…"; `config` as for train, and
    not needed of a run, which has its own. `env` with its `args`: another environment than the config's. Returns what
    evaluation.json holds: success and reward with their intervals, and where the episodes are.

        report = airloop.evaluate("scripted:oracle", "arith", n=20)
        other = airloop.evaluate("run:outputs/exp1.0-arith-1117", env="arith", args={"max_number": 20})
    """
    set_passive_waiting()
    from airloop.eval.evaluate import EvalOptions
    from airloop.eval.evaluate import evaluate as run
    from airloop.watch.display.display import Display

    place = Path(out) if out is not None else None
    options = EvalOptions(agent, split, n, rollouts, temperature, place, env=env, args=args or {})
    with Display(quiet=quiet) as display, _as_words(config) as words:
        return run(words, options, display)


def _words(config: str | Path | Sequence[str]) -> list[str]:
    if isinstance(config, Path) or (isinstance(config, str) and config.endswith(".toml")):
        return ["@", str(config)]
    return [config] if isinstance(config, str) else list(config)


@contextmanager
def _as_words(config: Config | str | Path | Sequence[str]) -> Iterator[list[str]]:
    """A Config is written to a file: an agent of another run is read with it."""
    from airloop.config import Config, to_toml

    if not isinstance(config, Config):
        yield _words(config)
        return
    with tempfile.TemporaryDirectory(prefix="air-") as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        yield ["@", str(path)]
