"""What came of a run, read from its directory: for the logbook, the viewer and the terminal.

A run of any age and in any state gives an answer: what cannot be read is None, and `problems` says why.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airloop.runs.damaged import (
    Reader,
    directories,
    epoch,
    interval_of,
    is_held,
    items,
    modified,
    number,
    table,
    whole,
    words,
)
from airloop.runs.entries import STATUS_KINDS, Entries, read_entries
from airloop.runs.lineage import env_names, find_parent, parse_name
from airloop.success import NAME, common_name, step_success, success_in

EDGE = 5  # steps at either end whose mean is "first" and "last"; of a shorter run, half of its steps
TREND = 60  # points of a reward's trend
MIB = 2**20
STATUSES = ("planned", "running", "completed", "paused", "stopped", "failed")
ALL_STATUSES = (*STATUSES, "killed", *STATUS_KINDS)
ARTEFACTS = ("summary.txt", "learning.png", "doctor.json", "alarms.jsonl", "log.txt")
# Not part of what a run does: where it is kept, and what its logbook says.
NOT_COMPARED = ("output_dir", "logbook.goal", "logbook.parent", "logbook.major", "logbook.price_per_hour")
# Of the adapter: without effect where there is none.
ADAPTER = ("trainer.model.lora.",)


def run_results(path: Path) -> dict[str, Any]:
    """JSON-safe; never raises, whatever is in the directory."""
    reader = Reader(path)
    if not path.is_dir():
        reader.problems.append("there is no such directory")
    config = _config(reader)
    status = reader.json("status.json")
    entries = read_entries(reader, status)
    steps, evaluations, said = _digest(path, _stamp(path / "metrics.jsonl"))
    reader.problems += said
    state, why = _state(path, status, entries, reader)
    timing = _timing(path, status, state)
    price = number(table(config.get("logbook")).get("price_per_hour"))
    parent = find_parent(path)
    return {
        "name": words(path.name),
        "path": words(str(path)),
        **_about(config, path.name),
        "status": state,
        "why": why,
        **timing,
        "goal": entries.goal if entries.goal is not None else words(table(config.get("logbook")).get("goal")),
        "parent": words(parent.name) if parent else None,
        "superseded_by": entries.superseded_by,
        **steps,
        **_evaluated(evaluations),
        **_alarms(reader),
        "price_per_hour": price,
        "cost": number(price * timing["seconds"] / 3600)
        if price is not None and timing["seconds"] is not None
        else None,
        "sink_urls": _sink_urls(status),
        "fault": _fault(status),
        "artefacts": _artefacts(path),
        "proofs": _proofs(status),
        "problems": [words(problem) for problem in reader.problems],
    }


def config_diff(here: Path, parent: Path) -> list[dict[str, Any]]:
    """What of the resolved config is not as it was in the parent: dotted keys, None where one side has no such key.
    Where a config cannot be read there is nothing to say: run_results names it."""
    new, old = (effective_config(Reader(path)) for path in (here, parent))
    if not new or not old:
        return []
    gone = [key for key in old if key not in new and not key.startswith(_idle(new))]
    keys = [key for key in [*new, *gone] if key not in NOT_COMPARED]
    return [
        {"key": key, "parent": old.get(key), "here": new.get(key)}
        for key in keys
        if old.get(key) != new.get(key) or (key in old) != (key in new)
    ]


def effective_config(reader: Reader) -> dict[str, Any]:
    """The resolved config without keys that had no effect: it has a value for every key there is, and a run that trains
    all the weights has no adapter that a rank could be of."""
    found = flat_config(reader.toml("config.toml"))
    idle = _idle(found)
    return {key: value for key, value in found.items() if not key.startswith(idle)}


def _idle(config: dict[str, Any]) -> tuple[str, ...]:
    """Beginnings of the keys that have no effect in it."""
    return ADAPTER if config.get("trainer.model.train") == "full" else ()


def flat_config(tree: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Dotted keys; elements of a list of tables by their place: `orchestrator.env.0.id`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flat_config(value, f"{at}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for place, item in enumerate(value):
                flat |= flat_config(item, f"{at}{key}.{place}.")
        else:
            flat[words(f"{at}{key}") or ""] = _plain(value)
    return flat


def _plain(value: Any) -> Any:
    """As JSON can hold it: TOML has dates, and numbers that are none."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {words(key): _plain(item) for key, item in value.items()}
    if isinstance(value, bool) or (isinstance(value, int | float) and number(value) is not None):
        return value
    return words(value) if isinstance(value, str) else str(value)


# --- config and status --------------------------------------------------------------------------------------


def _config(reader: Reader) -> dict[str, Any]:
    if not (reader.path / "config.toml").is_file():
        reader.problems.append("config.toml is missing: not a run of ours, or a damaged one")
        return {}
    return reader.toml("config.toml")


def _about(config: dict[str, Any], name: str) -> dict[str, Any]:
    environments = env_names(config)
    return {
        "task": "-".join(environments) or (own.task if (own := parse_name(name)) else None),
        "env": environments,
        "model": words(table(config.get("model")).get("name")),
        "max_steps": whole(config.get("max_steps")),
        "seed": whole(config.get("seed")),
    }


def _state(path: Path, status: dict[str, Any], entries: Entries, reader: Reader) -> tuple[str | None, str]:
    """What the run says of itself, unless nobody runs it any more or a person has said more."""
    if is_held(path / ".lock"):  # a resumed one says how it ended last until its model is loaded
        return "running", ""
    said: str | None = words(status.get("status"))
    why = words(status.get("why")) or ""
    if said not in STATUSES:
        if status or (path / "config.toml").is_file():
            reader.problems.append("status.json does not say how it ended" if not said else f"its status is {said!r}")
        said = None
    if said == "running":
        said, why = "killed", "it says that it runs, but no process does: it was killed, or its machine was"
    if (mark := entries.status) is not None:
        return mark.kind, mark.text or why
    return said, why


def _timing(path: Path, status: dict[str, Any], state: str | None) -> dict[str, float | None]:
    """`seconds` is the time in which it ran: not what lies between being stopped and being resumed."""
    if state != "running" and status.get("status") == "planned":  # abandoned or archived before it began, too
        return {"started": None, "ended": None, "seconds": None}
    now = time.time() if state == "running" else None
    last = now or epoch(status.get("time"))
    if status.get("status") == "running" and now is None:  # nobody could write its end
        last = last_sign(path) or last
    spans: list[tuple[float, float]] = []
    for pair in items(status.get("sessions")):
        began, ended = (epoch(t) for t in [*items(pair), None, None][:2])
        if began is not None:
            spans.append((began, max(began, ended if ended is not None else (last or began))))
    started = spans[0][0] if spans else modified(path / "config.toml")
    if spans:
        seconds: float | None = sum(ended - began for began, ended in spans)
    else:
        seconds = max(0.0, last - started) if last is not None and started is not None else None
    return {"started": started, "ended": None if state == "running" else last, "seconds": seconds}


def last_sign(path: Path) -> float | None:
    """When a run last wrote something down."""
    files = [path / "metrics.jsonl", path / "log.txt", *path.glob("warmstart/*")]
    times = [t for file in files if (t := modified(file)) is not None]
    return max(times, default=None)


def _proofs(status: dict[str, Any]) -> str:
    said = words(status.get("proofs")) or ""
    if said in ("passed", "failed"):
        return "run"
    return "skipped" if said.startswith(("skipped", "not run")) else "unknown"


def _sink_urls(status: dict[str, Any]) -> dict[str, str]:
    """Where its metrics can be looked at, by the sinks' titles. Older runs noted one address, without its sink's."""
    noted = {"Weights & Biases": status.get("wandb_url"), **table(status.get("sink_urls"))}
    return {words(title) or "": url for title, found in noted.items() if (url := words(found))}


def _fault(status: dict[str, Any]) -> str | None:
    """What was broken in it on purpose (airloop_lab/faults.py), or will be: such a run is no healthy one."""
    done = table(status.get("fault"))
    name = words(done.get("name")) or words(table(status.get("lab")).get("fault"))
    return ": ".join(filter(None, (name, words(done.get("text"))))) or None


def _alarms(reader: Reader) -> dict[str, Any]:
    raised = [a for a in reader.lines("alarms.jsonl") if a.get("event") == "raised"]
    ids = [name for a in raised if (name := words(a.get("id")))]
    return {"alarms": len(raised), "alarm_ids": list(dict.fromkeys(ids))}


def _artefacts(path: Path) -> list[str]:
    found = [name for name in ARTEFACTS if (path / name).is_file()]
    for folder in ("evaluations", "checkpoints"):
        found += [f"{folder}/{p.name}" for p in directories(path / folder) if not p.name.startswith(".")]
    return [words(name) or "" for name in found]


# --- metrics ------------------------------------------------------------------------------------------------

Digest = tuple[dict[str, Any], dict[str, dict[str, Any]], tuple[str, ...]]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, stamp: tuple[int, int]) -> Digest:
    """The metrics' key figures, the last line of each evaluation, and what could not be read. Kept until the file
    changes: a table of a hundred runs is asked for again and again."""
    reader = Reader(path)
    lines = reader.lines("metrics.jsonl")
    by_step = {step: m for m in lines if m.get("kind") == "train" and (step := whole(m.get("step"))) is not None}
    steps = [by_step[step] for step in sorted(by_step)]
    evaluations = {name: m for m in lines if m.get("kind") == "eval" and (name := words(m.get("name")))}
    return _figures(steps), evaluations, tuple(reader.problems)


def _figures(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rewards = _series(steps, lambda m: m.get("reward"))
    successes = _series(steps, lambda m: (step_success(m) or ("", None))[1])
    improvement = _series(steps, lambda m: table(m.get("components")).get("improvement"))
    best = _series(steps, lambda m: table(m.get("best")).get("improvement"))
    errors = _series(steps, lambda m: table(m.get("rollout")).get("infra_errors"))
    return {
        "steps": len(steps),
        "success_name": words(common_name(steps)),
        "success_first": _mean(successes[: _edge(successes)]),
        "success_last": _mean(successes[-_edge(successes) :]),
        "success_trend": _trend(successes),
        "reward_first": _mean(rewards[: _edge(rewards)]),
        "reward_last": _mean(rewards[-_edge(rewards) :]),
        "reward_trend": _trend(rewards),
        "mean_improvement": _mean(improvement[-_edge(improvement) :]),
        "best_improvement": max(best, default=None),
        "tokens_per_second": _throughput(steps),
        "peak_memory_bytes": _peak_memory(steps),
        "sandbox_errors": whole(sum(errors)) if errors else None,
    }


def _series(steps: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], Any]) -> list[float]:
    return [value for m in steps if (value := number(read(m))) is not None]


def _edge(values: Sequence[float]) -> int:
    return max(1, min(EDGE, len(values) // 2))


def _mean(values: Sequence[float]) -> float | None:
    """Over steps; of values so large that their sum is no number, there is none."""
    try:
        return number(statistics.fmean(values)) if values else None
    except OverflowError:
        return None


def _trend(values: Sequence[float]) -> list[float]:
    """At most TREND points, each the mean of its share of the steps."""
    count = min(TREND, len(values))
    edges = [i * len(values) // count for i in range(count + 1)] if count else []
    means = [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]
    return [m for m in means if m is not None]


def _throughput(steps: Sequence[dict[str, Any]]) -> float | None:
    """Sampled tokens per second of the steps: sampling, update and publishing."""
    tokens = seconds = 0.0
    for m in steps:
        sampled = number(table(m.get("ledger")).get("tokens"))
        spent = [number(table(m.get("times")).get(name)) for name in ("sampling", "training", "sync")]
        if number(table(m.get("rollout")).get("reused")):  # read back after a restart, not sampled in this time
            continue
        if sampled is not None and spent[0] is not None:
            tokens += sampled
            seconds += sum(s for s in spent if s is not None)
    return number(tokens / seconds) if seconds > 0 else None


def _peak_memory(steps: Sequence[dict[str, Any]]) -> int | None:
    """Of the GPU where there is one, else of the process. Older runs know only what was in use between steps."""
    for names in (("gpu_peak", "gpu_used"), ("peak", "used")):
        found = [v for m in steps for name in names if (v := number(table(m.get("memory")).get(name))) is not None]
        if found and (bytes_ := number(max(found) * MIB)) is not None:
            return int(bytes_)
    return None


def _evaluated(evaluations: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | None] | None]:
    """Of held-out tasks, before and after: success, then the reward."""
    lines = {name: evaluations.get(name, {}) for name in ("before", "after")}
    success = {name: (success_in(line, line.get(NAME)) or ("", None))[1] for name, line in lines.items()}
    return {
        **{f"eval_success_{name}": interval_of(row) for name, row in success.items()},
        **{f"eval_{name}": interval_of(line.get("reward")) for name, line in lines.items()},
    }
