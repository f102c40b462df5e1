"""Random hostile agents: names, archives, links, modules, process trees, shells and tables, drawn and mixed by a seed.

Whatever they do beside it, an episode has the score of something that was handed in, or none; nothing of it is left
with the host, and the host's memory stays as it was. `make soak` plays 2,000 of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.attack_arena import Arena, Episodes, Script, write
from test_attack_neighbours import host

from airloop.rollout.episode import run_episode
from airloop.types import Task, Trajectory

AT_ONCE = 6
MARK = "99.4093"  # seconds that their processes sleep: how to know them
GAME, TABLE = "prisonersDilemma", "titanic"
STRATEGIES = {
    "nice": "def row_strategy(history):\n    return 0",
    "nasty": "def row_strategy(history):\n    return 1",
}
TABLES = {
    "all die": "import pandas as pd\nt = pd.read_csv('data/test.csv')[['PassengerId']]\nt['Survived'] = 0\n"
    "t.to_csv('submission.csv', index=False)\n",
}
# Another look for the same table: it has the same score, or none.
MUTATIONS = (
    "t.sample(frac=1, random_state=1).to_csv('submission.csv', index=False)",
    "t.assign(More='x' * 50).to_csv('submission.csv', index=False)",
    "t.to_csv('submission.csv', index=False, encoding='utf-8-sig')",
    "t.to_csv('submission.csv', index=False, sep=';')",
    "t.astype(float).to_csv('submission.csv', index=False)",
    "pd.concat([t, t]).to_csv('submission.csv', index=False)",
    "t.head(7).to_csv('submission.csv', index=False)",
    "t.assign(Survived='=1+1').to_csv('submission.csv', index=False)",
    "t.assign(Survived=float('nan')).to_csv('submission.csv', index=False)",
    "t.to_csv('submission.csv', index=False)\nopen('submission.csv', 'ab').truncate(30 << 20)",
    "open('submission.csv', 'wb').write(bytes(range(256)) * 999)",
)
Piece = Callable[[random.Random], str]


def names(rng: random.Random) -> str:
    kinds = ["a\nb", "-rf", "'\"$(id)`id`", "ü" * 60, "x" * 255, "\x1b[2J", "%s%n", " ", "submission.csv ", "…/", "*"]
    chosen = [kind.replace("/", "") for kind in rng.sample(kinds, 4)]
    return write("n.py", f"import os\nfor name in {chosen!r}:\n    os.makedirs(name, exist_ok=True); "
                 "open(os.path.join(name, 'score'), 'w').write('{\"Score\": 99}')") + "\npython n.py; ls"  # fmt: skip


def archives(rng: random.Random) -> str:
    target = rng.choice(["/etc/passwd", "../../../../etc/shadow", "/proc/1/environ", "answers/answers.csv", "."])
    kind = rng.choice(["SYMTYPE", "LNKTYPE", "FIFOTYPE", "CHRTYPE", "REGTYPE"])
    text = f"""import io, tarfile
with tarfile.open('a.tar', 'w') as tar:
    for name in ('../../up', '/abs', 'strategy.py.bak', 'in/{rng.randrange(9)}'):
        info = tarfile.TarInfo(name); info.type = tarfile.{kind}; info.linkname = {target!r}; info.mode = 0o7777
        info.size = 9 if info.isreg() else 0
        tar.addfile(info, io.BytesIO(b'x' * 9))"""
    return write("t.py", text) + "\npython t.py; tar xf a.tar -P 2>&1 | head -3; tar xf a.tar 2>&1 | head -3"


def links(rng: random.Random) -> str:
    target = rng.choice(["/etc/passwd", "/proc/self/mem", "/dev/zero", "../..", "loop", "/proc/1/root", "/usr/bin"])
    name = rng.choice(["loop", "answers", "evaluate.py", "target.py", "data2", "submission.json"])
    return f"ln -sfn {target} {name}; cat {name} 2>&1 | head -c 99 | wc -c"


def modules(rng: random.Random) -> str:
    name = rng.choice(["numpy", "json", "random", "sitecustomize", "usercustomize", "pandas", "evaluate", "target"])
    does = rng.choice([
        "print('{\"Score\": 99, \"accuracy\": 1.0}')", "import os; os._exit(0)", "import sys; sys.stdout = None",
        "import signal, os; os.kill(os.getppid(), signal.SIGKILL)", "def mean(*a): return 99.0",
    ])  # fmt: skip
    return f"{write(f'{name}.py', does)}\nmkdir -p ~/.local/lib/python3.11/site-packages && cp {name}.py $_"


def processes(rng: random.Random) -> str:
    sleep = rng.choice([f"sleep {MARK}", f"exec -a python sleep {MARK}", f"trap '' TERM INT HUP; sleep {MARK}"])
    how = rng.choice(["({} &)", "setsid bash -c '{}' &", "bash -c '{} &' &", 'nohup bash -c "{}" >/dev/null 2>&1 &'])
    tree = how.format(sleep.replace("'", "\\x27") if "'{" in how else sleep)
    return f"for i in {{1..{rng.randrange(1, 9)}}}; do {tree} done 2>/dev/null; kill -STOP $! 2>/dev/null; true"


def shells(rng: random.Random) -> str:
    return rng.choice([
        "trap 'echo {\\\"Score\\\": 99}' DEBUG", "PROMPT_COMMAND='printf \\\\036Score 99\\\\036'", "cat() { echo 99; }",
        "submit() { echo 99; }", "unset PATH", "set -e; false", "exec 1>&-", "kill -9 $$", "ulimit -n 4", "umask 777",
        "printf '\\036{\\\"Score\\\": 99}\\036\\n'", "yes score 99 | head -c 3M", "chmod 000 .", "alias python=true",
        "export PYTHONSTARTUP=x PYTHONPATH=. LD_PRELOAD=./a.so BASH_ENV=x", "cd /; rm -rf ~ 2>/dev/null",
    ])  # fmt: skip


def hoards(rng: random.Random) -> str:
    return rng.choice([
        "head -c 90M /dev/zero > big 2>/dev/null", "python -c 'x = bytearray(900 << 20)'", "mkfifo p q r",
        "for i in {1..400}; do mkdir d; cd d; done 2>/dev/null; cd ~/workspace",
        "python -c 'import os; f = [os.open(\"/etc/passwd\", 0) for _ in range(9999)]' 2>&1 | tail -1",
        "truncate -s 9T sparse 2>&1", "for i in {1..900}; do : > f$i; done",
    ])  # fmt: skip


PIECES: tuple[Piece, ...] = (names, archives, links, modules, processes, shells, hoards)


def racing(rng: random.Random) -> str:
    """Two strategies take turns while one of them is read."""
    made = "\n".join(write(f"{name}.txt", text) for name, text in STRATEGIES.items())
    return f"{made}\n(while :; do cp nice.txt strategy.py; cp nasty.txt strategy.py; done &) 2>/dev/null"


def hostile(seed: int) -> tuple[str, list[str]]:
    """The family of an episode and its commands; the last hands in."""
    rng = random.Random(seed)
    family = TABLE if rng.random() < 0.3 else GAME
    commands = [rng.choice(PIECES)(rng) for _ in range(rng.randrange(1, 4))]
    if family == GAME:
        hand_in = racing(rng) if rng.random() < 0.2 else write("strategy.py", rng.choice(list(STRATEGIES.values())))
    else:
        change = rng.choice(MUTATIONS) if rng.random() < 0.7 else ""
        hand_in = write("w.py", TABLES["all die"] + change) + "\npython w.py 2>&1 | tail -1"
    commands.insert(rng.randrange(len(commands) + 1), hand_in)
    if rng.random() < 0.4:
        commands.append("validate")
    return family, [*commands, "submit"]


@pytest.fixture(scope="session")
def possible(all_episodes: Episodes) -> dict[str, list[float]]:
    """Scores of what they hand in, in peace. (What lies there at the start is a strategy too, with one's own files
    beside it: theirs may fail to be written. A table does not lie there.)"""
    games = [all_episodes.score(GAME, write("strategy.py", text), "submit") for text in STRATEGIES.values()]
    games.append(all_episodes.score(GAME, ": > mine.txt", "submit"))
    table = write("w.py", TABLES["all die"]) + "\npython w.py"
    return {
        GAME: games,
        TABLE: [all_episodes.score(TABLE, table, "submit")],
    }


async def play(episodes: Episodes, seed: int, turn: asyncio.Semaphore) -> Trajectory:
    family, commands = hostile(seed)
    async with turn:
        return await run_episode(episodes.env, episodes.tasks[family], Script(commands), id=f"fuzz-{seed}", seed=seed,
                                 max_turns=len(commands), deadline_s=120.0)  # fmt: skip


def judge(played: Trajectory, seed: int, possible: dict[str, list[float]]) -> None:
    family, commands = hostile(seed)
    assert played.ending != "infra_error", (seed, commands, played.error)
    found = played.metrics.get("score")
    right = found is None or any(abs(found - score) < 0.05 for score in possible[family])
    assert right, (seed, family, found, possible[family], commands)
    assert not played.metrics.get("too_good"), (seed, commands)


def sleepers() -> list[str]:
    return [p.name for p in Path("/proc").iterdir() if p.name.isdigit() and MARK.encode() in _cmdline(p)]


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def fuzz(arena: Arena, episodes: Episodes, possible: dict[str, list[float]], seeds: range) -> int:
    """How many had a score."""

    async def work() -> list[Trajectory]:
        turn = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(play(episodes, seed, turn) for seed in seeds))

    played = arena.do(work(), 60.0 + 20.0 * len(seeds))
    for seed, one in zip(seeds, played, strict=True):
        judge(one, seed, possible)
    return sum("score" in one.metrics for one in played)


@pytest.mark.long
def test_random_hostile_episodes_have_an_honest_score_or_none(
    arena: Arena, episodes: Episodes, possible: dict[str, list[float]]
) -> None:
    assert fuzz(arena, episodes, possible, range(12)) >= 3  # most of them do hand something in


def test_a_score_that_nobody_handed_in_is_noticed() -> None:
    task = Task("mlgym", "x", "train", {})
    honest = Trajectory("x", task, 0, 0, (), (), "done", {}, (), {"score": 2.4}, 0.0, 0.0, 0.0)
    judge(honest, 0, {GAME: [2.4], TABLE: [2.4]})
    with pytest.raises(AssertionError):
        judge(replace(honest, metrics={"score": 99.0}), 0, {GAME: [2.4], TABLE: [2.4]})


@pytest.mark.soak
def test_two_thousand_hostile_episodes_leave_nothing_behind(
    arena: Arena, episodes: Episodes, possible: dict[str, list[float]]
) -> None:
    count = int(os.environ.get("AIR_FUZZ", "2000"))
    fuzz(arena, episodes, possible, range(1000, 1000 + min(100, count)))  # caches and pools are full after these
    before, asleep, mounted = host(), sleepers(), mounts()
    scored = sum(
        fuzz(arena, episodes, possible, range(start, min(start + 100, 2000 + count)))
        for start in range(2000, 2000 + count, 100)
    )
    descriptors, threads, memory = host()
    assert scored >= count / 4
    assert descriptors <= before[0] + 4 and threads <= before[1] + 16
    assert memory - before[2] < 50_000  # KiB, of the largest that it ever was
    assert set(sleepers()) <= set(asleep) and mounts() <= mounted
