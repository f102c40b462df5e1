"""The viewer with many episodes: how long the index takes, and how long any list and any episode take to come.

python bench/view.py                    # 100,000 episodes, about 1.4 GB in a temporary directory
python bench/view.py --episodes 5000
python bench/view.py --keep DIR         # written there and kept; written before, used again

Times are of whole requests over HTTP on this machine, from the question to the last byte. The column CPU is what this
process, which asks and answers, computed for the slowest: on a busy machine it tells what the times would be on a quiet
one. Exits with 1 if a list takes 200 ms or more, or an episode 300 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from view_runs import RARE, Writer, check_form, write_tokenizer

from airloop_view.server import Options, Viewer, serving

RUNS = 10
LIST_MS = 200.0
EPISODE_MS = 300.0
REPEATS = 5
LOOKED_AT = 40  # episodes opened


def machine() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


@contextmanager
def clocked(what: str) -> Iterator[None]:
    began = time.perf_counter()
    print(f"{what} …", file=sys.stderr, flush=True)
    yield
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)


class Client:
    def __init__(self, viewer: Viewer) -> None:
        self.url = f"http://127.0.0.1:{viewer.port}"
        self.slowest: dict[str, float] = {}

    def get(self, path: str, **values: object) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}?{urlencode(values, doseq=True)}") as answer:
            return json.loads(answer.read())

    def time(self, kind: str, name: str, path: str, **values: object) -> None:
        """Prints the median and the longest of several; the longest counts."""
        address = f"{self.url}{path}?{urlencode(values, doseq=True)}"
        times, busy = [], []
        for _ in range(REPEATS):
            began, used = time.perf_counter(), time.process_time()
            with urllib.request.urlopen(address) as answer:
                size = len(answer.read())
            times.append(1000 * (time.perf_counter() - began))
            busy.append(1000 * (time.process_time() - used))
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), max(times))
        print(
            f"  {name:42s} {statistics.median(times):8.1f} {max(times):8.1f} {max(busy):8.1f} {size / 1024:9.1f}",
            flush=True,
        )


def lists(client: Client, common: str, phrase: str, run: str) -> None:
    ask = {"limit": 100}
    total = client.get("/api/trajectories", limit=1)["total"]
    chosen: dict[str, dict[str, object]] = {
        "all, newest first": {},
        "the last page": {"offset": total - 50},
        "one run": {"run": run},
        "three runs": {"run": [f"exp1.{i}-bench-0101" for i in range(3)]},
        **{f"by {name}": {"sort": name, "desc": 0} for name in ("reward", "advantage", "tokens", "seconds", "task")},
        "by run, ascending": {"sort": "run", "desc": 0},
        "one task": {"task": "task-7"},
        "one family": {"task": "kind-3", "sort": "reward"},
        "one step": {"source": "step_0003"},
        "versions 5-40": {"version": "5-40"},
        "ending max_turns": {"ending": "max_turns"},
        "fate": {"fate": "trained"},
        "rewards 0.9 to 1": {"min": 0.9, "max": 1.0},
        "under an alarm": {"alarm": "F1"},
        "search: a word of nearly all": {"q": common},
        "search: two words": {"q": f"{common} train"},
        "search: a phrase": {"q": f'"{phrase}"'},
        "search: beginnings of words": {"q": "bar* bel*"},
        "search: one episode's word": {"q": RARE},
        "search: no such word": {"q": "xyzzyx"},
        "search, filters and sort": {"q": common, "ending": "done", "min": 0.2, "task": "kind-1", "sort": "tokens"},
    }
    for name, values in chosen.items():
        client.time("list", name, "/api/trajectories", **ask, **values)


def episodes(client: Client, special: str, run: str) -> None:
    rng = random.Random(0)
    total = client.get("/api/trajectories", limit=1)["total"]
    client.time("episode", "five megabytes on one line", "/api/trajectory", run=run, id=special)
    client.time("episode", "the same, its tokens", "/api/tokens", run=run, id=special)
    times = []
    for _ in range(LOOKED_AT):
        row = client.get("/api/trajectories", limit=1, offset=rng.randrange(total))["rows"][0]
        for path in ("/api/trajectory", "/api/tokens"):
            began = time.perf_counter()
            client.get(path, run=row["run"], id=row["id"])
            times.append(1000 * (time.perf_counter() - began))
    client.slowest["episode"] = max(client.slowest["episode"], *times)
    print(f"  {f'{LOOKED_AT} others and their tokens':42s} {statistics.median(times):8.1f} {max(times):8.1f}")
    row = client.get("/api/trajectories", limit=1, offset=total // 2)["rows"][0]
    place = {"run": row["run"], "id": row["id"]}
    client.time("list", "neighbours", "/api/neighbours", **place)
    client.time("list", "neighbours by reward, searched", "/api/neighbours", **place, sort="reward", q="train")
    client.time("episode", "its group", "/api/group", run=row["run"], source=row["source"], task=row["task"])


def write(root: Path, episodes: int, seed: int) -> tuple[Writer, list[Path], str]:
    """The runs, which are written unless they are there, and the name of the episode with the long line."""
    runs = [root / f"exp1.{i}-bench-0101" for i in range(RUNS)]
    there = all(run.is_dir() for run in runs)
    model = root.parent / "model"
    writer = Writer(model if there else write_tokenizer(model), seed)
    if not there:
        with clocked("written"):
            for run in runs:
                writer.write_run(root, run.name, episodes // RUNS)
            writer.write_special(runs[3])
    check_form(next(iter((runs[0] / "trajectories" / "step_0000").glob("*.json"))))
    return writer, runs, min((runs[3] / "trajectories" / "step_0001").glob("*.json")).stem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a directory")
    given = parser.parse_args()
    print(f"{given.episodes} episodes; {machine()}")
    with tempfile.TemporaryDirectory(prefix="air-bench-view-") as scratch:
        os.environ["AIR_CACHE"] = str(Path(scratch) / "cache")
        root = (given.keep or Path(scratch)).resolve() / "outputs"
        writer, runs, special = write(root, given.episodes, given.seed)
        client = measure(root, Path(scratch) / "cache" / "view", writer, runs[3].name, special)
    print(f"slowest list {client.slowest['list']:.0f} ms, slowest episode {client.slowest['episode']:.0f} ms")
    sys.exit(client.slowest["list"] >= LIST_MS or client.slowest["episode"] >= EPISODE_MS)


def measure(root: Path, cache: Path, writer: Writer, run: str, special: str) -> Client:
    common, phrase = writer.vocabulary[0], " ".join(writer.parts[0][2].split()[:3])
    with clocked("indexed, from nothing"), serving(Options(root), wait_for_index=False) as viewer:
        viewer.watch.looked_once.wait()
    print(f"size of the index: {sum(f.stat().st_size for f in cache.iterdir()) / 2**20:.0f} MiB")
    with clocked("looked through again, nothing new"), serving(Options(root), wait_for_index=False) as viewer:
        viewer.watch.looked_once.wait()
    with serving(Options(root), wait_for_index=False) as viewer:
        viewer.watch.looked_once.wait()
        client = Client(viewer)
        print(f"  {'':42s} {'median':>8s} {'longest':>8s} {'CPU':>8s} {'KiB':>8s}   (ms of {REPEATS})")
        lists(client, common, phrase, run)
        episodes(client, special, run)
        client.time("page", "table of runs", "/api/runs")
        client.time("page", "a run's page", "/api/run", run=run)
    return client


if __name__ == "__main__":
    main()
