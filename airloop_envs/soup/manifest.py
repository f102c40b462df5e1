"""The fixed tasks of the bench split, by hash: `python -m airloop_envs.soup.manifest check` (or `make`).

`check` makes every task anew and compares: it fails when a change would make another task of the same kind and
seed. Such a change invalidates every published figure, so `make` refuses to change an entry that exists unless told
to with --replace; it adds the tasks of new kinds.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from airloop.errors import AirError
from airloop.files import write_atomically
from airloop_envs.soup.generate import KINDS, MANIFEST, SEEDS, generate

PER_KIND = 8

Entry = dict[str, Any]


def read() -> list[Entry]:
    entries: list[Entry] = json.loads(MANIFEST.read_text(encoding="utf-8"))["tasks"]
    return entries


def entries() -> list[Entry]:
    """What the generator makes now, seed by seed over all kinds."""
    return [
        {"kind": kind, "seed": seed, "sha256": generate(kind, seed).digest()}
        for seed in SEEDS["bench"][:PER_KIND]
        for kind in KINDS
    ]


def changed(was: list[Entry], now: list[Entry]) -> list[str]:
    """The tasks of `was` that are not the same any more, or are gone."""
    made = {(entry["kind"], entry["seed"]): entry["sha256"] for entry in now}
    return [f"{e['kind']}-{e['seed']}" for e in was if made.get((e["kind"], e["seed"])) != e["sha256"]]


def make(replace: bool) -> str:
    was, now = read() if MANIFEST.exists() else [], entries()
    if (different := changed(was, now)) and not replace:
        raise AirError(
            f"{len(different)} tasks of the manifest would change, among them {', '.join(different[:5])}.",
            "undo the change to these kinds and add a kind instead; --replace gives up all earlier figures.",
        )
    if not replace:  # what is there stays where it is: a slice of the bench is the same slice for ever
        known = {(entry["kind"], entry["seed"]) for entry in was}
        now = [*was, *(entry for entry in now if (entry["kind"], entry["seed"]) not in known)]
    lines = ",\n".join("  " + json.dumps(entry) for entry in now)
    write_atomically(MANIFEST, lambda file: file.write(f'{{"tasks": [\n{lines}\n]}}\n'.encode()))
    return f"{MANIFEST.name}: {len(now)} tasks of {len(KINDS)} kinds, {len(now) - len(was)} of them new"


def check() -> str:
    was, now = read(), entries()
    if different := changed(was, now):
        raise AirError(
            f"{len(different)} of {len(was)} tasks are not what they were, among them {', '.join(different[:5])}.",
            "a kind, boilerplate or the vocabulary has changed: undo it; what is new is added as a kind of its own.",
        )
    if len(was) != len(now):
        raise AirError(
            f"{len(now) - len(was)} tasks are not in the manifest.", "run python -m airloop_envs.soup.manifest make."
        )
    return f"{MANIFEST.name}: all {len(was)} tasks are what they were"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m airloop_envs.soup.manifest", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("check", "make"))
    parser.add_argument("--replace", action="store_true", help="change tasks that the manifest already has")
    asked = parser.parse_args()
    try:
        print(make(asked.replace) if asked.what == "make" else check())
    except AirError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
