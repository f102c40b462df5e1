"""How often is the doctor wrong? Every check and proof, over healthy set-ups and over faults put in on purpose.

    python bench/doctor.py --on cpu --models tiny-llama tiny-qwen2 tiny-qwen3 tiny-mistral --limit 200 --out cpu.jsonl
    python bench/doctor.py --on gpu --models smollm2 qwen2.5-coder-0.5b.gguf --limit 48 --out gpu.jsonl
    python bench/doctor.py --what trained --limit 20 --out trained.jsonl
    python bench/doctor.py --table cpu.jsonl gpu.jsonl trained.jsonl

A healthy set-up is one whose engine and trainer agree with transformers in float32, or that was trained for 20 steps
with success rising; never one that the doctor calls healthy. What the doctor refuses in one is a false alarm. (What a
policy does and earns is judged in trained set-ups only: random weights do earn nothing; whether GPU and disk are free
is true of the machine, not of the set-up.) A line of --out is one set-up
or one fault in one; those that are there already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from doctor_faults import FAULTS, Injected
from doctor_setups import Setup, Shelf, agreement, agrees, setups, train, trained_setups, verdicts

from airloop.doctor.base import Finding, checks
from airloop.doctor.case import Case
from airloop.doctor.examine import examine
from airloop.errors import AirError

TINY = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral")
# Of what the policy does and earns: true of random weights, so no false alarm in a set-up that was not trained.
ABOUT_POLICY = ("rewards_differ", "parts_add_up", "parts_fire", "valid_actions", "replies_end", "context_holds_episode")
# Of this machine at this moment: what others hold of its GPU, and how much of its disk is free.
ABOUT_MACHINE = ("gpus_are_free", "disk_has_room")
# Each fault in so many set-ups of each model.
SETUPS_PER_FAULT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--what", choices=("healthy", "faults", "trained", "all"), nargs="+", default=["all"])
    parser.add_argument("--models", nargs="+", default=list(TINY), help="tiny-…, smollm2, a name, or a .gguf file")
    parser.add_argument("--limit", type=int, default=200, help="healthy set-ups, over all models")
    parser.add_argument("--trained", type=int, default=20, help="set-ups that are trained")
    parser.add_argument("--faults", nargs="+", default=[], help="only faults with these ids or names")
    parser.add_argument("--checks", nargs="+", default=[], help="healthy set-ups are asked these alone")
    parser.add_argument("--out", type=Path, default=Path("doctor.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files, and run nothing")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for file in options.table for line in file.read_text().splitlines()]))
        return
    if options.on == "gpu" and not torch.cuda.is_available():
        raise SystemExit("--on gpu: there is none")
    warnings.simplefilter("ignore")
    work(options)


def work(options: argparse.Namespace) -> None:
    done = {json.loads(line)["id"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    what = {"healthy", "faults", "trained"} if "all" in options.what else set(options.what)
    shelf = Shelf(options.on)
    jobs: list[tuple[str, Any]] = []
    if "healthy" in what:
        chosen = setups(options.models, options.on, options.limit)
        jobs += [(s.id, lambda s=s: healthy(shelf, s, options.checks)) for s in chosen]
    if "faults" in what:
        jobs += [(id, job) for id, job in _fault_jobs(shelf, options)]
    if "trained" in what:
        jobs += [(s.id, lambda s=s: trained(s)) for s in trained_setups(options.models, options.trained)]
    for number, (id, job) in enumerate(jobs, 1):
        if id in done:
            continue
        began = time.perf_counter()
        try:
            found = job()
        except AirError as error:  # an environment that is not to be had here: no set-up at all
            found = {"kind": "skipped", "why": str(error)}
        except Exception as error:  # of the bench: said, and counted as neither
            found = {"kind": "broken", "why": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        record = {"id": id, **_machine(options.on), "seconds": round(time.perf_counter() - began, 1), **found}
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{number}/{len(jobs)} {id}: {_short(record)} ({record['seconds']} s)", flush=True)


def _fault_jobs(shelf: Shelf, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    wanted = {name.upper() for name in options.faults}
    for model in options.models:
        pool = setups([model], options.on, 200)
        for fault in FAULTS:
            if wanted and not wanted & {fault.name.upper(), *fault.ids}:
                continue
            least = 1e-4 if "trainer.optim.lr" in fault.changes else 1e-5  # a rate that nobody warns of
            suited = [s for s in pool if fault.suits(s.train) and s.env == (fault.env or "arith") and s.lr >= least]
            if options.on == "cpu":  # few CPUs multiply bfloat16
                suited.sort(key=lambda s: s.dtype == "bfloat16")
            for setup in suited[:SETUPS_PER_FAULT]:
                yield f"{fault.name} in {setup.id}", lambda s=setup, f=fault: sick(shelf, s, f)


def healthy(shelf: Shelf, setup: Setup, only: Sequence[str] = ()) -> dict[str, Any]:
    evidence = agreement(shelf, setup)
    with shelf.case(setup.config()) as case:
        found = verdicts(case, only)
    return {"kind": "healthy", **setup.record(), "evidence": evidence, "proven": agrees(evidence), "verdicts": found}


def trained(setup: Setup) -> dict[str, Any]:
    evidence = train(setup)
    found = evidence.pop("verdicts")
    proven = evidence["last"] > evidence["first"] + 2 * evidence["noise"]
    return {"kind": "trained", **setup.record(), "evidence": evidence, "proven": proven, "verdicts": found}


def sick(shelf: Shelf, setup: Setup, fault: Injected) -> dict[str, Any]:
    """Found is what is said with the fault and not without it."""
    with shelf.case(setup.config(**fault.changes)) as case:
        _ = case.parts
        with fault.put_in(case):
            heard = list(_said(case, fault, setup.real))
    said = [(name, f) for name, f in heard if f.verdict != "not judged"]
    ids, before = _said_ids(said), _in_health(shelf, setup, fault)
    return {
        "kind": "fault",
        **setup.record(),
        "fault": fault.name,
        "wanted": fault.ids,
        "said": sorted({id for id, _ in ids}),
        "without": sorted({id for id, _ in before}),
        "found": any(id in fault.ids for id, _ in ids - before),
        "by": sorted({name for name, _ in said}),
        "seen": [f.seen for _, f in heard],
        "not_judged": sorted({name for name, f in heard if f.verdict == "not judged"}),
    }


_HEALTH: dict[tuple[Any, ...], set[tuple[str, str]]] = {}


def _in_health(shelf: Shelf, setup: Setup, fault: Injected) -> set[tuple[str, str]]:
    """What the same checks say of the same set-up without the fault."""
    key = (setup.id, fault.only, fault.control)
    if key not in _HEALTH:
        with shelf.case(setup.config()) as case:
            _ = case.parts
            with fault.control(case):
                heard = list(_said(case, replace(fault, ids=()), first=False))
        _HEALTH[key] = _said_ids([(name, f) for name, f in heard if f.verdict != "not judged"])
    return _HEALTH[key]


def _said_ids(said: Sequence[tuple[str, Finding]]) -> set[tuple[str, str]]:
    """With their verdicts: a warning that has become a failure is something else."""
    return {(i, f.verdict) for name, f in said for i in f.ids or checks([name])[0].ids}


def _said(case: Case, fault: Injected, first: bool) -> Iterator[tuple[str, Finding]]:
    """What the checks say, by name; with a real model no more of them are asked when the fault is found: they take
    minutes on a CPU."""
    for check in checks(fault.only):
        for result in examine(case, (check.stage,), [check.name]):
            for finding in result.findings:
                if finding.verdict != "pass":
                    yield check.name, finding
                    if first and finding.verdict != "not judged" and set(finding.ids or check.ids) & set(fault.ids):
                        return


def _machine(on: str) -> dict[str, str]:
    device = torch.cuda.get_device_name() if on == "gpu" else f"{platform.machine()} CPU"
    return {"on": on, "device": device, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__}


def _short(record: dict[str, Any]) -> str:
    if record["kind"] in ("healthy", "trained"):
        failed = list(false_alarms(record))
        return ("proven healthy" if record["proven"] else "NOT PROVEN") + (f", FALSE ALARM {failed}" if failed else "")
    if record["kind"] == "fault":
        missed = f"MISSED (said {record['said']}, not judged {record['not_judged']})"
        return f"found by {', '.join(record['by'])}" if record["found"] else missed
    return f"{record['kind']}: {record['why'][:200]}"


def false_alarms(record: dict[str, Any]) -> Iterator[str]:
    """Names of checks that refuse a set-up which is proven to be healthy."""
    about_others = ABOUT_MACHINE + (() if record["kind"] == "trained" else ABOUT_POLICY)
    for name, told in record["verdicts"].items():
        if told["verdict"] == "fail" and name not in about_others:
            yield name


def table(records: Sequence[dict[str, Any]]) -> str:
    proven = [r for r in records if r["kind"] in ("healthy", "trained") and r["proven"]]
    lines = ["| healthy set-ups | of them trained | with a real model | on | false alarms |", "|---|---|---|---|---|"]
    for device in dict.fromkeys(r["device"] for r in proven):
        own = [r for r in proven if r["device"] == device]
        wrong = sum(bool(list(false_alarms(r))) for r in own)
        lines.append(
            f"| {len(own)} | {sum(r['kind'] == 'trained' for r in own)} | {sum(r['real'] for r in own)} | {device}, "
            f"{', '.join(sorted({r['date'] for r in own}))} | {wrong} |"
        )
    lines += ["", "| check | judged | false alarms | true of random weights | warnings |", "|---|---|---|---|---|"]
    silent = 0
    for name in dict.fromkeys(n for r in proven for n in r["verdicts"]):
        told = [r["verdicts"][name]["verdict"] for r in proven if name in r["verdicts"]]
        wrong = sum(name in false_alarms(r) for r in proven)
        judged = sum(v in ("pass", "warn", "fail") for v in told)
        if told.count("fail") or told.count("warn") or judged < len(proven):
            true = told.count("fail") - wrong
            lines.append(f"| `{name}` | {judged} | {wrong} | {true} | {told.count('warn')} |")
        else:
            silent += 1
    lines.append(f"| {silent} others | {len(proven)} each | 0 | 0 | 0 |")
    # (Lines from before there was a control say less.)
    lines += ["", *_faults_table([r for r in records if r["kind"] == "fault" and "without" in r])]
    factors = sorted(max(a / b, b / a) for a, b in _forecasts(records))
    if factors:
        close = sum(f <= 1.5 for f in factors)
        lines += [
            "",
            f"Forecasts: {close} of {len(factors)} steps within a factor of 1.5, worst {factors[-1]:.2f}.",
        ]
    others = Counter(
        r["kind"] if r["kind"] in ("skipped", "broken") else "not proven"
        for r in records
        if r["kind"] in ("skipped", "broken") or not r.get("proven", True)
    )
    return "\n".join(lines) + f"\n\nNot counted: {dict(others) or 'none'}."


def _forecasts(records: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    """Seconds of a step that were foretold and that it took."""
    for record in records:
        if record["kind"] == "trained" and "forecast_s" in record["evidence"]:
            yield record["evidence"]["forecast_s"], record["evidence"]["step_s"]


def _faults_table(records: Iterable[dict[str, Any]]) -> list[str]:
    records = list(records)
    lines = ["| id | fault | put in | found | models |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(r["fault"] for r in records):
        own = [r for r in records if r["fault"] == name]
        models = ", ".join(sorted({r["model"] for r in own}))
        lines.append(
            f"| {', '.join(own[0]['wanted'])} | {name} | {len(own)} | {sum(r['found'] for r in own)} | {models} |"
        )
    total, found = len(records), sum(r["found"] for r in records)
    return [*lines, "", f"{found} of {total} faults found ({found / max(total, 1):.1%})."]


if __name__ == "__main__":
    main()
