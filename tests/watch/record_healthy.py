"""Makes the recorded runs in healthy/, in five minutes on two cores:

    PYTHONPATH=tests python tests/watch/record_healthy.py [NAME …]

Ten are runs of tiny models, each with another loss, way of training or environment, that have nothing wrong with them.
The others are copied from metrics.jsonl files of ours (`python tests/watch/record_healthy.py --copy NAME FILE`): runs
of SmolLM2-135M on one GPU that learned what docs/results.md says, of MLGym (45 steps of 48 episodes), MuSiQue (60 of
64) and BeautifulSoup (40 of 32).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.talk_env import Talk, talking
from support.watched_runs import Witness, config, run_watched

from airloop.assemble import Components
from airloop.warmstart import warmstart, with_warmstart

HERE = Path(__file__).parent / "healthy"
KEPT = (
    "kind", "step", "reward", "rewards", "components", "turn_components", "metrics", "groups_without_signal",
    "rollout", "learner", "times", "ledger", "versions", "worst", "first_error", "memory", "plan",
)  # fmt: skip
DETAIL = ("by_task", "by_ending", "by_duration")  # of the ledger: nothing looks at them
DIGITS = 4

LONG = {"max_steps": "30", "orchestrator.batch_size": "64"}
RUNS: dict[str, dict[str, str]] = {
    "grpo": LONG,
    "dr_grpo": {**LONG, "trainer.loss.type": "dr_grpo"},
    "dapo_filtered": {
        **LONG,
        "trainer.loss.type": "dapo",
        "orchestrator.buffer.online_difficulty_filtering": "true",
        "orchestrator.oversampling_factor": "2",
    },
    "gspo_passes": {**LONG, "trainer.loss.type": "gspo", "trainer.loss.passes": "2"},
    "rloo_kl": {**LONG, "trainer.loss.type": "rloo", "trainer.loss.kl_beta": "0.01", "model.name": "tiny:qwen3"},
    "cispo_mask": {**LONG, "trainer.loss.type": "cispo", "trainer.loss.importance_mode": "mask"},
    "talk_by_turn": {
        **LONG,
        "max_steps": "20",
        "seq_len": "128",
        "trainer.loss.credit": "turn",
        "trainer.optim.lr": "5e-4",
    },
    "lora": {**LONG, "trainer.model.train": "lora", "trainer.optim.lr": "2e-3", "max_steps": "24"},
    "gsm8k": {
        "orchestrator.env.0.id": "gsm8k",
        "orchestrator.env.0.args": '{ dataset = "generated", max_calculations = 1 }',
        "seq_len": "1024",
        "orchestrator.sampling.max_tokens": "96",
        "warmstart.steps": "120",
        "warmstart.episodes": "240",
        "warmstart.batch_size": "16",
        "trainer.optim.lr": "5e-4",
        "max_steps": "24",
    },
    "tune": {
        "orchestrator.env.0.id": "tune",
        "orchestrator.env.0.args": '{ datasets = ["spam", "quakes"], max_turns = 3 }',
        "orchestrator.eval.test_split": "train",
        "seq_len": "1024",
        "orchestrator.sampling.max_tokens": "80",
        "warmstart.steps": "150",
        "warmstart.episodes": "200",
        "warmstart.batch_size": "16",
        "trainer.optim.lr": "5e-4",
        "max_steps": "20",
    },
}


def digit(text: str) -> float:
    """Large digits are worth more: something to learn in each of several turns."""
    return int(text) / 9 if len(text) == 1 and text in "0123456789" else 0.0


def tamper(name: str) -> Callable[[Components], Any] | None:
    if name != "talk_by_turn":
        return None
    return talking(Talk(lambda number, seed: ({}, {}), {"said": 1.0}, turns=3, answer="1+2=", tool_s=0.02, hear=digit))


def settings_of(name: str, directory: Path) -> dict[str, str]:
    """An adapter starts from a model that knows something: from what the supervised start makes of the whole."""
    if name != "lora":
        return RUNS[name]
    whole = config(directory)
    asyncio.run(warmstart(whole, Witness()))
    return {**RUNS[name], "model.name": with_warmstart(whole).model.name, "warmstart.steps": "0"}


def compact(line: dict[str, Any]) -> dict[str, Any]:
    kept = {key: line[key] for key in KEPT if key in line}
    if "ledger" in kept:
        kept["ledger"] = {key: value for key, value in kept["ledger"].items() if key not in DETAIL}
    if "worst" in kept:
        kept["worst"] = {name: {"value": found["value"]} for name, found in kept["worst"].items()}
    return rounded(kept)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write(name: str, lines: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps(compact(line), separators=(",", ":")) + "\n" for line in lines if line["kind"] == "train")
    (HERE / f"{name}.jsonl").write_text(text)


def main(arguments: Sequence[str]) -> None:
    HERE.mkdir(exist_ok=True)
    if arguments[:1] == ["--copy"]:
        _, name, path = arguments
        write(name, [json.loads(line) for line in Path(path).read_text().splitlines()])
        return
    for name in arguments or RUNS:
        with tempfile.TemporaryDirectory(prefix="air-healthy-") as directory:
            settings = settings_of(name, Path(directory))
            run, witness, error = run_watched(Path(directory), tamper(name), **settings)
            rewards = [round(m["reward"], 2) for m in run.metrics("train")]
            print(name, rewards, error or "", flush=True)
            for alarm in witness.alarms:
                print("   ", alarm, flush=True)
            write(name, run.metrics("train"))


if __name__ == "__main__":
    main(sys.argv[1:])
