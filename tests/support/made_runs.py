"""Runs put together by hand, in air's own form: many kinds of episodes, and hostile ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airloop.config import load_config, to_toml
from airloop.runs.trajectory_file import to_json
from airloop.types import Action, Branch, Ending, Observation, Sampled, Task, Times, Trajectory, Turn

CONFIG = """\
max_steps = 4
output_dir = "OUT"
[model]
name = "tiny:llama"
[[orchestrator.env]]
id = "arith"
"""
SCRIPT = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
HOSTILE = {
    "html": SCRIPT,
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J",
    "nul": "before\x00after\x08\x7f",
    "turned": "safe \u202e txt.exe \u2066 hidden \u200b",
    "half": "half a character \ud800 here",
    "words": "NEAR OR AND NOT \"open quote * ^ : - ( ) {x} ' ; DROP TABLE trajectories; --",
}


def episode(
    id: str,
    replies: Sequence[str] = ("hello",),
    *,
    task: str = "0+1",
    family: str = "",
    prompt: str = "What is 0+1?",
    seen: Sequence[str] = (),
    actions: Sequence[Action] = (),
    ending: Ending = "done",
    reward: float = 0.0,
    version: int = 0,
    started: float = 1.8e9,
    seconds: float = 1.0,
    error: str = "",
) -> Trajectory:
    turns = []
    for place, reply in enumerate(replies):
        shown = prompt if place == 0 else (seen[place - 1] if place - 1 < len(seen) else "go on")
        action = actions[place] if place < len(actions) else Action("text", reply)
        answer = Observation(seen[place] if place < len(seen) else "", {"valid": 1.0}, done=place + 1 == len(replies))
        ids = (*reply.encode("utf-8", "replace")[:40], 257)
        sampled = Sampled(ids, tuple(-0.1 * (i + 1) for i in range(len(ids))), "stop", version)
        message: Any = {"role": "assistant", "content": reply}
        turns.append(
            Turn(({"role": "user", "content": shown},), message, sampled, (action,), (answer,), Times(0.1, 0.2, 0.3))
        )
    return Trajectory(
        id=id,
        task=Task("arith", task, "train", {"a": 1}, family),
        seed=1,
        version=version,
        turns=tuple(turns),
        branches=(_branch(turns),),
        ending=ending,
        rewards={"correct": reward},
        turn_rewards=tuple({"valid": 1.0} for _ in turns),
        metrics={
            **({"success": float(reward > 0.5)} if version % 2 == 0 else {}),  # environments need not have it
            "turns": len(turns),
            "sampled_tokens": sum(len(t.sampled.token_ids) for t in turns if t.sampled),
        },
        reward=reward,
        started=started,
        seconds=seconds,
        error=error,
    )


def _branch(turns: Sequence[Turn]) -> Branch:
    tokens, train, logprobs, places = [], [], [], []
    for place, turn in enumerate(turns):
        assert turn.sampled
        prompt = tuple(turn.shown[0]["content"].encode("utf-8", "replace")[:30])
        tokens += [*prompt, *turn.sampled.token_ids]
        train += [False] * len(prompt) + [True] * len(turn.sampled.token_ids)
        logprobs += [0.0] * len(prompt) + list(turn.sampled.logprobs)
        places += [-1] * len(prompt) + [place] * len(turn.sampled.token_ids)
    return Branch(tuple(tokens), tuple(train), tuple(logprobs), tuple(places))


def save(directory: Path, trajectory: Trajectory) -> Path:
    """As a run writes it, but with any text that JSON can hold, halves of characters included."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{trajectory.id}.json"
    path.write_text(json.dumps(to_json(trajectory), ensure_ascii=True) + "\n")
    return path


def start_run(root: Path, name: str = "exp1.0-arith-1115", status: str = "completed", extra: str = "") -> Path:
    run = root / name
    run.mkdir(parents=True)
    source = root / f".{name}.toml"
    source.write_text(CONFIG.replace("OUT", str(root)) + extra)
    (run / "config.toml").write_text(to_toml(load_config(["@", str(source)])))
    source.unlink()
    (run / "status.json").write_text(json.dumps({"status": status, "why": "", "time": 1.8e9}))
    return run


def record(run: Path, step: int, rows: Sequence[dict[str, Any]]) -> None:
    """What training made of a step's episodes."""
    (run / "tokens").mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "tokens" / f"step_{step:04d}.jsonl").write_text(text)


def alarm(run: Path, event: str, step: int, id: str = "F1") -> None:
    row = {"event": event, "time": 1.8e9, "id": id, "name": "entropy_gone", "severity": "note", "step": step}
    with (run / "alarms.jsonl").open("a") as file:
        file.write(json.dumps(row | {"seen": "0.01 nats", "why": "it is low", "fix": "raise it"}) + "\n")


WORDS = ("alpha", "beta", "gamma", "delta", "learning_rate", "0.001", "naïve", "Übung", "train", "training", "error")


def mixed_runs(root: Path, seed: int = 0, count: int = 120) -> list[Path]:
    """Two runs and an evaluation within one, with every kind of value a list can be filtered or sorted by."""
    rng = random.Random(seed)
    runs = [start_run(root, f"exp1.{i}-arith-1115") for i in range(2)]
    made: dict[tuple[Path, int], list[dict[str, Any]]] = {}
    for number in range(count):
        run, step = rng.choice(runs), rng.randrange(4)
        reward = rng.choice([0.0, 0.25, 0.5, 1.0, float("nan")])
        trajectory = episode(
            f"e{number}_pi{step}_20261115T000000_{number}-0",
            [" ".join(rng.choices(WORDS, k=5)) for _ in range(rng.randint(1, 3))],
            task=rng.choice(["0+1", "1+1", "2+3"]),
            family=rng.choice(["small", "large", ""]),
            prompt=" ".join(rng.choices(WORDS, k=3)),
            seen=[" ".join(rng.choices(WORDS, k=4))],
            ending=rng.choice(["done", "max_turns", "infra_error"]),
            reward=reward,
            version=step,
            started=1.8e9 + rng.randrange(50),
            seconds=rng.random(),
        )
        if rng.random() < 0.25:
            save(run / "evaluations" / rng.choice(["before", "after"]), trajectory)
            continue
        save(run / "trajectories" / f"step_{step:04d}", trajectory)
        fate = rng.choice(["trained", "zero advantage", "no_signal"])
        row = {"id": trajectory.id, "reward": reward if reward == reward else None, "fate": fate}
        made.setdefault((run, step), []).append(row | ({"advantage": rng.gauss(0, 1)} if fate == "trained" else {}))
    for (run, step), rows in made.items():
        if step < 3:  # the last step's update is not made yet
            record(run, step, rows)
    alarm(runs[0], "raised", 1)
    alarm(runs[0], "cleared", 2)
    alarm(runs[0], "raised", 3, "E1")
    return runs
