"""How other people's configs fare: every RL TOML below a folder (a checkout of prime-rl, say) is loaded, the
corrections are applied as they are printed, by rule and not by understanding, and what the file said is compared with
what the loaded config says.

    python bench/configs.py CHECKOUT [--show] [--env arith]

A file counts as "same" if one round of corrections gives a config that loads and trains what the file said: group size,
LoRA or full, learning rate, steps, batch, rank. An environment that air does not have must be refused by its name, and
is replaced by a stand-in afterwards, as a user would replace it by one of his own. What has no equivalent is a choice
that the user is asked for: it is counted, and taken by leaving the key out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.config import Config, load_config
from airloop.config.lines import key_lines
from airloop.config.toml import toml_key, toml_value
from airloop.errors import AirError

STAND_IN = "arith"
NOT_KNOWN = re.compile(r"the environment '([^']*)' is not known here|names a model and (no) environment")
ASKED = re.compile(r"your choice: write ([\w.]+) = ")
# What the keys that the user is asked for become here, for the comparison to go on.
DECIDED = {"max_steps": 7, "orchestrator.rollouts_per_example": 2}
KeyPath = tuple[str | int, ...]


@dataclass
class Told:
    """One mistake as it was printed."""

    problem: str
    fix: str
    lines: str  # of TOML

    @property
    def is_choice(self) -> bool:
        return self.fix.startswith("your choice")


@dataclass
class Outcome:
    file: str
    mistakes: int = 0
    choices: int = 0
    unknown: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)  # mistakes of a second round
    differs: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.second:
            return "not in one round"
        if self.differs:
            return "another run"
        return "loads as it is" if not self.mistakes else "same"


def printed(text: str) -> list[Told]:
    """The mistakes of a refusal, from its text alone."""
    blocks = re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)[1:] or [f"1. {text}"]
    found = []
    for block in blocks:
        problem, _, rest = block.partition("\n  fix: ")
        head, *lines = rest.splitlines() or [""]
        toml = "\n".join(line[4:] for line in lines if line.startswith("    "))
        found.append(Told(problem.partition(". ")[2], head, toml))
    return found


def corrected(text: str, name: str, told: list[Told]) -> dict[str, Any]:
    """The file's tree with every printed correction made."""
    tree, lines = tomllib.loads(text), key_lines(text)
    headers = set(re.findall(r"^\s*\[([^\[\]]+)\]", text, flags=re.MULTILINE))
    gone = [(_named(mistake, name, lines), mistake) for mistake in told]
    for path, mistake in gone:
        if NOT_KNOWN.search(mistake.problem) or ASKED.match(mistake.fix):
            continue
        if path is not None and (mistake.lines or re.search("delete|take it out", mistake.fix)):
            _remove(tree, path, headers)
    for path, mistake in gone:
        if mistake.lines:
            _merge(tree, tomllib.loads(mistake.lines), path)
    return tree


def _named(mistake: Told, name: str, lines: dict[KeyPath, int]) -> KeyPath | None:
    found = re.match(re.escape(name) + r":(\d+): (?:\[+([^\]]+)\]+|([\w.\"-]+) = )", mistake.problem)
    if found is None:
        return None
    last = (found[2] or found[3]).strip('"').split(".")[-1]
    here = [path for path, line in lines.items() if line == int(found[1])]
    fits = [path for path in here if last in map(str, path[-2:])]
    if found[2] is not None:  # of a header, the table that is named
        dotted = found[2].split(".")
        fits = [path for path in fits if [str(part) for part in path if not isinstance(part, int)] == dotted]
        return max(fits, key=len, default=None)
    return next(iter(fits), None)


def _remove(tree: Any, path: KeyPath, headers: set[str]) -> None:
    trail = [tree]
    for part in path[:-1]:
        trail.append(trail[-1][part])
    if isinstance(trail[-1], list):
        trail[-1][int(path[-1])] = {}
    else:
        trail[-1].pop(path[-1], None)
    for depth in range(len(path) - 1, 0, -1):  # a table around it that has no header of its own is gone with it
        if any(trail[depth]) or ".".join(map(str, path[:depth])) in headers:
            return
        trail[depth - 1].pop(path[depth - 1], None)


def _merge(tree: dict[str, Any], more: dict[str, Any], path: KeyPath | None) -> None:
    for key, value in more.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = tree.setdefault(key, [])
            entries[:] = [entry for entry in entries if entry]
            if "id" in value[0]:
                entries += value
            else:
                entries[path[2] if path and len(path) > 2 and isinstance(path[2], int) else 0].update(value[0])
        elif isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value, path)
        else:
            tree[key] = value


def to_text(tree: dict[str, Any], name: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if not _tables(value):
            yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in tree.items():
        full = f"{name}.{toml_key(key)}".lstrip(".")
        for table in (value if isinstance(value, list) else [value]) if _tables(value) else []:
            if isinstance(value, list) or not table or not all(_tables(inner) for inner in table.values()):
                yield f"[[{full}]]" if isinstance(value, list) else f"[{full}]"
            yield from to_text(table, full)


def _tables(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)
    )


def at(tree: Any, *path: str) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def said(tree: dict[str, Any]) -> dict[str, Any]:
    """What a file of prime-rl trains, read by its own rules; None where it says nothing that counts."""
    lora = at(tree, "trainer", "model", "lora") or at(tree, "trainer", "model", "experimental", "lora")
    o = tree.get("orchestrator", {})
    group = o.get("group_size", o.get("rollouts_per_example"))
    lengths = [n for n in (o.get("seq_len", tree.get("seq_len")), at(tree, "inference", "model", "max_model_len")) if n]
    sampling = {**(at(o, "sampling") or {}), **(at(o, "train", "sampling") or {})}
    return {
        "model": at(tree, "model", "name") or at(tree, "trainer", "model", "name"),
        "max_steps": tree.get("max_steps"),
        "group": group if group != 1 else None,
        "batch": o.get("batch_size"),
        "train": "lora" if lora is not None else "full",
        "rank": (lora or {}).get("rank", 16) if lora is not None else None,
        "alpha": (lora or {}).get("alpha", 32) if lora is not None else None,
        "lr": at(tree, "trainer", "optim", "lr") or 1e-6,
        "max_tokens": sampling.get("max_completion_tokens", sampling.get("max_tokens")),
        "temperature": sampling.get("temperature", 1.0),
        "weight_decay": at(tree, "trainer", "optim", "weight_decay") if at(tree, "trainer", "optim") else 0.01,
        "seq_len": min(lengths) if lengths else None,
        "checkpoints": at(tree, "ckpt", "interval"),
        "evaluations": at(o, "eval", "interval"),
    }


def loaded(config: Config) -> dict[str, Any]:
    o, t = config.orchestrator, config.trainer
    return {
        "model": config.model.name,
        "max_steps": config.max_steps,
        "group": o.rollouts_per_example,
        "batch": o.batch_size,
        "train": t.model.train,
        "rank": t.model.lora.rank,
        "alpha": t.model.lora.alpha,
        "lr": t.optim.lr,
        "max_tokens": o.sampling.max_tokens,
        "temperature": o.sampling.temperature,
        "weight_decay": t.optim.weight_decay,
        "seq_len": config.seq_len,
        "checkpoints": config.ckpt.interval,
        "evaluations": o.eval.interval,
    }


def env_names(tree: dict[str, Any]) -> list[str]:
    o = tree.get("orchestrator", {})
    entries = [*(at(o, "train", "source") or []), *(at(o, "train", "env") or []), *(o.get("env") or [])]
    ids = [at(e, "env", "taskset", "id") or at(e, "taskset", "id") or e.get("id") for e in entries]
    return [name for name in ids if name]


def _load(tree: dict[str, Any], folder: Path) -> tuple[Config | None, list[Told]]:
    file = folder / "corrected.toml"
    file.write_text("\n".join(to_text(tree)) + "\n")
    try:
        return load_config(["@", str(file)]), []
    except AirError as error:
        return None, printed(str(error))


def follow(file: Path, folder: Path) -> Outcome:
    text = file.read_text()
    outcome = Outcome(str(file))
    told: list[Told] = []
    try:
        load_config(["@", str(file)])
    except AirError as error:
        told = printed(str(error))
    outcome.mistakes, outcome.choices = len(told), sum(mistake.is_choice for mistake in told)
    outcome.unknown = [m[1] or m[2] for mistake in told if (m := NOT_KNOWN.search(mistake.problem))]
    outcome.choices -= len(outcome.unknown)
    tree = corrected(text, str(file), told)
    config, again = _load(tree, folder)
    named = [NOT_KNOWN.search(mistake.problem) for mistake in again]
    asked = [found[1] if (found := ASKED.match(mistake.fix)) else None for mistake in again]
    left = [m.problem for m, name, key in zip(again, named, asked, strict=True) if not (name or key)]
    if sorted(m[1] or m[2] for m in named if m) != sorted(outcome.unknown):
        left.append(f"environments refused: {outcome.unknown}, then {[m[0] for m in named if m]}")
    outcome.second = left
    if config is None and not left:
        config, again = _load(_stand_in(tree, [key for key in asked if key]), folder)
        outcome.second = [mistake.problem for mistake in again]
    if config is not None:
        outcome.differs = _compare(tomllib.loads(text), config, outcome)
    return outcome


def _stand_in(tree: dict[str, Any], asked: list[str]) -> dict[str, Any]:
    o = tree["orchestrator"]
    o["env"] = [{"id": STAND_IN}]
    for name in ("source", "env"):
        if isinstance(o.get("train"), dict):
            o["train"].pop(name, None)
    if not o.get("train", True):
        del o["train"]
    o.pop("group_size", None)
    for key in asked:
        _merge(tree, tomllib.loads(f"{key} = {DECIDED[key]}"), None)
    return tree


def _compare(tree: dict[str, Any], config: Config, outcome: Outcome) -> list[str]:
    theirs, ours = said(tree), loaded(config)
    differs = [f"{key}: {v} became {ours[key]}" for key, v in theirs.items() if v is not None and v != ours[key]]
    known = [name for name in env_names(tree) if name not in outcome.unknown]
    if not outcome.unknown and len(known) != len(config.orchestrator.env):
        differs.append(f"environments: {known} became {[env.id for env in config.orchestrator.env]}")
    return differs


def renamed(file: Path, env: str, folder: Path) -> Path:
    """The file with every environment that it trains on called `env`: how its tables fare where the name is known."""
    tree = tomllib.loads(file.read_text())
    o = tree["orchestrator"]
    for entry in [*(at(o, "train", "source") or []), *(at(o, "train", "env") or []), *(o.get("env") or [])]:
        (at(entry, "env", "taskset") or at(entry, "taskset") or entry)["id"] = env
    copy = folder / "renamed.toml"
    copy.write_text("\n".join(to_text(tree)) + "\n")
    return copy


def rl_files(root: Path) -> list[Path]:
    found = []
    for file in sorted(root.rglob("*.toml")):
        try:
            tree = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            continue
        if isinstance(tree.get("orchestrator"), dict):
            found.append(file)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--show", action="store_true", help="what differs or comes in a second round, in full")
    parser.add_argument("--env", default="", help="an environment of air that every one in the files is called")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for file in rl_files(options.checkout):
            read = renamed(file, options.env, Path(folder)) if options.env else file
            outcomes.append(outcome := follow(read, Path(folder)))
            name = str(file.relative_to(options.checkout))
            envs = ", ".join(dict.fromkeys(outcome.unknown)) or "-"
            print(f"{name:62.62} {outcome.mistakes:3} {outcome.choices:3}  {outcome.verdict:18} {envs}")
            for line in [*outcome.second, *outcome.differs] if options.show else []:
                print(f"    {line}")
    counts = Counter(outcome.verdict for outcome in outcomes)
    unknown = sum(bool(outcome.unknown) for outcome in outcomes)
    choices = sum(outcome.choices > 0 for outcome in outcomes)
    said_so = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{len(outcomes)} RL files: {said_so}; {unknown} name an unknown environment, {choices} ask for choices")
    sys.exit(0 if set(counts) <= {"same", "loads as it is"} else 1)


if __name__ == "__main__":
    main()
