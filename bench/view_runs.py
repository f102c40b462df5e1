"""Runs with many episodes, written fast: in air's own form, put together from parts that were made beforehand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from airloop.config import Config, to_toml
from airloop.runs.trajectory_file import from_json, to_json
from airloop.types import Action, Branch, Observation, Sampled, Task, Times, Trajectory, Turn

PARTS = 400  # turns to choose from
TASKS = 50
GROUP = 8
STEP = 80  # episodes
TOKENS = 60  # sampled in a turn
SHOWN = 220  # tokens of a prompt or an answer
ENDINGS = ("done", "done", "done", "max_turns", "context_full", "infra_error")
RARE = "quokkaberry"  # stands in one episode of all
LONG_LINE = 5_000_000


def words(count: int, rng: random.Random) -> list[str]:
    """A vocabulary in which a few words are everywhere and most are rare."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "il")]
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(count)]


class Writer:
    def __init__(self, model: Path, seed: int = 0) -> None:
        """`model`: a directory with a tokenizer, as a run's config names one."""
        self.model = model
        self.rng = random.Random(seed)
        self.vocabulary = words(20_000, self.rng)
        self.weights = [1 / (i + 1) for i in range(len(self.vocabulary))]
        self.parts = [self._part() for _ in range(PARTS)]
        self.prompts = [self._text(120) for _ in range(TASKS)]

    def _text(self, count: int) -> str:
        return " ".join(self.rng.choices(self.vocabulary, self.weights, k=count))

    def _part(self) -> tuple[str, str, str]:
        """A turn without its first messages, its sampled tokens, and its piece of the branch's tokens, as JSON."""
        command = f"python train.py --note '{self._text(6)}' && cat > notes.txt <<'EOF'\n{self._text(12)}\nEOF"
        reply = f"{self._text(30)}\n```bash\n{command}\n```"
        seen = "\n".join(self._text(9) for _ in range(8))
        turn = Turn(
            shown=({"role": "user", "content": "SHOWN"},),
            reply={"role": "assistant", "content": reply},
            sampled=Sampled(
                tuple(self.rng.randrange(32_000) for _ in range(TOKENS)),
                tuple(-self.rng.random() for _ in range(TOKENS)),
                "stop",
                0,
            ),
            actions=(Action("command", command),),
            observations=(Observation(seen, {"valid": 1.0}),),
            times=Times(0.1, 1.2, 0.4),
        )
        data = to_json(_episode((turn,)))
        return _dump(data["turns"][0]), _dump(data["sampled"][0]), seen

    def write_run(self, root: Path, name: str, episodes: int) -> Path:
        run = root / name
        (run / "tokens").mkdir(parents=True)
        (run / "config.toml").write_text(to_toml(Config.model_validate(_config(root, self.model))))
        (run / "status.json").write_text(json.dumps({"status": "completed", "why": "", "time": 1.8e9}))
        lines = []
        for step in range((episodes + STEP - 1) // STEP):
            count = min(STEP, episodes - step * STEP)
            rewards = self._write_step(run, step, count)
            lines.append(_metrics(step, rewards))
        (run / "metrics.jsonl").write_text("".join(_dump(line) + "\n" for line in lines))
        alarm = {"event": "raised", "time": 1.8e9, "id": "F1", "name": "entropy_gone", "severity": "note"}
        (run / "alarms.jsonl").write_text(_dump(alarm | {"step": 2, "seen": "0.01", "why": "", "fix": ""}) + "\n")
        return run

    def _write_step(self, run: Path, step: int, count: int) -> list[float]:
        directory = run / "trajectories" / f"step_{step:04d}"
        directory.mkdir(parents=True)
        rewards, records = [], []
        for place in range(count):
            task = (step * STEP + place) // GROUP % TASKS
            reward = round(self.rng.gauss(0.3, 0.3), 3)
            id = f"task-{task}_pi{step}_20270101T000000_{place // GROUP}-{place % GROUP}"
            ending = self.rng.choice(ENDINGS)
            (directory / f"{id}.json").write_text(self._episode(id, task, step, reward, ending))
            rewards.append(reward)
            logprobs = [[-0.5] * 8]  # a few: their number does not matter to a list
            fate = {"advantage": reward - 0.3, "fate": "trained", "tokens": {"trained": 8}, "logprobs": logprobs}
            records.append(_dump({"id": id, "reward": reward, "rewards": {"score": reward}, **fate}))
        (run / "tokens" / f"step_{step:04d}.jsonl").write_text("".join(f"{line}\n" for line in records))
        return rewards

    def _episode(self, id: str, task: int, step: int, reward: float, ending: str) -> str:
        chosen = self.rng.choices(self.parts, k=self.rng.randint(2, 6))
        shown = [self.prompts[task], *(seen for _, _, seen in chosen)]
        turns = [turn.replace('"SHOWN"', _dump(text), 1) for (turn, _, _), text in zip(chosen, shown, strict=False)]
        length = len(chosen) * (TOKENS + SHOWN)
        runs = [[0, SHOWN], [1, TOKENS]] * len(chosen)
        places = [pair for i in range(len(chosen)) for pair in ([-1, SHOWN], [i, TOKENS])]
        first = self.rng.randrange(1000, 20_000)
        branch = {
            "tokens": [i % 256 for i in range(first, first + length)],
            "train": runs,
            "turns": places,
            "logprobs": [-0.25] * (TOKENS * len(chosen)),
        }
        head = {
            "schema_version": 2,
            "id": id,
            "task": {
                "env": "mlgym",
                "id": f"task-{task}",
                "family": f"kind-{task % 5}",
                "split": "train",
                "payload": {},
            },
            "ending": ending,
            "error": "the sandbox was lost" if ending == "infra_error" else "",
            "reward": reward,
            "rewards": {"score": reward},
            "turn_rewards": [{"valid": 1.0}] * len(chosen),
            "metrics": {"turns": len(chosen), "sampled_tokens": TOKENS * len(chosen)},
            "version": step,
            "seed": place_seed(id),
            "started": 1.8e9 + 60 * step + self.rng.random(),
            "seconds": 5 * self.rng.random(),
        }
        return (
            _dump(head)[:-1]
            + f', "turns": [{", ".join(turns)}]'
            + f', "sampled": [{", ".join(sampled for _, sampled, _ in chosen)}]'
            + f', "branches": [{_dump(branch)}]}}\n'
        )

    def write_special(self, run: Path) -> str:
        """One episode with a word of its own and five megabytes on one line; its name."""
        path = next(iter(sorted((run / "trajectories" / "step_0001").glob("*.json"))))
        data = json.loads(path.read_text())
        data["turns"][-1]["observations"][0]["text"] = f"{RARE} " + "x" * LONG_LINE
        path.write_text(_dump(data) + "\n")
        return path.stem


def check_form(path: Path) -> Trajectory:
    """Whether what was written is what air reads."""
    return from_json(json.loads(path.read_text()))


def place_seed(id: str) -> int:
    return sum(map(ord, id))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _episode(turns: tuple[Turn, ...]) -> Trajectory:
    branch = Branch((1, 2), (False, True), (0.0, -0.5), (-1, 0))
    task = Task("mlgym", "task-0", "train")
    return Trajectory("x", task, 0, 0, turns, (branch,), "done", {}, ({},), {}, 0.0, 0.0, 0.0)


def write_tokenizer(directory: Path) -> Path:
    from airloop.models.tiny import tiny_tokenizer

    directory.mkdir(parents=True)
    tiny_tokenizer().backend_tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def _config(root: Path, model: Path) -> dict[str, Any]:
    env = [{"id": "mlgym", "args": {"task_configs": ["titanic.yaml"]}}]
    return {"max_steps": 1000, "output_dir": str(root), "model": {"name": str(model)}, "orchestrator": {"env": env}}


def _metrics(step: int, rewards: list[float]) -> dict[str, Any]:
    mean = sum(rewards) / len(rewards)
    columns = dict.fromkeys(("zero_advantage", "filtered", "infra_error", "stale", "truncated"), 10)
    return {
        "kind": "train",
        "step": step,
        "reward": mean,
        "components": {"score": mean},
        "metrics": {"turns": 4.0, "improved": 0.4},
        "task": {f"kind-{i}": {"episodes": 16, "reward": mean} for i in range(5)},
        "rollout": {"episodes": len(rewards), "ended_done": 40, "ended_max_turns": 20},
        "learner": {"loss": 0.1, "entropy": 1.2, "grad_norm": 0.3, "logprob_gap_mean": 0.01},
        "times": {"sampling": 60.0, "training": 20.0, "sync": 0.1},
        "ledger": {"tokens": 20_000, "trained": 19_950, **columns},
    }
