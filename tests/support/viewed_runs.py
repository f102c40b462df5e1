"""What the viewer's page is tested on: two real tiny runs, one trajectory that means harm, one that is very long."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from support.tiny_runs import tiny_run

RUN, CHILD = "exp1.0-arith-1115", "exp1.1-arith-1116"
HARM = (
    '<img src=x onerror="window.harmed=1"><script>window.harmed=2;alert(1)</script><iframe src="http://192.0.2.1/">'
    "</iframe><style>*{display:none}</style>\x1b[31mred\x1b[0m\x00\x08\u202etxt.exe\u202c javascript:alert(2)"
)
LONG_LINE = "A" * 2_000_000
MANY_TOKENS = 8_000


def make_runs(directory: Path) -> None:
    shutil.copytree(tiny_run(), directory / RUN)
    shutil.copytree(tiny_run(), directory / CHILD)
    (directory / CHILD / "logbook.json").unlink()  # made by hand, so that its parent is the run before it by name
    config = directory / CHILD / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.02"))
    alarm = {"id": "E4", "name": "entropy is falling", "severity": "note", "step": 1, "seen": "0.1 after 0.4"}
    line = {"event": "raised", "time": time.time(), **alarm, "why": "It stops exploring.", "fix": "lower the rate."}
    with (directory / RUN / "alarms.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    write_harmful(directory / RUN)
    write_long(directory / RUN)


def episode_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sorted((run / "trajectories" / "step_0000").glob("*.json"))[0].read_text())
    return found


def write_harmful(run: Path) -> None:
    """Everything a model, a tool or a task can name is markup, a script, a control code or far too long."""
    episode = episode_of(run)
    turn = episode["turns"][0]
    turn["reply"]["content"] = f"{HARM}\n```bash\ncat << 'EOF' > {HARM}\n{HARM}\nEOF\n```"
    turn["actions"] = [
        {"kind": "command", "text": f"cat << 'EOF' > x.py\n{HARM}\nEOF"},
        {"kind": "tool", "name": HARM, "arguments": {"broken": '{"json": ', HARM: HARM}},
    ]
    turn["observations"] = [
        {"text": f"{HARM}\n{LONG_LINE}", "rewards": {HARM: 0.5}, "failed": True},
        {"text": HARM, "rewards": {}},
    ]
    turn["shown"] = [{"role": HARM, "content": HARM}, *turn["shown"]]
    episode |= {"id": "harm", "error": HARM, "metrics": {HARM: 1.0}, "rewards": {HARM: 1.0}}
    episode["task"] |= {"id": f"harm {HARM}", "family": HARM}
    step = run / "trajectories" / "step_0000"
    (step / "harm.json").write_text(json.dumps(episode))
    (step / "broken.json").write_text('{"schema_version": 2, "id": "broken", "turns": [')


def write_long(run: Path) -> None:
    """An episode of many tokens, in ten turns."""
    episode = episode_of(run)
    sampled = episode["sampled"][0]
    ids = [5 + i % 60 for i in range(MANY_TOKENS)]
    per_turn = MANY_TOKENS // 10
    turns = [[i, per_turn] for i in range(10)]
    episode |= {"id": "long", "turns": episode["turns"] * 10, "turn_rewards": episode["turn_rewards"] * 10}
    episode["sampled"] = [
        {**sampled, "token_ids": ids[:per_turn], "logprobs": [-0.01 * (i % 300) for i in range(per_turn)]}
    ] * 10
    logprobs = [-0.01 * (i % 300) for i in range(MANY_TOKENS)]
    episode["branches"] = [{"tokens": ids, "train": [[1, MANY_TOKENS]], "turns": turns, "logprobs": logprobs}]
    (run / "trajectories" / "step_0000" / "long.json").write_text(json.dumps(episode))
