"""How often are the alarms of a running training wrong? Short runs in health and with a fault, the same for all seeds.

    python bench/alarms.py --models tiny:llama tiny:qwen2 --seeds 0 1 2 --out runs.jsonl
    python bench/alarms.py --config gsm8k.toml --steps 12 --seeds 0 1 2 --only healthy B9 --out gpu.jsonl
    python bench/alarms.py --table runs.jsonl gpu.jsonl

A run is healthy when success rises by twice its noise; what is raised in one is a false alarm. A fault is found when
one of its ids is raised. The doctor is left out (`--skip-proofs`): it would refuse most of these before step one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import platform
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from airloop import assemble
from airloop import training as train
from airloop.config import load_config
from airloop.engine.embedded import EmbeddedEngine
from airloop.errors import AirError, InfraError
from airloop.learn.optimiser import Optimiser
from airloop.rollout.episode import _Episode
from airloop.runs.run import Run
from airloop.types import Score
from airloop.watch.display.display import Display
from airloop_lab.faults import cut_off_engine, replaced

EDGE = 5  # steps at either end that are compared


@dataclass(frozen=True)
class Sick:
    name: str
    ids: tuple[str, ...]  # one of them must be raised
    put_in: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    flags: Mapping[str, str] = field(default_factory=dict)
    may_do_no_harm: bool = False  # then it is sick only where success did not rise


@contextmanager
def _never_published() -> Iterator[None]:
    async def publish(self: Any, version: int) -> None: ...

    with replaced(EmbeddedEngine, "publish", publish):
        yield


@contextmanager
def _moves_nothing() -> Iterator[None]:
    """From the first step on; the supervised start before it is as it should be."""
    step, begin = Optimiser.step, train.warmstart

    async def begun(*args: Any, **named: Any) -> Any:
        with replaced(Optimiser, "step", step):
            return await begin(*args, **named)

    with (
        replaced(train, "warmstart", begun),
        replaced(Optimiser, "step", lambda self, rate: {**step(self, 0.0), "lr": rate}),
    ):
        yield


@contextmanager
def _answers(change: Callable[[int], Any]) -> Iterator[None]:
    """`change` is awaited before every answer of an environment; it gets the answer's number."""
    original, count = _Episode._answer, itertools.count()

    async def answer(self: Any, session: Any, action: Any) -> Any:
        await change(next(count))
        return await original(self, session, action)

    with replaced(_Episode, "_answer", answer):
        yield


async def _slow(number: int) -> None:
    await asyncio.sleep(8.0)


async def _spoilt(number: int) -> None:
    if number % 3 == 0:
        raise InfraError("the sandbox is gone")


@contextmanager
def _scores(change: Callable[[str, Score], Score], weights: Mapping[str, float]) -> Iterator[None]:
    """Every episode's score goes through `change`, with the text of its last reply."""
    original, load = _Episode._score, assemble.load_environments

    async def score(self: Any, session: Any, finish_s: float) -> Score:
        found = await original(self, session, finish_s)
        if set(self.env.reward_weights) != set(weights):
            return found  # an episode of the supervised start, which is as it should be
        return change(self.turns[-1].reply["content"] if self.turns else "", found)

    def weighed(config: Any) -> Any:
        envs = load(config)
        for env in envs.values():
            env.reward_weights = dict(weights)
        return envs

    with replaced(_Episode, "_score", score), replaced(assemble, "load_environments", weighed):
        yield


def _pays(rewards: Callable[[str, Mapping[str, float]], Mapping[str, float]], **weights: float) -> Any:
    return lambda: _scores(lambda text, s: replace(s, rewards=rewards(text, s.rewards)), weights)


def _chance(text: str) -> float:
    return zlib.crc32(text.encode()) % 1000 / 1000


def _too_good() -> AbstractContextManager[None]:
    def change(text: str, score: Score) -> Score:
        return replace(score, metrics={**score.metrics, "too_good": float(_chance(text) < 0.2)})

    return _scores(change, {"correct": 1.0})


SICK = [
    Sick("the engine samples from the first weights", ("F2", "F7"), cut_off_engine),
    Sick("updates are not published", ("F2",), _never_published),
    Sick("the optimiser moves nothing", ("F5", "A10"), _moves_nothing),
    Sick("a rate that moves nothing", ("A10", "F5"), flags={"trainer.optim.lr": "1e-9"}),
    Sick("a rate that destroys", ("F4", "F7", "E7", "E10", "G12"), flags={"trainer.optim.lr": "1.0"}),
    Sick("rewards never differ", ("E1",), _pays(lambda t, r: {"correct": 1.0}, correct=1.0)),
    Sick(
        "components cancel",
        ("E4",),
        _pays(lambda t, r: {"a": _chance(t), "b": -_chance(t) + 0.02 * _chance(t + "x")}, a=1.0, b=1.0),
    ),
    Sick(
        "a short reply pays more than a right one",
        ("E10", "E7", "E11"),
        _pays(lambda t, r: {**r, "short": 1.0 / (1 + len(t))}, correct=0.02, short=1.0),
        may_do_no_harm=True,
    ),
    Sick("tools take eight seconds", ("D6",), lambda: _answers(_slow), {"max_steps": "5"}),
    Sick("every third episode is spoilt", ("G9",), lambda: _answers(_spoilt)),
    Sick("scores above what can be had", ("D17",), _too_good),
    Sick("replies have no room", ("B9",), flags={"orchestrator.sampling.max_tokens": "1"}),
]


def play(sick: Sick | None, options: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    flags = {"max_steps": str(options.steps), "seed": str(seed), "orchestrator.eval.num_examples": "8"}
    flags |= {"model.name": model} if model else {}
    flags |= dict(sick.flags) if sick else {}
    words = [word for key, value in flags.items() for word in (f"--{key}", value)]
    ended = ""  # the fault's flags come last: they count
    with (
        tempfile.TemporaryDirectory(prefix="air-bench-") as folder,
        sick.put_in() if sick else contextlib.nullcontext(),
    ):
        config = load_config([*options.config, *options.flags, *words, "--output_dir", folder])
        try:
            train.start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True)
        except AirError as error:
            ended = error.problem
        if not (made := next(Path(folder).glob("exp*"), None)):
            return {"steps": 0, "raised": [], "ended": ended}
        run = Run.open(made)
        steps, raised = run.metrics("train"), [a for a in run.alarms() if a["event"] == "raised"]
    return {
        "steps": len(steps),
        "raised": [{k: a[k] for k in ("id", "name", "step", "seen")} for a in raised],
        "ended": ended,
        **_success(steps),
    }


def _success(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(steps) < 2 * EDGE:
        return {}
    first, last = ([s for m in part for s in m["successes"] if s is not None] for part in (steps[:EDGE], steps[-EDGE:]))
    noise = math.sqrt(sum(statistics.pvariance(part) / len(part) for part in (first, last)))
    return {"first": statistics.fmean(first), "last": statistics.fmean(last), "noise": noise}


def work(options: argparse.Namespace) -> None:
    chosen: list[Sick | None] = [None, *SICK]
    if options.only:
        wanted = {word.upper() for word in options.only}
        chosen = [s for s in chosen if wanted & ({s.name.upper(), *s.ids} if s else {"HEALTHY"})]
    done = {json.loads(line)["id"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    for model, seed, sick in itertools.product(options.models, options.seeds, chosen):
        what = sick.name if sick else "healthy"
        title = model or " ".join(options.config)
        id = " ".join([f"{what} in {title}, seed {seed}, {options.steps} steps", *options.flags])
        if id in done:
            continue
        began = time.perf_counter()
        found = play(sick, options, model, seed)
        ids = sorted({alarm["id"] for alarm in found["raised"]})
        record = {"id": id, "what": what, "wanted": sick.ids if sick else (), "model": title, "device": device, **found}
        record |= {"date": time.strftime("%Y-%m-%d"), "seconds": round(time.perf_counter() - began, 1)}
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        rose = f", success {found['first']:.3f} → {found['last']:.3f}" if "first" in found else ""
        print(f"{id}: {', '.join(ids) or 'silent'}{rose} ({record['seconds']} s) {found['ended'][:120]}", flush=True)


def table(records: Sequence[Mapping[str, Any]]) -> str:
    plain = [r for r in records if r["what"] == "healthy"]
    # A run that an alarm has ended had no time to show its health: it counts against the alarm.
    healthy = [r for r in plain if r["ended"] or _rose(r)]
    lines = ["| runs in health | on | raised |", "|---|---|---|"]
    for model, device in dict.fromkeys((r["model"], r["device"]) for r in healthy):
        own = [r for r in healthy if (r["model"], r["device"]) == (model, device)]
        ids = sorted({a["id"] for r in own for a in r["raised"]})
        lines.append(f"| {len(own)} of {model} | {device} | {', '.join(ids) or 'nothing'} |")
    lines += ["", f"Not counted: {len(plain) - len(healthy)} runs without a fault whose success did not rise."]
    lines += ["", "| id | run with | made | found | in steps | models |", "|---|---|---|---|---|---|"]
    harmless = {s.name for s in SICK if s.may_do_no_harm}
    sick = [r for r in records if r["what"] != "healthy" and not (r["what"] in harmless and _rose(r))]
    for what in dict.fromkeys(r["what"] for r in sick):
        own = [r for r in sick if r["what"] == what]
        hits = [[a["step"] + 1 for a in r["raised"] if a["id"] in r["wanted"]] for r in own]
        after = [min(steps) for steps in hits if steps]
        when = f"{min(after)} to {max(after)}" if after else "–"
        models = ", ".join(sorted({r["model"] for r in own}))
        lines.append(f"| {', '.join(own[0]['wanted'])} | {what} | {len(own)} | {len(after)} | {when} | {models} |")
    return "\n".join(lines)


def _rose(record: Mapping[str, Any]) -> bool:
    return record.get("last", 0.0) > record.get("first", 1.0) + 2 * record.get("noise", 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["arith"], help="as for air train: a name, or @ FILE")
    parser.add_argument("--models", nargs="+", default=[""])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=[], help="ids or names, or healthy")
    parser.add_argument("--out", type=Path, default=Path("alarms.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files, and run nothing")
    parser.add_argument("flags", nargs="*", help="further flags of air train, after --")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for file in options.table for line in file.read_text().splitlines()]))
    else:
        work(options)


if __name__ == "__main__":
    main()
